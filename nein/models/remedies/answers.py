"""Remedies for models that answer questions: other questions, or more of them (`--mend`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nein.loading.digests import Json
from nein.metrics import choices
from nein.metrics.choices import ChoiceQuestion, Prompt, Reply, answer_each
from nein.metrics.letters import LETTERS, parse
from nein.wording.denials import remove_denial

Images = Sequence[np.ndarray]
Table = Sequence[Sequence[ChoiceQuestion]]
Rows = list[list[Reply]]
STEPS = "Let's think step by step."
_THEREFORE = "\nTherefore, the letter of the answer is"
NOT_TWO = "only of two options can the other be taken"
NO_PROBABILITIES = "no probabilities of letters, by which a pair could be made consistent"


def _flip(model: Any, images: Images, questions: Table, scorings: Sequence[str], wording: str) -> Rows:
    """Asks negated questions without their negation, and takes the other option."""
    affirmative = [[_remove_denial(question, wording) for question in row] for row in questions]
    rows = zip(answer_each(model, images, affirmative, scorings), questions, affirmative, strict=True)
    return [
        [reply if new is old else _swap_options(reply, old) for reply, old, new in zip(*row, strict=True)]
        for row in rows
    ]


def _remove_denial(question: ChoiceQuestion, wording: str) -> ChoiceQuestion:
    if (text := remove_denial(question.question)) is None:
        return question
    texts = question.texts
    return ChoiceQuestion(choices.write_prompt(wording, text, texts), question.options, text, texts)


def _swap_options(reply: Reply, question: ChoiceQuestion) -> Reply:
    """The reply with its options swapped; `metrics.letters` reads the written letter."""
    if reply.error:
        return reply
    if question.options != 2:
        return Reply(error=NOT_TWO)
    letter, _, _ = parse(reply.text or "", list(question.texts), "fixed")
    text = reply.text if letter is None else LETTERS[1 - LETTERS.index(letter)]
    logprobs = None if reply.logprobs is None else reply.logprobs[::-1]
    return replace(reply, text=text, logprobs=logprobs, each=None)


def _make_consistent(model: Any, images: Images, table: Table, scorings: Sequence[str], wording: str) -> Rows:
    """Gives a question and its negation different letters, in the likelier of the two ways."""
    rows = []
    replies = answer_each(model, images, table, sorted({*scorings, "logprob"}))
    for row, questions in zip(replies, table, strict=True):
        pairs = zip(row[::2], row[1::2], questions[::2], strict=True)
        rows.append([reply for pair in pairs for reply in _agree(*pair, scorings)])
    return rows


def _agree(
    first: Reply, second: Reply, question: ChoiceQuestion, scorings: Sequence[str]
) -> tuple[Reply, Reply]:
    failure = first.error or second.error or ("" if question.options == 2 else NOT_TWO)
    # Log-probabilities of the letters of each question
    p, q = ([-math.inf if x is None else x for x in reply.logprobs or ()] for reply in (first, second))
    if not failure and (not p or not q or -math.inf in (max(p), max(q))):
        failure = NO_PROBABILITIES
    if failure:
        return Reply(error=failure), Reply(error=failure)
    ways = (p[0] + q[1], p[1] + q[0])  # A and B, B and A
    replies = []
    for a, b in (ways, ways[::-1]):
        letter = "" if a == b else LETTERS[int(b > a)]  # none for a tie
        text, logs = letter if "generated" in scorings else None, (a, b) if "logprob" in scorings else None
        replies.append(Reply(text, logs))
    return replies[0], replies[1]


def _think(model: Any, images: Images, questions: Table, scorings: Sequence[str], wording: str) -> Rows:
    """Asked twice: first to think, then for the letter behind what was thought."""
    first_questions = [[_extend(question, STEPS) for question in row] for row in questions]
    thoughts = answer_each(model, images, first_questions, ["generated"])
    conclusions = [
        [
            _extend(question, f"{STEPS}\n{thought.text or ''}{_THEREFORE}")
            for question, thought in zip(*row, strict=True)
            if not thought.error
        ]
        for row in zip(questions, thoughts, strict=True)
    ]
    replies = [iter(row) for row in answer_each(model, images, conclusions, scorings)]
    return [
        [thought if thought.error else next(row_replies) for thought in row]
        for row, row_replies in zip(thoughts, replies, strict=True)
    ]


def _extend(question: ChoiceQuestion, words: str) -> ChoiceQuestion:
    before, after = question.prompt
    return replace(question, prompt=Prompt(before, f"{after.rstrip()}\n{words}"))


#: Name -> its function of (model, images, questions, scorings, wording).
REMEDIES: dict[str, Callable[[Any, Images, Table, Sequence[str], str], Rows]] = {
    "flip": _flip,
    "consistent": _make_consistent,
    "chain-of-thought": _think,  # zero-shot, arXiv:2205.11916
}
IN_PAIRS = ("consistent",)  # remedies that take a question and its negation together


class WithRemedy:
    """A model of multiple choice with a remedy. wording: a prompt (`metrics.choices.PROMPTS`)."""

    def __init__(self, model: Any, arm: str, wording: str) -> None:
        self._model, self._arm, self._wording = model, arm, wording
        if hasattr(model, "usage"):
            self.usage = model.usage
        self.scorings, self.concurrent = model.scorings, model.concurrent
        self.fingerprint = hashlib.sha256(f"{model.fingerprint} {arm}".encode()).hexdigest()

    def describe(self) -> Json:
        return {**self._model.describe(), "mended": self._arm}

    def answer(self, images: Images, asked: Table, scorings: Sequence[str]) -> Rows:
        """See `metrics.choices`; "consistent" takes questions in pairs."""
        return REMEDIES[self._arm](self._model, images, asked, scorings, self._wording)

    def stop(self) -> None:
        self._model.stop()
