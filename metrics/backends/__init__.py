"""From a reference to what answers questions about pictures: a server, or its engine in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from nein.metrics.backends import vllm
from nein.metrics.backends.endpoint import Endpoint, is_endpoint, key, split_endpoint

#: How such a reference begins.
PREFIXES = ("openai", "vllm")


def is_served(reference: str) -> bool:
    """Whether `connect` takes it."""
    prefix, colon, _ = reference.partition(":")
    return bool(colon) and prefix in PREFIXES


def in_process(reference: str) -> bool:
    """Whether it is `vllm:MODEL`, whose weights are loaded here."""
    return reference.startswith("vllm:") and not is_endpoint(reference)


def check(reference: str) -> None:
    """Checks a reference and asks nobody. Raises MetricError."""
    if is_endpoint(reference):
        split_endpoint(reference)
    else:
        vllm.check_engine(reference.removeprefix("vllm:"))


def connect(
    reference: str, *, revision: str | None = None, device: str = "cpu", dtype: str = "float32",
    **sending: Any,
) -> Endpoint | vllm.VllmEngine:  # fmt: skip
    """What answers behind `openai:URL#MODEL`, `vllm:URL#MODEL` or `vllm:MODEL`.

    sending  concurrency, timeout and retries of `metrics.backends.endpoint.Endpoint`.

    Raises MetricError where nobody answers, or the model is not served there or cannot be loaded.
    """
    if not is_endpoint(reference):
        name = reference.removeprefix("vllm:")
        return vllm.VllmEngine(name, revision=revision, device=device, dtype=dtype)
    url, model = split_endpoint(reference)
    made = (vllm.VllmServer if reference.startswith("vllm:") else Endpoint)(url, model, key=key(), **sending)
    made.check()
    return made


class ServedModel:
    """A chat model that answers questions about pictures, at temperature 0, with at most `max_new_tokens`
    tokens.

    The fingerprint holds what `endpoint.facts` knows, not the address, for servers move.
    """

    kind: ClassVar[str]
    #: What else decides an answer, for `describe`.
    facts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, endpoint: Endpoint | vllm.VllmEngine, *, max_new_tokens: int) -> None:
        self.endpoint = endpoint
        self.max_new_tokens = max_new_tokens
        self.concurrent = endpoint.concurrency
        self.stop, self.usage = endpoint.stop, endpoint.usage
        from nein.metrics.loading import fingerprint  # which imports torch

        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "class": type(self).__name__,
            "reference": self.endpoint.address,
            **self.endpoint.facts(),
            **self.facts,
            "decoding": f"temperature 0, at most {self.max_new_tokens} tokens",
        }
