"""Shared types of the metrics: what a value is, what a metric declares about itself.

Images are NumPy arrays (H, W, 3), uint8, RGB. Nothing here reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
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
