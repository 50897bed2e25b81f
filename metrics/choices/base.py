"""What a model that answers multiple-choice questions is asked, and what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from metrics.base import MetricError, check_image
from metrics.choices.prompts import Prompt
from metrics.judges.base import check_finite
from metrics.letters import LETTERS, SCORINGS
from nein.loading.isolation import isolated, reason

#: How a judge is asked, and by what it can be read then. "options": in NeIn's yes/no question about a
#: caption, once per option: 'Does the caption "What is on the bed? dog" describe this image? Answer only yes
#: or no'. "letters": the multiple-choice question as any model gets it.
ASKINGS: dict[str, tuple[str, ...]] = {"options": SCORINGS, "letters": ("generated",)}


@dataclass(frozen=True)
class Asked:
    """A question.

    prompt    Its final wording, options and all; options: how many it has (letters A, B, ...).
    question, texts
              The question and the options by themselves, for models that are asked about one option at a
              time; empty where nobody needs them.
    """

    prompt: Prompt
    options: int = 2
    question: str = ""
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """One answer. Raises ValueError for log-probabilities that are not finite.

    text      What the model wrote, stripped; None where it was not asked to write.
    logprobs  Natural logarithm of the probability that the answer begins with the letter, per option, all
              ways of writing the letter as one token added up; None for a letter the model's server did not
              list. None altogether where log-probabilities were not asked for, or cannot be had.
    each      What was said about each option by itself, where the model was asked so ("Yes", "No").
    error     Why there is no answer; "" otherwise.
    silent    Whether other questions can be expected to fail alike: nobody answers.
    """

    text: str | None = None
    logprobs: tuple[float | None, ...] | None = None
    each: tuple[str, ...] | None = None
    error: str = ""
    silent: bool = False

    def __post_init__(self) -> None:
        check_finite(*self.logprobs or ())

    @property
    def likeliest(self) -> str | None:
        """The letter with the highest probability; None without probabilities or for a tie at the top."""
        values = [-math.inf if value is None else value for value in self.logprobs or ()]
        if not values or max(values) == -math.inf or values.count(max(values)) > 1:
            return None
        return LETTERS[values.index(max(values))]


class ChoiceModel(Protocol):
    """Answers multiple-choice questions about pictures.

    scorings    Which of `SCORINGS` it can give.
    concurrent  Questions that may be in flight side by side, each asked for itself; 0: batches of pictures.
                Models with such questions also have `stop()`, which ends all waiting.
    """

    fingerprint: str
    scorings: tuple[str, ...]
    concurrent: int

    def describe(self) -> dict[str, Any]: ...

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """`asked[i]` are questions about `images[i]`, (H, W, 3) uint8; replies in the same shape.

        May raise one of `MODEL_ERRORS` for the whole call; `answer_each` narrows that down.
        """
        ...


def check(images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]]) -> None:
    """Raises MetricError unless there is one list of questions per picture and every picture is one."""
    if len(images) != len(asked):
        raise MetricError(f"{len(images)} pictures but {len(asked)} lists of questions were given.")
    for image in images:
        check_image(image)


def answer_each(
    model: ChoiceModel,
    images: Sequence[np.ndarray],
    asked: Sequence[Sequence[Asked]],
    scorings: Sequence[str],
) -> list[list[Reply]]:
    """As `model.answer`, but a question the model fails on has a reply with the error, and only that one.

    A batch that fails is repeated question by question. A mistake of the user (MetricError) is raised.
    """

    def answer(questions: Sequence[tuple[int, Asked]]) -> list[Reply]:
        rows: dict[int, list[Asked]] = {}
        for picture, one in questions:
            rows.setdefault(picture, []).append(one)
        replied = model.answer([images[picture] for picture in rows], list(rows.values()), scorings)
        return [reply for row in replied for reply in row]

    def failed(error: BaseException) -> Reply:
        if isinstance(error, MetricError):
            raise error
        return Reply(error=reason(error), silent=bool(getattr(error, "silent", False)))

    replies = iter(isolated(answer, [(i, one) for i, row in enumerate(asked) for one in row], failed))
    return [[next(replies) for _ in row] for row in asked]
