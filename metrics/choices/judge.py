"""A VQA judge as a model that answers multiple-choice questions: the same object, asked other questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.choices.base import Asked, Reply, check
from metrics.judges.templates import TEMPLATES
from metrics.loading import fingerprint


class JudgeChoices:
    """What the judge writes when it is asked in its own template. It gives no probabilities of letters."""

    scorings: tuple[str, ...] = ("generated",)
    concurrent = 0

    def __init__(self, judge: Any) -> None:
        self.judge = judge
        self.fingerprint = fingerprint({"kind": "choice", "judge": judge.fingerprint})

    def describe(self) -> dict[str, Any]:
        """The judge's own description, and the fingerprint by which other runs name it."""
        return {**self.judge.describe(), "judge": self.judge.fingerprint}

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """See `metrics.choices.base.ChoiceModel`."""
        check(images, asked)
        wrapper = TEMPLATES[self.judge.template].wrapper
        questions = [[wrapper.replace("{question}", one.prompt.text.strip()) for one in row] for row in asked]
        answers = self.judge.ask(images, questions)
        return [[Reply(text=answer.text) for answer in row] for row in answers]
