"""Features on disk, made once and read by row; the order of data as a function of (seed, position).

    FOLDER/<kind>-<block>.safetensors   tensors with a row per thing; the metadata say what was unreadable

A block is named by the keys of what is in it: what has been replaced is encoded again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from tqdm import tqdm

from nein.engine import atomic
from nein.engine.folder import sample_seed
from nein.engine.images import ImageError
from nein.engine.machine import Processes, read_ahead

FORMAT = 3
OPEN = 4096  # files mapped at a time: they cost no memory of their own


def stamp(*files: Path) -> str:
    """Size and time of files."""
    try:
        return ",".join(f"{info.st_size}:{info.st_mtime_ns}" for info in (file.stat() for file in files))
    except OSError:
        return "missing"


class FeatureFiles:
    """The features of numbered things, `size` to a file.

    key   Number -> what tells a thing from all others in the folder, and changes when its files do.
    read  Number -> what an encoder takes. Raises ImageError.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        count: int,
        key: Callable[[int], str],
        read: Callable[[int], Any],
        size: int,
    ) -> None:
        self.folder, self._read_thing, self._size = folder, read, size
        self._blocks = [range(start, min(start + size, count)) for start in range(0, count, size)]
        self._files = []
        for block in self._blocks:
            content = json.dumps([FORMAT, *map(key, block)])
            address = hashlib.sha256(content.encode()).hexdigest()[:24]
            self._files.append(folder / f"{kind}-{address}.safetensors")
        self._lock = threading.Lock()
        self._open = functools.lru_cache(OPEN)(lambda file: safetensors.safe_open(file, framework="pt"))

    def make(
        self,
        encode: Callable[[list[Any]], Mapping[str, torch.Tensor]],
        processes: Processes,
        ahead: int = 1,
    ) -> None:
        """Makes what is missing; every process makes its share. `ahead` blocks are read meanwhile.

        encode  Things that were read -> tensors by name, each with a row per thing.
        """
        if processes.is_main:
            atomic.make_folder(self.folder)
        # By number: another command may add files while some of us have looked and some have not.
        share = range(processes.rank, len(self._blocks), processes.size)
        missing = [number for number in share if not self._files[number].is_file()]

        with tqdm(total=len(missing), desc="features", unit="block", disable=not missing) as bar:
            for number, block in read_ahead(self._read, missing, ahead):
                self._write(number, encode, *block)
                bar.update()
        processes.barrier()

    def _read(self, number: int) -> tuple[dict[int, Any], dict[int, str]]:
        """The things of a block that can be read, and why the others cannot, by row."""
        readable: dict[int, Any] = {}
        unreadable: dict[int, str] = {}
        for row, index in enumerate(self._blocks[number]):
            try:
                readable[row] = self._read_thing(index)
            except (ImageError, FileNotFoundError) as error:
                unreadable[row] = str(error)
        return readable, unreadable

    def _write(self, number: int, encode: Any, readable: dict[int, Any], unreadable: dict[int, str]) -> None:
        tensors = {}
        for name, rows in encode(list(readable.values())).items() if readable else ():
            tensors[name] = rows.new_zeros((len(self._blocks[number]), *rows.shape[1:]), device="cpu")
            tensors[name][list(readable)] = rows.cpu()
        content = safetensors.torch.save(tensors, {"unreadable": json.dumps(unreadable)})
        atomic.write_bytes(self._files[number], content)

    @functools.cached_property
    def unreadable(self) -> dict[int, str]:
        """Why a thing has no features, by its number."""
        found: dict[int, str] = {}
        for number, file in enumerate(self._files):
            with safetensors.safe_open(file, framework="pt") as opened:
                reasons = json.loads((opened.metadata() or {})["unreadable"])
            found |= {number * self._size + int(row): reason for row, reason in reasons.items()}
        return found

    def row(self, index: int, name: str, *inner: int) -> torch.Tensor:
        """The row of a thing in the tensor `name`, or a part of it, on the CPU. Raises ImageError."""
        if index in self.unreadable:
            raise ImageError(self.unreadable[index])
        number, row = divmod(index, self._size)
        key = (row, *inner)
        with self._lock:
            return self._open(self._files[number]).get_slice(name)[key]


class Passes:
    """Which of `count` things stands at a position: the first `length` of a new order in every pass, by the
    name of the stream and the seed. Threads may share one."""

    def __init__(self, count: int, length: int, name: str, seed: int) -> None:
        self.count, self.length, self.name, self.seed = count, length, name, seed
        # Threads reading ahead may still be in the pass before.
        self._shuffled = functools.lru_cache(2)(self._shuffle)

    def _shuffle(self, number: int) -> np.ndarray:
        drawing = np.random.default_rng(sample_seed(self.seed, f"{self.name}/{number}"))
        return drawing.permutation(self.count)

    def at(self, position: int) -> int:
        number, inner = divmod(position, self.length)
        return int(self._shuffled(number)[inner])


def share(step: int, batch: int, rank: int, size: int) -> range:
    """The positions of process `rank` of `size` in one step of `batch` positions."""
    per_process = batch // size
    first = step * batch + rank * per_process
    return range(first, first + per_process)


def reseed(seed: int, rank: int, seen: int) -> None:
    """Sets the global generators for one step, for whatever draws inside a model (dropout)."""
    torch.manual_seed(sample_seed(seed, f"step/{rank}/{seen}"))
