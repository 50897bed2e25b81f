"""The one place that decodes and encodes images.

`RULE`, written into every manifest: first frame; 16-bit grey is divided by 256; transparency is composed on
white; palettes, CMYK, YCbCr, LAB and grey go through Pillow's `convert("RGB")`; floating-point pixels are
refused; the EXIF orientation is ignored, as in the official NeIn evaluation; no colour management.
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
#: What is opened, whatever a file is called. Others of Pillow's plugins start programs (EPS).
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
#: Pixels that an image may have, since 0.6 MB of PNG can take 3 GB; NEIN_MAX_PIXELS sets another limit.
MAX_PIXELS = 50_000_000
#: How many times the shorter side goes into the longer one: encoders bring the shorter one to 224 pixels.
MAX_RATIO = 256
_ORIENTATION = ExifTags.Base.Orientation


class ImageError(UserError):
    """An image that cannot be used; the message names the file and what is wrong with it."""


def decode(path: Path, *, plain: bool = False) -> np.ndarray:
    """The whole image as (H, W, 3) uint8 RGB, by `RULE`. plain: by Pillow's `convert("RGB")`
    alone, as released scripts read: transparency is dropped, 16 bits are clipped.

    Raises ImageError for a missing, truncated, empty or unknown file.
    """
    with _opened(path) as image:
        image.load()
        return np.array(image.convert("RGB") if plain else _to_rgb(image))


def orientation(path: Path) -> int:
    """The EXIF orientation of a file, 1 for none. Raises ImageError."""
    with _opened(path) as image:
        return int(image.getexif().get(_ORIENTATION, 1))


def upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """The image, (H, W, 3) uint8, as a file with that orientation is meant to be seen."""
    turned = Image.fromarray(image)
    turned.getexif()[_ORIENTATION] = orientation
    return np.array(ImageOps.exif_transpose(turned))


def thumbnail(given: np.ndarray | Image.Image, side: int, quality: int = 75) -> bytes:
    """An image made smaller until no side is longer than `side`: below 256 pixels a lossless WebP, since
    JPEG's artefacts look like an editor's, else a JPEG."""
    image = Image.fromarray(check(given)) if isinstance(given, np.ndarray) else given
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    buffer = io.BytesIO()
    if max(image.size) < 256:
        image.save(buffer, "WEBP", lossless=True, method=0, quality=0)  # as small as PNG in half its time
    else:
        image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def thumbnail_of(path: Path, side: int) -> bytes:
    """The same of a file, by `RULE`; a large JPEG is decoded at a smaller scale. Raises ImageError."""
    with _opened(path) as image:
        image.draft("RGB", (2 * side, 2 * side))
        image.load()
        return thumbnail(_to_rgb(image), side)


def probe(path: Path) -> tuple[int, int]:
    """(width, height) from the header alone; the pixels are not decoded. Raises ImageError."""
    with _opened(path) as image:
        return image.size


def find_file(path: Path) -> Path:
    """The path, or where nothing is there the same name with its accents written in the other way (NFC, NFD),
    as another system may have done."""
    forms = (path, *(Path(unicodedata.normalize(form, str(path))) for form in ("NFC", "NFD")))
    return next((form for form in forms if is_local(form)), path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A file with its header read. Raises ImageError for what Pillow finds, also later, for too many
    pixels, and for strips."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            most = int(os.environ.get("NEIN_MAX_PIXELS", MAX_PIXELS))
            if image.width * image.height > most:
                size = f"{image.width} x {image.height} pixels, more than {most:,}"
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


def write_png(path: Path, image: np.ndarray) -> None:
    """Writes an (H, W, 3) uint8 image without loss, atomically; the same pixels give the same bytes."""
    with atomic.writing(path) as file:
        Image.fromarray(check(image)).save(file, "PNG", compress_level=1)  # 6 costs more than the decode


def write_jpeg(path: Path, image: np.ndarray) -> None:
    """Writes a JPEG at Pillow's default quality (75, 4:2:0), as NeIn's scripts do, atomically."""
    with atomic.writing(path) as file:
        Image.fromarray(check(image)).save(file, "JPEG")


def check(image: np.ndarray) -> np.ndarray:
    """Returns `image` unchanged if it is (H, W, 3) uint8 with H, W >= 1; otherwise raises ImageError."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ImageError(f"an image must be a uint8 array of shape (H, W, 3), not {got}")
    if 0 in image.shape:
        raise ImageError(f"an image must have at least one pixel, not shape {image.shape}")
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":  # Pillow's own conversion would cut 0 to 1, which most have, to black
        raise ValueError("its pixels are floating-point numbers; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # "I;16", "I;16B", and "I", as which older Pillow opens a 16-bit PNG
        grey = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2))
    if image.mode in ("P", "PA", "LA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        canvas = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(canvas, layer)
    return image if image.mode == "RGB" else image.convert("RGB")
