"""Shared types of the metrics: what a value is, what a metric declares about itself.

Images are NumPy arrays (H, W, 3), uint8, RGB. Nothing here reads or writes a file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Image = np.ndarray


class MetricError(ValueError):
    """A mistake the user can mend; the message is one clear sentence."""


@dataclass(frozen=True)
class Score:
    """One metric of one sample.

    value   The number, in the unit of the metric's docstring (never scaled by 100), or None: *unscored*.
    reason  Why it is unscored (always set then), or a short sentence that explains the verdict.
    detail  JSON-serialisable evidence: raw answer, confidence, threshold, labels.
    """

    value: float | None
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise AssertionError("an unscored value needs a reason")
        if self.value is not None and not np.isfinite(self.value):
            raise AssertionError(f"a score must be finite or None, not {self.value}")


@dataclass(frozen=True)
class MetricInfo:
    """How a metric is shown and read.

    name       Key used in files and on the command line, e.g. "clip_i".
    title      Column title, e.g. "CLIP-I".
    higher_is_better
    range      Closed interval of possible values (before `scale`).
    scale      Factor for display: the paper prints percentages (100), FID and LPIPS raw (1).
    kind       "mean" (continuous per-sample value), "proportion" (per-sample 0 or 1), "corpus" (no per-sample
               value: FID).
    source     Paper and equation, or URL.
    """

    name: str
    title: str
    higher_is_better: bool
    range: tuple[float, float]
    scale: float
    kind: str
    source: str


class FeatureStore(Protocol):
    """A cache of float32 vectors, handed in by the caller; a key names everything that changes the value."""

    def get(self, space: str, key: str) -> np.ndarray | None: ...

    def put(self, space: str, key: str, value: np.ndarray) -> None: ...


class RecordStore(Protocol):
    """A cache of small JSON objects (what a judge said), handed in; keys as in `FeatureStore`."""

    def get(self, space: str, key: str) -> dict[str, Any] | None: ...

    def put(self, space: str, key: str, value: dict[str, Any]) -> None: ...


class MemoryRecords:
    """A `RecordStore` that lives as long as the object."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, str], dict[str, Any]] = {}

    def get(self, space: str, key: str) -> dict[str, Any] | None:
        return self._data.get((space, key))

    def put(self, space: str, key: str, value: dict[str, Any]) -> None:
        self._data[space, key] = value


class MemoryFeatures:
    """A `FeatureStore` that lives as long as the object."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, str], np.ndarray] = {}

    def get(self, space: str, key: str) -> np.ndarray | None:
        return self._data.get((space, key))

    def put(self, space: str, key: str, value: np.ndarray) -> None:
        self._data[space, key] = np.array(value, dtype=np.float32)


#: What a model or an image library raises on input that it cannot digest. Caught around single calls, so that
#: one bad image becomes one unscored sample; a mistake in our own code (TypeError, AttributeError, ...) is
#: not caught.
MODEL_ERRORS = (RuntimeError, ValueError, OSError, IndexError)


def reason(error: BaseException) -> str:
    """One line for an unscored sample: the kind of error and its first line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def check_image(image: Any) -> np.ndarray:
    """Return `image` if it is (H, W, 3) uint8 with H, W >= 1; raise MetricError otherwise."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = (
            f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        )
        raise MetricError(f"An image must be a uint8 array of shape (height, width, 3), not {got}.")
    if image.size == 0:
        raise MetricError(f"An image must have at least one pixel, not shape {image.shape}.")
    return image


def choose(what: str, value: str, allowed: Iterable[str]) -> str:
    """Return `value` if it is allowed; else raise MetricError naming the near match and what is allowed."""
    names = list(allowed)
    if value in names:
        return value
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise MetricError(f"Unknown {what} '{value}'.{hint} Allowed: {', '.join(names)}.")
