"""Models with one encoder for pictures and one for sentences, into one space, and how features are compared,
in float64, so that the number of rows compared at once cannot decide between equal scores. A dual encoder has

    encode(images), encode_text(texts)  -> (N, width) float32, not normalised; sentences are cut at its limit
    scale, bias   its own score of a pair is scale * cosine + bias: for CLIP the learned temperature and 0,
                  for SigLIP the logit before the sigmoid
    quick_gelu    whether its networks compute with QuickGELU, as OpenAI's do, in place of GELU
    width, fingerprint, describe()
"""

from __future__ import annotations

import numpy as np

from nein.loading.errors import choose
from nein.metrics.base import MetricError

NORMALISATIONS = ("normalised", "unnormalised")
POOLINGS = ("normalise-first", "average-first")


def normalise(features: np.ndarray) -> np.ndarray:
    """Rows of length 1 as float64; a row of zeros stays one. (..., D) -> (..., D)."""
    x = np.asarray(features, dtype=np.float64)
    # The largest entry is taken out first: with it, scaling by a power of two changes no bit.
    largest = np.max(np.abs(x), axis=-1, keepdims=True)
    x = x / np.where(largest == 0, 1.0, largest)
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length == 0, 1.0, length)


def pool(frames: np.ndarray, order: str = "normalise-first") -> np.ndarray:
    """One feature of a video from those of its frames, (F, D) -> (D,) float64; one frame is that frame.
    order: "normalise-first", as released (NegBench, video_utils/model.py), or "average-first"."""
    choose("order of averaging", order, POOLINGS)
    x = np.asarray(frames, dtype=np.float64)
    if x.ndim != 2 or not len(x):
        raise MetricError(f"Frames must be an array of shape (frames, features), not {x.shape}.")
    if len(x) == 1:
        return x[0]
    return (normalise(x) if order == "normalise-first" else x).mean(0)


def prepare(features: np.ndarray, kind: str = "normalised") -> np.ndarray:
    """(N, D) features as `products` compares them, float64; kind "unnormalised": as NegBench's first release
    compared options (README, 2025-03)."""
    choose("kind of features", kind, NORMALISATIONS)
    return normalise(features) if kind == "normalised" else np.asarray(features, dtype=np.float64)


def products(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """(..., D) and (..., D) -> (...) float32, rounded once: equal pairs get equal scores everywhere."""
    return (images * texts).sum(-1).astype(np.float32)
