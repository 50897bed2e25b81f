"""Answers on disk: append-only lines, found again by key; several processes may share a folder."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from nein.engine import atomic
from nein.engine.compact import Numbers, key_of
from nein.engine.journal import Journal, take_slot

ROOM = 1 << 48  # bytes that a file of answers may have


class Answers:
    """JSON objects by key below `folder`. Threads may share one.

    Every process appends to a file of its own, so what another process adds is seen from the next start on.
    In memory is only where each answer stands: 16 bytes.
    """

    def __init__(self, folder: Path) -> None:
        atomic.make_folder(folder)
        slot, self._lock = take_slot(folder)
        self._mutex = threading.Lock()
        self._files: list[Path] = []
        self._places = Numbers()  # key -> number of the file and where in it the line begins
        for path in sorted(folder.glob("answers-*.jsonl")):
            self._scan(path)
        self._journal = Journal(folder, "answers", slot)
        if self._journal.path not in self._files:
            self._files.append(self._journal.path)
        self._own = self._files.index(self._journal.path)

    def get(self, key: str) -> dict[str, Any] | None:
        with self._mutex:
            place = self._places.get(key_of(key))
        if place is None:
            return None
        number, start = divmod(place, ROOM)
        with self._files[number].open("rb") as file:
            file.seek(start)
            record = json.loads(file.readline())
        return record["value"] if record["key"] == key else None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Returns when the answer is on disk."""
        with self._mutex:
            start = self._journal.path.stat().st_size
            self._journal.append({"key": key, "value": value})
            self._places.put(key_of(key), self._own * ROOM + start)

    def close(self) -> None:
        self._journal.__exit__(None, None, None)
        self._lock.release()

    def _scan(self, path: Path) -> None:
        number, start = len(self._files), 0
        self._files.append(path)
        with path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:  # torn by a kill and closed by a later process
                    record = None
                if isinstance(record, dict) and isinstance(record.get("value"), dict):
                    self._places.put(key_of(str(record.get("key"))), number * ROOM + start)
                start += len(line)
