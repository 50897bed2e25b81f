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
from typing import Any, ClassVar, NamedTuple, TypeVar

from nein.datasets.negbench.media import Media
from nein.engine.atomic import Row
from nein.loading.errors import UserError, shortlist

AnyTask = TypeVar("AnyTask", bound="Task")
ORIGINAL, NEGATED = "original", "negated"
KINDS = (ORIGINAL, NEGATED)  # of captions: as the data set has them, and reworded to say what is absent
AFFIRMATION, NEGATION, HYBRID = "affirmation", "negation", "hybrid"
TEMPLATES = (AFFIRMATION, NEGATION, HYBRID)  # of options: says what is there, what is absent, both


@dataclass(frozen=True, slots=True)
class RetrievalItem:
    """One image or video with its captions of one kind. The k-th original and the k-th negated caption are a
    pair if there are equally many; released files may have lost some."""

    id: str  # unique in its kind; both kinds of captions of an image have the same
    image: str  # reference; "": no image is known to be right
    captions: tuple[str, ...]
    kind: str = ORIGINAL  # of `KINDS`
    positives: tuple[str, ...] | None = None  # objects that the captions affirm; None: unknown
    negatives: tuple[str, ...] | None = None  # objects that they deny; None: unknown
    source: str = ""  # what resampling treats as one unit; "": the item
    #: Only if `image` is "": questions (about the denied object, about the affirmed one), by which a judge
    #: decides whether an image that a model finds is right.
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
    """An answer to choose: a text about the question's image, or about an image of its own."""

    text: str
    template: str | None = None  # of `TEMPLATES`; None: unknown
    image: str = ""  # reference, also of a region; "": the question's image

    @property
    def label(self) -> str:
        """What tells it from the other options, on a page."""
        return PurePosixPath(self.image).name if self.image else self.text


class Group(NamedTuple):
    score: str  # name of the score that counts these groups
    name: str  # of the group: the questions with this score and name
    size: int  # questions in it


@dataclass(frozen=True, slots=True)
class Question:
    """A question with one right option; the default question is which option describes the image."""

    id: str  # unique in its task; decides the order in which the options are shown
    image: str  # reference
    options: tuple[Option, ...]
    correct: int  # index of the right option in the data (0 throughout in the released files)
    type: str | None = None  # template of the right option, or of the question; None: unknown
    positives: tuple[str, ...] | None = None  # objects in the image; None: unknown
    negatives: tuple[str, ...] | None = None  # absent objects; None: unknown
    source: str = ""  # what resampling treats as one unit; "": the image
    asked: str = ""  # the question, if not the default one; models that score captions cannot answer it
    groups: tuple[Group, ...] = ()  # that it belongs to; their questions are scored together
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
        changed: Any = {part: tuple(filter(None, map(change, getattr(self, part)))) for part in self.parts}
        return replace(self, **changed)  # type: ignore[type-var]

    def limit(self: AnyTask, count: int) -> AnyTask:
        """The task with its first images and all their captions, or with its first questions."""
        first_part = next((getattr(self, part) for part in self.parts if getattr(self, part)), ())
        ids = {record.id for record in first_part[:count]}
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
        """Whether a judge decides which images are right (see `RetrievalItem.asked`)."""
        return any(isinstance(record, RetrievalItem) and record.asked for record in self.records)

    @property
    def references(self) -> list[str]:
        """All images, each once, in the order of the records, then of the gallery."""
        own_images = (image for record in self.records for image in record.images)
        return list(dict.fromkeys([*own_images, *self.gallery]))

    @property
    def sentences(self) -> list[str]:
        return [text for record in self.records for text in record.texts]

    def fits_model(self, model_kind: str) -> bool:
        """Whether such models can do it. "dual" and "itm" score captions with images; "vlm" and "log" (the
        file of another harness with a model's answers) answer questions about one image."""
        questions = [record for record in self.records if isinstance(record, Question)]
        if not questions:
            return model_kind == "dual"  # retrieval
        if model_kind in ("vlm", "log"):
            return not any(option.image for question in questions for option in question.options)
        return not any(question.asked for question in questions)

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of the records in order, not of pixels."""

        def list_fields(record: Any) -> dict[str, Any]:  # `dataclasses.asdict` is slower, as it copies
            return {entry.name: getattr(record, entry.name) for entry in fields(record)}

        digest = hashlib.sha256()
        for record in self.records:
            line = json.dumps(record, default=list_fields, ensure_ascii=False, sort_keys=True)
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()


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
    """Multiple-choice questions."""

    parts = ("questions",)
    name: str
    questions: tuple[Question, ...]
    media: Media
    variant: str = "templated"
    kind: str = "mcq"  # or "binary": a choice between two captions of unknown templates
    origin: Row = field(default_factory=dict)


def check_records(records: Sequence[RetrievalItem | Question], source: str) -> None:
    """Raises UserError for an id twice, an empty text or too few of them. source: the file."""
    check_ids(records, source)
    for record in records:
        if isinstance(record, RetrievalItem):
            minimum, fault = 1, f"item '{record.id}' has an empty caption or none at all"
        else:
            minimum, fault = 2, f"question '{record.id}' has an empty option or fewer than two"
        if len(record.texts) < minimum or not all(text.strip() for text in record.texts):
            raise UserError(f"{source}: {fault}.")


def check_ids(records: Sequence[RetrievalItem | Question], source: str) -> None:
    """Raises UserError for an id that occurs twice. source: the file."""
    repeated = [name for name, count in Counter(record.id for record in records).items() if count > 1]
    if repeated:
        raise UserError(f"{source}: {len(repeated)} ids occur more than once: {shortlist(repeated, 3)}.")
