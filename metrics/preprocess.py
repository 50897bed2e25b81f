"""Resizes, crops and normalizes images for metrics and image encoders.

The `name` of a transform is part of fingerprints and manifests. Functions take and return (H, W, 3) uint8 RGB
unless they say otherwise, and never change their input.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from PIL import Image as PilImage

# Mean and standard deviation of R, G, B, for values in [0, 1].
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def stretch(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Stretch to `size` (width, height) with PIL's bicubic, as MagicBrush's image_eval.py does for L1, L2."""
    if (image.shape[1], image.shape[0]) == size:
        return image
    return np.asarray(PilImage.fromarray(image).resize(size, PilImage.Resampling.BICUBIC))


@dataclass(frozen=True)
class ResizeCrop:
    """Resizes the shorter side to `resize` (PIL bicubic) and crops the center: (crop, crop, 3) uint8. Then
    `normalize` makes it equal to the torchvision transforms of CLIP (`resize == crop`) and DINO."""

    resize: int
    crop: int
    mean: tuple[float, float, float]  # of R, G, B
    std: tuple[float, float, float]  # of R, G, B

    @property
    def name(self) -> str:
        return f"pil-bicubic-{self.resize}/center-crop-{self.crop}/mean-{self.mean}/std-{self.std}"

    def __call__(self, image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        short = min(width, height)
        new_width = self.resize if width == short else int(self.resize * width / short)
        new_height = self.resize if height == short else int(self.resize * height / short)
        x0, y0 = round((new_width - self.crop) / 2.0), round((new_height - self.crop) / 2.0)  # top left
        if (new_width, new_height) == (width, height) and self.crop <= self.resize:
            return image[y0 : y0 + self.crop, x0 : x0 + self.crop]
        resized = PilImage.fromarray(image).resize((new_width, new_height), PilImage.Resampling.BICUBIC)
        return np.asarray(resized.crop((x0, y0, x0 + self.crop, y0 + self.crop)))


def normalize(pixels: Any, mean: Sequence[float], std: Sequence[float]) -> Any:
    """Compute (x / 255 - mean) / std: tensor (N, H, W, 3), 0 to 255 -> (N, 3, H, W) float32."""
    import torch

    x = pixels.permute(0, 3, 1, 2).to(torch.float32).div(255)  # (N, 3, H, W)
    per_channel = (1, 3, 1, 1)
    return x.sub(x.new_tensor(mean).view(per_channel)).div(x.new_tensor(std).view(per_channel)).contiguous()


@dataclass(frozen=True)
class CleanResize:
    """Resizes with Clean-FID's own package, in its mode "clean": (size, size, 3) float32, not rounded."""

    size: int

    @property
    def name(self) -> str:
        return f"clean-fid-{self.size}"

    def __call__(self, image: np.ndarray) -> np.ndarray:
        from cleanfid.resize import make_resizer

        if image.shape[:2] == (self.size, self.size):
            return image.astype(np.float32)  # the resize would change no pixel
        return make_resizer("PIL", False, "bicubic", (self.size, self.size))(image)


Item = TypeVar("Item")
Result = TypeVar("Result")
#: Number of pixels from which a resize takes longer than to start a thread.
_MIN_PIXELS = 128 * 128


def map_images(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return `[function(item) for item in items]`, computed in threads for large images. items: images
    (H, W, 3), or tuples that begin with one."""
    workers = min(8, os.cpu_count() or 1, len(items))
    images: list[Any] = [item[0] if isinstance(item, tuple) else item for item in items]
    if workers < 2 or max(image.shape[0] * image.shape[1] for image in images) < _MIN_PIXELS:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))
