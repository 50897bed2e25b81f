"""Requests to an OpenAI-compatible endpoint (vLLM, SGLang, Ollama, hosted services), with patience.

One reference names an endpoint everywhere: `openai:URL#MODEL`, for example
`openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct`. The key is read from the environment variable
OPENAI_API_KEY and goes nowhere but into the request.
"""

from __future__ import annotations

import datetime
import email.utils
import math
import os
import random
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from metrics.base import MetricError, choose

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)
#: Statuses that are about the endpoint (its key, its address), not about one question.
UNUSABLE = (401, 402, 403, 404, 405)

#: Kinds of failure, for counting: nobody answered in time; the connection broke or could not be made; the
#: server kept failing; it refused the request; it withheld the answer; the reply was no chat completion.
TIMEOUT, CONNECTION, SERVER = "timeout", "connection", "server error"
REFUSED, WITHHELD, PROTOCOL = "refused", "withheld", "no chat completion"


class EndpointError(RuntimeError):
    """A request that got no answer in spite of retries.

    kind    One of the words above, for counting.
    silent  Whether other questions can be expected to fare alike: nobody answers, or everybody is refused.
    """

    def __init__(self, message: str, kind: str = PROTOCOL, *, silent: bool = False) -> None:
        super().__init__(message)
        self.kind, self.silent = kind, silent


class Sender:
    """Posts JSON to an endpoint; threads may share one.

    concurrency  Connections at a time; the caller starts as many threads.
    timeout      Seconds to wait for one answer.
    retries      How often a request is sent again after a timeout, a refused connection, "too many requests"
                 or a server error, waiting 1, 2, 4, ... times `pause` seconds (up to 30, a little at random),
                 or as long as the server's Retry-After says (up to 60).

    Raises MetricError for values out of range.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        concurrency: int = 8,
        timeout: float = 60.0,
        retries: int = 5,
        pause: float = 1.0,
    ) -> None:
        if concurrency < 1 or timeout <= 0 or retries < 0:
            raise MetricError(
                f"concurrency {concurrency}, timeout {timeout} and retries {retries}: at least 1, above 0 "
                f"and at least 0."
            )
        self.url = url.rstrip("/")
        self.concurrency, self.timeout, self.retries, self.pause = concurrency, timeout, retries, pause
        self._stopped = threading.Event()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(
            headers=headers, timeout=timeout, limits=httpx.Limits(max_connections=concurrency)
        )

    @property
    def address(self) -> str:
        """The endpoint without user, password and query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def check(self, model: str) -> None:
        """Raises MetricError when nobody answers, the key is refused, or `model` is not served.

        An endpoint without a list of models is taken at its word.
        """
        try:
            reply = self._client.get(f"{self.url}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MetricError(f"Nobody answers at '{self.address}' ({type(error).__name__}).") from None
        if reply.status_code in (401, 403):
            raise MetricError(
                f"'{self.address}' refuses the key (HTTP {reply.status_code}); set OPENAI_API_KEY."
            )
        try:
            served = [str(item["id"]) for item in reply.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return
        if served:
            choose(f"model of '{self.address}'", model, served)

    def stop(self) -> None:
        """From now on no request is sent again, and none waits for that: the program ends."""
        self._stopped.set()

    def chat(self, body: dict[str, Any], tolerate: Sequence[int] = ()) -> dict[str, Any] | None:
        """The reply of `/chat/completions`, parsed; None for a status in `tolerate`. Raises EndpointError."""
        why, kind = "", SERVER
        for attempt in range(self.retries + 1):
            wait = min(30.0, self.pause * 2**attempt) * (1 + 0.25 * random.random())
            try:
                reply = self._client.post(f"{self.url}/chat/completions", json=body)
            except httpx.TimeoutException:
                why, kind = f"no answer within {self.timeout:g} s", TIMEOUT
            except httpx.RequestError as error:
                why, kind = f"the connection failed ({type(error).__name__})", CONNECTION
            else:
                if reply.status_code == 200:
                    try:
                        return reply.json()
                    except ValueError:
                        why, kind = "the reply is not JSON", PROTOCOL
                elif reply.status_code in tolerate:
                    return None
                elif reply.status_code in RETRIED:
                    why, kind = f"HTTP {reply.status_code}", SERVER
                    asked = _retry_after(reply.headers.get("retry-after", ""))
                    wait = wait if asked is None else min(60.0, asked)
                else:
                    raise EndpointError(
                        f"the endpoint refused the question: HTTP {reply.status_code} {_excerpt(reply)}",
                        REFUSED,
                        silent=reply.status_code in UNUSABLE,
                    )
            if attempt < self.retries and self._stopped.wait(wait):
                raise EndpointError(f"not tried again, for the program ends: {why}", kind, silent=True)
        raise EndpointError(
            f"the endpoint gave no answer after {self.retries + 1} attempts: {why}", kind, silent=True
        )


def choice_of(reply: Any) -> tuple[str, dict[str, Any]]:
    """(text, choice) of a reply's first choice; the text as it came, "" for none.

    Raises EndpointError for what is no chat completion, and for an answer that was withheld.
    """
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EndpointError("the reply has no choices; this is not a chat-completions endpoint") from None
    if choice.get("finish_reason") == "content_filter":
        raise EndpointError("the endpoint's content filter withheld the answer", WITHHELD)
    if not text and message.get("refusal"):
        raise EndpointError("the model refused to answer", WITHHELD)
    if not isinstance(text, str):
        raise EndpointError("the answer is not a text")
    return text, choice


def split_endpoint(reference: str) -> tuple[str, str]:
    """(URL, model) of `openai:URL#MODEL`. Raises MetricError for anything else."""
    url, _, model = reference.removeprefix("openai:").partition("#")
    if not reference.startswith("openai:") or not url.startswith(("http://", "https://")) or not model:
        raise MetricError(
            f"'{reference}' is not an endpoint; expected openai:URL#MODEL, for example "
            "openai:http://localhost:8000/v1#Qwen/Qwen2.5-VL-7B-Instruct."
        )
    return url, model


def key() -> str | None:
    """The key of the environment variable OPENAI_API_KEY."""
    return os.environ.get("OPENAI_API_KEY")


def _retry_after(value: str) -> float | None:
    """Seconds to wait by a Retry-After header, a number or a date (RFC 9110, section 10.2.3); None for
    neither."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=datetime.timezone.utc)
        seconds = (when - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _excerpt(reply: httpx.Response) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in reply.text[:200]).split())
