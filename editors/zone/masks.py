"""Steps 5, 6, 8 and 9: from attention to one segment; masks as pictures, for looking at the steps.

Masks are (H, W) bool, true where the edit goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image
from scipy import ndimage

CONTRAST = 2


def difference(first: np.ndarray, other: np.ndarray, floor: str = "zero") -> np.ndarray:
    """Attention to the first token minus attention to another, (h, w) uint8, never below 0.

    first, other: (h, w) float, >= 0, each stretched before (see `stretch`).
    """
    a, b = (stretch(one, floor).astype(np.int16) for one in (first, other))
    return np.clip(a - b, 0, 255).astype(np.uint8)


def stretch(attention: np.ndarray, floor: str = "zero") -> np.ndarray:
    """(h, w) float >= 0 to uint8, cut to integers, so that its largest value is 255; all 0 stays 0.

    floor  What becomes 0: "zero", or the map's own "least" value.
    """
    low = float(attention.min()) if floor == "least" else 0.0
    top = float(attention.max()) - low
    return (255 * ((attention - low) / top) if top > 0 else np.zeros_like(attention)).astype(np.uint8)


def rival(attention: np.ndarray, tokens: int, against: str) -> np.ndarray:
    """The map (h, w) that the first token's is compared with.

    attention  (h, w, T) over all positions, of which the first `tokens` are the sentence with both end marks.
    against    "last" is the mark at the end of the sentence; "words" everything between the marks together.
    """
    if against == "last" or tokens < 3:
        return attention[..., tokens - 1]
    return attention[..., 1 : tokens - 1].sum(-1)


def localise(difference: np.ndarray, size: tuple[int, int], threshold: int) -> np.ndarray:
    """Rough mask (H, W) of the region to edit: where the first token does not prevail.

    difference: (h, w) uint8, as the function of that name gives it; size: (W, H) in pixels. Enlarged with
    PIL's bicubic on integers, doubled with saturation, and masked where that is at most `threshold` (the
    released code has 108).
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
