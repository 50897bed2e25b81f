"""NegBench's records: a retrieval item, a question with its options, and the tasks they make up. A picture
or video is named by a *reference*, which the `Media` of a task turns into pixels.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar

import numpy as np

from nein.engine.errors import UserError, shortlist

ORIGINAL, NEGATED = "original", "negated"
KINDS = (ORIGINAL, NEGATED)
AFFIRMATION, NEGATION, HYBRID = "affirmation", "negation", "hybrid"
TEMPLATES = (AFFIRMATION, NEGATION, HYBRID)

AnyTask = TypeVar("AnyTask", bound="Task")
#: Questions that belong together: the score that counts such groups, the group's name, how many it has.
Group = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class RetrievalItem:
    """One picture or video with its captions of one kind. The k-th original and the k-th negated caption are
    a pair where there are as many of both; a released file may have lost some."""

    id: str  # unique in its kind, the same in both
    image: str
    captions: tuple[str, ...]
    kind: str = ORIGINAL
    positives: tuple[str, ...] | None = None  # objects that the captions affirm, where known
    negatives: tuple[str, ...] | None = None  # those that they deny
    source: str = ""  # what resampling treats as one unit
    #: Without an `image`, two questions to a judge of what is found, about what is denied and affirmed.
    asked: tuple[str, str] | None = None

    @property
    def cluster(self) -> str:
        return self.source or self.id

    @property
    def texts(self) -> tuple[str, ...]:
        return self.captions

    @property
    def images(self) -> tuple[str, ...]:
        return (self.image,) if self.image else ()


@dataclass(frozen=True, slots=True)
class Option:
    text: str
    template: str | None = None  # "affirmation", "negation", "hybrid"; None: unknown
    image: str = ""  # picture, or region of one, that it is held against; "": the question's

    @property
    def shown(self) -> str:
        return PurePosixPath(self.image).name if self.image else self.text


@dataclass(frozen=True, slots=True)
class Question:
    """Which of the options describes the picture?"""

    id: str  # unique in its task; decides the order in which the options are shown
    image: str
    options: tuple[Option, ...]
    correct: int  # as the data have it (0 throughout in the released files)
    type: str | None = None  # template of the right option, or of the question; None: unknown
    positives: tuple[str, ...] | None = None
    negatives: tuple[str, ...] | None = None
    source: str = ""  # what resampling treats as one unit; "": the picture
    asked: str = ""  # another question, whose options are answers, which no caption's score gives
    groups: tuple[Group, ...] = ()  # whose questions have to be answered right together
    difficulty: tuple[tuple[str, int], ...] = ()  # what makes it difficult, how much; what matters most last

    @property
    def cluster(self) -> str:
        return self.source or self.image

    @property
    def texts(self) -> list[str]:
        return [option.text for option in self.options]

    @property
    def images(self) -> list[str]:
        """Of each option, what it is held against."""
        return [self.picture(option) for option in self.options]

    def picture(self, option: Option) -> str:
        return option.image or self.image


class Media:
    """Where the pictures of a task come from."""

    def frames(self, reference: str) -> list[np.ndarray]:
        """The (H, W, 3) uint8 RGB pictures behind a reference: one for a picture, several for a video.

        Raises images.ImageError, with the reason, for what is missing or cannot be decoded.
        """
        raise NotImplementedError

    def files(self, references: Iterable[str]) -> list[Path]:
        """The files behind references, one that is not there where there is none; [] without files."""
        return []

    def turned(self, references: Iterable[str]) -> int:
        """How many images have an EXIF orientation, which is not followed."""
        return 0


class Task:
    """Records about images of one `media`, in one wording. name: data set, then task: "coco/retrieval"."""

    name: str
    media: Media
    variant: str
    gallery: tuple[str, ...] = ()  # images besides those of the records
    origin: Mapping[str, Any]
    parts: ClassVar[tuple[str, ...]]  # fields with records

    @property
    def records(self) -> list[RetrievalItem | Question]:
        return [record for part in self.parts for record in getattr(self, part)]

    def changed(self: AnyTask, change: Callable[[Any], Any]) -> AnyTask:
        """With other records; without those for which `change` gives None."""
        kept: Any = {}
        for part in self.parts:
            kept[part] = tuple(new for record in getattr(self, part) if (new := change(record)) is not None)
        return replace(self, **kept)  # type: ignore[type-var]

    def first(self: AnyTask, limit: int) -> AnyTask:
        """Its first images with all their captions, or its first questions."""
        every = next(filter(None, (getattr(self, part) for part in self.parts)), ())
        ids = {record.id for record in every[:limit]}
        return self.changed(lambda record: record if record.id in ids else None)

    @property
    def what(self) -> str:
        return self.name.partition("/")[2]

    @property
    def key(self) -> str:
        """In names of files: "mcq.rephrased"."""
        return f"{self.what}.{self.variant}"

    @property
    def asked(self) -> bool:
        """Whether its captions bring the questions by which a judge says what is found."""
        return any(isinstance(record, RetrievalItem) and record.asked for record in self.records)

    @property
    def references(self) -> list[str]:
        return list(dict.fromkeys((*(name for r in self.records for name in r.images), *self.gallery)))

    @property
    def sentences(self) -> list[str]:
        return [text for record in self.records for text in record.texts]

    def answered_by(self, kind: str) -> bool:
        """ "dual" and "itm" score captions with images, "vlm" is shown one image."""
        questions = [record for record in self.records if isinstance(record, Question)]
        if kind != "vlm":
            return not any(question.asked for question in questions) and bool(kind == "dual" or questions)
        return bool(questions) and not any(option.image for q in questions for option in q.options)

    @functools.cached_property
    def sha256(self) -> str:
        """Over the records in order, not over pixels."""
        total = hashlib.sha256()
        for record in self.records:
            line = json.dumps(_fields(record), default=_fields, ensure_ascii=False, sort_keys=True)
            total.update(line.encode() + b"\n")
        return total.hexdigest()


@dataclass(frozen=True)
class RetrievalTask(Task):
    """Retrieval with original and negated captions, of which either may lack, over the same images."""

    parts = ("original", "negated")
    name: str
    original: tuple[RetrievalItem, ...]
    negated: tuple[RetrievalItem, ...]
    media: Media
    variant: str = "templated"
    origin: Mapping[str, Any] = field(default_factory=dict)
    gallery: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceTask(Task):
    """A set of questions; `kind` is "mcq" or, with two captions of which no template is known, "binary"."""

    parts = ("questions",)
    name: str
    questions: tuple[Question, ...]
    media: Media
    variant: str = "templated"
    kind: str = "mcq"
    origin: Mapping[str, Any] = field(default_factory=dict)


def check_items(items: Sequence[RetrievalItem], where: str) -> None:
    """Raises UserError for an id twice or a lacking caption."""
    check_ids(items, where)
    for item in items:
        if not item.captions or any(not text.strip() for text in item.captions):
            raise UserError(f"{where}: item '{item.id}' has an empty caption or none at all.")


def check_questions(questions: Sequence[Question], where: str) -> None:
    """Raises UserError for an id twice or a lacking option."""
    check_ids(questions, where)
    for question in questions:
        if len(question.options) < 2 or any(not text.strip() for text in question.texts):
            raise UserError(f"{where}: question '{question.id}' has an empty option or fewer than two.")


def check_ids(records: Sequence[RetrievalItem | Question], where: str) -> None:
    twice = [name for name, count in Counter(record.id for record in records).items() if count > 1]
    if twice:
        raise UserError(f"{where}: {len(twice)} ids occur more than once: {shortlist(twice, 3)}.")


def _fields(record: RetrievalItem | Question | Option) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
