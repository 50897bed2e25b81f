"""Images whose truth is known, for calibrating judges, and controls: does a judge look and read?

sources    the source images of NeIn: the object of every sample is absent, the caption's objects are there
instances  images with COCO instance annotations: annotated categories are there, others are not
pasted     source images with an annotated object of another image pasted in; the image itself before that
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from nein.datasets import coco
from nein.datasets.nein import Dataset, Sample
from nein.engine import images
from nein.engine.errors import UserError
from nein.metrics.presence import caption_objects
from nein.models.judges import CAPTION, OBJECT, Word

#: Share of its image that an object must cover to be cut out: visible, yet not everything.
PASTED_AREA = (0.01, 0.3)
DONORS_TRIED = 40  # objects looked at for an image before it goes without
CONTROLLED = 64  # images that every control is about


@dataclass(frozen=True)
class Case:
    """One image with the words to ask about.

    id       Unique within its set.        cluster  Source image, or source images that share one.
    picture  Decodes (or makes) the image, (H, W, 3) uint8 RGB; raises ImageError.
    control  A key of `nein.benchmarks.controls.TITLES`; "": none.
    """

    set: str
    id: str
    cluster: str
    picture: Callable[[], np.ndarray]
    words: tuple[Word, ...]
    control: str = ""

    @property
    def present(self) -> tuple[Word, ...]:
        return tuple(word for word in self.words if word.present)


def sources(dataset: Dataset) -> list[Case]:
    """Every source image with the objects of its samples (absent) and the nouns of its captions (present).

    Captions are taken at their word: a noun that is not visible counts against the judge.
    """
    groups: dict[str, list[tuple[Sample, list[str]]]] = {}
    nouns = caption_objects([sample.caption for sample in dataset.samples], protocol="fixed")
    for sample, found in zip(dataset.samples, nouns, strict=True):
        groups.setdefault(sample.source_id, []).append((sample, found))
    cases = []
    for name, group in groups.items():
        absent = dict.fromkeys(sample.object for sample, _ in group)
        present = dict.fromkeys(noun for _, found in group for noun in found if noun not in absent)
        words = [Word(noun, False, OBJECT) for noun in absent] + [Word(n, True, CAPTION) for n in present]
        picture = partial(images.decode, group[0][0].source_path)
        cases.append(Case("sources", name, name, picture, tuple(words)))
    return cases


def read_instances(file: Path, folder: Path) -> coco.Annotations:
    """The images of a COCO instance file, which lie in `folder`, and the names of its categories.

    Raises UserError when it is not one, when an object has no box, and when images are missing.
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
    """Every image with its annotated categories (present) and as many others, drawn by seed (absent)."""
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
    """Every image once with an object of another one pasted in (present), and once as it is (absent). The
    object is worth cutting out, and of no category that the image has."""
    every = [(image, thing) for image in annotations.pictures for thing in image.objects if not thing.crowd]
    cases = []
    for picture in annotations.pictures:
        rng = random.Random(f"{seed}/pasted/{picture.stem}")
        for index in rng.sample(range(len(every)), min(len(every), DONORS_TRIED)):
            donor, thing = every[index]
            assert thing.box is not None  # read_instances
            if thing.category in picture.categories or donor.stem == picture.stem:
                continue
            width, height = images.probe(donor.path)
            area = thing.box[2] * thing.box[3] / (width * height)
            if not PASTED_AREA[0] <= area <= PASTED_AREA[1] or min(thing.box[2:]) < 4:
                continue
            place = (rng.random(), rng.random())
            before = partial(images.decode, picture.path)
            after = partial(_paste_file, picture.path, donor.path, thing, place)
            for sign, image in (("+", after), ("-", before)):
                name, word = (
                    f"{picture.stem}{sign}{thing.category}",
                    Word(thing.category, sign == "+", OBJECT),
                )
                cases.append(Case("pasted", name, cluster_of(picture.stem), image, (word,)))
            break
    return cases


def _paste_file(path: Path, donor: Path, thing: coco.Instance, place: tuple[float, float]) -> np.ndarray:
    assert thing.box is not None  # read_instances
    return paste(images.decode(path), images.decode(donor), thing.box, thing.polygons, place)


def paste(
    picture: np.ndarray,
    donor: np.ndarray,
    box: Sequence[float],
    polygons: Sequence[Sequence[float]],
    place: tuple[float, float],
) -> np.ndarray:
    """`picture` with the part of `donor` inside `box` (and inside the polygons) pasted in; a new array. The
    part keeps its size in pixels unless that is more than half of the image. place: of its left and upper
    end, as shares of the free room."""
    from PIL import Image, ImageDraw

    x, y, width, height = box
    corners = max(0, int(x)), max(0, int(y)), int(np.ceil(x + width)), int(np.ceil(y + height))
    corners = (*corners[:2], min(donor.shape[1], corners[2]), min(donor.shape[0], corners[3]))
    part = Image.fromarray(donor).crop(corners)
    mask = Image.new("L", (donor.shape[1], donor.shape[0]), 0 if polygons else 255)
    for polygon in polygons:
        ImageDraw.Draw(mask).polygon([float(value) for value in polygon], fill=255)
    mask = mask.crop(corners)
    factor = min(1.0, picture.shape[1] / 2 / part.width, picture.shape[0] / 2 / part.height)
    size = (max(1, round(part.width * factor)), max(1, round(part.height * factor)))
    canvas = Image.fromarray(picture)
    room = (canvas.width - size[0], canvas.height - size[1])
    canvas.paste(part.resize(size), (round(place[0] * room[0]), round(place[1] * room[1])), mask.resize(size))
    return np.array(canvas)


def cluster_of(name: str) -> str:
    """NeIn samples of one source image share its number; other images stand for themselves."""
    return f"COCO_{name.split('_')[1]}" if name.startswith("NeIn_") else name


def thinned(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """At most `limit` cases, evenly spread, so that a small part still covers the whole set."""
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // limit] for index in range(limit)]


def controls(cases: Sequence[Case], kind: str) -> list[Case]:
    """Changed images with the same questions, and changed questions about the same images: of images of the
    set "instances", of which all is known, or of any with objects."""
    usable = [case for case in cases if case.present]
    chosen = thinned([case for case in usable if case.set == "instances"] or usable, CONTROLLED)
    found = []
    for index, case in enumerate(chosen):
        black, mirrored = (partial(_changed, case.picture, change) for change in (np.zeros_like, np.fliplr))
        gone = tuple(replace(word, present=False) for word in case.present)
        found.append(replace(case, control="black", picture=black, words=gone))
        found.append(replace(case, control="mirrored", picture=mirrored))
        names = {word.word for word in case.present}
        for other in (*chosen[index + 1 :], *chosen[:index]):  # the next image with none of these objects
            if other.cluster != case.cluster and names.isdisjoint(word.word for word in other.present):
                theirs = tuple(replace(word, present=False) for word in other.present)
                found.append(replace(case, control="picture", picture=other.picture, words=gone))
                found.append(replace(case, control="question", words=theirs))
                break
        if kind == "vqa":  # a detector is not asked in a sentence
            for wording, questions in (("negated", case.present), ("reversed", case.words)):
                words = tuple(replace(word, wording=wording) for word in questions)
                found.append(replace(case, control=wording, words=words))
    return found


def _changed(picture: Callable[[], np.ndarray], change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(change(picture()))
