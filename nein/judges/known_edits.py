"""Two edits of a picture of which one is known to obey an instruction, for asking judges of edits.

unedited  the sample of NeIn as it is against its target, in which the object is not there
other     two objects are pasted into a picture; the edit without the one against the edit without the other.
          Both are asked for in turn, so that a judge which does not hear the instruction is right in half of
          the cases
along     the same pictures; the edit without the one against the edit without both, which takes something
          along that was not to go: a judge that likes the emptier picture is right in none

Every pair is asked about with an affirmative sentence ("Remove the X.") and with a negative one, so that what
a judge loses by the negation is a difference between the same pictures.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nein.datasets import coco
from nein.datasets.nein.samples import Dataset, Sample
from nein.engine import images
from nein.judges.known_presence import cluster_of, donors, paste, stock
from nein.metrics.preprocess import r64_fit, stretch
from nein.wording.families import NEGATIVE_TEMPLATES, negative_sentence, removal

AFFIRMED, NEGATED = "affirmed", "negated"


class Pictures(NamedTuple):
    """(H, W, 3) uint8 each: what was edited, the edit that obeys, the edit that does not."""

    source: np.ndarray
    right: np.ndarray
    wrong: np.ndarray


@dataclass(frozen=True)
class Pair:
    """id        Unique within its set.      cluster  Source image, or source images that share one.
    pictures   Decodes (or makes) them; raises ImageError.
    sentences  Wording -> what the editor was told.
    """

    set: str
    id: str
    cluster: str
    object: str
    pictures: Callable[[], Pictures]
    sentences: Mapping[str, str]


def unedited(dataset: Dataset, resolution: int) -> list[Pair]:
    """One pair per sample whose object is to be gone. A target of another size than its sample is cropped as
    NeIn's samples were, at `resolution`."""
    pairs = []
    for sample in (sample for sample in dataset.samples if not sample.stays):
        sentences = {AFFIRMED: removal(sample.object), NEGATED: sample.negative}
        made = partial(_of_sample, sample, resolution)
        pairs.append(Pair("unedited", sample.id, sample.source_id, sample.object, made, sentences))
    return pairs


def _of_sample(sample: Sample, resolution: int) -> Pictures:
    source, target = images.decode(sample.sample_path), images.decode(sample.source_path)
    if target.shape != source.shape:
        target = stretch(r64_fit(target, resolution), (source.shape[1], source.shape[0]))
    return Pictures(source, target, source)


@dataclass(frozen=True)
class _Part:
    """An object of another picture, and its height in the one it is pasted into (0 to 1)."""

    file: Path
    what: coco.Instance
    side: float
    height: float

    def into(self, picture: np.ndarray) -> np.ndarray:
        assert self.what.box is not None  # read_instances
        place = (self.side, self.height)
        return paste(picture, images.decode(self.file), self.what.box, self.what.polygons, place)


def pasted(annotations: coco.Annotations, seed: int) -> list[Pair]:
    """Four pairs, two of "other" and two of "along", for every picture into which two objects of other
    categories can be pasted, one at its left edge and one at its right: neither is wider than half of it, so
    that they do not touch."""
    pairs, every = [], stock(annotations)
    for picture in annotations.pictures:
        rng = random.Random(f"{seed}/other/{picture.stem}")
        parts: dict[str, _Part] = {}
        for donor, instance in donors(every, picture, rng):
            if instance.category not in parts:
                parts[instance.category] = _Part(donor.path, instance, float(len(parts)), rng.random())
            if len(parts) == 2:
                break
        for gone, stays in (tuple(parts), tuple(parts)[::-1]) if len(parts) == 2 else ():
            negative = negative_sentence(rng.randrange(len(NEGATIVE_TEMPLATES)), gone)
            sentences = {AFFIRMED: removal(gone), NEGATED: negative}
            name, cluster = f"{picture.stem}-{gone}", cluster_of(picture.stem)
            for family in ("other", "along"):
                made = partial(_of_two, picture.path, parts[gone], parts[stays], family == "along")
                pairs.append(Pair(family, name, cluster, gone, made, sentences))
    return pairs


def _of_two(path: Path, gone: _Part, stays: _Part, along: bool) -> Pictures:
    plain = images.decode(path)
    right = stays.into(plain)
    return Pictures(gone.into(right), right, plain if along else gone.into(plain))
