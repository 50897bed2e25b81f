"""Masks and segments as pictures, for looking at the steps."""

from __future__ import annotations

import numpy as np
from PIL import Image


def grey(mask: np.ndarray) -> np.ndarray:
    """(H, W) uint8: 255 where the mask is true."""
    return np.where(mask, 255, 0).astype(np.uint8)


def paint(segments: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """(H, W, 3) uint8: each segment in a colour of its own, small ones on top of large ones, black
    elsewhere.
    """
    canvas = np.zeros((*shape, 3), np.uint8)
    for segment in sorted(segments, key=lambda one: -int(one.sum())):
        # A colour from the shape of the segment, so that it does not depend on the others.
        y, x = np.nonzero(segment)
        hue = (int(y.sum()) * 31 + int(x.sum()) * 17) % 256
        canvas[segment] = np.asarray(Image.new("HSV", (1, 1), (hue, 200, 255)).convert("RGB"))[0, 0]
    return canvas
