"""Multiple-choice questions to a model behind an OpenAI-compatible endpoint: `openai:URL#MODEL`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.choices.base import Asked, Reply, check
from metrics.endpoint import LOGPROBS, Endpoint, NoAnswer, key, picture, split_endpoint, words
from metrics.letters import LETTERS, SCORINGS
from metrics.loading import fingerprint


class EndpointChoices:
    """Answers of a chat-completions endpoint, temperature 0, at most `max_new_tokens` tokens.

    sending  concurrency, timeout, retries and key of `metrics.endpoint.Endpoint`.

    Log-probabilities of the letters are those among the 20 alternatives of the first token; a server that
    gives none makes log-probability scoring impossible, and every reply says so. A question without an answer
    in spite of retries is a reply with the error. A server that has moved has the same fingerprint.
    """

    scorings = SCORINGS

    def __init__(self, url: str, model: str, *, max_new_tokens: int = 16, **sending: Any) -> None:
        self.endpoint = Endpoint(url, model, **sending)
        self.max_new_tokens = max_new_tokens
        self.concurrent = self.endpoint.concurrency
        self.stop = self.endpoint.stop
        self.fingerprint = fingerprint({**self.describe(), "reference": ""})

    def describe(self) -> dict[str, Any]:
        """Everything we know that decides an answer; no key, no user name."""
        return {
            "kind": "choice",
            "class": type(self).__name__,
            "reference": self.endpoint.address,
            "model": self.endpoint.model,
            "decoding": f"temperature 0, at most {self.max_new_tokens} tokens",
        }

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """See `metrics.choices.base.ChoiceModel`; questions of one call are asked side by side."""
        check(images, asked)
        shown = [picture(image) if row else {} for image, row in zip(images, asked, strict=True)]
        places = [(i, k) for i, row in enumerate(asked) for k in range(len(row))]

        def reply(place: tuple[int, int]) -> Reply:
            return self._reply(shown[place[0]], asked[place[0]][place[1]], scorings)

        replies = dict(self.endpoint.each(reply, places))
        return [[replies[i, k] for k in range(len(row))] for i, row in enumerate(asked)]

    def _reply(self, shown: dict[str, Any], one: Asked, scorings: Sequence[str]) -> Reply:
        content = [shown, words(one.prompt.after)]
        if one.prompt.before:
            content.insert(0, words(one.prompt.before))
        tokens = self.max_new_tokens if "generated" in scorings else 1
        # Some servers know no log-probabilities; what is written can still be had.
        optional = [LOGPROBS] if "logprob" in scorings else []
        try:
            said = self.endpoint.chat(content, optional, max_tokens=tokens, temperature=0)
        except NoAnswer as error:
            return Reply(error=str(error), silent=error.silent)
        logprobs = _letters(said.first, one.options) if "logprob" in scorings else None
        return Reply(said.text.strip() if "generated" in scorings else None, logprobs)


def _letters(first: Sequence[tuple[str, float]], options: int) -> tuple[float | None, ...] | None:
    """Log-probability per letter from the alternatives of the first token; None when there are none."""
    if not first:
        return None
    total = dict.fromkeys(LETTERS[:options], 0.0)
    for token, logprob in first:
        if token.strip() in total:
            total[token.strip()] += math.exp(logprob)
    return tuple(math.log(p) if p > 0 else None for p in total.values())


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, **options: Any
) -> EndpointChoices:
    """`openai:URL#MODEL`; options: max_new_tokens, concurrency, timeout, retries."""
    options.pop("batch_size", None)  # of local models
    model = EndpointChoices(*split_endpoint(path_or_id), key=key(), **options)
    model.endpoint.check()
    return model
