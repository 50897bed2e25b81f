"""Pictures whose truth is known, for calibrating judges: what is in them, and what is not.

sources    the source images of NeIn: the object of every sample is absent, the caption's objects are there
instances  pictures with COCO instance annotations: annotated categories are there, others are not
pasted     source images with an annotated object of another picture pasted in; the picture itself before that
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metrics.objects import caption_objects
from nein.datasets.nein.samples import Dataset
from nein.engine import atomic, images
from nein.engine.errors import UserError

PASTED_AREA = (
    0.01,
    0.3,
)  # share of the picture an object must cover to be cut out: visible, yet not everything


@dataclass(frozen=True)
class Word:
    """One question with its truth. role: "object", a name an instruction would use; "caption", a caption's
    noun."""

    word: str
    present: bool
    role: str


@dataclass(frozen=True)
class Case:
    """One picture with the words to ask about.

    id       Unique within its set.        cluster  Source image, or source images that share one.
    picture  Decodes (or makes) the picture, (H, W, 3) uint8 RGB; raises ImageError.
    """

    set: str
    id: str
    cluster: str
    picture: Callable[[], np.ndarray]
    words: tuple[Word, ...]


def sources(dataset: Dataset) -> list[Case]:
    """Every source image with the objects of its samples (absent) and the nouns of its captions (present).

    Captions are taken at their word: a noun that is not visible counts against the judge.
    """
    groups: dict[str, list[Any]] = {}
    for sample in dataset.samples:
        groups.setdefault(sample.source_id, []).append(sample)
    flat = [sample for group in groups.values() for sample in group]
    nouns = dict(
        zip((s.id for s in flat), caption_objects([s.caption for s in flat], protocol="fixed"), strict=True)
    )
    found = []
    for source_id, group in groups.items():
        absent = dict.fromkeys(sample.object for sample in group)
        present = dict.fromkeys(noun for sample in group for noun in nouns[sample.id] if noun not in absent)
        words = [Word(name, False, "object") for name in absent] + [
            Word(name, True, "caption") for name in present
        ]
        found.append(Case("sources", source_id, source_id, _decoder(group[0].source_path), tuple(words)))
    return found


@dataclass(frozen=True)
class Annotated:
    """A picture of an instance file: its path and (category, box or None, polygons) of every object.

    A box is (x, y, width, height) in pixels; polygons are COCO's `segmentation` lists, or empty. crowds:
    categories of which a region holds many (`iscrowd`); they are there, but no single object can be cut out.
    """

    id: str
    path: Path
    objects: tuple[tuple[str, tuple[float, float, float, float], tuple[Sequence[float], ...]], ...]

    crowds: tuple[str, ...] = ()

    @property
    def categories(self) -> set[str]:
        return {name for name, _, _ in self.objects} | set(self.crowds)


def read_instances(file: Path, folder: Path) -> tuple[list[Annotated], list[str]]:
    """(pictures, every category name) of a COCO instance file. Raises UserError when it is not one.

    https://cocodataset.org/#format-data; file names are taken relative to `folder`.
    """
    content = atomic.read_json(file)
    try:
        names = {category["id"]: str(category["name"]) for category in content["categories"]}
        objects: dict[Any, list[Any]] = {}
        crowds: dict[Any, list[str]] = {}
        for note in content["annotations"]:
            if note.get("iscrowd"):
                crowds.setdefault(note["image_id"], []).append(names[note["category_id"]])
                continue
            polygons = note.get("segmentation")
            shape = tuple(polygons) if isinstance(polygons, list) else ()
            x, y, width, height = (float(value) for value in note["bbox"])
            entry = (names[note["category_id"]], (x, y, width, height), shape)
            objects.setdefault(note["image_id"], []).append(entry)
        pictures = [
            Annotated(
                Path(image["file_name"]).stem,
                folder / image["file_name"],
                tuple(objects.get(image["id"], ())),
                tuple(crowds.get(image["id"], ())),
            )
            for image in content["images"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"'{file}' is not a COCO instance file (images, annotations with bbox, categories): {error!r}."
        ) from None
    missing = [picture.path for picture in pictures if not picture.path.is_file()]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(pictures)} pictures of '{file}' are not in '{folder}', for instance "
            f"'{missing[0].name}'; name their folder with --images."
        )
    return pictures, sorted(set(names.values()))


def instances(pictures: Sequence[Annotated], categories: Sequence[str], seed: int) -> list[Case]:
    """Every picture with its annotated categories (present) and as many others, drawn by seed (absent)."""
    found = []
    for picture in pictures:
        rng = random.Random(f"{seed}/instances/{picture.id}")
        present = sorted(picture.categories)
        others = [name for name in categories if name not in picture.categories]
        absent = rng.sample(others, min(len(others), max(1, len(present))))
        words = [Word(name, True, "object") for name in present] + [
            Word(name, False, "object") for name in absent
        ]
        found.append(Case("instances", picture.id, _source(picture.id), _decoder(picture.path), tuple(words)))
    return found


def pasted(pictures: Sequence[Annotated], seed: int) -> list[Case]:
    """Every picture once with an object of another one pasted in (present), and once as it is (absent).

    The object is cut along its polygons where there are any, else along its box, and keeps its size in pixels
    unless that is more than half of the picture it comes into.
    """
    low, high = PASTED_AREA
    stock = []
    for picture in pictures:
        for name, box, polygons in picture.objects:
            stock.append((picture, name, box, polygons))
    found = []
    for picture in pictures:
        rng = random.Random(f"{seed}/pasted/{picture.id}")
        order = rng.sample(range(len(stock)), min(len(stock), 40))
        for index in order:
            donor, name, box, polygons = stock[index]
            if name in picture.categories or donor.id == picture.id or not _fits(donor.path, box, low, high):
                continue
            place = (rng.random(), rng.random())
            cluster = _source(picture.id)
            found.append(
                Case("pasted", f"{picture.id}+{name}", cluster,
                     _paster(picture.path, donor.path, box, polygons, place), (Word(name, True, "object"),))
            )  # fmt: skip
            found.append(Case("pasted", f"{picture.id}-{name}", cluster, _decoder(picture.path),
                              (Word(name, False, "object"),)))  # fmt: skip
            break
    return found


def paste(
    picture: np.ndarray,
    donor: np.ndarray,
    box: Sequence[float],
    polygons: Sequence[Sequence[float]],
    place: tuple[float, float],
) -> np.ndarray:
    """`picture` with the part of `donor` inside `box` (and inside the polygons) pasted in; a new array.

    place: (left, top) of the pasted part, as shares of the room there is; each from 0 to 1.
    """
    from PIL import Image, ImageDraw

    x, y, width, height = box
    left, top = max(0, int(x)), max(0, int(y))
    right, bottom = (
        min(donor.shape[1], int(np.ceil(x + width))),
        min(donor.shape[0], int(np.ceil(y + height))),
    )
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


def _fits(path: Path, box: Sequence[float], low: float, high: float) -> bool:
    width, height = images.probe(path)
    return low <= box[2] * box[3] / (width * height) <= high and min(box[2], box[3]) >= 4


def _source(name: str) -> str:
    """NeIn samples of one source image share its number; other pictures stand for themselves."""
    return f"COCO_{name.split('_')[1]}" if name.startswith("NeIn_") else name


def _decoder(path: Path) -> Callable[[], np.ndarray]:
    return lambda: images.decode(path)


def _paster(
    path: Path, donor: Path, box: Sequence[float], polygons: Sequence[Any], place: tuple[float, float]
) -> Callable[[], np.ndarray]:
    return lambda: paste(images.decode(path), images.decode(donor), box, polygons, place)


def thinned(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """At most `limit` cases, evenly spread, so that a small part still covers the whole set."""
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // limit] for index in range(limit)]


def counts(cases: Sequence[Case]) -> Mapping[str, tuple[int, int]]:
    """Set -> (present, absent) questions."""
    found: dict[str, list[int]] = {}
    for case in cases:
        pair = found.setdefault(case.set, [0, 0])
        for word in case.words:
            pair[0 if word.present else 1] += 1
    return {name: (a, b) for name, (a, b) in found.items()}
