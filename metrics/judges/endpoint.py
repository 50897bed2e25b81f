"""A VQA judge behind any OpenAI-compatible endpoint (vLLM, SGLang, Ollama, hosted services).

Reference: `openai:URL#MODEL`, for example `openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct`. The
key is read from the environment variable OPENAI_API_KEY and goes nowhere but into the request.
"""

from __future__ import annotations

import base64
import io
import math
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import numpy as np

from metrics.base import MetricError, choose
from metrics.judges.base import Answer, check_batch
from metrics.loading import fingerprint

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)


class EndpointError(RuntimeError):
    """A question that got no answer in spite of retries; its sample is unscored with this reason."""


class EndpointJudge:
    """Answers from a chat-completions endpoint, temperature 0, at most `max_new_tokens` tokens.

    concurrency  Questions in flight at a time.
    timeout      Seconds to wait for one answer.
    retries      How often a question is asked again after a timeout, a refused connection, "too many
                 requests"
                 or a server error, waiting 1, 2, 4, ... seconds (up to 30, a little at random), or as long as
                 the server's Retry-After says (up to 60).

    Pictures go as lossless PNG. P(yes) and P(no) come from the log-probabilities of the first token where the
    server gives them (at most 20 alternatives, so they are lower bounds), else they are None. Answers of a
    served model can change when its operator changes it: the fingerprint holds the name, not the weights.
    """

    template = "question"

    def __init__(
        self,
        url: str,
        model: str,
        *,
        concurrency: int = 8,
        timeout: float = 60.0,
        retries: int = 5,
        max_new_tokens: int = 10,
        key: str | None = None,
        pause: float = 1.0,
    ) -> None:
        if concurrency < 1 or timeout <= 0 or retries < 0:
            raise MetricError(
                f"concurrency {concurrency}, timeout {timeout} and retries {retries}: at least 1, above 0 "
                f"and at least 0."
            )
        self.url = url.rstrip("/")
        self.model = model
        self.concurrency = concurrency
        self.timeout = timeout
        self.retries = retries
        self.max_new_tokens = max_new_tokens
        self.pause = pause
        self._logprobs = True
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(
            headers=headers, timeout=timeout, limits=httpx.Limits(max_connections=concurrency)
        )
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Everything we know that decides an answer; no key, no user name."""
        return {
            "kind": "vqa",
            "class": type(self).__name__,
            "reference": _public(self.url),
            "model": self.model,
            "template": "one user turn: picture, question",
            "decoding": f"temperature 0, at most {self.max_new_tokens} tokens",
        }

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """`questions[i]` are plain questions about `images[i]`, (H, W, 3) uint8; answers in the same shape.

        Raises EndpointError when a question stays without an answer, and when the endpoint refuses it.
        """
        check_batch(images, questions, "questions")
        pictures = [_data_url(image) if row else "" for image, row in zip(images, questions, strict=True)]
        jobs = [(pictures[i], question) for i, row in enumerate(questions) for question in row]
        with ThreadPoolExecutor(max_workers=self.concurrency) as pool:
            answers = iter(list(pool.map(lambda job: self._answer(*job), jobs)))
        return [[next(answers) for _ in row] for row in questions]

    def check(self) -> None:
        """Raises MetricError when nobody answers at the address, the key is refused, or the model is not
        served.

        An endpoint without a list of models is taken at its word.
        """
        try:
            reply = self._client.get(f"{self.url}/models")
        except httpx.HTTPError as error:
            raise MetricError(f"Nobody answers at '{_public(self.url)}' ({type(error).__name__}).") from None
        if reply.status_code in (401, 403):
            raise MetricError(
                f"'{_public(self.url)}' refuses the key (HTTP {reply.status_code}); set OPENAI_API_KEY."
            )
        try:
            served = [str(item["id"]) for item in reply.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return
        if served:
            choose(f"model of '{_public(self.url)}'", self.model, served)

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
        if self._logprobs:
            reply = self._send({**body, "logprobs": True, "top_logprobs": 20}, tolerate=(400, 422))
            if reply is None:  # some servers know no log-probabilities
                self._logprobs = False
        if not self._logprobs:
            reply = self._send(body)
        assert reply is not None
        return _read(reply)

    def _send(self, body: dict[str, Any], tolerate: Sequence[int] = ()) -> dict[str, Any] | None:
        """The parsed reply; None for a status in `tolerate`."""
        why = ""
        for attempt in range(self.retries + 1):
            wait = min(30.0, self.pause * 2**attempt) * (1 + 0.25 * random.random())
            try:
                reply = self._client.post(f"{self.url}/chat/completions", json=body)
            except httpx.TimeoutException:
                why = f"no answer within {self.timeout:g} s"
            except httpx.TransportError as error:
                why = f"the connection failed ({type(error).__name__})"
            else:
                if reply.status_code == 200:
                    try:
                        return reply.json()
                    except ValueError:
                        why = "the reply is not JSON"
                elif reply.status_code in tolerate:
                    return None
                elif reply.status_code in RETRIED:
                    why = f"HTTP {reply.status_code}"
                    after = reply.headers.get("retry-after", "")
                    wait = min(60.0, float(after)) if after.replace(".", "", 1).isdigit() else wait
                else:
                    raise EndpointError(
                        f"the endpoint refused the question: HTTP {reply.status_code} {_excerpt(reply)}"
                    )
            if attempt < self.retries:
                time.sleep(wait)
        raise EndpointError(f"the endpoint gave no answer after {self.retries + 1} attempts: {why}")


def _read(reply: dict[str, Any]) -> Answer:
    try:
        choice = reply["choices"][0]
        text = choice["message"].get("content") or ""
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EndpointError("the reply has no choices; this is not a chat-completions endpoint") from None
    if choice.get("finish_reason") == "content_filter":
        raise EndpointError("the endpoint's content filter withheld the answer")
    if not isinstance(text, str):
        raise EndpointError("the answer is not a text")
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


def _data_url(image: np.ndarray) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _public(url: str) -> str:
    """The address without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _excerpt(reply: httpx.Response) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in reply.text[:200]).split())


def load(path_or_id: str, *, revision: str | None, device: str, dtype: str, **options: Any) -> EndpointJudge:
    """`openai:URL#MODEL`; options: concurrency, timeout, retries, max_new_tokens."""
    url, hash_mark, model = path_or_id.removeprefix("openai:").partition("#")
    if not url.startswith(("http://", "https://")) or not hash_mark or not model:
        raise MetricError(
            f"'{path_or_id}' is not an endpoint; expected openai:URL#MODEL, for example "
            "openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct."
        )
    judge = EndpointJudge(url, model, key=os.environ.get("OPENAI_API_KEY"), **options)
    judge.check()
    return judge
