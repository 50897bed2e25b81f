"""The one place that decodes and encodes pictures.

Decoding rule, named `RULE` and written into every manifest: first frame; 16-bit grey is divided by 256
(Pillow's own conversion would clip it to white); transparency is composed on white; palettes, CMYK, YCbCr,
LAB and grey go through Pillow's `convert("RGB")`; the EXIF orientation is ignored, as in the official NeIn
evaluation; no colour management.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from nein.engine import atomic
from nein.engine.errors import UserError

RULE = "rgb8-alpha-on-white-no-exif-v1"
PNG_LEVEL = 1  # zlib level: the default (6) costs more than the decode for a few per cent of size


class ImageError(UserError):
    """A picture that cannot be used; the message names the file and what is wrong with it."""


def decode(path: Path | BinaryIO, label: str | None = None) -> np.ndarray:
    """The whole picture as (H, W, 3) uint8 RGB, by `RULE`; `label` names an open file in messages.

    Raises ImageError for a missing, truncated, empty or unknown file.
    """
    try:
        with Image.open(path) as image:
            image.load()
            return np.array(_to_rgb(image))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"{label or path}: {_why(error)}") from None


def shrunk(path: Path, side: int) -> Image.Image:
    """The picture for a look at it, by `RULE`: RGB, its longer side at most `side` pixels.

    Of a large JPEG no more is decoded than that takes. Raises ImageError as `decode` does.
    """
    try:
        with Image.open(path) as image:
            image.draft("RGB", (2 * side, 2 * side))
            image.load()
            return shrink(_to_rgb(image), side)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"{path}: {_why(error)}") from None


def shrink(image: Image.Image, side: int) -> Image.Image:
    """The picture itself, shrunk in place until its longer side is at most `side` pixels."""
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return image


def probe(path: Path) -> tuple[int, int]:
    """(width, height) from the header alone; the pixels are not decoded. Raises ImageError."""
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"{path}: {_why(error)}") from None


def encode_png(image: np.ndarray) -> bytes:
    """Lossless PNG bytes of an (H, W, 3) uint8 RGB picture; the same pixels give the same bytes."""
    check(image)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def write_png(path: Path, image: np.ndarray) -> None:
    """Writes a PNG atomically (temporary file, fsync, rename)."""
    atomic.write_bytes(path, encode_png(image))


def write_jpeg(path: Path, image: np.ndarray) -> None:
    """Writes a JPEG at Pillow's default quality (75, 4:2:0), as NeIn's scripts do, atomically."""
    check(image)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG")
    atomic.write_bytes(path, buffer.getvalue())


def pixel_hash(image: np.ndarray) -> str:
    """SHA-256 hex of size and pixels: the identity of a picture, whatever file it came from."""
    check(image)
    digest = hashlib.sha256(f"{image.shape[0]}x{image.shape[1]}:".encode())
    digest.update(np.ascontiguousarray(image).tobytes())
    return digest.hexdigest()


def check(image: np.ndarray) -> np.ndarray:
    """Returns `image` unchanged if it is (H, W, 3) uint8 with H, W >= 1; otherwise raises ImageError."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ImageError(f"an image must be a uint8 array of shape (H, W, 3), not {got}")
    if 0 in image.shape:
        raise ImageError(f"an image must have at least one pixel, not shape {image.shape}")
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # "I;16", "I;16B", and "I", as which older Pillow opens a 16-bit PNG
        grey = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2))
    if image.mode in ("P", "PA", "LA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        canvas = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(canvas, layer)
    return image if image.mode == "RGB" else image.convert("RGB")


def _why(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    if isinstance(error, UnidentifiedImageError):
        return "this is not an image file Pillow can read"
    return f"the image cannot be decoded ({error})"
