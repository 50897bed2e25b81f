"""Wraps models that answer multiple-choice questions in remedies (`nein negvqa --mend`), which ask the model
other questions, or more of them, and make the reply from the answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nein.loading.digests import Json
from nein.metrics.base import Images
from nein.metrics.choice_prompts import Prompt, write_prompt
from nein.metrics.choices import ChoiceQuestion, Questions, Reply, answer_each
from nein.metrics.letters import LETTERS, parse
from nein.wording.denials import remove_denial

Replies = list[list[Reply]]  # a row per image, a reply per question
Scorings = Sequence[str]  # what a reply must have: a text ("generated"), log-probabilities ("logprob")
NOT_TWO = "only of two options can the other be taken"  # error of a reply

# --- flip ------------------------------------------------------------------------------------------------


def _flip(model: Any, images: Images, questions: Questions, scorings: Scorings, wording: str) -> Replies:
    """Asks negated questions without their negation, and takes the other option."""
    affirmative = [[_remove_denial(question, wording) for question in row] for row in questions]
    replies = answer_each(model, images, affirmative, scorings)
    for row, old_row, new_row in zip(replies, questions, affirmative, strict=True):
        for index, (old, new) in enumerate(zip(old_row, new_row, strict=True)):
            if new is not old:  # `_remove_denial` found one
                row[index] = _swap_options(row[index], old)
    return replies


def _remove_denial(question: ChoiceQuestion, wording: str) -> ChoiceQuestion:
    """The question without its denial, or the same object if the rule finds none."""
    if (text := remove_denial(question.question)) is None:
        return question
    prompt = write_prompt(wording, text, question.texts)
    return ChoiceQuestion(prompt, question.option_count, text, question.texts)


def _swap_options(reply: Reply, question: ChoiceQuestion) -> Reply:
    """The reply that takes the other of two options; `metrics.letters` reads the letter of a text."""
    if reply.error:
        return reply
    if question.option_count != 2:
        return Reply(error=NOT_TWO)
    letter, _, _ = parse(reply.text or "", list(question.texts), "fixed")
    text = reply.text if letter is None else LETTERS[1 - LETTERS.index(letter)]
    logprobs = None if reply.logprobs is None else reply.logprobs[::-1]
    return replace(reply, text=text, logprobs=logprobs, each=None)


# --- consistent ------------------------------------------------------------------------------------------

NO_PROBABILITIES = "no probabilities of letters, by which a pair could be made consistent"  # error of a reply


def _make_consistent(
    model: Any, images: Images, questions: Questions, scorings: Scorings, wording: str
) -> Replies:
    """Gives a question and its negation, which follows it, different letters, in the likelier of two ways."""
    replies = answer_each(model, images, questions, sorted({*scorings, "logprob"}))
    for row, question_row in zip(replies, questions, strict=True):
        for k in range(0, len(row), 2):
            row[k : k + 2] = _make_pair_consistent(row[k], row[k + 1], question_row[k], scorings)
    return replies


def _make_pair_consistent(
    first: Reply, second: Reply, question: ChoiceQuestion, scorings: Scorings
) -> list[Reply]:
    """Two replies, to the question and its negation."""
    failure = first.error or second.error or ("" if question.option_count == 2 else NOT_TWO)
    # Log-probabilities of the letters A and B: p of the question, q of its negation
    p = [-math.inf if value is None else value for value in first.logprobs or ()]
    q = [-math.inf if value is None else value for value in second.logprobs or ()]
    if not failure and (not p or not q or max(p) == -math.inf or max(q) == -math.inf):
        failure = NO_PROBABILITIES
    if failure:
        return [Reply(error=failure)] * 2
    a_then_b = p[0] + q[1]  # log-probability of A for the question, and B for its negation
    b_then_a = p[1] + q[0]
    replies = []
    for a, b in ((a_then_b, b_then_a), (b_then_a, a_then_b)):  # of A and B, for each of the two questions
        letter = "" if a == b else LETTERS[int(b > a)]  # none for a tie
        text = letter if "generated" in scorings else None
        replies.append(Reply(text, (a, b) if "logprob" in scorings else None))
    return replies


# --- chain of thought ------------------------------------------------------------------------------------

STEPS = "Let's think step by step."  # asks for thoughts
_THEREFORE = "\nTherefore, the letter of the answer is"


def _think(model: Any, images: Images, questions: Questions, scorings: Scorings, wording: str) -> Replies:
    """Asks twice: first for thoughts, then for the letter, with those thoughts in the prompt."""
    first_questions = [[_append_to_prompt(question, STEPS) for question in row] for row in questions]
    thoughts = answer_each(model, images, first_questions, ["generated"])
    last_questions = []  # to those images and questions that got thoughts
    for question_row, thought_row in zip(questions, thoughts, strict=True):
        last_row = []
        for question, thought in zip(question_row, thought_row, strict=True):
            if not thought.error:
                text = f"{STEPS}\n{thought.text or ''}{_THEREFORE}"
                last_row.append(_append_to_prompt(question, text))
        last_questions.append(last_row)
    replies = []
    answers = answer_each(model, images, last_questions, scorings)
    for thought_row, answer_row in zip(thoughts, answers, strict=True):
        remaining = iter(answer_row)  # one for each thought without an error
        replies.append([thought if thought.error else next(remaining) for thought in thought_row])
    return replies


def _append_to_prompt(question: ChoiceQuestion, text: str) -> ChoiceQuestion:
    before, after = question.prompt
    return replace(question, prompt=Prompt(before, f"{after.rstrip()}\n{text}"))


# --- all remedies ----------------------------------------------------------------------------------------

#: Name -> its function of (model, images, questions, scorings, wording of the prompt: a key of `PROMPTS`).
REMEDIES: dict[str, Callable[[Any, Images, Questions, Scorings, str], Replies]] = {
    "flip": _flip,
    "consistent": _make_consistent,
    "chain-of-thought": _think,  # zero-shot, arXiv:2205.11916
}
IN_PAIRS = ("consistent",)  # remedies that take a question and its negation together


class WithRemedy:
    """A multiple-choice model with a remedy, a key of `REMEDIES`."""

    def __init__(self, model: Any, remedy: str, wording: str) -> None:
        self._model, self._remedy, self._wording = model, remedy, wording
        if hasattr(model, "usage"):
            self.usage = model.usage
        self.scorings, self.concurrent = model.scorings, model.concurrent
        self.fingerprint = hashlib.sha256(f"{model.fingerprint} {remedy}".encode()).hexdigest()

    def describe(self) -> Json:
        return {**self._model.describe(), "mended": self._remedy}

    def answer(self, images: Images, questions: Questions, scorings: Scorings) -> Replies:
        """See `metrics.choices`; "consistent" takes questions in pairs."""
        return REMEDIES[self._remedy](self._model, images, questions, scorings, self._wording)

    def stop(self) -> None:
        self._model.stop()
