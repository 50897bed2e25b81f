"""Runs a command and ends its process: signals and a user's errors become one sentence and an exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from nein.loading.errors import UserError, out_of_memory
from nein.loading.references import hide_credentials

#: Exit codes. UNSCORED: of --fail-on-unscored; the last two: 128 + the number of the signal.
USER_MISTAKE, UNSCORED, INTERRUPTED, TERMINATED = 2, 3, 130, 143


class Terminated(BaseException):
    """SIGTERM arrived. Finished blocks are on disk, so the command can end at once."""


def exit_with(command: Callable[[], int | None]) -> NoReturn:
    """Runs a command and exits with its code; an error of the user becomes one sentence on standard error."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:  # closed by `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the encoding lacks become "?"
    handlers = {signal.SIGTERM: _terminate, signal.SIGINT: _interrupt}
    if threading.current_thread() is not threading.main_thread():  # no other thread may set handlers
        handlers = {}
    old_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = command() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _print_end("Interrupted; rerun the command to resume.", INTERRUPTED)
    except Terminated:
        code = _print_end("Terminated; rerun the command to resume.", TERMINATED)
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
        code = 1
    except (RuntimeError, MemoryError, ValueError, OSError) as error:  # a user's errors are of these classes
        if (message := explain_error(error)) is None:
            raise
        code = _print_end(f"error: {message}", USER_MISTAKE)
    finally:
        for number, handler in old_handlers.items():
            if signal.getsignal(number) is handlers[number]:  # else `_interrupt` has set one, which stays
                signal.signal(number, handler)
    sys.exit(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _interrupt(number: int, frame: FrameType | None) -> None:
    # The next Ctrl-C ends the process without Python's cleanup, which aborts while threads run native code.
    signal.signal(number, lambda *_: os._exit(INTERRUPTED))
    os.write(2, b"\nEnding after the current batch (Ctrl-C again: at once).\n")  # print is not reentrant
    raise KeyboardInterrupt


def explain_error(error: BaseException) -> str | None:
    """The error as a sentence for the user; None for a bug of ours, which keeps its traceback."""
    from nein.editors import EditorError
    from nein.metrics import MetricError

    if isinstance(error, UserError | EditorError | MetricError):
        return str(error)
    if out_of_memory(error):
        return "Out of memory; lower --batch-size, or pass a smaller --dtype (and another --out)."
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        part = ascii(error.object[max(0, error.start - 30) : error.end + 30])
        return f"The text {part} holds an unpaired surrogate (half a character); fix its source."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full ({error.filename or error.strerror}); free space and rerun the command."
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
        path = path if len(path) <= 200 else f"{path[:100]}...{path[-60:]}"  # it may be why: too long a name
        return f"'{path}' cannot be used: {error.strerror}."
    return None


def make_printable(text: str) -> str:
    """Text that is safe for a terminal: control characters and direction marks become "?"."""
    return "".join(char if char.isprintable() or char in "\n\t\xa0" else "?" for char in text)


def _print_end(text: str, code: int) -> int:
    """Prints the last message of a process, without credentials; returns the exit code."""
    rank = os.environ.get("RANK", "0")
    text = text if rank == "0" else f"process {rank}: {text}"
    print(make_printable(hide_credentials(text)), file=sys.stderr, flush=True)
    return code
