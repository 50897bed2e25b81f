"""A VQA judge, or a function, as a model that answers multiple-choice questions."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nein.loading.errors import choose
from nein.loading.isolation import out_of_memory
from nein.metrics.base import Images, MetricError
from nein.metrics.choices.base import ASKINGS, Asked, Reply, check
from nein.metrics.judges.base import TEMPLATES, Answer
from nein.metrics.letters import LETTERS
from nein.metrics.loading import fingerprint


class JudgeChoices:
    """A judge asked in its own template.

    asking  One of `ASKINGS`. "options": `Reply.each` is what it said about every option, and `Reply.logprobs`
            is ln(P(yes) / (P(yes) + P(no))) for each, where the judge gives probabilities. "letters": text
            alone.
    """

    def __init__(self, judge: Any, asking: str = "letters") -> None:
        self.judge = judge
        self.asking = choose("way of asking a judge", asking, ASKINGS)
        self.scorings = ASKINGS[asking]
        self.concurrent: int = getattr(judge, "concurrent", 0)
        self.fingerprint = fingerprint({"kind": "choice", "judge": judge.fingerprint, "asking": asking})

    def describe(self) -> dict[str, Any]:
        return {**self.judge.describe(), "judge": self.judge.fingerprint, "asking": self.asking}

    def stop(self) -> None:
        """Of a judge behind an endpoint: ends all waiting."""
        self.judge.stop()

    def usage(self) -> dict[str, Any]:
        return getattr(self.judge, "usage", dict)()

    def answer(
        self, images: Images, asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        check(images, asked)
        template = TEMPLATES[self.judge.template]
        if self.asking == "letters":
            questions = [[template.wrap(one.prompt.text.strip()) for one in row] for row in asked]
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
    shares: list[float | None] = []  # ln of the share of yes
    for answer in answers if "logprob" in scorings else ():
        if answer.p_yes is None or answer.p_no is None or answer.p_yes + answer.p_no <= 0:
            return Reply(text=shown, each=each)  # the judge gives no probabilities
        share = answer.p_yes / (answer.p_yes + answer.p_no)
        shares.append(math.log(share) if share > 0 else None)
    return Reply(text=shown, each=each, logprobs=tuple(shares) if "logprob" in scorings else None)


class FunctionChoices:
    """Answers by a function of yours, `answer(image, question, options) -> str`.

    function     Called with a `PIL.Image.Image` in mode RGB, the question and a list of options; gives what a
                 model would write: a letter, or a sentence that begins with one. One call at a time.
    fingerprint  Stands for everything that decides an answer.
    by_type      Types of what the function holds that the fingerprint does not look into.

    What the function raises, and an answer that is no text, is the error of that question. Raises MetricError
    for a function that cannot be called so.
    """

    scorings = ("generated",)
    concurrent = 0

    def __init__(
        self, function: Callable[[Any, str, list[str]], str], *, name: str, fingerprint: str,
        by_type: Sequence[str] = (),
    ) -> None:  # fmt: skip
        try:
            signature = inspect.signature(function)
        except ValueError:  # written in C: nothing is known of it
            signature = inspect.Signature([inspect.Parameter("any", inspect.Parameter.VAR_POSITIONAL)])
        try:
            signature.bind(None, None, None)
        except TypeError:
            raise MetricError(
                f"{name}{signature} cannot be called with a picture, a question and its options; expected a "
                "function answer(image, question, options) -> text"
            ) from None
        self.function, self.name, self.fingerprint = function, name, fingerprint
        self._by_type = list(by_type)
        self._lock = threading.Lock()  # functions are seldom written to be called from several threads

    def describe(self) -> dict[str, Any]:
        said = {"class": type(self).__name__, "function": self.name, "fingerprint": self.fingerprint}
        return {**said, **({"by_type": self._by_type} if self._by_type else {})}

    def answer(
        self, images: Images, asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        check(images, asked)
        return [[self._one(image, one) for one in row] for image, row in zip(images, asked, strict=True)]

    def _one(self, image: np.ndarray, one: Asked) -> Reply:
        from PIL import Image

        try:
            with self._lock:
                text = self.function(Image.fromarray(image.copy()), one.question, list(one.texts))
        except Exception as error:
            if out_of_memory(error):
                raise  # is about the machine, not about the question
            said = " ".join(str(error).split())[:300]
            return Reply(error=f"{self.name} raised {type(error).__name__}: {said}")
        if not isinstance(text, str):
            return Reply(error=f"{self.name} gave a {type(text).__name__}; expected a text, such as 'A'")
        return Reply(text=text.strip())
