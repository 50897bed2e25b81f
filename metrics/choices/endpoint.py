"""Multiple-choice questions to a model behind an OpenAI-compatible endpoint: `openai:URL#MODEL`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from metrics.choices.base import SCORINGS, Asked, Reply, check
from metrics.judges.endpoint import data_url
from metrics.letters import LETTERS
from metrics.loading import fingerprint
from metrics.sender import EndpointError, Sender, choice_of, key, split_endpoint


class EndpointChoices:
    """Answers of a chat-completions endpoint, temperature 0, at most `max_new_tokens` tokens.

    sending  concurrency, timeout, retries, key and pause of `metrics.sender.Sender`.

    Log-probabilities of the letters are those among the 20 alternatives of the first token; a server that
    gives none makes log-probability scoring impossible, and every reply says so. A question without an answer
    in spite of retries is a reply with the error.
    """

    scorings = SCORINGS

    def __init__(self, url: str, model: str, *, max_new_tokens: int = 16, **sending: Any) -> None:
        self.sender = Sender(url, **sending)
        self.model = model
        self.max_new_tokens = max_new_tokens
        self.concurrent = self.sender.concurrency
        self._logprobs = True  # until the server answers without them only
        # A server that has moved is the same.
        self.fingerprint = fingerprint({**self.describe(), "reference": ""})

    def describe(self) -> dict[str, Any]:
        """Everything we know that decides an answer; no key, no user name."""
        return {
            "kind": "choice",
            "class": type(self).__name__,
            "reference": self.sender.address,
            "model": self.model,
            "decoding": f"temperature 0, at most {self.max_new_tokens} tokens",
        }

    def stop(self) -> None:
        """Ends all waiting for another attempt; see `metrics.sender.Sender.stop`."""
        self.sender.stop()

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """See `metrics.choices.base.ChoiceModel`; questions of one call are asked side by side."""
        check(images, asked)
        pictures = [data_url(image) if row else "" for image, row in zip(images, asked, strict=True)]
        jobs = [(pictures[i], one) for i, row in enumerate(asked) for one in row]
        with ThreadPoolExecutor(max_workers=min(self.concurrent, max(1, len(jobs)))) as pool:
            replies = iter(list(pool.map(lambda job: self._reply(job[0], job[1], scorings), jobs)))
        return [[next(replies) for _ in row] for row in asked]

    def _reply(self, picture: str, one: Asked, scorings: Sequence[str]) -> Reply:
        said = [{"type": "text", "text": one.prompt.before}] if one.prompt.before else []
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        *said,
                        {"type": "image_url", "image_url": {"url": picture}},
                        {"type": "text", "text": one.prompt.after},
                    ],
                }
            ],
            "max_tokens": self.max_new_tokens if "generated" in scorings else 1,
            "temperature": 0,
        }
        reply = None
        try:
            if "logprob" in scorings and self._logprobs:
                more = {"logprobs": True, "top_logprobs": 20}
                # Some servers know no log-probabilities; what is written can still be had.
                reply = self.sender.chat({**body, **more}, tolerate=(400, 422))
            if reply is None:
                reply = self.sender.chat(body)
                self._logprobs = False
            text, choice = choice_of(reply)
        except EndpointError as error:
            return Reply(error=str(error), silent=error.silent)
        logprobs = _letters(choice, one.options) if "logprob" in scorings else None
        return Reply(text.strip() if "generated" in scorings else None, logprobs)


def _letters(choice: dict[str, Any], options: int) -> tuple[float | None, ...] | None:
    """Log-probability per letter from the alternatives of the first token; None when there are none."""
    entries = ((choice.get("logprobs") or {}).get("content") or [])[:1]
    if not entries or not entries[0].get("top_logprobs"):
        return None
    total = dict.fromkeys(LETTERS[:options], 0.0)
    for alternative in entries[0]["top_logprobs"]:
        letter = str(alternative["token"]).strip()
        if letter in total:
            total[letter] += math.exp(float(alternative["logprob"]))
    return tuple(math.log(p) if p > 0 else None for p in total.values())


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, **options: Any
) -> EndpointChoices:
    """`openai:URL#MODEL`; options: max_new_tokens, concurrency, timeout, retries, pause."""
    url, model = split_endpoint(path_or_id)
    options.pop("batch_size", None)  # of local models
    found = EndpointChoices(url, model, key=key(), **options)
    found.sender.check(model)
    return found
