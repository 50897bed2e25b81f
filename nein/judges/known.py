"""Pictures and edits whose truth is known, for calibrating judges.

Cases, for judges of what is in a picture:

sources    the source images of NeIn: the object of every sample is absent, the caption's objects are there
instances  pictures with COCO instance annotations: annotated categories are there, others are not
pasted     source images with an annotated object of another picture pasted in; the picture itself before that

Pairs, for judges of edits, of which one obeys an instruction:

unedited   the sample of NeIn as it is against its target, in which the object is not there
other      two objects are pasted into a picture; each edit lacks one, and both are asked for in turn: a judge
           that ignores the instruction is right in half of the cases
along      the same; the wrong edit lacks both: a judge that likes the emptier picture is never right

Every pair is asked about with an affirmative sentence ("Remove the X.") and a negative one.
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
from nein.datasets.negbench.polarity import denies
from nein.datasets.nein.samples import Dataset, Sample
from nein.datasets.preferences import Preference
from nein.engine import images
from nein.engine.errors import UserError
from nein.loading.resize import r64
from nein.metrics.preprocess import stretch
from nein.metrics.presence import caption_objects
from nein.models.judges import CAPTION, OBJECT, Word
from nein.wording.families import NEGATIVE_TEMPLATES, negative_sentence, removal

AFFIRMED, NEGATED = "affirmed", "negated"
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


class Pictures(NamedTuple):
    """(H, W, 3) uint8 each: what was edited, the edit that obeys, the edit that does not."""

    source: np.ndarray
    right: np.ndarray
    wrong: np.ndarray


@dataclass(frozen=True)
class Pair:
    """The first fields are those of a `Case`; `sentences`: wording -> what the editor was told."""

    set: str
    id: str
    cluster: str
    object: str
    pictures: Callable[[], Pictures]
    sentences: Mapping[str, str]


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


def unedited(dataset: Dataset, resolution: int) -> list[Pair]:
    """One pair per sample whose object is to be gone. A target of another size than its sample is cropped as
    NeIn's samples were, at `resolution`."""
    pairs = []
    for sample in (sample for sample in dataset.samples if not sample.stays):
        sentences = {AFFIRMED: removal(sample.object), NEGATED: sample.negative}
        pictures = partial(_of_sample, sample, resolution)
        pairs.append(Pair("unedited", sample.id, sample.source_id, sample.object, pictures, sentences))
    return pairs


def preferred(one: Preference) -> Pair:
    """What people prefer as a pair: asked about once, as the editor was told, edits of a picture together."""
    wording = NEGATED if denies(one.instruction) else AFFIRMED

    def pictures() -> Pictures:
        return Pictures(*map(images.decode, (one.source, one.better, one.worse)))

    return Pair(one.set, one.id, one.cluster, "", pictures, {wording: one.instruction})


def _of_sample(sample: Sample, resolution: int) -> Pictures:
    source, target = images.decode(sample.sample_path), images.decode(sample.source_path)
    if target.shape != source.shape:
        target = stretch(r64(target, resolution), (source.shape[1], source.shape[0]))
    return Pictures(source, target, source)


def pasted_pairs(annotations: coco.Annotations, seed: int) -> list[Pair]:
    """Four pairs, two of "other" and two of "along", for every picture into which two objects of other
    categories can be pasted, one at its left edge and one at its right: neither is wider than half of it, so
    that they do not touch."""
    pairs, every = [], stock(annotations)
    for picture in annotations.pictures:
        rng = random.Random(f"{seed}/other/{picture.stem}")
        parts: dict[str, Part] = {}
        for donor, instance in donors(every, picture, rng):
            if instance.category not in parts:
                parts[instance.category] = Part(donor.path, instance, (float(len(parts)), rng.random()))
            if len(parts) == 2:
                break
        for gone, stays in (tuple(parts), tuple(parts)[::-1]) if len(parts) == 2 else ():
            negative = negative_sentence(rng.randrange(len(NEGATIVE_TEMPLATES)), gone)
            sentences = {AFFIRMED: removal(gone), NEGATED: negative}
            name, cluster = f"{picture.stem}-{gone}", cluster_of(picture.stem)
            for family in ("other", "along"):
                pictures = partial(_of_two, picture.path, parts[gone], parts[stays], family == "along")
                pairs.append(Pair(family, name, cluster, gone, pictures, sentences))
    return pairs


def _of_two(path: Path, gone: Part, stays: Part, along: bool) -> Pictures:
    return Pictures(_with(path, [stays, gone]), _with(path, [stays]), _with(path, [] if along else [gone]))


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
