"""Which shards are finished, and who works on which: append-only journals and one lock per shard.

A worker is any process, on any machine that shares the folder and its locks. It takes a shard by locking its
file, computes one stage of it, appends one line to a journal of its own, and lets the lock go. The system
releases the lock of a process that dies, and its shard is then free for the next; a line that was not
finished does not count. Results belong to shards alone, so it does not matter who computes which, or how
often: on a file system without working locks two workers may do the same shard, and both write the same line.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from nein.engine import atomic
from nein.engine.journal import Journal, take_slot


class Ledger:
    """Journals and locks below `root`. Threads of a process may share one; use as a context manager."""

    def __init__(self, root: Path) -> None:
        self.journals = root / "journal"
        self.claims = atomic.make_folder(root / "claims")
        atomic.make_folder(self.journals)
        self._slot, self._slot_lock = take_slot(self.claims)
        self._open: dict[str, Journal] = {}
        self._read: dict[Path, int] = {}
        self._places: dict[str, dict[int, tuple[Path, int, int, float]]] = {}
        self._mutex = threading.Lock()

    def done(self, stage: str) -> set[int]:
        """Shards whose `stage` is in some worker's journal, as of now."""
        with self._mutex:
            self._refresh()
            return set(self._places.get(stage, {}))

    def record(self, stage: str, shard: int) -> dict[str, Any]:
        """The record of a finished shard, read from the file it is in."""
        path, start, length, _ = self._places[stage][shard]
        with path.open("rb") as file:
            file.seek(start)
            return json.loads(file.read(length))

    def records(self, stage: str, shards: Iterator[int] | list[int]) -> Iterator[dict[str, Any]]:
        """The records of finished shards, in the order asked for."""
        for shard in shards:
            yield self.record(stage, shard)

    def append(self, stage: str, record: dict[str, Any]) -> None:
        """Adds a finished shard (`record["shard"]`) to this worker's journal; returns when it is on disk."""
        with self._mutex:
            if stage not in self._open:
                self._open[stage] = Journal(self.journals, stage, self._slot)
            self._open[stage].append(record)

    def when(self, stage: str, shard: int) -> float:
        """When a finished shard was written: seconds since 1970, 0 where its record does not say."""
        return self._places[stage][shard][3]

    def forget(self, stage: str, shard: int) -> None:
        """Counts a finished shard as open again, for this process: what it made has vanished."""
        with self._mutex:
            self._places.get(stage, {}).pop(shard, None)

    def claim(self, shard: int) -> FileLock | None:
        """The lock of a shard, held, or None while another worker holds it. Release it after `append`."""
        lock = FileLock(self.claims / f"shard-{shard:06d}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def others_alive(self) -> bool:
        """Whether another worker is at work on this folder; its locks say so."""
        for path in self.claims.glob("worker-*.lock"):
            if path.stem == f"worker-{self._slot:04d}":
                continue
            lock = FileLock(path)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                return True
            lock.release()
        return False

    def _refresh(self) -> None:
        """Reads what was appended to any journal since the last look; unfinished and torn lines are passed
        over."""
        for path in sorted(self.journals.glob("*.jsonl")):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # still being written
                    self._note(path, start, line)
                    start += len(line)
            self._read[path] = start

    def _note(self, path: Path, start: int, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:  # torn by a kill and closed by a later worker
            return
        if isinstance(record, dict) and isinstance(record.get("shard"), int):
            places = self._places.setdefault(path.stem.rpartition("-")[0], {})
            at = float(record.get("at", 0.0))
            if record["shard"] not in places or at > places[record["shard"]][3]:
                places[record["shard"]] = (path, start, len(line), at)  # done again: the later one counts

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for journal in self._open.values():
            journal.__exit__(kind, error, trace)
        self._slot_lock.release()
