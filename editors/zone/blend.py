"""Steps 10, 11 and 12: the segment as a layer on the picture, and its edge smoothed.

Pictures are (H, W, 3) uint8 RGB of one size, masks (H, W) bool.
"""

from __future__ import annotations

import numpy as np
from PIL import Image
from scipy import ndimage


def layer(fine: np.ndarray, dilated: np.ndarray, action: str) -> np.ndarray:
    """Where edited pixels are pasted: on the dilated segment for REMOVE, on the segment itself otherwise."""
    return dilated if action == "REMOVE" else fine


def composite(source: np.ndarray, edited: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The source with edited pixels where `where`."""
    return np.where(where[..., None], edited, source)


def disk(shape: tuple[int, int], radius: float, protocol: str) -> np.ndarray:
    """(H, W) bool: the frequencies to keep of a spectrum whose zero is at (H // 2, W // 2).

    "paper" puts the disk's centre at row W // 2 and column H // 2, because the released code gives OpenCV the
    two the other way round; only for square pictures is that the same.
    """
    height, width = shape
    row, column = height // 2, width // 2
    if protocol == "paper":
        row, column = column, row
    y, x = np.ogrid[:height, :width]
    return (y - row) ** 2 + (x - column) ** 2 <= radius**2


def smoother(
    source: np.ndarray,
    edited: np.ndarray,
    dilated: np.ndarray,
    *,
    radius: float,
    threshold: int,
    closing: int,
    protocol: str,
) -> np.ndarray:
    """The edge smoother's mask M: where edit and source differ coarsely within the dilated segment.

    radius     Frequencies kept, in cycles per picture (a low-pass, although the released code calls it high).
    threshold  Grey levels beyond which the two count as different.
    closing    Side of the square that closes gaps, in pixels, odd; holes are filled afterwards.

    "paper" weighs grey as if RGB were BGR, lets values above 255 wrap around, and has the disk of `disk`;
    "fixed" does none of that.
    """
    greys = []
    for picture in (edited, source):
        inside = np.where(dilated[..., None], picture, 0).astype(np.uint8)
        if protocol == "paper":
            inside = inside[..., ::-1]
        greys.append(np.asarray(Image.fromarray(np.ascontiguousarray(inside)).convert("L"), np.float64))
    keep = disk(dilated.shape, radius, protocol)
    one, other = (np.fft.fftshift(np.fft.fft2(grey)) * keep for grey in greys)
    apart = np.abs(np.fft.ifft2(np.fft.ifftshift(one - other))).astype(np.int64)
    apart = apart % 256 if protocol == "paper" else np.minimum(apart, 255)
    different = (apart > threshold).astype(np.uint8)
    # Beyond the border nothing counts, neither for growing nor for shrinking.
    grown = ndimage.maximum_filter(different, size=closing, mode="constant", cval=0)
    closed = ndimage.minimum_filter(grown, size=closing, mode="constant", cval=1)
    return ndimage.binary_fill_holes(closed)


def final(
    source: np.ndarray,
    edited: np.ndarray,
    fine: np.ndarray,
    where: np.ndarray,
    smooth: np.ndarray,
    *,
    alpha: float,
    protocol: str,
) -> np.ndarray:
    """The result: the layer with its edge mixed as alpha * edited + (1 - alpha) * source, cut to integers.

    fine    The segment.
    where   Where the layer was pasted, from `layer`.
    smooth  The mask M of `smoother`.

    "paper" starts from the source, pastes the edit on M, and mixes wherever exactly one of M and the segment
    is true: it subtracts the masks as bytes, and 0 - 255 wraps to 1. The layer of step 10 has no part in it.
    "fixed" starts from the layer and mixes on the rest of M only, which is the edge around the layer.
    """
    mixed = (alpha * edited.astype(np.float64) + (1 - alpha) * source.astype(np.float64)).astype(np.uint8)
    if protocol == "paper":
        base, edge = composite(source, edited, smooth), smooth ^ fine
    else:
        base, edge = composite(source, edited, where), smooth & ~where
    return np.where(edge[..., None], mixed, base)
