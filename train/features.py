"""Features on disk: made once, by any number of processes, and read by row.

    FOLDER/<kind>-<block>.safetensors   tensors with a row per thing; the metadata say what they were made of

A block is named by what is in it. Its metadata hold a signature of each thing (size and time of its files):
where one differs the hash of the content is compared, and the block is made again if that differs too. Files
are written atomically, so the work can be stopped and started at any time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import safetensors
import safetensors.torch
import torch
from tqdm import tqdm

from nein.engine import atomic
from nein.engine.ahead import one_thread, read_ahead
from nein.engine.images import ImageError
from nein.engine.processes import Processes

FORMAT = 2
OPEN = 4096  # files mapped at a time: they cost no memory of their own


class Things(Protocol):
    """Numbered things that features are made of.

    name       Tells one from everything else that may come into the folder.
    signature  Cheap, and another one when a file is replaced. `content`: a hash of the files themselves.
    read       What an encoder takes. Raises ImageError.
    """

    def __len__(self) -> int: ...

    def name(self, index: int) -> str: ...

    def signature(self, index: int) -> str: ...

    def content(self, index: int) -> str: ...

    def read(self, index: int) -> Any: ...


class FeatureFiles:
    """The features of things, `size` to a file."""

    def __init__(self, folder: Path, kind: str, things: Things, size: int) -> None:
        self.folder = folder
        self._things, self._size = things, size
        self._blocks = [range(start, min(start + size, len(things))) for start in range(0, len(things), size)]
        self._files = [folder / f"{kind}-{self._address(block)}.safetensors" for block in self._blocks]
        self._lock = threading.Lock()
        self._open = functools.lru_cache(OPEN)(self._mapped)

    def _address(self, block: range) -> str:
        names = [FORMAT, *(self._things.name(index) for index in block)]
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:24]

    # --- making ------------------------------------------------------------------------------

    def make(
        self,
        encode: Callable[[list[Any]], Mapping[str, torch.Tensor]],
        processes: Processes,
        *,
        ahead: int = 1,
        at_once: int | None = None,
    ) -> None:
        """Makes what is missing or has changed. Every process calls it and makes its share.

        encode   Things that were read -> tensors by name, each with a row per thing.
        ahead    Blocks that are read in threads before they are encoded.
        at_once  Blocks that are read and encoded at the same time, each on one of PyTorch's threads.
                 None: one after the other, on the calling thread.
        """
        if processes.is_main:
            atomic.check_writable(self.folder)
        # By number: another command may add files while some of us have looked and some have not.
        share = range(processes.rank, len(self._blocks), processes.size)
        missing = [number for number in share if not self._is_current(number)]

        def whole(number: int) -> None:
            self._write(number, encode, *self._read(number))

        with tqdm(total=len(missing), desc="features", unit="block", disable=not missing) as bar:
            if at_once is not None:
                for _ in read_ahead(whole, missing, at_once - 1, one_thread):
                    bar.update()
            else:
                for number, block in read_ahead(self._read, missing, ahead):
                    self._write(number, encode, *block)
                    bar.update()
        processes.barrier()

    def _is_current(self, number: int) -> bool:
        if not self._files[number].is_file():
            return False
        made_of = self._metadata(number)
        rows = zip(self._blocks[number], made_of["signatures"], made_of["contents"], strict=True)
        return all(
            self._signature(index) == signature or self._content(index) == content
            for index, signature, content in rows
        )

    def _read(self, number: int) -> tuple[dict[int, Any], dict[str, Any]]:
        """The things of a block that can be read, by row, and the metadata."""
        block = self._blocks[number]
        # Before anything is read: what is replaced meanwhile is then seen to have changed.
        signatures = [self._signature(index) for index in block]
        contents = [self._content(index) for index in block]
        readable: dict[int, Any] = {}
        unreadable: dict[int, str] = {}
        for row, index in enumerate(block):
            try:
                readable[row] = self._things.read(index)
            except (ImageError, FileNotFoundError) as error:
                unreadable[row] = str(error)
        return readable, {"signatures": signatures, "contents": contents, "unreadable": unreadable}

    def _signature(self, index: int) -> str:
        try:
            return self._things.signature(index)
        except (ImageError, OSError):
            return "missing"

    def _content(self, index: int) -> str:
        try:
            return self._things.content(index)
        except (ImageError, OSError):
            return "missing"

    def _write(self, number: int, encode: Any, readable: dict[int, Any], made_of: dict[str, Any]) -> None:
        tensors = {}
        for name, rows in encode(list(readable.values())).items() if readable else ():
            tensors[name] = rows.new_zeros((len(self._blocks[number]), *rows.shape[1:]), device="cpu")
            tensors[name][list(readable)] = rows.cpu()
        content = safetensors.torch.save(tensors, {"made_of": json.dumps(made_of)})
        atomic.write_bytes(self._files[number], content)

    # --- reading -----------------------------------------------------------------------------

    @functools.cached_property
    def unreadable(self) -> dict[int, str]:
        """Why a thing has no features, by its number."""
        return {
            number * self._size + int(row): reason
            for number in range(len(self._blocks))
            for row, reason in self._metadata(number)["unreadable"].items()
        }

    def row(self, index: int, name: str, *inner: int) -> torch.Tensor:
        """The row of a thing in the tensor `name`, or a part of it, on the CPU. Raises ImageError."""
        if index in self.unreadable:
            raise ImageError(self.unreadable[index])
        number, row = divmod(index, self._size)
        place = (row, *inner)
        with self._lock:
            return self._open(number).get_slice(name)[place]

    def _mapped(self, number: int) -> Any:
        return safetensors.safe_open(self._files[number], framework="pt")

    def _metadata(self, number: int) -> dict[str, Any]:
        with safetensors.safe_open(self._files[number], framework="pt") as file:
            return json.loads((file.metadata() or {})["made_of"])
