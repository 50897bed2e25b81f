"""Pictures of a built set of questions: the files as they were, under plain names, each once."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.generate.negvqa.sources import Choice

#: First bytes of a file -> the ending of its name.
_KINDS = ((b"\x89PNG", ".png"), (b"\xff\xd8\xff", ".jpg"), (b"GIF8", ".gif"), (b"BM", ".bmp"))


class Pictures:
    """The folder `images` below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[str, str] = {}

    def keep(self, item: Choice) -> str:
        """Name, relative to the root, of an item's picture, copied unless it is there; equal pictures are one
        file. Raises UserError for a file that cannot be read."""
        data = _content(item.picture)
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._names:
            stem = item.id if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}", item.id) else digest[:20]
            name = f"images/{stem}{_ending(data)}"
            path = self.root / name
            if not path.is_file() or path.stat().st_size != len(data):
                atomic.write_bytes(path, data)
            self._names[digest] = name
        return self._names[digest]


def _content(picture: Path | None) -> bytes:
    assert picture is not None, "an item without a picture is not usable"
    try:
        return picture.read_bytes()
    except OSError as error:
        raise UserError(f"'{picture}' cannot be read: {error.strerror or error}.") from None


def _ending(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ".webp"
    return next((ending for start, ending in _KINDS if data.startswith(start)), ".img")
