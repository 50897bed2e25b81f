"""L1 and L2 between two pictures of one size."""

from __future__ import annotations

import numpy as np

from metrics.base import MetricError, check_image


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
    difference = _difference(image, target)
    return float((difference * difference).sum(dtype=np.int64) / (255 * 255 * image.size))


def _difference(image: np.ndarray, target: np.ndarray) -> np.ndarray:
    check_image(image)
    check_image(target)
    if image.shape != target.shape:
        raise MetricError(f"Pictures of one size are compared, not {image.shape} and {target.shape}.")
    return np.abs(image.astype(np.int32) - target.astype(np.int32))
