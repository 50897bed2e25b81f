"""A VQA judge behind any OpenAI-compatible endpoint: `openai:URL#MODEL`, see `metrics/sender.py`."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from metrics.judges.base import Answer, check_batch
from metrics.loading import fingerprint
from metrics.sender import EndpointError, Sender, choice_of, key, split_endpoint

__all__ = ["EndpointError", "EndpointJudge", "load"]


class EndpointJudge:
    """Answers from a chat-completions endpoint, temperature 0, at most `max_new_tokens` tokens.

    sending  concurrency (questions in flight at a time), timeout, retries, key and pause of
             `metrics.sender.Sender`.

    Pictures go as lossless PNG. P(yes) and P(no) come from the log-probabilities of the first token where the
    server gives them (at most 20 alternatives, so they are lower bounds), else they are None. Answers of a
    served model can change when its operator changes it: the fingerprint holds the name, not the weights.
    A question that stays without an answer raises EndpointError; its sample is unscored with that reason.
    """

    template = "question"

    def __init__(self, url: str, model: str, *, max_new_tokens: int = 10, **sending: Any) -> None:
        self.sender = Sender(url, **sending)
        self.model = model
        self.max_new_tokens = max_new_tokens
        self._logprobs = True
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Everything we know that decides an answer; no key, no user name."""
        return {
            "kind": "vqa",
            "class": type(self).__name__,
            "reference": self.sender.address,
            "model": self.model,
            "template": "one user turn: picture, question",
            "decoding": f"temperature 0, at most {self.max_new_tokens} tokens",
        }

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """`questions[i]` are plain questions about `images[i]`, (H, W, 3) uint8; answers in the same shape.

        Raises EndpointError when a question stays without an answer, and when the endpoint refuses it.
        """
        check_batch(images, questions, "questions")
        pictures = [data_url(image) if row else "" for image, row in zip(images, questions, strict=True)]
        jobs = [(pictures[i], question) for i, row in enumerate(questions) for question in row]
        with ThreadPoolExecutor(max_workers=self.sender.concurrency) as pool:
            answers = iter(list(pool.map(lambda job: self._answer(*job), jobs)))
        return [[next(answers) for _ in row] for row in questions]

    def check(self) -> None:
        """As `Sender.check`, for this judge's model."""
        self.sender.check(self.model)

    def _answer(self, picture: str, question: str) -> Answer:
        content = [
            {"type": "image_url", "image_url": {"url": picture}},
            {"type": "text", "text": question},
        ]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self.max_new_tokens,
            "temperature": 0,
        }
        reply = None
        if self._logprobs:
            reply = self.sender.chat({**body, "logprobs": True, "top_logprobs": 20}, tolerate=(400, 422))
        if reply is None:
            reply = self.sender.chat(body)
            self._logprobs = False  # answered without: the server knows no log-probabilities
        return _read(reply)


def _read(reply: Any) -> Answer:
    text, choice = choice_of(reply)
    entries = ((choice.get("logprobs") or {}).get("content") or [])[:1]
    p_yes = p_no = None
    if entries and entries[0].get("top_logprobs"):
        first = [
            (str(t["token"]).strip().lower(), math.exp(float(t["logprob"])))
            for t in entries[0]["top_logprobs"]
        ]
        p_yes, p_no = (min(1.0, sum(p for token, p in first if token == word)) for word in ("yes", "no"))
    count = (reply.get("usage") or {}).get("completion_tokens")
    return Answer(text.strip(), count if isinstance(count, int) else len(text.split()), p_yes, p_no)


def data_url(image: np.ndarray) -> str:
    """A picture, (H, W, 3) uint8, as the data URL of a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def load(path_or_id: str, *, revision: str | None, device: str, dtype: str, **options: Any) -> EndpointJudge:
    """`openai:URL#MODEL`; options: concurrency, timeout, retries, max_new_tokens."""
    url, model = split_endpoint(path_or_id)
    judge = EndpointJudge(url, model, key=key(), **options)
    judge.check()
    return judge
