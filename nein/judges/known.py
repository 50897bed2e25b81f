"""Images whose truth is known, for calibrating judges.

sources    the source images of NeIn: the object of every sample is absent, the caption's objects are there
instances  pictures with COCO instance annotations: annotated categories are there, others are not
pasted     source images with an annotated object of another picture pasted in; the picture itself before that
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from nein.datasets import coco
from nein.datasets.nein.samples import Dataset, Sample
from nein.engine import images
from nein.engine.errors import UserError
from nein.metrics.presence import caption_objects
from nein.models.judges import CAPTION, OBJECT, Word

#: Share of its picture that an object must cover to be cut out: visible, yet not everything.
PASTED_AREA = (0.01, 0.3)
DONORS_TRIED = 40  # objects looked at for a picture before it goes without
Item = TypeVar("Item")


@dataclass(frozen=True)
class Case:
    """One picture with the words to ask about.

    id       Unique within its set.        cluster  Source image, or source images that share one.
    picture  Decodes (or makes) the picture, (H, W, 3) uint8 RGB; raises ImageError.
    control  The control that it is (`nein.judges.controls`); "": none.
    """

    set: str
    id: str
    cluster: str
    picture: Callable[[], np.ndarray]
    words: tuple[Word, ...]
    control: str = ""


def sources(dataset: Dataset) -> list[Case]:
    """Every source image with the objects of its samples (absent) and the nouns of its captions (present).

    Captions are taken at their word: a noun that is not visible counts against the judge.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in dataset.samples:
        groups.setdefault(sample.source_id, []).append(sample)
    flat = [sample for group in groups.values() for sample in group]
    objects = caption_objects([sample.caption for sample in flat], protocol="fixed")
    nouns = {sample.id: found for sample, found in zip(flat, objects, strict=True)}
    cases = []
    for source_id, group in groups.items():
        absent = dict.fromkeys(sample.object for sample in group)
        present = dict.fromkeys(noun for sample in group for noun in nouns[sample.id] if noun not in absent)
        words = [Word(name, False, OBJECT) for name in absent]
        words += [Word(name, True, CAPTION) for name in present]
        picture = partial(images.decode, group[0].source_path)
        cases.append(Case("sources", source_id, source_id, picture, tuple(words)))
    return cases


def read_instances(file: Path, folder: Path) -> coco.Annotations:
    """The pictures of a COCO instance file, which lie in `folder`, and the names of its categories.

    Raises UserError when it is not one, when an object has no box, and when pictures are missing.
    """
    annotations = coco.read(instances=file, folder=folder)
    for picture in annotations.pictures:
        if any(instance.box is None for instance in picture.objects if not instance.crowd):
            raise UserError(f"'{file}' has an object without 'bbox' in '{picture.file_name}'.")
    missing = [picture.path for picture in annotations.pictures if not picture.path.is_file()]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(annotations.pictures)} pictures of '{file}' are not in '{folder}', for "
            f"instance '{missing[0].name}'; name their folder with --images."
        )
    return annotations


def instances(annotations: coco.Annotations, seed: int) -> list[Case]:
    """Every picture with its annotated categories (present) and as many others, drawn by seed (absent)."""
    cases = []
    for picture in annotations.pictures:
        rng = random.Random(f"{seed}/instances/{picture.stem}")
        present = sorted(picture.categories)
        others = [name for name in sorted(annotations.categories) if name not in picture.categories]
        absent = rng.sample(others, min(len(others), max(1, len(present))))
        words = tuple(Word(name, name in present, OBJECT) for name in (*present, *absent))
        decode = partial(images.decode, picture.path)
        cases.append(Case("instances", picture.stem, cluster_of(picture.stem), decode, words))
    return cases


