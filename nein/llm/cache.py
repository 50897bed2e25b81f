"""Answers on disk: append-only lines, found again by key; several processes may share a folder."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from nein import atomic
from nein.journal import Journal, take_slot


class Answers:
    """JSON objects by key below `folder`. Threads may share one.

    Every process appends to a file of its own, so what another process adds is seen from the next start on.
    In memory is only where each answer stands.
    """

    def __init__(self, folder: Path) -> None:
        atomic.make_folder(folder)
        slot, self._lock = take_slot(folder)
        self._mutex = threading.Lock()
        self._places: dict[str, tuple[Path, int, int]] = {}
        for path in sorted(folder.glob("answers-*.jsonl")):
            self._scan(path)
        self._journal = Journal(folder, "answers", slot)

    def get(self, key: str) -> dict[str, Any] | None:
        with self._mutex:
            place = self._places.get(key)
        if place is None:
            return None
        path, start, length = place
        with path.open("rb") as file:
            file.seek(start)
            return json.loads(file.read(length))["value"]

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Returns when the answer is on disk."""
        with self._mutex:
            start = self._journal.path.stat().st_size
            self._journal.append({"key": key, "value": value})
            self._places[key] = (self._journal.path, start, self._journal.path.stat().st_size - start)

    def close(self) -> None:
        self._journal.__exit__(None, None, None)
        self._lock.release()

    def _scan(self, path: Path) -> None:
        start = 0
        with path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:  # torn by a kill and closed by a later process
                    record = None
                if isinstance(record, dict) and isinstance(record.get("value"), dict):
                    self._places[str(record.get("key"))] = (path, start, len(line))
                start += len(line)
