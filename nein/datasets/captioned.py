"""Lists of captioned pictures as JSON lines: {"image": "a.jpg", "captions": ["A dog.", ...]}."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nein.datasets.coco import Picture
from nein.engine import atomic
from nein.engine.errors import UserError

IMAGE_KEYS = ("image", "file_name", "filename", "filepath")
CAPTION_KEYS = ("captions", "caption", "text")


def iter_pictures(path: Path) -> Iterator[Picture]:
    """The picture of every line, read as it is asked for; file names are relative to the list's folder.

    Raises UserError for a file that cannot be read, and naming a line that is no such record.
    """
    for number, row in atomic.iter_lines(path):
        where = f"'{path}', line {number},"
        name = image_of(row)
        if not name:
            raise UserError(f"{where} names no image; it needs one of: {', '.join(IMAGE_KEYS)}.")
        yield Picture(name, captions_of(row, where), folder=path.parent)


def image_of(row: Mapping[str, Any]) -> str | None:
    """The file name in a record, or None."""
    name = next((row[key] for key in IMAGE_KEYS if key in row), None)
    return name if isinstance(name, str) else None


def captions_of(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The captions in a record: a text, or those of a list that are texts. `where` names it in messages."""
    said: Any = next((row[key] for key in CAPTION_KEYS if row.get(key) is not None), [])
    if isinstance(said, str):
        return (said,)
    if not isinstance(said, list):
        raise UserError(f"{where} has captions that must be a text or a list of texts, not {said!r:.40}.")
    return tuple(text for text in said if isinstance(text, str))
