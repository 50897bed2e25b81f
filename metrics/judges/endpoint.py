"""A VQA judge behind any OpenAI-compatible endpoint: `openai:URL#MODEL`, see `metrics/endpoint.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.endpoint import LOGPROBS, Endpoint, Said, key, picture, split_endpoint, words
from metrics.judges.base import Answer, check_batch
from metrics.loading import fingerprint


class EndpointJudge:
    """Answers from a chat-completions endpoint, temperature 0, at most `max_new_tokens` tokens.

    sending  concurrency, timeout, retries and key of `metrics.endpoint.Endpoint`.

    P(yes) and P(no) come from the log-probabilities of the first token where the server gives them (at most
    20 alternatives, so they are lower bounds), else they are None. Answers of a served model can change when
    its operator changes it: the fingerprint holds the name, not the weights, and not the address, for servers
    move. A question that stays without an answer raises NoAnswer; its sample is unscored with that reason.
    """

    template = "question"

    def __init__(self, url: str, model: str, *, max_new_tokens: int = 10, **sending: Any) -> None:
        self.endpoint = Endpoint(url, model, **sending)
        self.max_new_tokens = max_new_tokens
        self.concurrent = self.endpoint.concurrency
        self.stop = self.endpoint.stop
        self.fingerprint = fingerprint({**self.describe(), "reference": ""})

    def describe(self) -> dict[str, Any]:
        """Everything we know that decides an answer; no key, no user name."""
        return {
            "kind": "vqa",
            "class": type(self).__name__,
            "reference": self.endpoint.address,
            "model": self.endpoint.model,
            "template": "one user turn: picture, question",
            "decoding": f"temperature 0, at most {self.max_new_tokens} tokens",
        }

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """`questions[i]` are plain questions about `images[i]`, (H, W, 3) uint8; answers in the same shape.

        Raises NoAnswer when a question stays without an answer, and when the endpoint refuses it.
        """
        check_batch(images, questions, "questions")
        shown = [picture(image) if row else {} for image, row in zip(images, questions, strict=True)]
        places = [(i, k) for i, row in enumerate(questions) for k in range(len(row))]

        def answer(place: tuple[int, int]) -> Answer:
            i, k = place
            said = self.endpoint.chat(
                [shown[i], words(questions[i][k])], [LOGPROBS], max_tokens=self.max_new_tokens, temperature=0
            )
            return _answer(said)

        answers = dict(self.endpoint.each(answer, places))
        return [[answers[i, k] for k in range(len(row))] for i, row in enumerate(questions)]


def _answer(said: Said) -> Answer:
    p_yes = p_no = None
    if said.first:
        likely = [(token.strip().lower(), math.exp(value)) for token, value in said.first]
        p_yes, p_no = (min(1.0, sum(p for token, p in likely if token == word)) for word in ("yes", "no"))
    return Answer(
        said.text.strip(), len(said.text.split()) if said.tokens is None else said.tokens, p_yes, p_no
    )


def load(path_or_id: str, *, revision: str | None, device: str, dtype: str, **options: Any) -> EndpointJudge:
    """`openai:URL#MODEL`; options: concurrency, timeout, retries, max_new_tokens."""
    judge = EndpointJudge(*split_endpoint(path_or_id), key=key(), **options)
    judge.endpoint.check()
    return judge
