"""A function that answers multiple-choice questions about pictures, as a `ChoiceModel`."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metrics.base import MetricError
from metrics.choices.base import Asked, Reply, check
from nein.loading.isolation import out_of_memory


class FunctionChoices:
    """Answers by a function of yours, `answer(image, question, options) -> str`.

    function     Called with a picture, a `PIL.Image.Image` in mode RGB, the question and the options, a list
                 of texts; gives what a model would write: a letter, or a sentence that begins with one. One
                 call at a time.
    fingerprint  Stands for everything that decides an answer.
    by_type      Types of what the function holds that the fingerprint does not look into.

    What the function raises, and an answer that is no text, is the error of that question. Raises MetricError
    for a function that cannot be called so.
    """

    scorings = ("generated",)
    concurrent = 0

    def __init__(
        self,
        function: Callable[[Any, str, list[str]], str],
        *,
        name: str,
        fingerprint: str,
        by_type: Sequence[str] = (),
    ) -> None:
        _check(function, name)
        self.function = function
        self.name = name
        self.fingerprint = fingerprint
        self._by_type = list(by_type)
        self._lock = threading.Lock()  # functions are seldom written to be called from several threads

    def describe(self) -> dict[str, Any]:
        said = {"class": type(self).__name__, "function": self.name, "fingerprint": self.fingerprint}
        return {**said, **({"by_type": self._by_type} if self._by_type else {})}

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """See `ChoiceModel.answer`."""
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


def _check(function: Callable[..., Any], name: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C: nothing is known of it
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise MetricError(
            f"{name}{signature} cannot be called with a picture, a question and its options; expected a "
            "function answer(image, question, options) -> text"
        ) from None
