"""The images a data set is built from, cut into shards once, so that a worker reads its own shard only.

OUT/list/000000.jsonl   one image per line
OUT/list/list.json      written last: how many, hash, what was odd about the source
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from nein.datasets.negbench.concepts import ROW, Concepts
from nein.engine import atomic
from nein.engine.answers import Unique
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder

LIST = "list"
_FILE = {"count": int, "shard_size": int, "sha256": str, "notes": {}, "origin": str}


@dataclass(frozen=True)
class Listing:
    """A list on disk. sha256: over ids, paths, captions and objects, not over pixels; origin: what it was
    made from."""

    count: int
    shard_size: int
    sha256: str
    notes: dict[str, int]
    origin: str = ""

    def blocks(self, limit: int | None = None) -> Blocks:
        """Those that hold the first `limit` images."""
        return Blocks.first(self.count, self.shard_size, limit)


def members(folder: Folder, shard: int) -> list[Concepts]:
    """The images of a shard."""
    return [Concepts.of(row) for row in folder.read(LIST, shard, ROW)]


def write(folder: Folder | None, images: Iterable[Concepts], shard_size: int, origin: str = "") -> Listing:
    """Writes the list over what is there; without a folder, says only what would be written. Memory holds one
    shard. Raises UserError for a list without an image."""
    digest, names, notes, count = hashlib.sha256(), Unique(), Counter[str](), 0
    shard: list[dict[str, Any]] = []

    def flush() -> None:
        if folder is not None:
            folder.write(LIST, (count - 1) // shard_size, shard)
        shard.clear()

    for image in images:
        if not names.add(image.id):
            notes["listed twice, left out the second time"] += 1
            continue
        notes.update({f"unusable: {image.problem}": 1} if image.problem else {})
        shard.append(image.row())
        digest.update(json.dumps(shard[-1], ensure_ascii=False).encode() + b"\n")
        count += 1
        if count % shard_size == 0:
            flush()
    if shard:
        flush()
    if not count:
        raise UserError("The source lists no image; there is nothing to build from.")
    listing = Listing(count, shard_size, digest.hexdigest(), dict(notes), origin)
    if folder is not None:
        atomic.write_json(folder.path / LIST / "list.json", asdict(listing))
    return listing


def read(folder: Folder) -> Listing | None:
    """The list that `write` left, or None."""
    path = folder.path / LIST / "list.json"
    if not path.is_file():
        return None
    content = atomic.read_json(path, _FILE)
    return Listing(**{item.name: content[item.name] for item in fields(Listing)})
