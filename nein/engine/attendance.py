"""Who is at work in a folder, on which blocks, and which blocks workers died of.

A worker keeps one small file in FOLDER/workers, overwritten in place: the blocks it is at. A thread touches
it now and then; a worker that ends in order removes it. A file that is not touched any more, or whose process
is gone from this machine, is what a worker leaves that died: a block that is named there again and again
kills. Nobody waits for any of it and nothing is locked: it tells where *not* to begin, and a block made twice
has the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.engine import atomic, shapes
from nein.engine.errors import UserError

BEAT, SILENCE = 15.0, 60.0  # seconds between two touches; after which a worker is taken for dead
GLANCE = 2.0  # seconds for which what others do is believed
DEATHS = 3  # of workers that were at one block and at nothing else

Place = tuple[str, int]  # stage, block
#: The first line of a worker's file.
_ENTRY = {"machine": str, "host": str, "pid": int, "blocks": [list]}


@dataclass(frozen=True)
class Worker:
    """What a file of FOLDER/workers says.

    name   Of the file.
    where  Host and process, for messages.
    """

    name: str
    where: str
    alive: bool
    blocks: tuple[Place, ...]


def new_name() -> str:
    """Of a worker: no other has it, on any machine."""
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"


class Presence:
    """The worker `name` as others see it in one folder. Threads may share it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / "workers" / f"{name}.json"
        self._blocks: list[Place] = []
        self._mutex, self._ended = threading.Lock(), threading.Event()
        atomic.make_folder(self._path.parent)
        self._file = self._path.open("wb", buffering=0)
        self._write()
        threading.Thread(target=self._beat, name="presence", daemon=True).start()

    @contextlib.contextmanager
    def at(self, stage: str, number: int) -> Iterator[None]:
        """Says that this worker is at a block. An exception is no death."""
        with self._mutex:
            self._blocks.append((stage, number))
            self._write()
        try:
            yield
        finally:
            with self._mutex:
                self._blocks.remove((stage, number))
                self._write()

    def close(self) -> None:
        """Leaves in order."""
        self._ended.set()
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        entry = {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()}
        line = json.dumps({**entry, "blocks": self._blocks}).encode() + b"\n"
        if not self._file.closed:
            self._file.seek(0)
            self._file.write(line)  # readers end at the first line: what a longer one left is passed over

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(self._path)


class Attendance:
    """What the other workers of a folder do, looked up every few seconds.

    us  Names of workers that are no others.
    """

    def __init__(self, folder: Path, us: Container[str]) -> None:
        self._folder, self._us = folder, us
        self._looked = float("-inf")
        self._busy: set[Place] = set()
        self._deaths: dict[Place, list[bool]] = {}

    def busy(self, place: Place) -> bool:
        """Whether a living worker is at the block."""
        self._look()
        return place in self._busy

    def deaths(self, place: Place) -> list[bool]:
        """One per worker that died at the block: whether it was at nothing else."""
        self._look()
        return self._deaths.get(place, [])

    def forget(self) -> None:
        """Looks again next time."""
        self._looked = float("-inf")

    def _look(self) -> None:
        if time.monotonic() - self._looked < GLANCE:
            return
        self._looked = time.monotonic()
        self._busy, self._deaths = set(), {}
        for worker in workers(self._folder):
            if worker.name in self._us:
                continue
            for place in worker.blocks:
                if worker.alive:
                    self._busy.add(place)
                else:
                    self._deaths.setdefault(place, []).append(len(worker.blocks) == 1)


def workers(folder: Path) -> list[Worker]:
    """Everybody who has not left the folder in order, the dead included."""
    paths = sorted((folder / "workers").glob("*.json"))
    now = _now(folder / "workers") if paths else 0.0
    return [worker for path in paths if (worker := _read(path, now))]


def declare_dead(folder: Path, name: str) -> None:
    """For who knows it before a minute of silence has passed."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(folder / "workers" / f"{name}.json", (0, 0))


def forget_dead(folder: Path, blocks: set[Place] | None = None) -> None:
    """Removes what the dead left; with `blocks`, of those who were at one of them."""
    for worker in workers(folder):
        if not worker.alive and (blocks is None or blocks & set(worker.blocks)):
            (folder / "workers" / f"{worker.name}.json").unlink(missing_ok=True)


def _now(folder: Path) -> float:
    """By the clock that says when files of the folder were touched: that of a server may be minutes off, and
    everybody would look dead. Where nothing can be written, by this machine's."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _read(path: Path, now: float) -> Worker | None:
    """None for one that left in this moment, or is about to write its first line."""
    try:
        age = now - path.stat().st_mtime
        entry: dict[str, Any] = json.loads(path.read_bytes().partition(b"\n")[0])
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    if said := shapes.fault(entry, _ENTRY):
        raise UserError(f"'{path}': {said}. Remove it: it says at what a worker is, or was.")
    gone = entry["machine"] == _machine() and not _runs(entry["pid"])
    blocks = tuple((stage, number) for stage, number in entry["blocks"])
    where = f"{entry['host']}, process {entry['pid']}"
    return Worker(path.stem, where, age < SILENCE and not gone, blocks)


def _machine() -> str:
    """The same for two processes that see each other's numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115 - no path, a name
    return " ".join(parts)


def _runs(pid: int) -> bool:
    """Whether there is such a process; one that has ended and is not yet waited for is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return True
