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
from nein.metrics.choices import Asked, Reply
from nein.metrics.choices.base import Prompt
from nein.metrics.letters import LETTERS, parse
from nein.wording.affirmed import affirmed

Rows = list[list[Reply]]
STEPS = "Let's think step by step."
_THEREFORE = "\nTherefore, the letter of the answer is"
NOT_TWO = "only of two options can the other be taken"
NO_PROBABILITIES = "no probabilities of letters, by which a pair could be made consistent"


def _flipped(
    model: Any,
    images: Sequence[np.ndarray],
    asked: Sequence[Sequence[Asked]],
    scorings: Sequence[str],
    wording: str,
) -> Rows:
    """Every question that denies is asked without its denial, and the other option taken."""
    plain = [[affirmed(one.question) for one in row] for row in asked]
    instead = [
        [one if text is None else _reworded(one, text, wording) for one, text in zip(row, texts, strict=True)]
        for row, texts in zip(asked, plain, strict=True)
    ]
    replies = model.answer(images, instead, scorings)
    return [
        [
            reply if text is None else _other(reply, one)
            for reply, one, text in zip(answers, row, texts, strict=True)
        ]
        for answers, row, texts in zip(replies, asked, plain, strict=True)
    ]


def _reworded(one: Asked, question: str, wording: str) -> Asked:
    return Asked(choices.prompt(wording, question, one.texts), one.options, question, one.texts)


def _other(reply: Reply, asked: Asked) -> Reply:
    """The same with the options exchanged; what was written, as `metrics.letters` reads it."""
    if reply.error:
        return reply
    if asked.options != 2:
        return Reply(error=NOT_TWO)
    letter, _, _ = parse(reply.text or "", list(asked.texts), "fixed")
    text = reply.text if letter is None else LETTERS[1 - LETTERS.index(letter)]
    logprobs = None if reply.logprobs is None else reply.logprobs[::-1]
    return dataclasses.replace(reply, text=text, logprobs=logprobs, each=None)


def _consistent(
    model: Any,
    images: Sequence[np.ndarray],
    asked: Sequence[Sequence[Asked]],
    scorings: Sequence[str],
    wording: str,
) -> Rows:
    """A question and its negation, which follow each other, get different letters: of the two ways to do that
    the likelier, by the product of the probabilities."""
    replies = model.answer(images, asked, sorted({*scorings, "logprob"}))
    made = []
    for answers, row in zip(replies, asked, strict=True):
        pairs = zip(answers[::2], answers[1::2], row[::2], strict=True)
        made.append(
            [reply for first, second, one in pairs for reply in _agreed(first, second, one, scorings)]
        )
    return made


def _agreed(first: Reply, second: Reply, asked: Asked, scorings: Sequence[str]) -> tuple[Reply, Reply]:
    failure = first.error or second.error or ("" if asked.options == 2 else NOT_TWO)
    ends = [[-math.inf if p is None else p for p in reply.logprobs or ()] for reply in (first, second)]
    if not failure and (not all(ends) or -math.inf in map(max, ends)):
        failure = NO_PROBABILITIES
    if failure:
        reply = Reply(error=failure, silent=first.silent or second.silent)
        return reply, reply
    joint = (ends[0][0] + ends[1][1], ends[0][1] + ends[1][0])  # A and B, B and A
    return _letter(joint, scorings), _letter(joint[::-1], scorings)


def _letter(logprobs: tuple[float, float], scorings: Sequence[str]) -> Reply:
    """The likelier letter as an answer; no text where both are as likely."""
    text = "" if logprobs[0] == logprobs[1] else LETTERS[int(logprobs[1] > logprobs[0])]
    return Reply(
        text if "generated" in scorings else None, tuple(logprobs) if "logprob" in scorings else None
    )


def _thought(
    model: Any,
    images: Sequence[np.ndarray],
    asked: Sequence[Sequence[Asked]],
    scorings: Sequence[str],
    wording: str,
) -> Rows:
    """Asked twice: first to think, then for the letter behind what was thought."""
    thinking = [[dataclasses.replace(one, prompt=_longer(one.prompt, STEPS)) for one in row] for row in asked]
    thoughts = model.answer(images, thinking, ["generated"])
    concluding = [
        [
            dataclasses.replace(one, prompt=_longer(one.prompt, f"{STEPS}\n{thought.text or ''}{_THEREFORE}"))
            for one, thought in zip(row, told, strict=True)
        ]
        for row, told in zip(asked, thoughts, strict=True)
    ]
    answers = model.answer(images, concluding, scorings)
    return [
        [thought if thought.error else reply for thought, reply in zip(told, row, strict=True)]
        for told, row in zip(thoughts, answers, strict=True)
    ]


def _longer(prompt: Prompt, words: str) -> Prompt:
    return Prompt(prompt.before, f"{prompt.after.rstrip()}\n{words}")


Answer = Callable[[Any, Sequence[np.ndarray], Sequence[Sequence[Asked]], Sequence[str], str], Rows]
#: Name -> its function of (model, pictures, questions, scorings, wording).
REMEDIES: dict[str, Answer] = {
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
    """A `metrics.choices.ChoiceModel` with a remedy. wording: a prompt (`metrics.choices.PROMPTS`)."""

    def __init__(self, model: Any, arm: str, wording: str) -> None:
        self._model, self._arm, self._wording = model, arm, wording
        if hasattr(model, "usage"):
            self.usage = model.usage
        self.scorings, self.concurrent = model.scorings, model.concurrent
        self.fingerprint = hashlib.sha256(f"{model.fingerprint} {arm}".encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {**self._model.describe(), "mended": self._arm}

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> Rows:
        """See `metrics.choices.base.ChoiceModel`; "consistent" takes questions in pairs."""
        return REMEDIES[self._arm](self._model, images, asked, scorings, self._wording)

    def stop(self) -> None:
        self._model.stop()
