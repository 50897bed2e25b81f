"""Sizes that editors need: rules that resize the input image, and rules for the size of the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from nein.loading.resize import fit as fit  # editors import it from here
from nein.loading.resize import r64, r64_size

Size = tuple[int, int]  # (width, height)
ZONE_MULTIPLE = 32  # pixels


# --- resizing the input image --------------------------------------------------------------------------


def squash(image: np.ndarray, resolution: int) -> np.ndarray:
    """Stretch to resolution x resolution with bicubic, whatever the aspect ratio.

    Source: README of github.com/UCSC-VLAA/HQ-Edit @ 3730500 (`resize((512, 512))`, PIL's default filter).
    """
    return np.array(Image.fromarray(image).resize((resolution, resolution), Image.Resampling.BICUBIC))


class Frame(NamedTuple):
    """Where rule "zone" puts the scaled image."""

    scaled: tuple[int, int]  # (width, height) of the scaled image
    size: tuple[int, int]  # (width, height) of the padded frame
    corner: tuple[int, int]  # (left, top) of the image in the frame


def zone_frame(width: int, height: int, resolution: int = 512) -> Frame:
    """Frame of rule "zone" for an image of `width` x `height` pixels.

    An image is never enlarged; the longer side is scaled down to `resolution` if it exceeds it. Source:
    `check_image_size` of github.com/lsl001006/ZONE @ 9788584 (there with 512, and multiples of 32).
    """
    longest = max(width, height)
    scaled = (width, height)
    if longest > resolution:
        # At least one pixel: the original fails for a very thin image.
        scaled = max(1, int(width * resolution / longest)), max(1, int(height * resolution / longest))
    wide, high = (math.ceil(side / ZONE_MULTIPLE) * ZONE_MULTIPLE for side in scaled)
    return Frame(scaled, (wide, high), ((wide - scaled[0]) // 2, (high - scaled[1]) // 2))


def zone(image: np.ndarray, resolution: int) -> np.ndarray:
    """Scale down to `zone_frame` (bicubic, PIL's default) and pad with black."""
    frame = zone_frame(image.shape[1], image.shape[0], resolution)
    scaled = Image.fromarray(image)
    if scaled.size != frame.scaled:
        scaled = scaled.resize(frame.scaled, Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", frame.size)
    canvas.paste(scaled, frame.corner)
    return np.array(canvas)


#: Rule -> function of (image (H, W, 3) uint8, resolution in pixels) that returns (H', W', 3) uint8.
RULES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {"r64": r64, "squash": squash, "zone": zone}


# --- output sizes that diffusers pipelines are asked for ------------------------------------------------


def area32(size: Size, resolution: int) -> Size:
    """Size with the image's aspect ratio, an area near resolution x resolution, sides in multiples of 32."""
    ratio = math.sqrt(size[0] / size[1])
    width, height = (max(32, round(resolution * r / 32) * 32) for r in (ratio, 1 / ratio))  # multiples of 32
    return width, height


def kontext(size: Size, resolution: int) -> Size:
    """Training size of FLUX.1 Kontext with the nearest aspect ratio, scaled to `resolution`.

    By default the pipeline returns a square for every image. Sizes: diffusers 0.42.1,
    PREFERRED_KONTEXT_RESOLUTIONS in pipelines/flux/pipeline_flux_kontext.py (for 1024).
    """
    widths = (672, 688, 720, 752, 800, 832, 880, 944, 1024, 1104, 1184, 1248, 1328, 1392, 1456, 1504, 1568)
    pairs = zip(widths, reversed(widths), strict=True)
    width, height = min(pairs, key=lambda pair: abs(size[0] / size[1] - pair[0] / pair[1]))
    scale = resolution / 1024
    return max(16, round(width * scale / 16) * 16), max(16, round(height * scale / 16) * 16)


def chronoedit(size: Size, resolution: int) -> Size:
    """Size with an area near resolution x resolution (960: 720 x 1280), sides floored to multiples of 16.

    Source: example in diffusers 0.42.1, pipelines/chronoedit/pipeline_chronoedit.py.
    """
    ratio = math.sqrt(size[1] / size[0])
    width, height = round(resolution / ratio) // 16 * 16, round(resolution * ratio) // 16 * 16
    return max(16, width), max(16, height)


#: Name -> function of (size of the image, resolution) that returns the size of the result.
SIZES: dict[str, Callable[[Size, int], Size]] = {
    "r64": lambda size, resolution: r64_size(*size, resolution),
    "area32": area32,
    "kontext": kontext,
    "chronoedit": chronoedit,
}