def pasted(annotations: coco.Annotations, seed: int) -> list[Case]:
    """Every picture once with an object of another one pasted in (present), and once as it is (absent)."""
    cases, every = [], stock(annotations)
    for picture in annotations.pictures:
        rng = random.Random(f"{seed}/pasted/{picture.stem}")
        for donor, instance in donors(every, picture, rng):
            name, part = instance.category, Part(donor.path, instance, (rng.random(), rng.random()))
            for sign, parts in (("+", [part]), ("-", [])):
                words, image = (Word(name, bool(parts), OBJECT),), partial(_with, picture.path, parts)
                case_id, cluster = f"{picture.stem}{sign}{name}", cluster_of(picture.stem)
                cases.append(Case("pasted", case_id, cluster, image, words))
            break
    return cases


Stock: TypeAlias = Sequence[tuple[coco.Picture, coco.Instance]]


def stock(annotations: coco.Annotations) -> Stock:
    """Every object with its picture, but crowds."""
    return [(image, thing) for image in annotations.pictures for thing in image.objects if not thing.crowd]


def donors(
    every: Stock, picture: coco.Picture, rng: random.Random
) -> Iterator[tuple[coco.Picture, coco.Instance]]:
    """Objects of other pictures, in a drawn order, that are worth cutting out and of no category that this
    picture has; `DONORS_TRIED` are looked at."""
    for index in rng.sample(range(len(every)), min(len(every), DONORS_TRIED)):
        donor, instance = every[index]
        if instance.category in picture.categories or donor.stem == picture.stem:
            continue
        assert instance.box is not None  # read_instances
        width, height = images.probe(donor.path)
        _, _, w, h = instance.box
        if PASTED_AREA[0] <= w * h / (width * height) <= PASTED_AREA[1] and min(w, h) >= 4:
            yield donor, instance


class Part(NamedTuple):
    """An object of another picture, and where it is pasted: (left, top), as shares of the free room."""

    file: Path
    what: coco.Instance
    place: tuple[float, float]


def _with(path: Path, parts: Sequence[Part]) -> np.ndarray:
    picture = images.decode(path)
    for part in parts:
        assert part.what.box is not None  # read_instances
        donor = images.decode(part.file)
        picture = paste(picture, donor, part.what.box, part.what.polygons, part.place)
    return picture


def paste(
    picture: np.ndarray,
    donor: np.ndarray,
    box: Sequence[float],
    polygons: Sequence[Sequence[float]],
    place: tuple[float, float],
) -> np.ndarray:
    """`picture` with the part of `donor` inside `box` (and inside the polygons) pasted in; a new array. The
    part keeps its size in pixels unless that is more than half of the picture."""
    from PIL import Image, ImageDraw

    x, y, width, height = box
    left, top = max(0, int(x)), max(0, int(y))
    right = min(donor.shape[1], int(np.ceil(x + width)))
    bottom = min(donor.shape[0], int(np.ceil(y + height)))
    part = Image.fromarray(donor[top:bottom, left:right])
    mask = Image.new("L", (donor.shape[1], donor.shape[0]), 0 if polygons else 255)
    for polygon in polygons:
        ImageDraw.Draw(mask).polygon([float(value) for value in polygon], fill=255)
    mask = mask.crop((left, top, right, bottom))
    factor = min(1.0, picture.shape[1] / 2 / part.width, picture.shape[0] / 2 / part.height)
    size = (max(1, round(part.width * factor)), max(1, round(part.height * factor)))
    canvas = Image.fromarray(picture)
    room = (canvas.width - size[0], canvas.height - size[1])
    canvas.paste(part.resize(size), (round(place[0] * room[0]), round(place[1] * room[1])), mask.resize(size))
    return np.array(canvas)


def cluster_of(name: str) -> str:
    """NeIn samples of one source image share its number; other pictures stand for themselves."""
    return f"COCO_{name.split('_')[1]}" if name.startswith("NeIn_") else name


def thinned(cases: Sequence[Item], limit: int | None) -> list[Item]:
    """At most `limit` cases, evenly spread, so that a small part still covers the whole set."""
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // limit] for index in range(limit)]


def counts(cases: Sequence[Case]) -> Mapping[str, tuple[int, int]]:
    """Set -> (present, absent) questions."""
    words = Counter((case.set, word.present) for case in cases for word in case.words)
    return {name: (words[name, True], words[name, False]) for name in dict.fromkeys(c.set for c in cases)}
