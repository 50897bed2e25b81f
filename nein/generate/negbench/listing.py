"""The images a data set is built from, cut into shard files once, so that a worker reads its own shard only.

OUT/list/shard-000000.jsonl   one image per line
OUT/list/list.json            written last: how many, hash, what was odd about the source
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.datasets.negbench.concepts import Concepts
from nein.engine import atomic
from nein.engine.compact import Numbers, key_of
from nein.engine.errors import UserError


@dataclass(frozen=True)
class Listing:
    """A list on disk. `sha256` is over ids, paths, captions and objects, not over pixels."""

    folder: Path
    count: int
    shard_size: int
    sha256: str
    notes: dict[str, int]
    origin: str = ""

    def shards(self, limit: int | None = None) -> list[int]:
        """Numbers of the shards that hold the first `limit` images."""
        return list(range(-(-min(self.count, limit or self.count) // self.shard_size)))

    def members(self, shard: int) -> list[Concepts]:
        return [Concepts.of(row) for row in atomic.read_lines(_file(self.folder, shard))]


def write(folder: Path, images: Iterable[Concepts], shard_size: int, origin: str = "") -> Listing:
    """Writes the list over what is there; `origin` is kept with it. Raises UserError for a list without an
    image.

    Memory holds one shard, and 16 bytes per image, by which an image that is listed twice is found.
    """
    digest, seen, notes, count = hashlib.sha256(), Numbers(), Counter[str](), 0
    lines: list[str] = []

    def flush() -> None:
        if lines:
            atomic.write_text(_file(folder, (count - 1) // shard_size), "\n".join(lines) + "\n")
            lines.clear()

    for image in images:
        if not seen.add(key_of(image.id)):
            notes["listed twice, left out the second time"] += 1
            continue
        notes.update({f"unusable: {image.problem}": 1} if image.problem else {})
        line = json.dumps(image.row(), ensure_ascii=False)
        digest.update(line.encode() + b"\n")
        lines.append(line)
        count += 1
        if count % shard_size == 0:
            flush()
    flush()
    if not count:
        raise UserError("The source lists no image; there is nothing to build from.")
    about: dict[str, Any] = {
        "count": count,
        "shard_size": shard_size,
        "sha256": digest.hexdigest(),
        "notes": dict(notes),
        "origin": origin,
    }
    atomic.write_json(folder / "list.json", about)
    return Listing(folder, **about)


def read(folder: Path) -> Listing | None:
    """The list that `write` left, or None."""
    path = folder / "list.json"
    return Listing(folder, **atomic.read_json(path)) if path.is_file() else None


def _file(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard:06d}.jsonl"
