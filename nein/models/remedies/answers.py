"""Remedies for models that answer questions: the model is asked otherwise, or more often (`--mend`)."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nein.engine.errors import UserError
from nein.metrics import choices
from nein.metrics.choices import ChoiceQuestion, Prompt, Reply, answer_each
from nein.metrics.letters import LETTERS, parse
from nein.wording.denials import affirmed

Images = Sequence[np.ndarray]
Table = Sequence[Sequence[ChoiceQuestion]]
Rows = list[list[Reply]]
STEPS = "Let's think step by step."
_THEREFORE = "\nTherefore, the letter of the answer is"
NOT_TWO = "only of two options can the other be taken"
NO_PROBABILITIES = "no probabilities of letters, by which a pair could be made consistent"


def _flipped(model: Any, images: Images, asked: Table, scorings: Sequence[str], wording: str) -> Rows:
    """Every question that denies is asked without its denial, and the other option taken."""

    def reworded(one: ChoiceQuestion) -> ChoiceQuestion:
        text = affirmed(one.question)
        if text is None:
            return one
        return ChoiceQuestion(choices.prompt(wording, text, one.texts), one.options, text, one.texts)

    instead = _each(reworded, asked)
    replies = answer_each(model, images, instead, scorings)
    return _each(lambda r, one, other: r if other is one else _other(r, one), replies, asked, instead)


def _each(work: Callable[..., Any], *tables: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """`work` of the cells of tables of one shape, in their shape."""
    return [[work(*cells) for cells in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]


def _other(reply: Reply, asked: ChoiceQuestion) -> Reply:
    """The same with the options exchanged; what was written, as `metrics.letters` reads it."""
    if reply.error:
        return reply
    if asked.options != 2:
        return Reply(error=NOT_TWO)
    letter, _, _ = parse(reply.text or "", list(asked.texts), "fixed")
    text = reply.text if letter is None else LETTERS[1 - LETTERS.index(letter)]
    logprobs = None if reply.logprobs is None else reply.logprobs[::-1]
    return dataclasses.replace(reply, text=text, logprobs=logprobs, each=None)


def _consistent(model: Any, images: Images, asked: Table, scorings: Sequence[str], wording: str) -> Rows:
    """A question and its negation get different letters: the likelier of the two ways."""
    replies = answer_each(model, images, asked, sorted({*scorings, "logprob"}))
    return [
        [
            reply
            for pair in zip(row[::2], row[1::2], questions[::2], strict=True)
            for reply in _agreed(*pair, scorings)
        ]
        for row, questions in zip(replies, asked, strict=True)
    ]


def _agreed(
    first: Reply, second: Reply, asked: ChoiceQuestion, scorings: Sequence[str]
) -> tuple[Reply, Reply]:
    failure = first.error or second.error or ("" if asked.options == 2 else NOT_TWO)
    ends = [[-math.inf if p is None else p for p in reply.logprobs or ()] for reply in (first, second)]
    if not failure and (not all(ends) or -math.inf in map(max, ends)):
        failure = NO_PROBABILITIES
    if failure:
        reply = Reply(error=failure)
        return reply, reply
    replies = []
    for a, b in ((ends[0][0] + ends[1][1], ends[0][1] + ends[1][0]),  # A and B, B and A
                 (ends[0][1] + ends[1][0], ends[0][0] + ends[1][1])):  # fmt: skip
        text = "" if a == b else LETTERS[int(b > a)]  # none where both are as likely
        replies.append(
            Reply(text if "generated" in scorings else None, (a, b) if "logprob" in scorings else None)
        )
    return replies[0], replies[1]


def _thought(model: Any, images: Images, asked: Table, scorings: Sequence[str], wording: str) -> Rows:
    """Asked twice: first to think, then for the letter behind what was thought."""

    def longer(one: ChoiceQuestion, words: str) -> ChoiceQuestion:
        before, after = one.prompt
        return dataclasses.replace(one, prompt=Prompt(before, f"{after.rstrip()}\n{words}"))

    thinking = _each(lambda one: longer(one, STEPS), asked)
    thoughts = answer_each(model, images, thinking, ["generated"])
    concluding = [
        [
            longer(one, f"{STEPS}\n{thought.text or ''}{_THEREFORE}")
            for one, thought in zip(*rows, strict=True)
            if not thought.error
        ]
        for rows in zip(asked, thoughts, strict=True)
    ]
    replies = [iter(row) for row in answer_each(model, images, concluding, scorings)]
    return [
        [thought if thought.error else next(rest) for thought in row]
        for row, rest in zip(thoughts, replies, strict=True)
    ]


#: Name -> its function of (model, pictures, questions, scorings, wording).
REMEDIES: dict[str, Callable[[Any, Images, Table, Sequence[str], str], Rows]] = {
    "flip": _flipped,
    "consistent": _consistent,
    "chain-of-thought": _thought,  # zero-shot, arXiv:2205.11916
}
#: Takes a question and its negation together.
IN_PAIRS = ("consistent",)


def possible(arm: str, scorings: Sequence[str], reference: str) -> None:
    """Raises UserError where a model cannot have the remedy."""
    if arm == "consistent" and "logprob" not in scorings:
        raise UserError(
            f"'{reference}' gives no probabilities of letters, by which --mend {arm} chooses; leave it out."
        )


class WithRemedy:
    """A model of multiple choice with a remedy. wording: a prompt (`metrics.choices.PROMPTS`)."""

    def __init__(self, model: Any, arm: str, wording: str) -> None:
        self._model, self._arm, self._wording = model, arm, wording
        if hasattr(model, "usage"):
            self.usage = model.usage
        self.scorings, self.concurrent = model.scorings, model.concurrent
        self.fingerprint = hashlib.sha256(f"{model.fingerprint} {arm}".encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {**self._model.describe(), "mended": self._arm}

    def answer(self, images: Images, asked: Table, scorings: Sequence[str]) -> Rows:
        """See `metrics.choices`; "consistent" takes questions in pairs."""
        return REMEDIES[self._arm](self._model, images, asked, scorings, self._wording)

    def stop(self) -> None:
        self._model.stop()
