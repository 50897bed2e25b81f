"""NegBench's records: a retrieval item, a question with its options, and the tasks they make up. An image
or video is named by a *reference*, which the `Media` of a task turns into pixels.
"""

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
KINDS = (ORIGINAL, NEGATED)
AFFIRMATION, NEGATION, HYBRID = "affirmation", "negation", "hybrid"
TEMPLATES = (AFFIRMATION, NEGATION, HYBRID)

AnyTask = TypeVar("AnyTask", bound="Task")
#: Questions that belong together: the score that counts such groups, the group's name, how many it has.
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
    image: str = ""  # image, or region of one, that it is held against; "": the question's

    @property
    def shown(self) -> str:
        return PurePosixPath(self.image).name if self.image else self.text


@dataclass(frozen=True, slots=True)
class Question:
    """Which of the options describes the image?"""

    id: str  # unique in its task; decides the order in which the options are shown
    image: str
    options: tuple[Option, ...]
    correct: int  # as the data have it (0 throughout in the released files)
    type: str | None = None  # template of the right option, or of the question; None: unknown
    positives: tuple[str, ...] | None = None
    negatives: tuple[str, ...] | None = None
    source: str = ""  # what resampling treats as one unit; "": the image
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
        """The image of each option."""
        return [self.get_image(option) for option in self.options]

    def get_image(self, option: Option) -> str:
        return option.image or self.image


class Task:
    """Records about images of one `media`, in one wording. name: data set, then task: "coco/retrieval"."""

    name: str
    media: Media
    variant: str
    gallery: tuple[str, ...] = ()  # images besides those of the records
    origin: Row
    parts: ClassVar[tuple[str, ...]]  # fields with records

    @property
    def records(self) -> list[RetrievalItem | Question]:
        return [record for part in self.parts for record in getattr(self, part)]

    def map_records(self: AnyTask, change: Callable[[Any], Any]) -> AnyTask:
        """A copy with changed records; records for which `change` returns None are dropped."""
        fields: Any = {}
        for part in self.parts:
            fields[part] = tuple(new for record in getattr(self, part) if (new := change(record)) is not None)
        return replace(self, **fields)  # type: ignore[type-var]

    def first(self: AnyTask, limit: int) -> AnyTask:
        """Its first images with all their captions, or its first questions."""
        every = next(filter(None, (getattr(self, part) for part in self.parts)), ())
        ids = {record.id for record in every[:limit]}
        return self.map_records(lambda record: record if record.id in ids else None)

    @property
    def what(self) -> str:
        return self.name.partition("/")[2]

    @property
    def key(self) -> str:
        """Part of file names: "mcq.rephrased"."""
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

    def fits_model(self, kind: str) -> bool:
        """Whether a model of that kind can do it: "dual" and "itm" score captions with images, "vlm" and
        "log" have seen one image."""
        questions = [record for record in self.records if isinstance(record, Question)]
        if kind not in ("vlm", "log"):
            return not any(question.asked for question in questions) and bool(kind == "dual" or questions)
        return bool(questions) and not any(option.image for q in questions for option in q.options)

    @functools.cached_property
    def sha256(self) -> str:
        """Over the records in order, not over pixels."""
        total = hashlib.sha256()
        for record in self.records:
            line = json.dumps(record, default=_entries, ensure_ascii=False, sort_keys=True)
            total.update(line.encode() + b"\n")
        return total.hexdigest()


def _entries(record: Any) -> dict[str, Any]:
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
    """Raises UserError for an id twice, a lacking caption or a lacking option."""
    check_ids(records, source)
    for record in records:
        least, problem = 2, f"question '{record.id}' has an empty option or fewer than two"
        if isinstance(record, RetrievalItem):
            least, problem = 1, f"item '{record.id}' has an empty caption or none at all"
        if len(record.texts) < least or not all(text.strip() for text in record.texts):
            raise UserError(f"{source}: {problem}.")


def check_ids(records: Sequence[RetrievalItem | Question], source: str) -> None:
    repeated = [name for name, count in Counter(record.id for record in records).items() if count > 1]
    if repeated:
        raise UserError(f"{source}: {len(repeated)} ids occur more than once: {shortlist(repeated, 3)}.")
