"""Metrics of the pixels of two pictures of one size.

Another one is a function of an edited picture and its target, and a row of `METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metrics.base import MetricError, Score, check_image
from metrics.batch import Batch
from metrics.metric import Metric

_MAGICBRUSH = "MagicBrush (arXiv:2306.10012), image_eval.py"
_TABLE_3 = "NeIn (CVPRW 2025), Table 3"


def l1(image: np.ndarray, target: np.ndarray) -> float:
    """Mean absolute difference over pixels and channels, with pixels in [0, 1]: 0 (equal) to 1.

    Source: MagicBrush, image_eval.py. Summed in integers, so the result does not depend on the order of
    summation.
    """
    return float(_difference(image, target).sum() / (255 * image.size))


def l2(image: np.ndarray, target: np.ndarray) -> float:
    """Mean *squared* difference over pixels and channels, with pixels in [0, 1], no root: 0 (equal) to 1.

    Source: MagicBrush, image_eval.py, where it goes by the name l2.
    """
    squared = np.square(_difference(image, target), dtype=np.uint16)  # at most 255 * 255
    return float(squared.sum(dtype=np.int64) / (255 * 255 * image.size))


def each_pair(
    function: Callable[[np.ndarray, np.ndarray], float],
) -> Callable[[Batch], list[Score]]:
    """`Metric.score` of a function of an edited picture, at its target's size, and the target."""
    return lambda batch: [Score(function(edited, target)) for edited, target in batch.pairs()]


METRICS = (
    Metric(
        "l1", "L1", "per cent", "lower", (0.0, 1.0), "mean", ("edited", "target"), each_pair(l1),
        settings=("align",), source=f"{_MAGICBRUSH}; {_TABLE_3}",
    ),
    Metric(
        "l2", "L2", "per cent", "lower", (0.0, 1.0), "mean", ("edited", "target"), each_pair(l2),
        settings=("align",), source=f"{_MAGICBRUSH}; {_TABLE_3}",
    ),
)  # fmt: skip


def _difference(image: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Absolute, (H, W, 3) uint8."""
    check_image(image)
    check_image(target)
    if image.shape != target.shape:
        raise MetricError(f"Pictures of one size are compared, not {image.shape} and {target.shape}.")
    return np.maximum(image, target) - np.minimum(image, target)
