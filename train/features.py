"""Store encoded features on disk, and compute the order in which training takes its examples.

    FOLDER/<kind>-<hash>.safetensors   tensors with a row per entry; the metadata list unreadable entries

Images or sentences are encoded once, in blocks. A block's name is a hash of its entries' keys: when an image
file is replaced, its block is encoded again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
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

FORMAT = 3  # of the files; with another number all features are encoded again
OPEN_FILES = 4096  # files open at a time; they are memory-mapped, which costs no memory


# --- stored features -------------------------------------------------------------------------------------
def stamp_files(*files: Path) -> str:
    """Size and modification time of each file, or "missing"."""
    try:
        return ",".join(f"{info.st_size}:{info.st_mtime_ns}" for info in (file.stat() for file in files))
    except OSError:
        return "missing"


def read_sizes(files: Iterable[Path]) -> list[int | None]:
    """Bytes of each file; None if it is missing."""
    return [file.stat().st_size if file.is_file() else None for file in files]


class FeatureFiles:
    """Stored features of entries 0 to `count` - 1: image pairs, images or sentences.

    kind        Start of the file names.
    key         Index -> string that is unique in the folder, and changes when the entry's files do.
    read        Index -> input of the encoder. Raises ImageError.
    block_size  Entries per file.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        count: int,
        *,
        key: Callable[[int], str],
        read: Callable[[int], Any],
        block_size: int,
    ) -> None:
        self.folder, self._read_entry, self._block_size = folder, read, block_size
        starts = range(0, count, block_size)
        self._blocks = [range(start, min(start + block_size, count)) for start in starts]
        self._files = []
        for block in self._blocks:
            content = json.dumps([FORMAT, *map(key, block)])
            address = hashlib.sha256(content.encode()).hexdigest()[:24]
            self._files.append(folder / f"{kind}-{address}.safetensors")
        self._lock = threading.Lock()  # a file is opened once, though several threads read
        self._open = functools.lru_cache(OPEN_FILES)(lambda file: safetensors.safe_open(file, framework="pt"))

    def make(
        self, encode: Callable[[list[Any]], Mapping[str, torch.Tensor]], processes: Processes, ahead: int = 1
    ) -> None:
        """Encode missing blocks, shared among processes; `ahead` blocks are prefetched.

        encode  Inputs of N entries -> tensors by name, each (N, ...).
        """
        if processes.is_main:
            atomic.make_folder(self.folder)
        # Blocks are shared by number, not by position among the missing ones: another command may add files
        # meanwhile, and processes would then see different lists.
        numbers = range(processes.rank, len(self._blocks), processes.size)
        missing = [number for number in numbers if not self._files[number].is_file()]

        with tqdm(total=len(missing), desc="features", unit="block", disable=not missing) as bar:
            for number, (readable, unreadable) in read_ahead(self._read_block, missing, ahead):
                encoded = encode(list(readable.values())) if readable else {}
                tensors = {}
                for name, rows in encoded.items():
                    # (readable, ...) => (block, ...): rows of unreadable entries stay zero
                    shape = (len(self._blocks[number]), *rows.shape[1:])
                    tensors[name] = rows.new_zeros(shape, device="cpu")
                    tensors[name][list(readable)] = rows.cpu()
                content = safetensors.torch.save(tensors, {"unreadable": json.dumps(unreadable)})
                atomic.write_bytes(self._files[number], content)
                bar.update()
        processes.barrier()

    def _read_block(self, number: int) -> tuple[dict[int, Any], dict[int, str]]:
        """Read a block: row -> input for the readable entries, and row -> reason for the others."""
        readable: dict[int, Any] = {}
        unreadable: dict[int, str] = {}
        for row, index in enumerate(self._blocks[number]):
            try:
                readable[row] = self._read_entry(index)
            except (ImageError, FileNotFoundError) as error:
                unreadable[row] = str(error)
        return readable, unreadable

    @functools.cached_property
    def unreadable(self) -> dict[int, str]:
        """Index of each entry without features -> reason."""
        reasons: dict[int, str] = {}
        for number, file in enumerate(self._files):
            with safetensors.safe_open(file, framework="pt") as opened:
                by_row = json.loads((opened.metadata() or {})["unreadable"])
            reasons |= {self._blocks[number][int(row)]: reason for row, reason in by_row.items()}
        return reasons

    def read_row(self, index: int, name: str, *inner: int) -> torch.Tensor:
        """Row of an entry in the tensor `name`, or its part at `inner`, on the CPU. Raises ImageError."""
        if index in self.unreadable:
            raise ImageError(self.unreadable[index])
        number, row = divmod(index, self._block_size)  # number of the block, row in it
        key = (row, *inner)
        with self._lock:
            return self._open(self._files[number]).get_slice(name)[key]  # reads these bytes alone


# --- order of examples -----------------------------------------------------------------------------------
class Passes:
    """Endless stream of example indices, in passes over `count` examples. A pass takes the first `length` of
    them in a new random order, drawn from seed, name and number of the pass. A position in the stream counts
    the examples that all processes took before. Thread-safe."""

    def __init__(self, count: int, length: int, name: str, seed: int) -> None:
        self.count, self.length, self.name, self.seed = count, length, name, seed
        # Two orders are kept: prefetch threads may still read the previous pass.
        self._shuffled = functools.lru_cache(2)(self._shuffle)

    def _shuffle(self, number: int) -> np.ndarray:
        generator = np.random.default_rng(sample_seed(self.seed, f"{self.name}/{number}"))
        return generator.permutation(self.count)  # (count,) int64

    def index_at(self, position: int) -> int:
        """Index of the example at a position of the stream."""
        number, inner = divmod(position, self.length)  # number of the pass, position in it
        return int(self._shuffled(number)[inner])


def list_positions(step: int, batch: int, rank: int, size: int) -> range:
    """Stream positions that process `rank` of `size` takes in a step of `batch` positions."""
    per_process = batch // size
    first = step * batch + rank * per_process
    return range(first, first + per_process)


def seed_step(seed: int, rank: int, examples: int) -> None:
    """Seed torch's global generators for the dropout of a step. examples: seen before it by all processes."""
    torch.manual_seed(sample_seed(seed, f"step/{rank}/{examples}"))
