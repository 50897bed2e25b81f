"""Features of a frozen vision tower, computed once and kept, by blocks that any number of processes share."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save

from nein import atomic
from nein.blocks import one_thread, prefetch, share
from nein.images import ImageError
from nein.nano.data import cache_root, world_version
from nein.negbench.data import Media
from nein.negbench.media import Files
from nein.world import World
from train.contrast.data import Corpus

BLOCK = 256  # pictures per file


class Features:
    """One (D,) float32 row per picture of a corpus.

    Addressed by the model, the references, and what stands behind them: size and time of a file, the drawing
    code of a drawn scene.
    """

    def __init__(self, corpus: Corpus, dual: Any, folder: Path | None) -> None:
        self._media, self._dual = corpus.media, dual
        self._references = list(self._media)
        self._folder = (folder or cache_root() / "clip-features") / dual.fingerprint
        self._rows: dict[str, np.ndarray] = {}
        self.bad: dict[str, str] = {}

    def make(self, world: World) -> None:
        """Computes what is missing, shared among the processes, and reads all of it."""
        blocks = [self._references[i : i + BLOCK] for i in range(0, len(self._references), BLOCK)]
        paths = [self._path(block) for block in blocks]
        missing = [number for number, path in enumerate(paths) if not path.is_file()]
        own = share(missing, world.rank, world.size)
        before = torch.get_num_threads()
        # On a CPU a block is computed on one thread, and several at once, as everywhere.
        threads = world.workers(next(self._dual.model.parameters()).device.type)
        for _ in prefetch(lambda n: self._compute(blocks[n], paths[n]), own, threads - 1, one_thread):
            pass
        torch.set_num_threads(before)
        world.barrier()
        for block, path in zip(blocks, paths, strict=True):
            found = load_file(path)
            known = json.loads(bytes(found["bad"]).decode() or "{}")
            self.bad |= known
            self._rows |= {
                name: row for name, row in zip(block, found["rows"], strict=True) if name not in known
            }

    def rows(self, references: list[str]) -> torch.Tensor:
        """(N, D) float32."""
        return torch.from_numpy(np.stack([self._rows[name] for name in references]))

    def _compute(self, block: list[str], path: Path) -> None:
        pictures, places = [], []
        bad: dict[str, str] = {}
        for place, name in enumerate(block):
            try:
                pictures.append(self._media[name].frames(name)[0])
                places.append(place)
            except ImageError as error:
                bad[name] = str(error)
        rows = np.zeros((len(block), self._dual.width), dtype=np.float32)
        if pictures:
            rows[places] = self._dual.encode(pictures)
        about = np.frombuffer(json.dumps(bad).encode(), dtype=np.uint8)
        atomic.write_bytes(path, save({"rows": rows, "bad": about}))

    def _path(self, block: list[str]) -> Path:
        digest = hashlib.sha256()
        for name in block:
            digest.update(json.dumps([name, _stamp(name, self._media[name])]).encode())
        return self._folder / f"{digest.hexdigest()[:24]}.safetensors"


def _stamp(name: str, media: Media) -> list[Any]:
    if not isinstance(media, Files):
        return [world_version()]
    try:
        found = media.path(name).stat()
    except (OSError, ImageError):
        return ["missing"]
    return [found.st_size, found.st_mtime_ns]
