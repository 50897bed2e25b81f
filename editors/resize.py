"""Resizes input images, and computes the sizes of outputs, by rules that presets.yaml names.

A function has the name of its rule. Images are (H, W, 3) uint8 RGB; lengths are in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from nein.loading.resize import fit as fit  # editors import it from here
from nein.loading.resize import r64, r64_size

Size = tuple[int, int]  # (width, height)

# --- resizing the input image --------------------------------------------------------------------------


def squash(image: np.ndarray, resolution: int) -> np.ndarray:
    """Stretch to resolution x resolution with bicubic, whatever the aspect ratio. Source: README of
    github.com/UCSC-VLAA/HQ-Edit @ 3730500 (`resize((512, 512))`, PIL's default filter)."""
    return np.array(Image.fromarray(image).resize((resolution, resolution), Image.Resampling.BICUBIC))


class Frame(NamedTuple):
    """Where rule "zone" puts the scaled image."""

    scaled: Size  # of the scaled image
    size: Size  # of the padded frame
    corner: tuple[int, int]  # (left, top) of the image in the frame


def zone_frame(width: int, height: int, resolution: int = 512) -> Frame:
    """Frame of rule "zone" for an image of `width` x `height` pixels. An image is never enlarged; the longer
    side is scaled down to `resolution` if it exceeds it. Source: `check_image_size` of
    github.com/lsl001006/ZONE @ 9788584 (there with 512, and multiples of 32)."""
    longest = max(width, height)
    if longest > resolution:
        # At least one pixel: the original fails for a very thin image.
        width, height = (max(1, int(side * resolution / longest)) for side in (width, height))
    frame_width, frame_height = (math.ceil(side / 32) * 32 for side in (width, height))
    corner = (frame_width - width) // 2, (frame_height - height) // 2
    return Frame((width, height), (frame_width, frame_height), corner)


def zone(image: np.ndarray, resolution: int) -> np.ndarray:
    """Scale down to `zone_frame` (bicubic, PIL's default) and pad with black."""
    frame = zone_frame(image.shape[1], image.shape[0], resolution)
    scaled = Image.fromarray(image)
    if scaled.size != frame.scaled:
        scaled = scaled.resize(frame.scaled, Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", frame.size)
    canvas.paste(scaled, frame.corner)
    return np.array(canvas)


#: Rule -> function of (image, resolution) that returns the resized image.
RULES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {"r64": r64, "squash": squash, "zone": zone}


# --- output sizes that diffusers pipelines are asked for ------------------------------------------------


def area32(size: Size, resolution: int) -> Size:
    """Size with the image's aspect ratio, an area near resolution x resolution, sides in multiples of 32."""
    ratio = math.sqrt(size[0] / size[1])
    width, height = resolution * ratio, resolution * (1 / ratio)
    return max(32, round(width / 32) * 32), max(32, round(height / 32) * 32)


def kontext(size: Size, resolution: int) -> Size:
    """Training size of FLUX.1 Kontext with the nearest aspect ratio, scaled to `resolution`. By default the
    pipeline returns a square for every image. Sizes: diffusers 0.42.1, PREFERRED_KONTEXT_RESOLUTIONS in
    pipelines/flux/pipeline_flux_kontext.py (for 1024)."""
    widths = (672, 688, 720, 752, 800, 832, 880, 944, 1024, 1104, 1184, 1248, 1328, 1392, 1456, 1504, 1568)
    sizes = zip(widths, reversed(widths), strict=True)  # the heights are the same numbers
    width, height = min(sizes, key=lambda one: abs(size[0] / size[1] - one[0] / one[1]))
    scale = resolution / 1024
    return max(16, round(width * scale / 16) * 16), max(16, round(height * scale / 16) * 16)


def chronoedit(size: Size, resolution: int) -> Size:
    """Size with an area near resolution x resolution (for 960: 720 x 1280), sides floored to multiples of 16.
    Source: example in diffusers 0.42.1, pipelines/chronoedit/pipeline_chronoedit.py."""
    ratio = math.sqrt(size[1] / size[0])
    width, height = round(resolution / ratio) // 16 * 16, round(resolution * ratio) // 16 * 16
    return max(16, width), max(16, height)


def r64_output(size: Size, resolution: int) -> Size:
    return r64_size(*size, resolution)


#: Rule -> function of (size of the image, resolution) that returns the size of the result.
SIZES: dict[str, Callable[[Size, int], Size]] = {
    "r64": r64_output,
    "area32": area32,
    "kontext": kontext,
    "chronoedit": chronoedit,
}
