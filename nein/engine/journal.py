"""Append-only JSON lines that survive a kill at any moment, written by several processes side by side.

One line is one finished block of samples. A process appends to a file of its own and forces every line to
disk; a line cut short by a kill is not valid JSON, so its block simply counts as not done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from filelock import FileLock, Timeout

from nein.engine import atomic


class Journal:
    """The file `<folder>/<kind>-<rank>.jsonl`, open for appending."""

    def __init__(self, folder: Path, kind: str, rank: int) -> None:
        atomic.make_folder(folder)
        self.path = folder / f"{kind}-{rank:04d}.jsonl"
        self._file: IO[bytes] = self.path.open("ab")
        if self._file.tell() and not _ends_with_newline(self.path):
            self._write(b"\n")  # closes a line torn by an earlier kill

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one line and returns when it is on disk."""
        self._write(json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def take_slot(folder: Path) -> tuple[int, FileLock]:
    """The lowest number that no living process has in `folder`, and the lock that holds it.

    The number names a process's journals; the system frees it when the process ends, however it ends.
    """
    number = 0
    while True:
        lock = FileLock(folder / f"worker-{number:04d}.lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            number += 1
            continue
        return number, lock


def read(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Every intact record of every process's `kind` journal; torn lines are skipped."""
    if not folder.is_dir():
        return
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        yield from intact(path)


def intact(path: Path) -> Iterator[dict[str, Any]]:
    """The intact records of one file that is appended to."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                continue  # still being written, or torn
            try:
                record = json.loads(line)
            except ValueError:  # torn by a kill and closed by a later process
                continue
            if isinstance(record, dict):
                yield record


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
