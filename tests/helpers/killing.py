"""A command in a forked process, killed by signal 9 at one exact moment: mostly at the writing of a file."""

import contextlib
import fnmatch
import functools
import itertools
import os
import pkgutil
import signal
import threading
import time
from dataclasses import dataclass
from typing import Literal

from nein.engine import atomic
from tests.helpers import forks

KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class File:
    """The COUNT-th file, from 1, whose path matches: before it, with half of it written, or after it."""

    pattern: str = "*"
    count: int = 1
    how: Literal["before", "torn", "after"] = "before"


@dataclass(frozen=True)
class Call:
    """The COUNT-th call, from 1, of "module:function" or "module:Class.method"."""

    place: str
    count: int = 1


def run(main, arguments, moment=None):
    process = start(main, arguments, moment)
    process.join(300)
    assert process.exitcode is not None, "the command has not ended in five minutes"
    return int(process.exitcode)


def start(main, arguments, moment=None):
    return forks.start(functools.partial(_mortal, main, moment), arguments)


def files_written(main, arguments, note):
    """How many files `main(arguments)` writes, undisturbed; `note` is a file for the count."""
    process = forks.start(functools.partial(_counted, main, note), arguments)
    process.join(300)
    assert process.exitcode == 0
    return int(note.read_text())


def _mortal(main, moment, arguments):
    if isinstance(moment, File):
        atomic.write_file = _deadly_writing(moment)
    elif moment is not None:
        make_deadly(moment)
    main(arguments)


def _deadly_writing(moment):
    writing, lock, seen = atomic.write_file, threading.Lock(), itertools.count(1)

    @contextlib.contextmanager
    def deadly(path):
        with lock:  # several threads write
            last = fnmatch.fnmatch(path.as_posix(), moment.pattern) and next(seen) == moment.count
        if last and moment.how == "before":
            _die()
        with writing(path) as file:
            yield file
            if last and moment.how == "torn":
                file.truncate(file.tell() // 2)
                file.flush()
                _die()
        if last:
            _die()

    return deadly


def make_deadly(moment):
    """This process dies at the moment, which its own code need not know."""
    holder_name, _, name = moment.place.replace(":", ".").rpartition(".")
    holder = pkgutil.resolve_name(holder_name)
    function, lock, seen = getattr(holder, name), threading.Lock(), itertools.count(1)

    def deadly(*args, **options):
        with lock:
            last = next(seen) == moment.count
        if last:
            _die()
        return function(*args, **options)

    setattr(holder, name, deadly)


def _counted(main, note, arguments):
    writing, seen = atomic.write_file, itertools.count()

    def counted(path):
        next(seen)
        return writing(path)

    atomic.write_file = counted
    try:
        main(arguments)
    finally:
        note.write_text(str(next(seen)))


def _die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal comes to the process, not to the thread at hand
