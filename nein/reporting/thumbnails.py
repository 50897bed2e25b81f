"""Thumbnails: pictures as a page shows them."""

from __future__ import annotations

import binascii
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from nein.engine import images, processes

#: A picture as base64 JPEG, or why there is none.
Thumbnail = str | dict[str, str]
#: A file; or why there is none, which stays as it is.
Place = str | dict[str, str]
#: Samples whose files are read ahead.
_AHEAD = 64


def of_picture(picture: np.ndarray, side: int) -> Thumbnail:
    """A picture, (H, W, 3) uint8, shrunk until its longer side is at most `side` pixels."""
    return _text(images.thumbnail(picture, side))


def of_file(path: Path, side: int) -> Thumbnail:
    """The picture of a file, shrunk in the same way; or why there is none."""
    try:
        return _text(images.thumbnail_of(path, side))
    except images.ImageError as error:
        return {"none": str(error).rpartition(": ")[2]}


def of_samples(samples: Iterable[Sequence[Place]], side: int) -> Iterator[list[Thumbnail]]:
    """The pictures of every sample, in order, read by threads; side 0: none."""
    coming = iter(samples)
    with ThreadPoolExecutor(processes.cores()) as pool:
        while part := [*itertools.islice(coming, _AHEAD)]:
            places = dict.fromkeys(p for sample in part for p in sample if side and isinstance(p, str))
            made = dict(zip(places, pool.map(lambda place: of_file(Path(place), side), places), strict=True))
            for sample in part:
                yield [made[p] if isinstance(p, str) else p for p in sample] if side else []


def _text(jpeg: bytes) -> str:
    return binascii.b2a_base64(jpeg, newline=False).decode("ascii")
