"""Steps 5, 6 and 8 to 12: from attention to one segment, which is pasted as a layer with a smooth edge.

Masks are (H, W) bool, true where the edit goes; pictures (H, W, 3) uint8 RGB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image
from scipy import ndimage

CONTRAST = 2


def difference(first: np.ndarray, other: np.ndarray, floor: str = "zero") -> np.ndarray:
    """Attention to the first token minus attention to another, each (h, w) float and stretched before; (h, w)
    uint8."""
    a, b = (stretch(attention, floor).astype(np.int16) for attention in (first, other))
    return np.clip(a - b, 0, 255).astype(np.uint8)


def stretch(attention: np.ndarray, floor: str = "zero") -> np.ndarray:
    """(h, w) float >= 0 to uint8, cut to integers: the largest value becomes 255; 0, or by floor "least" the
    smallest, becomes 0."""
    low = float(attention.min()) if floor == "least" else 0.0
    top = float(attention.max()) - low
    return (255 * ((attention - low) / top) if top > 0 else np.zeros_like(attention)).astype(np.uint8)


def rival(attention: np.ndarray, tokens: int, against: str) -> np.ndarray:
    """The map (h, w) that the first token's is compared with: that of the mark at the end of the sentence
    ("last"), or of everything between the marks together ("words").

    attention  (h, w, T) over all positions; the first `tokens` are the sentence with both marks.
    """
    if against == "last" or tokens < 3:
        return attention[..., tokens - 1]
    return attention[..., 1 : tokens - 1].sum(-1)


def localise(difference: np.ndarray, size: tuple[int, int], threshold: int) -> np.ndarray:
    """Rough mask (H, W) of the region to edit: where the first token does not prevail.

    difference: (h, w) uint8; size: (W, H) in pixels. Enlarged with PIL's bicubic on integers, doubled with
    saturation, and masked where that is at most `threshold`.
    """
    enlarged = np.asarray(Image.fromarray(difference).resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    return np.minimum(enlarged * CONTRAST, 255) <= threshold


def drop_small(mask: np.ndarray, least: int, protocol: str) -> np.ndarray:
    """The mask without components (4-connected) of an area below `least`.

    "fixed": the area is the number of pixels, and exactly the component is removed. "paper": the area is the
    number of pixels times the component's number in reading order, since the released code adds up labels,
    and the whole bounding box is cleared, with whatever else reaches into it.
    """
    labels = ndimage.label(mask)[0]
    cleaned = mask.copy()
    for number, region in enumerate(ndimage.find_objects(labels), 1):
        component = labels[region] == number
        area = int(component.sum()) * (number if protocol == "paper" else 1)
        if area < least:
            cleaned[region] = False if protocol == "paper" else cleaned[region] & ~component
    return cleaned


def best_segment(rough: np.ndarray, segments: Sequence[np.ndarray]) -> tuple[int | None, float]:
    """(number of the segment with the highest IoU with `rough`, that IoU); (None, 0.0) when none overlaps."""
    best, highest = None, 0.0
    for number, segment in enumerate(segments):
        both, either = int((rough & segment).sum()), int((rough | segment).sum())
        overlap = both / either if either else 0.0
        if overlap > highest:
            best, highest = number, overlap
    return best, highest


def dilate(mask: np.ndarray, times: int) -> np.ndarray:
    """The mask grown by one pixel in all eight directions, `times` times."""
    if times == 0:  # SciPy would go on until nothing changes
        return mask.copy()
    return ndimage.binary_dilation(mask, np.ones((3, 3), bool), iterations=times)


def grey(mask: np.ndarray) -> np.ndarray:
    """(H, W) uint8: 255 where the mask is true."""
    return np.where(mask, 255, 0).astype(np.uint8)


def paint(segments: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """(H, W, 3) uint8: each segment in a colour of its own, small ones on top."""
    canvas = np.zeros((*shape, 3), np.uint8)
    for segment in sorted(segments, key=lambda mask: -int(mask.sum())):
        # A colour from the shape of the segment, so that it does not depend on the others.
        y, x = np.nonzero(segment)
        hue = (int(y.sum()) * 31 + int(x.sum()) * 17) % 256
        canvas[segment] = np.asarray(Image.new("HSV", (1, 1), (hue, 200, 255)).convert("RGB"))[0, 0]
    return canvas


def composite(source: np.ndarray, edited: np.ndarray, where: np.ndarray) -> np.ndarray:
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
    """The edge smoother's mask M: where edit and source differ coarsely within the dilated segment
    (`Settings` of the adapter: smooth_radius, smooth_threshold, smooth_closing).

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
    fine: the segment; where: the layer; smooth: M of `smoother`.

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
