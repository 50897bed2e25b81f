"""What a fine-tuning run learns from: pairs of pictures, and the sentences that lead from one to the other.

A NeIn sample is one pair: the NeIn picture F (with the object) and the COCO picture I (without). It gives up
to three examples: its negative sentence and "Remove the X." lead from F to I, "Add a X." leads from I to F.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from nein.datasets import nein as loading
from nein.datasets.nein import Sample, load_folder, records_hash, validate_images
from nein.engine import images
from nein.loading.digests import json_digest
from nein.loading.errors import UserError, unknown
from nein.loading.resize import r64
from nein.nano import data as nano_data
from nein.nano.scenes import is_nano, world
from nein.train.editor_finetuning.drawn import DrawnPair, draw_pairs
from nein.train.editor_finetuning.options import TuneConfig
from nein.train.features import stamp


@dataclass(frozen=True, slots=True)
class FilePair:
    """A pair (F, I) in image files. `key` is another one where a file is replaced (`train.features`); `read`
    gives two (H, W, 3) uint8 RGB pictures and raises ImageError. So has `DrawnPair`."""

    sample: Sample

    @property
    def name(self) -> str:
        return self.sample.id

    def key(self) -> str:
        return f"{self.name} {stamp(self.sample.sample_path, self.sample.source_path)}"

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        return images.decode(self.sample.sample_path), images.decode(self.sample.source_path)


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to learn: pair number, whether it leads from I to F, and the sentence."""

    id: str
    pair: int
    swapped: bool
    instruction: str


@dataclass
class Pairs:
    """Everything to learn from. `facts` are JSON-serialisable and go into the manifest and the card."""

    pictures: Sequence[FilePair | DrawnPair]
    negative: list[Example]
    affirmative: list[Example]
    facts: dict[str, Any]

    def sentences(self) -> list[str]:
        """Every distinct sentence, the empty one first."""
        return list(dict.fromkeys(["", *(e.instruction for e in (*self.negative, *self.affirmative))]))


def load(config: TuneConfig, *, check_images: bool = True) -> Pairs:
    """The pairs of a configuration. Raises UserError."""
    dataset = _dataset(config)
    samples = list(dataset.samples[: config.limit])
    pictures: list[FilePair | DrawnPair] = [FilePair(sample) for sample in samples]
    chosen = _chosen(samples, config)
    used = [samples[index] for index in chosen]
    if check_images:
        validate_images(used, f"The data set '{config.data}'")
    negative = [Example(samples[i].id, i, False, samples[i].negative) for i in chosen]
    files = [path for sample in used for path in (sample.sample_path, sample.source_path)]
    facts = {
        "origin": dict(dataset.origin),
        "records_sha256": records_hash(samples),
        "images": json_digest({"sizes": [stamp(file)[1] for file in files]})[:12],
        "samples": len(samples),
        "used": len(chosen),
        "hold_out_objects": sorted(config.hold_out_objects),
        "hold_out_templates": sorted(int(t) for t in config.hold_out_templates),
    }
    affirmative: list[Example] = []
    if config.mix_affirmative and is_nano(config.data):
        drawn, described = draw_pairs(config.affirmative_pairs, config.base, tuple(config.hold_out_objects))
        affirmative = [
            Example(pair.name, number, False, pair.edit.instruction)
            for number, pair in enumerate(drawn, start=len(pictures))
        ]
        pictures += drawn
        facts["affirmative"] = described
    elif config.mix_affirmative:
        for i in chosen:
            sample = samples[i]
            affirmative.append(Example(f"{sample.id}/add", i, True, sample.instruction("add")))
            affirmative.append(Example(f"{sample.id}/remove", i, False, sample.instruction("remove")))
        facts["affirmative"] = {"pairs": len(affirmative), "kinds": "add and remove of the same samples"}
    return Pairs(pictures, negative, affirmative, facts)


def _dataset(config: TuneConfig) -> Any:
    if is_nano(config.data):
        try:
            folder = nano_data.ensure(config.split, config.nano_sources, world=world(config.data))
        except (ValueError, OSError) as error:
            raise UserError(f"The miniature world cannot be drawn: {error}.") from None
        return load_folder(folder, split=config.split)
    return loading.load(config.data, split=config.split, columns=config.columns)


def _chosen(samples: Sequence[Sample], config: TuneConfig) -> list[int]:
    objects = {sample.object for sample in samples}
    for name in config.hold_out_objects:
        if name not in objects:
            raise unknown("object to hold out", name, sorted(objects))
    if absent := sorted({*config.exclude} - {sample.id for sample in samples}):
        raise UserError(f"--exclude names '{absent[0]}', which is no sample of '{config.data}'.")
    templates = {int(word) for word in config.hold_out_templates}
    gone, excluded = set(config.hold_out_objects), set(config.exclude)
    chosen = [
        index
        for index, sample in enumerate(samples)
        if sample.object not in gone and sample.template not in templates and sample.id not in excluded
    ]
    if not chosen:
        raise UserError(f"No sample of '{config.data}' is left after --hold-out-* and --exclude.")
    return chosen


def prepare(config: TuneConfig, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(F, I) as the model learns them: two (resolution, resolution, 3) uint8 pictures.

    --target-align "r64_fit": I is cut and scaled as F was when NeIn was made (rule R64 of InstructPix2Pix).
    "none": both are squashed as they are; for most pictures of COCO the object then also moves. Squashing
    with Lanczos: `EditDataset` of github.com/timothybrooks/instruct-pix2pix @ 0dffd1e.
    """
    if config.target_align == "r64_fit":
        second = r64(second, config.align_resolution)
    size = (config.resolution, config.resolution)
    first, second = (
        image
        if image.shape[:2] == size
        else np.array(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
        for image in (first, second)
    )
    return first, second
