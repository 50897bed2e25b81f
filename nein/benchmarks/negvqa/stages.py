"""The stages of a run of NegVQA and their rows: questions asked of a model, or answered by a file, and what a
matcher reads where VLMEvalKit's rule finds no letter.

The matcher is the toolkit's second step: a language model is asked three times at most; then one of the
letters or none is drawn. That the paper did without (`--matcher exact`) is our assumption.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nein.benchmarks.baselines import TEXT_ONLY, grey
from nein.benchmarks.negvqa.data import ANSWERS, MATCHES, Answer, Match
from nein.datasets.negvqa import VARIANTS, Item
from nein.engine import images
from nein.engine.folder import Blocks, Folder, sample_seed
from nein.engine.stages import Model, Stage
from nein.loading.references import is_served
from nein.metrics import choices
from nein.metrics.choices import ChoiceQuestion, Reply
from nein.metrics.letters import LETTERS, parse, without_missing
from nein.models import llm

NO_IMAGE = "no picture: "
ATTEMPTS = 3  # of the matcher
READ = "no letter by the rule; the matcher reads one"
DRAWN = "the matcher named no option three times, and one was drawn as VLMEvalKit does"


@dataclass(frozen=True)
class Asking:
    """A way in which a question is asked: its variant, "" without the question, and the baseline
    (`nein.benchmarks.baselines`), "" for image and question."""

    variant: str
    baseline: str = ""

    def question(self, item: Item, wording: str, hides: bool) -> ChoiceQuestion:
        """hides: without the options that pandas takes for missing."""
        text = item.questions[self.variant] if self.variant else ""
        prompt = choices.prompt(wording, text, without_missing(item.options) if hides else item.options)
        return ChoiceQuestion(prompt, len(item.options), text, item.options)

    def rows(self, item: Item, reply: Reply) -> Iterator[Answer]:
        """An answer without the question counts for it and for its negation."""
        for variant in [self.variant] if self.variant else VARIANTS:
            what = (item.id, variant, item.subset, item.category, item.source, item.questions[variant])
            said = (reply.text, reply.logprobs, reply.each, reply.error, self.baseline)
            yield Answer(*what, item.options, item.answers[variant], *said)


@dataclass(frozen=True)
class Answerer:
    """A model under test, checked and not loaded.

    reference  As given, without a name; "judge" stands for `source`, the reference of --judge.
    where      What is loaded.
    scorings   Those of --scoring that it can be read by.
    format     The wording of its questions and the longest answer.
    """

    reference: str
    source: str
    where: str
    scorings: list[str]
    format: choices.PromptFormat


@dataclass(kw_only=True)
class Questioning(Stage):
    """Every question of a block in every way of asking, in this order. hides: options that pandas takes for
    missing are not shown."""

    name: str
    blocks: Blocks
    model: Model
    items: Sequence[Item]
    askings: Sequence[Asking]
    asked: Answerer
    hides: bool
    invalidates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.outputs = (self.name,)
        self.asks = {self.asked.where: len(self.askings)} if is_served(self.asked.where) else {}

    def files(self, records: range) -> list[Path]:
        return [self.items[index].picture for index in records]

    def read(self, number: int) -> list[tuple[Item, np.ndarray | str]]:
        """Questions with their image, (H, W, 3) uint8, or why there is none."""
        return [(self.items[index], _image(self.items[index])) for index in self.blocks.members(number)]

    def work(
        self, model: Any, block: list[tuple[Item, np.ndarray | str]], missing: tuple[str, ...]
    ) -> dict[str, list[Answer]]:
        readable = [(item, image) for item, image in block if not isinstance(image, str)]
        replies: dict[tuple[str, Asking], Reply] = {}
        for unseen in (False, True):
            askings = [asking for asking in self.askings if (asking.baseline == TEXT_ONLY) == unseen]
            if not askings:
                continue
            shown = [grey() if unseen else image for _, image in readable]
            wording = self.asked.format.prompt
            rows = [[one.question(item, wording, self.hides) for one in askings] for item, _ in readable]
            answered = choices.answer_each(model, shown, rows, self.asked.scorings)
            for (item, _), row in zip(readable, answered, strict=True):
                replies |= {(item.id, asking): reply for asking, reply in zip(askings, row, strict=True)}
        lines: list[Answer] = []
        for item, image in block:
            for asking in self.askings:
                lines += asking.rows(item, replies.get((item.id, asking)) or Reply(error=str(image)))
        return {self.name: lines}

    def ids(self, records: range) -> list[str]:
        count = sum(1 if asking.variant else len(VARIANTS) for asking in self.askings)
        return [self.items[index].id for index in records for _ in range(count)]

    def is_valid(self, output: str, number: int, rows: list[Answer]) -> bool:
        """A question that failed is asked again; one without an image, as soon as its file changes."""
        return all(row.error.startswith(NO_IMAGE) for row in rows if row.error)


def _image(item: Item) -> np.ndarray | str:
    try:
        return images.decode(item.picture)
    except images.ImageError as error:
        return f"{NO_IMAGE}{str(error).rpartition(': ')[2]}"


@dataclass(kw_only=True)
class FileAnswers(Stage):
    """The answers of a file (`--answers-from`): id -> variant -> text."""

    blocks: Blocks
    items: Sequence[Item]
    answers: Mapping[str, Mapping[str, str]]
    name, outputs, invalidates = ANSWERS, (ANSWERS,), (MATCHES,)

    def read(self, number: int) -> list[Item]:
        return [self.items[index] for index in self.blocks.members(number)]

    def work(self, model: None, items: list[Item], missing: tuple[str, ...]) -> dict[str, list[Answer]]:
        rows: list[Answer] = []
        for item in items:
            for variant, text in self.answers[item.id].items():
                reply = Reply(text) if text else Reply(error="the file has no answer")
                rows += Asking(variant).rows(item, reply)
        return {ANSWERS: rows}


class LetterReply(llm.Plain):
    """All that a language model says, whatever it is."""

    END: ClassVar[str] = "\0"
    text: str

    @classmethod
    def read(cls, text: str) -> LetterReply:
        return cls(text=text)


@dataclass(kw_only=True)
class Matching(Stage):
    """A row for every answer without a letter. The model is a `nein.models.llm.Client`."""

    folder: Folder
    blocks: Blocks
    model: Model
    name, outputs = MATCHES, (MATCHES,)

    def read(self, number: int) -> list[Answer]:
        return self.folder.read(ANSWERS, number)

    def work(self, client: Any, answers: list[Answer], missing: tuple[str, ...]) -> dict[str, list[Match]]:
        return {MATCHES: matched(client, answers)}

    def is_valid(self, output: str, number: int, rows: list[Match]) -> bool:
        return not any(row.error for row in rows)


def matched(client: Any, answers: Sequence[Answer]) -> list[Match]:
    """See `Matching`."""
    found: dict[tuple[str, str], Match] = {}
    waiting = [row for row in answers if not (row.error or row.text is None or row.each or _is_read(row))]
    for attempt in range(ATTEMPTS):
        texts = [
            choices.matching(row.question, without_missing(row.options), row.text or "") for row in waiting
        ]
        requests = [llm.Request(text, seed=attempt) for text in texts]
        for row, outcome in zip(waiting, client.complete(requests, LetterReply), strict=True):
            key = row.id, row.variant
            if outcome.value is None:
                found[key] = Match(*key, error=f"the matcher gave no answer: {outcome.reason}")
                continue
            letter = parse(outcome.value.text, without_missing(row.options), "vlmevalkit")
            if letter.letter or letter.declined:
                reason = READ if letter.letter else "the matcher finds no option in the answer"
                found[key] = Match(*key, outcome.value.text, letter.letter, reason)
        waiting = [row for row in waiting if (row.id, row.variant) not in found]
    for row in waiting:
        found[row.id, row.variant] = Match(row.id, row.variant, letter=draw(row), reason=DRAWN)
    return [match for row in answers if (match := found.get((row.id, row.variant)))]


def _is_read(row: Answer) -> bool:
    letter = parse(row.text or "", without_missing(row.options), "vlmevalkit")
    return letter.letter is not None or letter.declined


def draw(row: Answer) -> str | None:
    """One of the letters, or None, which the toolkit calls Z, all equally likely; by the question's own
    seed."""
    rng = random.Random(sample_seed(0, f"{row.id}/{row.variant}/{MATCHES}"))
    options = zip(LETTERS, without_missing(row.options), strict=False)
    return rng.choice([*(letter for letter, text in options if text is not None), None])
