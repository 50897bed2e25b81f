"""From a reference to what answers questions about pictures: a server, or its engine in this process."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from nein.loading.errors import choose
from nein.loading.service import Service
from nein.metrics.backends import vllm
from nein.metrics.backends.endpoint import Endpoint, is_endpoint, split_endpoint
from nein.metrics.base import MetricError

#: How such a reference begins.
PREFIXES = ("openai", "vllm")


def is_served(reference: str) -> bool:
    """Whether `connect` takes it."""
    prefix, colon, _ = reference.partition(":")
    return bool(colon) and prefix in PREFIXES


def in_process(reference: str) -> bool:
    """Whether it is `vllm:MODEL`, whose weights are loaded here."""
    return reference.startswith("vllm:") and not is_endpoint(reference)


def check(reference: str, revision: str | None = None) -> None:
    """Checks the reference of an image-text model; loads nothing, asks nobody. Raises MetricError."""
    if is_endpoint(reference):
        split_endpoint(reference)
    elif in_process(reference):
        vllm.check_engine(reference.removeprefix("vllm:"))
    else:
        from nein.metrics.loading import check_folder

        check_folder(reference, revision)


def check_options(reference: str, names: Iterable[str]) -> None:
    """Raises MetricError unless a model is behind an endpoint, which has options of these names; a local one
    has `device_map`."""
    allowed = [*inspect.signature(Endpoint).parameters, *inspect.signature(Service).parameters]
    known = [name for name in dict.fromkeys(allowed) if name not in ("url", "model", "key", "sending")]
    for name in names:
        if name == "device_map" and ":" not in reference:
            continue
        if not is_endpoint(reference):
            raise MetricError(f"'{reference}' is behind no endpoint; leave its option '{name}' out.")
        choose(f"option of '{reference}'", name, known)


def connect(
    reference: str, *, revision: str | None = None, device: str = "cpu", dtype: str = "float32",
    **sending: Any,
) -> Endpoint | vllm.VllmEngine:  # fmt: skip
    """What answers behind `openai:URL#MODEL`, `vllm:URL#MODEL` or `vllm:MODEL`; sending: options of
    `metrics.backends.endpoint.Endpoint`. Raises MetricError where the model does not answer."""
    if not is_endpoint(reference):
        name = reference.removeprefix("vllm:")
        return vllm.VllmEngine(name, revision=revision, device=device, dtype=dtype)
    url, model = split_endpoint(reference)
    check_options(reference, sending)
    made = (vllm.VllmServer if reference.startswith("vllm:") else Endpoint)(url, model, **sending)
    made.check()
    return made
