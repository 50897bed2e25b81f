"""Encoders that know nothing: what a figure is worth is seen beside them, and pipelines run without a model.

random          every picture and every sentence a random direction of its own, the same each time
random:SEED     other directions
constant        one direction for everything, so that every score ties
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.base import MetricError, check_image
from metrics.loading import fingerprint


class ControlEncoder:
    """A `DualEncoder` whose features are drawn from SHA-256 of seed and content."""

    scale, bias = 1.0, 0.0
    quick_gelu = False
    width = 64

    def __init__(self, name: str, seed: str = "0") -> None:
        self.name = name
        self.seed = seed
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {"kind": "control", "name": self.name, "seed": self.seed}

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self._rows([b"image:" + check_image(image).tobytes() for image in images])

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        return self._rows([b"text:" + text.encode() for text in texts])

    def _rows(self, contents: Sequence[bytes]) -> np.ndarray:
        if self.name == "constant":
            return np.ones((len(contents), self.width), dtype=np.float32)
        rows = np.empty((len(contents), self.width), dtype=np.float32)
        for row, content in zip(rows, contents, strict=True):
            digest = hashlib.sha256(self.seed.encode() + b"/" + content).digest()
            row[:] = np.random.default_rng(list(digest)).standard_normal(self.width)
        return rows


def load(
    reference: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 32
) -> ControlEncoder:
    """The control named by `reference`; device, dtype and batch size mean nothing to it."""
    name, _, seed = reference.partition(":")
    if name == "constant" and seed:
        raise MetricError(f"'{reference}': the control 'constant' takes no seed.")
    return ControlEncoder(name, seed or "0")
