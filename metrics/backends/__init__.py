"""From a reference to a server that answers questions about pictures."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from nein.loading.errors import choose
from nein.loading.references import is_served
from nein.loading.service import Service
from nein.metrics.backends.endpoint import Endpoint, split_endpoint
from nein.metrics.base import MetricError


def check(reference: str) -> None:
    """Checks the reference of an image-text model; loads nothing, asks nobody. Raises MetricError."""
    if is_served(reference):
        split_endpoint(reference)
    else:
        from nein.metrics.loading import check_folder

        check_folder(reference)


def check_options(reference: str, names: Iterable[str]) -> None:
    """Raises MetricError unless a model is behind an endpoint, which has options of these names; a local one
    has `device_map`."""
    allowed = [*inspect.signature(Endpoint).parameters, *inspect.signature(Service).parameters]
    known = [name for name in dict.fromkeys(allowed) if name not in ("url", "model", "key", "sending")]
    for name in names:
        if name == "device_map" and ":" not in reference:
            continue
        if not is_served(reference):
            raise MetricError(f"'{reference}' is behind no endpoint; leave its option '{name}' out.")
        choose(f"option of '{reference}'", name, known)


def connect(reference: str, *, device: str = "", dtype: str = "", **sending: Any) -> Endpoint:
    """What answers behind `openai:URL#MODEL`; device, dtype: of local models;
    sending: options of `Endpoint`. Raises MetricError where the model does not answer."""
    url, model = split_endpoint(reference)
    check_options(reference, sending)
    connected = Endpoint(url, model, **sending)
    connected.check()
    return connected
