"""Features of a frozen vision tower, computed once and kept, by blocks that any number of processes share."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save

from nein.datasets.negbench.media import Files
from nein.datasets.negbench.records import Media
from nein.engine import atomic, user_cache
from nein.engine.compact import Numbers, key_of
from nein.engine.executors import one_thread, read_ahead
from nein.engine.images import ImageError
from nein.engine.world import World
from nein.nano.data import world_version
from train.contrast.data import Corpus
from train.contrast.table import mapped

BLOCK = 256  # pictures per file
OPEN = 4096  # files mapped at a time
FORMAT = b"2"  # of the files


class Features:
    """One (D,) float32 row per picture of a corpus, on disk; memory holds 16 bytes of each.

    Addressed by the model, the references, and what stands behind them: size and time of a file, the drawing
    code of a drawn scene. A picture has a number: its place among the distinct pictures of the corpus.
    """

    def __init__(self, corpus: Corpus, dual: Any, folder: Path | None) -> None:
        self._corpus, self._dual = corpus, dual
        self._folder = (folder or user_cache.root() / "clip-features") / dual.fingerprint
        self._numbers = Numbers()
        self._paths: list[Path] = []
        self.bad: dict[int, str] = {}
        self._block = lru_cache(OPEN)(self._mapped)

    def number(self, reference: str, media: Media) -> int:
        """The number of a picture of the corpus."""
        found = self._numbers.get(self._key(reference, media))
        assert found is not None, f"{reference} is no picture of the corpus"
        return found

    def make(self, world: World) -> None:
        """Computes what is missing, shared among the processes."""
        own: dict[int, array[int]] = {}
        for number, (path, rows) in enumerate(self._blocks()):
            self._paths.append(path)
            # By number: another command may add files while some of us have looked and some have not.
            if number % world.size == world.rank and not path.is_file():
                own[number] = rows
        before = torch.get_num_threads()
        # On a CPU a block is computed on one thread, and several at once, as everywhere.
        threads = world.workers(next(self._dual.model.parameters()).device.type)
        for _ in read_ahead(lambda n: self._compute(own[n], self._paths[n]), own, threads - 1, one_thread):
            pass
        torch.set_num_threads(before)
        world.barrier()
        for number, path in enumerate(self._paths):
            with safe_open(path, "np") as content:
                known = json.loads(bytes(content.get_tensor("bad")).decode())
            self.bad |= {number * BLOCK + int(place): reason for place, reason in known.items()}

    def rows(self, numbers: Sequence[int]) -> torch.Tensor:
        """(N, D) float32."""
        found = [self._block(number // BLOCK)[number % BLOCK] for number in numbers]
        return torch.from_numpy(np.stack(found))

    def _mapped(self, block: int) -> np.ndarray:
        return mapped(self._paths[block], "rows", "<f4")

    def _key(self, reference: str, media: Media) -> int:
        same = (
            self._corpus.caption_media is self._corpus.question_media or media is self._corpus.caption_media
        )
        return key_of(f"{'' if same else 'questions: '}{reference}")

    def _blocks(self) -> Iterator[tuple[Path, array[int]]]:
        """(path, rows) of every block of distinct pictures, in order of first appearance; a row is a place in
        its file, times two, plus one for questions."""
        digest, rows, count = hashlib.sha256(FORMAT), array("Q"), 0
        for which, (records, media) in enumerate(self._corpus.parts):
            for place, record in enumerate(records):
                key = self._key(record.image, media)
                if self._numbers.get(key) is not None:
                    continue
                self._numbers.put(key, count)
                count += 1
                digest.update(json.dumps([record.image, _stamp(record.image, media)]).encode())
                rows.append(2 * place + which)
                if len(rows) == BLOCK:
                    yield self._path(digest), rows
                    digest, rows = hashlib.sha256(FORMAT), array("Q")
        if rows:
            yield self._path(digest), rows

    def _path(self, digest: Any) -> Path:
        return self._folder / f"{digest.hexdigest()[:24]}.safetensors"

    def _compute(self, block: Sequence[int], path: Path) -> None:
        pictures, places = [], []
        bad: dict[int, str] = {}
        for place, row in enumerate(block):
            records, media = self._corpus.parts[row % 2]
            try:
                pictures.append(media.frames(records[row // 2].image)[0])
                places.append(place)
            except ImageError as error:
                bad[place] = str(error)
        rows = np.zeros((len(block), self._dual.width), dtype=np.float32)
        if pictures:
            rows[places] = self._dual.encode(pictures)
        about = np.frombuffer(json.dumps(bad).encode(), dtype=np.uint8)
        atomic.write_bytes(path, save({"rows": rows, "bad": about}))


def _stamp(name: str, media: Media) -> list[Any]:
    if not isinstance(media, Files):
        return [world_version()]
    try:
        found = media.path(name).stat()
    except (OSError, ImageError):
        return ["missing"]
    return [found.st_size, found.st_mtime_ns]
