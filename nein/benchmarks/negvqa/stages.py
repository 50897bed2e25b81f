"""The stages of a run of NegVQA: ask a model or read answers from a file; then match answers to letters.

Matching is the second step of the paper's toolkit, VLMEvalKit, for answers in which its rule finds no letter.
We assume that the paper did without it (`--matcher exact`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nein.benchmarks.baselines import TEXT_ONLY, make_gray
from nein.benchmarks.negvqa.data import ANSWERS, MATCHES, Answer, Match
from nein.datasets.negvqa import VARIANTS, Item
from nein.engine import images
from nein.engine.folder import Blocks, Folder, sample_seed
from nein.engine.stages import Model, Stage
from nein.loading.references import is_served
from nein.metrics import choices
from nein.metrics.choice_prompts import PromptFormat, write_matching_prompt, write_prompt
from nein.metrics.choices import ChoiceQuestion, Reply
from nein.metrics.letters import LETTERS, drop_missing, parse
from nein.models import llm

NO_IMAGE = "no picture: "  # start of the error of a question whose image cannot be read


# --- asking a model ------------------------------------------------------------------------------
@dataclass(frozen=True)
class QuestionForm:
    """One form of a question: original, negated, or a baseline."""

    variant: str  # "original", "negated"; "": without the question
    baseline: str = ""  # of `nein.benchmarks.baselines`; "": image and question

    def write(self, item: Item, wording: str, hide_missing: bool) -> ChoiceQuestion:
        """The question as a model gets it. hide_missing: omit options that pandas reads as missing values."""
        text = item.questions[self.variant] if self.variant else ""
        prompt = write_prompt(wording, text, drop_missing(item.options) if hide_missing else item.options)
        return ChoiceQuestion(prompt, len(item.options), question=text, texts=item.options)

    def make_rows(self, item: Item, reply: Reply) -> Iterator[Answer]:
        """The rows of a reply; a reply to options without a question counts for both variants."""
        for variant in [self.variant] if self.variant else VARIANTS:
            yield Answer(
                id=item.id, variant=variant, subset=item.subset, category=item.category, source=item.source,
                question=item.questions[variant], options=item.options, answer=item.answers[variant],
                text=reply.text, logprobs=reply.logprobs, each=reply.each, error=reply.error,
                baseline=self.baseline,
            )  # fmt: skip


@dataclass(frozen=True)
class Answerer:
    """A model under test, checked but not loaded."""

    reference: str  # of --model, without the user's label: "judge", "nano:negvqa"
    source: str  # the same, but for "judge" the reference of --judge: "nano:llava"
    location: str  # the folder, hub id or address that is loaded for `source`
    scorings: list[str]  # those of --scoring that it supports
    format: PromptFormat  # wording of its questions, longest answer


@dataclass(kw_only=True)
class Questioning(Stage):
    """Asks a model every question of a block in every form, in this order."""

    name: str
    blocks: Blocks
    model: Model
    items: Sequence[Item]
    forms: Sequence[QuestionForm]
    answerer: Answerer
    hide_missing: bool  # omit options that pandas reads as missing values, as the paper does
    invalidates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.outputs = (self.name,)
        if is_served(self.answerer.location):
            self.asks = {self.answerer.location: len(self.forms)}  # requests per question

    def files(self, records: range) -> list[Path]:
        return [self.items[index].image for index in records]

    def read(self, number: int) -> list[tuple[Item, np.ndarray | str]]:
        """Questions, each with its image, (H, W, 3) uint8, or with the reason why there is none."""
        block: list[tuple[Item, np.ndarray | str]] = []
        for index in self.blocks.members(number):
            item = self.items[index]
            try:
                block.append((item, images.decode(item.image)))
            except images.ImageError as error:
                block.append((item, f"{NO_IMAGE}{str(error).rpartition(': ')[2]}"))
        return block

    def work(
        self, model: Any, block: list[tuple[Item, np.ndarray | str]], missing: tuple[str, ...]
    ) -> dict[str, list[Answer]]:
        readable = [(item, image) for item, image in block if not isinstance(image, str)]
        replies: dict[tuple[str, QuestionForm], Reply] = {}
        wording, scorings = self.answerer.format.prompt, self.answerer.scorings
        for is_text_only in (False, True):  # with the images, then with a gray one
            forms = [form for form in self.forms if (form.baseline == TEXT_ONLY) == is_text_only]
            if not forms:
                continue
            pixels = [make_gray() if is_text_only else image for _, image in readable]  # each (H, W, 3) uint8
            prompts = [
                [form.write(item, wording, self.hide_missing) for form in forms] for item, _ in readable
            ]
            # All questions about one image go together: its prefix is computed once.
            answers = choices.answer_each(model, pixels, prompts, scorings)
            for (item, _), item_replies in zip(readable, answers, strict=True):
                replies |= {(item.id, form): reply for form, reply in zip(forms, item_replies, strict=True)}
        rows: list[Answer] = []
        for item, image in block:
            for form in self.forms:
                reply = Reply(error=image) if isinstance(image, str) else replies[item.id, form]
                rows += form.make_rows(item, reply)
        return {self.name: rows}

    def ids(self, records: range) -> list[str]:
        count = sum(1 if form.variant else len(VARIANTS) for form in self.forms)
        return [self.items[index].id for index in records for _ in range(count)]

    def is_valid(self, output: str, number: int, rows: list[Answer]) -> bool:
        """False if a question failed, so that it is asked again; one without an image waits for the file."""
        return all(row.error.startswith(NO_IMAGE) for row in rows if row.error)


@dataclass(kw_only=True)
class FileAnswers(Stage):
    """Makes rows of the answers in a file (`--answers-from`)."""

    blocks: Blocks
    items: Sequence[Item]
    answers: Mapping[str, Mapping[str, str]]  # id -> variant -> text; "": the file has none
    name, outputs, invalidates = ANSWERS, (ANSWERS,), (MATCHES,)  # see `Stage`

    def read(self, number: int) -> list[Item]:
        return [self.items[index] for index in self.blocks.members(number)]

    def work(self, model: None, items: list[Item], missing: tuple[str, ...]) -> dict[str, list[Answer]]:
        rows: list[Answer] = []
        for item in items:
            for variant, text in self.answers[item.id].items():
                reply = Reply(text) if text else Reply(error="the file has no answer")
                rows += QuestionForm(variant).make_rows(item, reply)
        return {ANSWERS: rows}


# --- matching: up to three requests to a language model, then a random letter or none ------------
ATTEMPTS = 3  # requests to the matcher per answer
READ = "no letter by the rule; the matcher reads one"
DRAWN = "the matcher named no option three times, and one was drawn as VLMEvalKit does"


class LetterReply(llm.Plain):
    """A reply of the matcher: any text, read as a whole."""

    END: ClassVar[str] = "\0"  # never generated
    text: str

    @classmethod
    def read(cls, text: str) -> LetterReply:
        return cls(text=text)


@dataclass(kw_only=True)
class Matching(Stage):
    """Asks a language model (`nein.models.llm.Client`) which option each answer without a letter means."""

    folder: Folder
    blocks: Blocks
    model: Model
    name, outputs = MATCHES, (MATCHES,)  # see `Stage`

    def read(self, number: int) -> list[Answer]:
        return self.folder.read(ANSWERS, number)

    def work(self, client: Any, answers: list[Answer], missing: tuple[str, ...]) -> dict[str, list[Match]]:
        return {MATCHES: match_answers(client, answers)}

    def is_valid(self, output: str, number: int, rows: list[Match]) -> bool:
        return not any(row.error for row in rows)


def match_answers(client: Any, answers: Sequence[Answer]) -> list[Match]:
    """A match for each answer in words in which the rule finds no letter, in the order of the answers."""
    matches: dict[tuple[str, str], Match] = {}  # (id, variant) -> match
    in_words = [row for row in answers if row.text is not None and not row.error and not row.each]
    waiting = [row for row in in_words if not _has_letter(row)]
    for attempt in range(ATTEMPTS):  # also the seed: the cache must not answer a repeated request
        requests = []
        for row in waiting:
            prompt = write_matching_prompt(row.question, drop_missing(row.options), row.text or "")
            requests.append(llm.Request(prompt, seed=attempt))
        for row, outcome in zip(waiting, client.complete(requests, LetterReply), strict=True):
            key = row.id, row.variant
            if outcome.value is None:
                matches[key] = Match(*key, error=f"the matcher gave no answer: {outcome.reason}")
                continue
            verdict = parse(outcome.value.text, drop_missing(row.options), "vlmevalkit")
            if verdict.letter or verdict.declined:
                reason = READ if verdict.letter else "the matcher finds no option in the answer"
                matches[key] = Match(*key, outcome.value.text, verdict.letter, reason)
        # An answer that names no option is asked about again.
        waiting = [row for row in waiting if (row.id, row.variant) not in matches]
    for row in waiting:
        matches[row.id, row.variant] = Match(row.id, row.variant, letter=draw_letter(row), reason=DRAWN)
    return [matches[row.id, row.variant] for row in answers if (row.id, row.variant) in matches]


def _has_letter(row: Answer) -> bool:
    """Whether the rule settles an answer: it finds a letter, or that the model declines to choose."""
    verdict = parse(row.text or "", drop_missing(row.options), "vlmevalkit")
    return verdict.letter is not None or verdict.declined


def draw_letter(row: Answer) -> str | None:
    """One of the letters, or None (the toolkit's "Z"), equally likely, drawn with a seed of the question."""
    rng = random.Random(sample_seed(0, f"{row.id}/{row.variant}/{MATCHES}"))
    options = zip(LETTERS, drop_missing(row.options), strict=False)
    return rng.choice([*(letter for letter, text in options if text is not None), None])
