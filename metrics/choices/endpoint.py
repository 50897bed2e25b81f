"""Multiple-choice questions to a model that is served: `openai:URL#MODEL`, `vllm:URL#MODEL`, `vllm:MODEL`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nein.metrics.backends import ServedModel, connect
from nein.metrics.backends.endpoint import Endpoint, NoAnswer, Said, Turn
from nein.metrics.backends.vllm import VllmEngine
from nein.metrics.choices.base import Asked, Reply, check
from nein.metrics.letters import LETTERS, SCORINGS


class EndpointChoices(ServedModel):
    """Letters of options. Log-probabilities are those among the 20 alternatives of the first token; where a
    server gives none, every reply says so. A question without an answer is a reply with the error."""

    kind, scorings = "choice", SCORINGS

    def __init__(self, endpoint: Endpoint | VllmEngine, *, max_new_tokens: int = 16) -> None:
        super().__init__(endpoint, max_new_tokens=max_new_tokens)

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """See `metrics.choices.base.ChoiceModel`; questions of one call are asked side by side."""
        check(images, asked)
        said = self.endpoint.ask(
            images,
            [[Turn(one.prompt.after, one.prompt.before) for one in row] for row in asked],
            max_tokens=self.max_new_tokens if "generated" in scorings else 1,
            likeliest="logprob" in scorings,
            failed=lambda error: error,
        )
        return [
            [_reply(answer, one, scorings) for answer, one in zip(answers, row, strict=True)]
            for answers, row in zip(said, asked, strict=True)
        ]


def _reply(said: Said | NoAnswer, one: Asked, scorings: Sequence[str]) -> Reply:
    if isinstance(said, NoAnswer):
        return Reply(error=str(said), silent=said.silent)
    logprobs = _letters(said.first, one.options) if "logprob" in scorings else None
    return Reply(said.text.strip() if "generated" in scorings else None, logprobs)


def _letters(first: Sequence[tuple[str, float]], options: int) -> tuple[float | None, ...] | None:
    """Log-probability per letter from the alternatives of the first token; None when there are none."""
    total = dict.fromkeys(LETTERS[:options], 0.0)
    for token, logprob in first:
        if token.strip() in total:
            total[token.strip()] += math.exp(logprob)
    return tuple(math.log(p) if p > 0 else None for p in total.values()) if first else None


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, max_new_tokens: int = 16,
    **options: Any,
) -> EndpointChoices:  # fmt: skip
    """A reference of `metrics.backends.connect`; options: max_new_tokens, concurrency, timeout, retries."""
    options.pop("batch_size", None)  # of models that are loaded here
    endpoint = connect(path_or_id, revision=revision, device=device, dtype=dtype, **options)
    return EndpointChoices(endpoint, max_new_tokens=max_new_tokens)
