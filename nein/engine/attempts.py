"""Who is at what: a file per attempt, there from before a block is read until it is written.

The file is created exclusively, so that one worker has a block. Questions to an endpoint
are claimed in the same way (`nein.engine.answers`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from nein.engine import atomic

FOLDER = "attempts"
BEAT, SILENCE = 15.0, 60.0  # seconds between two touches of a file; after which its worker is taken for dead
WRITING = 5.0  # the same while there is nothing in it yet


@dataclass(frozen=True)
class Attempt:
    """What a file says: of what (`name_of`), host and process, and whether it is at work."""

    name: str
    where: str
    alive: bool
    group: str


class Attempts:
    """What this process is at in one folder. Threads may share it.

    The first who takes something creates NAME.0.json; when a worker died at it, the next creates NAME.1.json.

    group  Of workers that end together: see `forget`.
    """

    def __init__(self, folder: Path, group: str = "") -> None:
        self._folder, self._group = folder, group
        self._held: dict[str, int] = {}  # name -> deaths before
        self._mutex, self._ended = threading.Lock(), threading.Event()
        self._beating = False

    def take(self, name: str) -> int | None:
        """How many workers died at it before, now that it is ours; None where another worker is at it."""
        deaths = 0
        while not self._create(self._path(name, deaths)):
            try:
                if _read(self._path(name, deaths)).alive:
                    return None
            except FileNotFoundError:  # finished at this moment
                return None
            deaths += 1
        with self._mutex:
            self._held[name] = deaths
            if not self._beating:
                self._beating = True
                threading.Thread(target=self._beat, name="attempts", daemon=True).start()
        return deaths

    def leave(self, name: str, *, done: bool) -> None:
        """Gives it back. Where it is not done, earlier deaths stay remembered."""
        with self._mutex:
            deaths = self._held.pop(name, 0)
        for number in range(deaths, -1 if done else deaths - 1, -1):
            self._path(name, number).unlink(missing_ok=True)

    def close(self) -> None:
        """Gives back everything that is not done, and ends."""
        self._ended.set()
        for name in list(self._held):
            self.leave(name, done=False)

    def _path(self, name: str, deaths: int) -> Path:
        return self._folder / f"{name}.{deaths}.json"

    def _create(self, path: Path) -> bool:
        """Whether the file was not there."""
        me = {"machine": _machine(), "host": socket.gethostname(), "pid": os.getpid()}
        content = json.dumps({**me, "began": _began(os.getpid()), "group": self._group}).encode()
        try:
            file = path.open("xb", buffering=0)
        except FileExistsError:
            return False
        except FileNotFoundError:
            atomic.make_folder(path.parent)
            return self._create(path)
        with file:
            file.write(content)
        return True

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            for name, deaths in list(self._held.items()):
                with contextlib.suppress(OSError):
                    os.utime(self._path(name, deaths))


def new_name() -> str:
    """That nothing else has, on any machine."""
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"


_names: dict[int, str] = {}


def process_name() -> str:
    """Of the files of this process; one that is forked gets its own."""
    return _names.setdefault(os.getpid(), new_name())


def name_of(stage: str, number: int) -> str:
    """Of the attempt at a block."""
    return f"{stage.replace('/', '-')}-{number:06d}"


def attempts(folder: Path) -> list[Attempt]:
    """All that are under way in a run's folder, and those whose worker died."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        with contextlib.suppress(FileNotFoundError):
            found.append(_read(path))
    return found


def forget(folder: Path, *, name: str | None = None, group: str | None = None) -> None:
    """Removes what workers left that died: all of it; of the attempts `name`; or what those of a group left,
    which were ended and have not died."""
    for path in (folder / FOLDER).glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            found = _read(path)
            over = not found.alive and name in (None, found.name)
            if found.group == group if group is not None else over:
                path.unlink()


def _read(path: Path) -> Attempt:
    """Raises FileNotFoundError where the file is gone by now."""
    try:
        entry = json.loads(path.read_bytes())
    except (ValueError, RecursionError):  # not written yet, or damaged
        entry = {}
    entry = entry if isinstance(entry, dict) else {}
    alive = _now(path.parent) - path.stat().st_mtime < (SILENCE if entry else WRITING)
    if alive and entry.get("machine") == _machine():
        alive = _began(entry.get("pid")) == entry.get("began") != ""
    where = f"{entry.get('host', 'somebody')}, process {entry.get('pid', '?')}"
    return Attempt(path.name.removesuffix(".json").rpartition(".")[0], where, alive, entry.get("group", ""))


def _now(folder: Path) -> float:
    """By the clock of the file system, which may be minutes off; where nothing can be written, by ours."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


@lru_cache(maxsize=1)
def _machine() -> str:
    """The same for two processes that see each other's numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115 - no path, a name
    return " ".join(parts)


def _began(pid: Any) -> str:
    """When a process of this machine began, which tells it from a later one of the same number; "" for one
    that has ended, also where it is not waited for yet."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (ProcessLookupError, OverflowError, TypeError):
        return ""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "alive"  # a system without /proc
    return "" if state in ("Z", "X") else fields[18]
