"""Decodes image files to (H, W, 3) uint8 RGB arrays and encodes them, for all benchmarks; no other file does.

How files are decoded (`RULE`, in every manifest): first frame; 16-bit gray is divided by 256; transparency is
composed on white; palettes, CMYK, YCbCr, LAB and gray go through Pillow's `convert("RGB")`; floating-point
pixels are refused; the EXIF orientation is ignored, as in the official NeIn evaluation; no color management.
"""

from __future__ import annotations

import contextlib
import io
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from nein.engine import atomic
from nein.loading.errors import UserError
from nein.loading.references import is_local

RULE = "rgb8-alpha-on-white-no-exif-v1"
_ORIENTATION = ExifTags.Base.Orientation  # tag with a value from 1 (upright) to 8


class ImageError(UserError):
    """An unusable image; the message names the file and its error."""


# --- reading --------------------------------------------------------------------------------
def decode(path: Path, *, plain: bool = False) -> np.ndarray:
    """The image as (H, W, 3) uint8 RGB, by `RULE`. Raises ImageError for a missing, truncated, empty or
    unknown file. plain: convert by Pillow's `convert("RGB")` alone, as released scripts do; it drops
    transparency and clips 16 bits."""
    with _open(path) as image:
        image.load()
        return np.array(image.convert("RGB") if plain else _convert_rgb(image))


def read_orientation(path: Path) -> int:
    """The EXIF orientation of a file, 1 for none. Raises ImageError."""
    with _open(path) as image:
        return int(image.getexif().get(_ORIENTATION, 1))


def turn_upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """The image, (H, W, 3) uint8, turned upright from its EXIF orientation."""
    oriented = Image.fromarray(image)
    oriented.getexif()[_ORIENTATION] = orientation
    return np.array(ImageOps.exif_transpose(oriented))


def encode_thumbnail(source: np.ndarray | Image.Image, side: int, quality: int = 75) -> bytes:
    """The bytes of an image with no side longer than `side` pixels: below 256 a lossless WebP, since
    artifacts of JPEG look like an editor's, else a JPEG. source: (H, W, 3) uint8, or Pillow's image."""
    image = Image.fromarray(check(source)) if isinstance(source, np.ndarray) else source
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)  # fast, nearly the same
    buffer = io.BytesIO()
    if max(image.size) < 256:
        image.save(buffer, "WEBP", lossless=True, method=0, quality=0)  # as small as PNG, in half the time
    else:
        image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def read_thumbnail(path: Path, side: int) -> bytes:
    """`encode_thumbnail` of a file, decoded by `RULE`. Raises ImageError."""
    with _open(path) as image:
        image.draft("RGB", (2 * side, 2 * side))  # a JPEG: decoded at 1/2, 1/4 or 1/8
        image.load()
        return encode_thumbnail(_convert_rgb(image), side)


def read_size(path: Path) -> tuple[int, int]:
    """(width, height) from the header alone; the pixels are not decoded. Raises ImageError."""
    with _open(path) as image:
        return image.size


def find_file(path: Path) -> Path:
    """An existing file of this name, maybe with its accents in another system's Unicode form; else `path`."""
    composed, decomposed = (Path(unicodedata.normalize(form, str(path))) for form in ("NFC", "NFD"))
    return next((candidate for candidate in (path, composed, decomposed) if is_local(candidate)), path)


#: Formats that are opened, whatever the name of the file. Other plugins of Pillow start programs (EPS).
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
#: Limit of pixels, since 0.6 MB of PNG can take 3 GB; NEIN_MAX_PIXELS sets another one.
MAX_PIXELS = 50_000_000
#: Limit of longer side / shorter side: encoders scale the shorter one to 224 pixels; a strip would be huge.
MAX_RATIO = 256


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """Opens a file and reads its header. Raises ImageError, also for errors in the `with` block."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            limit = int(os.environ.get("NEIN_MAX_PIXELS", MAX_PIXELS))
            if image.width * image.height > limit:
                size = f"{image.width} x {image.height} pixels, more than {limit:,}"
                raise ImageError(f"{path}: the image has {size}; NEIN_MAX_PIXELS allows more")
            if max(image.size) > MAX_RATIO * min(image.size):
                raise ImageError(
                    f"{path}: the image is a strip of {image.width} x {image.height} pixels; the longer side "
                    f"may have at most {MAX_RATIO} times the shorter"
                )
            yield image
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError(f"{path}: the file is missing") from None
    except UnidentifiedImageError:
        raise ImageError(f"{path}: this is not an image file Pillow can read") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"{path}: the image cannot be decoded ({error})") from None


def _convert_rgb(image: Image.Image) -> Image.Image:
    """Converts to mode RGB by `RULE`."""
    if image.mode == "F":  # Pillow's conversion would turn pixels from 0 to 1, the usual range, black
        raise ValueError("its pixels are floating-point numbers; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16-bit gray: "I;16", "I;16B", and "I" in older Pillow
        gray = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)  # (H, W)
        return Image.fromarray(np.repeat(gray[:, :, None], 3, axis=2))
    if image.mode in ("P", "PA", "LA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, layer)
    return image if image.mode == "RGB" else image.convert("RGB")


# --- writing --------------------------------------------------------------------------------
def write_png(path: Path, image: np.ndarray) -> None:
    """Writes an (H, W, 3) uint8 image without loss, atomically; the same pixels give the same bytes."""
    with atomic.write_file(path) as file:  # compress_level 6, the default, takes longer than decoding
        Image.fromarray(check(image)).save(file, "PNG", compress_level=1)


def write_jpeg(path: Path, image: np.ndarray) -> None:
    """Writes a JPEG at Pillow's default quality (75, 4:2:0), as NeIn's scripts do, atomically."""
    with atomic.write_file(path) as file:
        Image.fromarray(check(image)).save(file, "JPEG")


def check(image: np.ndarray) -> np.ndarray:
    """Returns `image` unchanged if it is (H, W, 3) uint8 with H, W >= 1; otherwise raises ImageError."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        actual = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ImageError(f"an image must be a uint8 array of shape (H, W, 3), not {actual}")
    if 0 in image.shape:
        raise ImageError(f"an image must have at least one pixel, not shape {image.shape}")
    return image
