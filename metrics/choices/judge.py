"""A VQA judge as a model that answers multiple-choice questions: the same object, asked other questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.choices.base import ASKINGS, Asked, Reply, check
from metrics.judges.base import Answer
from metrics.judges.templates import TEMPLATES
from metrics.letters import LETTERS
from metrics.loading import fingerprint
from nein.loading.errors import choose


class JudgeChoices:
    """A judge asked in its own template.

    asking  One of `ASKINGS`. "options": `Reply.each` is what it said about every option, and `Reply.logprobs`
            is ln(P(yes) / (P(yes) + P(no))) for each, where the judge gives probabilities. "letters": the
            text; it gives no probabilities of letters.

    A judge behind an endpoint takes as many questions side by side as it does otherwise.
    """

    def __init__(self, judge: Any, asking: str = "letters") -> None:
        self.judge = judge
        self.asking = choose("way of asking a judge", asking, ASKINGS)
        self.scorings = ASKINGS[asking]
        self.concurrent: int = getattr(judge, "concurrent", 0)
        self.fingerprint = fingerprint({"kind": "choice", "judge": judge.fingerprint, "asking": asking})

    def describe(self) -> dict[str, Any]:
        """The judge's own description, and the fingerprint by which other runs name it."""
        return {**self.judge.describe(), "judge": self.judge.fingerprint, "asking": self.asking}

    def stop(self) -> None:
        """Of a judge behind an endpoint: ends all waiting."""
        self.judge.stop()

    def usage(self) -> dict[str, Any]:
        """What the judge's work has taken, where it says so."""
        return getattr(self.judge, "usage", dict)()

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """See `metrics.choices.base.ChoiceModel`; "options" needs `Asked.question` and `Asked.texts`."""
        check(images, asked)
        template = TEMPLATES[self.judge.template]
        if self.asking == "letters":
            questions = [
                [template.wrapper.replace("{question}", one.prompt.text.strip()) for one in row]
                for row in asked
            ]
            answers = self.judge.ask(images, questions)
            return [[Reply(text=answer.text) for answer in row] for row in answers]
        questions = [
            [template.ask_caption(f"{one.question} {text}".strip()) for one in row for text in one.texts]
            for row in asked
        ]
        streams = [iter(row) for row in self.judge.ask(images, questions)]
        return [
            [_reply([next(said) for _ in one.texts], scorings) for one in row]
            for row, said in zip(asked, streams, strict=True)
        ]


def _reply(answers: Sequence[Answer], scorings: Sequence[str]) -> Reply:
    each = tuple(answer.text for answer in answers)
    shown = ", ".join(f"{letter}: {text}" for letter, text in zip(LETTERS, each, strict=False))
    return Reply(
        text=shown,
        each=each,
        logprobs=_confidence(answers) if "logprob" in scorings else None,
    )


def _confidence(answers: Sequence[Answer]) -> tuple[float | None, ...] | None:
    """ln of the share of yes per option; None where a judge gives no probabilities."""
    shares: list[float | None] = []
    for answer in answers:
        if answer.p_yes is None or answer.p_no is None or answer.p_yes + answer.p_no <= 0:
            return None
        share = answer.p_yes / (answer.p_yes + answer.p_no)
        shares.append(math.log(share) if share > 0 else None)
    return tuple(shares)
