"""A command in a forked process, killed by signal 9 at one exact moment: the COUNT-th file that it writes.

Every file of a run is written through `nein.engine.atomic`, so a moment is the number of a file of one kind.
Forking keeps the libraries that are loaded.
"""

from __future__ import annotations

import contextlib
import fnmatch
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from nein.engine import atomic

KILLED = -signal.SIGKILL
#: Where in the writing of the file: nothing of it is there; half of it is, under its temporary name; all is.
MOMENTS = ("before", "torn", "after")


def run(
    main: Callable[[Sequence[str]], Any],
    arguments: Sequence[str],
    pattern: str = "",
    count: int = 1,
    moment: str = "before",
) -> int:
    """Exit code of `main(arguments)`; KILLED where it was killed.

    pattern  Of the path of the file whose COUNT-th one (from 1) is the moment, as `fnmatch` takes it:
             "*/edit/*.jsonl". "": never.
    """
    process = start(main, arguments, pattern, count, moment)
    process.join(300)
    assert process.exitcode is not None, "the command has not ended in five minutes"
    return int(process.exitcode)


def start(
    main: Callable[[Sequence[str]], Any],
    arguments: Sequence[str],
    pattern: str = "",
    count: int = 1,
    moment: str = "before",
) -> Any:
    """The same without waiting: a process to join."""
    assert moment in MOMENTS
    given = (main, list(arguments), pattern, count, moment)
    process = multiprocessing.get_context("fork").Process(target=_child, args=given)
    process.start()
    return process


def _child(main: Callable[..., Any], arguments: list[str], pattern: str, count: int, moment: str) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123
    writing, lock, written = atomic.writing, threading.Lock(), 0

    @contextlib.contextmanager
    def deadly(path: Path) -> Iterator[IO[bytes]]:
        nonlocal written
        if not fnmatch.fnmatch(path.as_posix(), pattern):
            with writing(path) as file:
                yield file
            return
        with lock:
            written += 1
            last = written == count
        if last and moment == "before":
            _die()
        with writing(path) as file:
            yield file
            if last and moment == "torn":
                file.truncate(file.tell() // 2)
                file.flush()
                _die()
        if last:
            _die()

    atomic.writing = deadly
    main(arguments)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
