"""Load the training data of an editor: pairs of images, and instructions that turn one into the other.

A NeIn sample is one pair: sample image F (with the object) and source image I (without). It gives up to three
examples: its negative sentence and "Remove the X." turn F into I, "Add a X." turns I into F.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from nein.datasets.nein import Dataset, Sample, hash_records, load_folder, read_samples, validate_images
from nein.engine import images
from nein.loading.digests import json_digest
from nein.loading.errors import UserError, unknown
from nein.loading.resize import r64
from nein.nano import data as nano_data
from nein.nano.scenes import find_world, is_nano
from nein.train.editor_finetuning.drawn import DrawnPair, draw_pairs
from nein.train.editor_finetuning.options import TuneConfig
from nein.train.features import read_sizes, stamp_files


@dataclass(frozen=True, slots=True)
class FilePair:
    """A pair (F, I) in image files, with the methods of `DrawnPair`."""

    sample: Sample

    def key(self) -> str:
        """String that changes when a file is replaced (see `train.features`)."""
        return f"{self.sample.id} {stamp_files(self.sample.sample_path, self.sample.source_path)}"

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """F and I, each (H, W, 3) uint8 RGB. Raises ImageError."""
        return images.decode(self.sample.sample_path), images.decode(self.sample.source_path)


@dataclass(frozen=True, slots=True)
class Example:
    """One training example: a pair and an instruction."""

    id: str
    pair: int  # index into `Pairs.images`
    swapped: bool  # whether the instruction turns I into F
    instruction: str


@dataclass
class Pairs:
    """Training data of a run."""

    images: Sequence[FilePair | DrawnPair]  # pairs; examples have indices of them
    negative: list[Example]
    affirmative: list[Example]
    facts: dict[str, Any]  # JSON-serializable, for the manifest and the card

    def sentences(self) -> list[str]:
        """All distinct instructions; the empty one, for dropped texts, is first."""
        examples = (*self.negative, *self.affirmative)
        return list(dict.fromkeys(["", *(example.instruction for example in examples)]))


def load(config: TuneConfig, *, check_images: bool = True) -> Pairs:
    """Read or draw the training data. Raises UserError."""
    # Negative examples: one per sample that is not held out.
    dataset = _read_dataset(config)
    samples = list(dataset.samples[: config.limit])
    images: list[FilePair | DrawnPair] = [FilePair(sample) for sample in samples]
    indices = _choose_samples(samples, config)
    used = [samples[index] for index in indices]
    if check_images:
        validate_images(used, f"The data set '{config.data}'")
    negative = [Example(samples[i].id, i, swapped=False, instruction=samples[i].negative) for i in indices]
    files = [path for sample in used for path in (sample.sample_path, sample.source_path)]
    facts = {
        "origin": dict(dataset.origin),
        "records_sha256": hash_records(samples),
        "images": json_digest({"sizes": read_sizes(files)})[:12],
        "samples": len(samples),
        "used": len(indices),
        "hold_out_objects": sorted(config.hold_out_objects),
        "hold_out_templates": sorted(int(number) for number in config.hold_out_templates),
    }

    # Affirmative examples: drawn pairs, or additions and removals on the pairs of the samples.
    affirmative: list[Example] = []
    if config.mix_affirmative and is_nano(config.data):
        drawn_pairs, description = draw_pairs(
            config.affirmative_pairs, config.base, tuple(config.hold_out_objects)
        )
        affirmative = [
            Example(pair.name, pair=index, swapped=False, instruction=pair.edit.instruction)
            for index, pair in enumerate(drawn_pairs, start=len(images))
        ]
        images += drawn_pairs
        facts["affirmative"] = description
    elif config.mix_affirmative:
        for i in indices:
            for track, swapped in (("add", True), ("remove", False)):
                name, instruction = f"{samples[i].id}/{track}", samples[i].instruction(track)
                affirmative.append(Example(name, pair=i, swapped=swapped, instruction=instruction))
        facts["affirmative"] = {"pairs": len(affirmative), "kinds": "add and remove of the same samples"}
    return Pairs(images, negative, affirmative, facts)


def _read_dataset(config: TuneConfig) -> Dataset:  # drawn, or read from a folder or the hub
    if is_nano(config.data):
        folder = nano_data.ensure_data_set(config.split, config.nano_sources, world=find_world(config.data))
        return load_folder(folder, split=config.split)
    return read_samples(config.data, split=config.split, columns=config.columns)


def _choose_samples(samples: Sequence[Sample], config: TuneConfig) -> list[int]:
    """Indices of samples that are neither held out nor excluded. Raises UserError."""
    objects = {sample.object for sample in samples}
    for name in config.hold_out_objects:
        if name not in objects:
            raise unknown("object to hold out", name, sorted(objects))
    unknown_ids = sorted({*config.exclude} - {sample.id for sample in samples})
    if unknown_ids:
        raise UserError(f"--exclude has '{unknown_ids[0]}', which is not a sample of '{config.data}'.")
    templates = {int(number) for number in config.hold_out_templates}
    held_out, excluded = set(config.hold_out_objects), set(config.exclude)
    indices = [
        index
        for index, sample in enumerate(samples)
        if sample.object not in held_out and sample.template not in templates and sample.id not in excluded
    ]
    if not indices:
        raise UserError(f"--hold-out-* and --exclude remove every sample of '{config.data}'; pass fewer.")
    return indices


def prepare_pair(config: TuneConfig, f: np.ndarray, i: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Resize F and I, each (H, W, 3) uint8, to (resolution, resolution, 3) uint8.

    --target-align "r64_fit": I is first cropped and scaled as F was when NeIn was made (rule r64 of
    InstructPix2Pix). "none": both are squashed; for most COCO images the object then also moves. Lanczos as
    in `EditDataset` of github.com/timothybrooks/instruct-pix2pix @ 0dffd1e.
    """
    if config.target_align == "r64_fit":
        i = r64(i, config.align_resolution)
    size = (config.resolution, config.resolution)

    def squash(image: np.ndarray) -> np.ndarray:
        if image.shape[:2] == size:
            return image
        return np.array(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))

    return squash(f), squash(i)
