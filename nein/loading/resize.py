"""Resizes images by rule "r64", which InstructPix2Pix uses for its inputs and NeIn for its samples."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageOps

from nein.loading.errors import UserError


def r64_size(width: int, height: int, resolution: int = 512) -> tuple[int, int]:
    """(width, height) of an image by rule "r64": long side near `resolution`, both multiples of 64.

    Source: edit_cli.py of github.com/timothybrooks/instruct-pix2pix @ 0dffd1e. The order of the
    floating-point operations is the original's and must stay: if a product is just below a multiple of 64,
    the floor takes 64 pixels away (sides 98, 103, 107 become 448 at resolution 512). Raises UserError if a
    side would be 0.
    """
    scale = resolution / max(width, height)
    factor = math.ceil(min(width, height) * scale / 64) * 64 / min(width, height)  # short side n * 64
    size = int((width * factor) // 64) * 64, int((height * factor) // 64) * 64
    if 0 in size:
        least = 64 * max(width, height) // min(width, height) + 1
        raise UserError(
            f"the image is {width} x {height}, which rule r64 rounds to {size[0]} x {size[1]} at resolution "
            f"{resolution}; sides must be 64 or more: give a resolution of {least} or more"
        )
    return size


def r64(image: np.ndarray, resolution: int) -> np.ndarray:
    """Crops and resizes an image, (H, W, 3) uint8, to `r64_size`."""
    return fit(image, r64_size(image.shape[1], image.shape[0], resolution))


def fit(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Crops an image, (H, W, 3) uint8, around its center and resizes it to `size`, (width, height)."""
    return np.array(ImageOps.fit(Image.fromarray(image), size, method=Image.Resampling.LANCZOS))
