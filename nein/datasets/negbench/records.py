"""Defines NegBench's records, a retrieval item and a question with options, and the tasks made of them. An
image or video is named by a *reference*, which the `Media` of a task turns into pixels."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePosixPath
from typing import Any, ClassVar, TypeVar

from nein.datasets.negbench.media import Media
from nein.engine.atomic import Row
from nein.loading.errors import UserError, shortlist

ORIGINAL, NEGATED = "original", "negated"
KINDS = (ORIGINAL, NEGATED)  # of captions
AFFIRMATION, NEGATION, HYBRID = "affirmation", "negation", "hybrid"
TEMPLATES = (AFFIRMATION, NEGATION, HYBRID)  # of options
#: Questions that belong together: (score that counts such groups, name of the group, its size).
Group = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class RetrievalItem:
    """One image or video with its captions of one kind. The k-th original and the k-th negated caption are a
    pair if there are equally many; released files may have lost some."""

    id: str  # unique in its kind, the same in both
    image: str
    captions: tuple[str, ...]
    kind: str = ORIGINAL
    positives: tuple[str, ...] | None = None  # objects that the captions affirm, where known
    negatives: tuple[str, ...] | None = None  # those that they deny
    source: str = ""  # what resampling treats as one unit; "": the item
    #: Of an item without `image`: questions about what is denied and affirmed, for a judge of images found.
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
    """An answer to choose: a text, maybe held against an image of its own."""

    text: str
    template: str | None = None  # of `TEMPLATES`; None: unknown
    image: str = ""  # reference, also of a region; "": the question's image

    @property
    def label(self) -> str:
        """What tells it from the other options, on a page."""
        return PurePosixPath(self.image).name if self.image else self.text


@dataclass(frozen=True, slots=True)
class Question:
    """A question with one right option; by default: which of them describes the image?"""

    id: str  # unique in its task; decides the order in which the options are shown
    image: str
    options: tuple[Option, ...]
    correct: int  # index of the right option in the data (0 throughout in the released files)
    type: str | None = None  # template of the right option, or of the question; None: unknown
    positives: tuple[str, ...] | None = None  # objects in the image, where known
    negatives: tuple[str, ...] | None = None  # absent objects, where known
    source: str = ""  # what resampling treats as one unit; "": the image
    asked: str = ""  # another question, whose options are answers; no score of a caption answers it
    groups: tuple[Group, ...] = ()  # those it belongs to
    difficulty: tuple[tuple[str, int], ...] = ()  # (axis, level); the axis that matters most last

    @property
    def cluster(self) -> str:
        return self.source or self.image

    @property
    def texts(self) -> list[str]:
        return [option.text for option in self.options]

    @property
    def images(self) -> list[str]:
        """The image of each option."""
        return [self.get_image(option) for option in self.options]

    def get_image(self, option: Option) -> str:
        return option.image or self.image


AnyTask = TypeVar("AnyTask", bound="Task")


class Task:
    """Records about images of one `media`, in one wording."""

    name: str  # data set, then task: "coco/retrieval"
    media: Media
    variant: str  # wording: of `registry.VARIANTS`
    gallery: tuple[str, ...] = ()  # images besides those of the records
    origin: Row  # the files or the drawing that it is made from, for the manifest
    parts: ClassVar[tuple[str, ...]]  # names of the fields with records

    @property
    def records(self) -> list[RetrievalItem | Question]:
        return [record for part in self.parts for record in getattr(self, part)]

    def map_records(self: AnyTask, change: Callable[[Any], Any]) -> AnyTask:
        """A copy with changed records; records for which `change` returns None are dropped."""
        parts: Any = {}
        for part in self.parts:
            changed = map(change, getattr(self, part))
            parts[part] = tuple(record for record in changed if record is not None)
        return replace(self, **parts)  # type: ignore[type-var]

    def limit(self: AnyTask, count: int) -> AnyTask:
        """The task with its first images and all their captions, or with its first questions."""
        first_part = next((getattr(self, part) for part in self.parts if getattr(self, part)), ())
        ids = {record.id for record in first_part[:count]}  # both kinds of captions of an image have its id
        return self.map_records(lambda record: record if record.id in ids else None)

    @property
    def what(self) -> str:
        """The name without the data set: "retrieval"."""
        return self.name.partition("/")[2]

    @property
    def key(self) -> str:
        """Part of file names: "mcq.rephrased"."""
        return f"{self.what}.{self.variant}"

    @property
    def is_judged(self) -> bool:
        """Whether its captions bring questions, by which a judge decides what images are right."""
        return any(isinstance(record, RetrievalItem) and record.asked for record in self.records)

    @property
    def references(self) -> list[str]:
        return list(dict.fromkeys((*(name for r in self.records for name in r.images), *self.gallery)))

    @property
    def sentences(self) -> list[str]:
        return [text for record in self.records for text in record.texts]

    def fits_model(self, kind: str) -> bool:
        """Whether a model of that kind can do it: "dual" and "itm" score captions with images, "vlm" and
        "log" answer questions about one image."""
        questions = [record for record in self.records if isinstance(record, Question)]
        if not questions:
            return kind == "dual"  # retrieval
        if kind in ("vlm", "log"):
            return not any(option.image for question in questions for option in question.options)
        return not any(question.asked for question in questions)

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of the records in order, not of pixels."""
        digest = hashlib.sha256()
        for record in self.records:
            line = json.dumps(record, default=_make_entries, ensure_ascii=False, sort_keys=True)
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()


def _make_entries(record: Any) -> dict[str, Any]:
    """The fields of a record; `dataclasses.asdict` is slower, as it copies."""
    return {entry.name: getattr(record, entry.name) for entry in fields(record)}


@dataclass(frozen=True)
class RetrievalTask(Task):
    """Retrieval with original or negated captions, or both, over the same images."""

    parts = ("original", "negated")
    name: str
    original: tuple[RetrievalItem, ...]
    negated: tuple[RetrievalItem, ...]
    media: Media
    variant: str = "templated"
    origin: Row = field(default_factory=dict)
    gallery: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceTask(Task):
    """Questions; `kind` is "mcq", or "binary": two captions of unknown templates."""

    parts = ("questions",)
    name: str
    questions: tuple[Question, ...]
    media: Media
    variant: str = "templated"
    kind: str = "mcq"
    origin: Row = field(default_factory=dict)


def check_records(records: Sequence[RetrievalItem | Question], source: str) -> None:
    """Raises UserError for an id twice, a missing caption or a missing option."""
    check_ids(records, source)
    for record in records:
        is_item = isinstance(record, RetrievalItem)
        if len(record.texts) < (1 if is_item else 2) or not all(text.strip() for text in record.texts):
            needed = "caption or none at all" if is_item else "option or fewer than two"
            raise UserError(
                f"{source}: {'item' if is_item else 'question'} '{record.id}' has an empty {needed}."
            )


def check_ids(records: Sequence[RetrievalItem | Question], source: str) -> None:
    """Raises UserError for an id that occurs twice. source: the file."""
    repeated = [name for name, count in Counter(record.id for record in records).items() if count > 1]
    if repeated:
        raise UserError(f"{source}: {len(repeated)} ids occur more than once: {shortlist(repeated, 3)}.")
