"""Mistakes a user can correct, many at once; the exception itself is `nein.loading.errors`'."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from nein.loading.errors import UserError, chosen, near_match, plain, spelled, unknown

__all__ = ["Problems", "UserError", "chosen", "near_match", "plain", "shortlist", "spelled", "unknown"]


def shortlist(items: Iterable[str], limit: int = 10) -> str:
    """The first `limit` items joined by commas, with a count of the rest."""
    all_items = list(items)
    listed = ", ".join(all_items[:limit])
    rest = len(all_items) - limit
    return f"{listed} and {rest} more" if rest > 0 else listed


@dataclass
class Problems:
    """Collects what is wrong with a data set, so that it is said at once: kind of problem -> where it is."""

    _by_kind: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, what: str) -> None:
        self._by_kind.setdefault(kind, []).append(what)

    def raise_if_any(self, where: str) -> None:
        if not self._by_kind:
            return
        lines = [f"  {len(items)} x {kind}: {shortlist(items, 8)}" for kind, items in self._by_kind.items()]
        total = sum(len(items) for items in self._by_kind.values())
        head = f"{where} has {total} problem{'s' * (total > 1)}:"
        raise UserError("\n".join([head, *lines]))


USER_MISTAKE, UNSCORED, INTERRUPTED, TERMINATED = 2, 3, 130, 143


class Terminated(BaseException):
    """SIGTERM arrived. Finished blocks are on disk already, so ending is all there is to do."""


def exit_with(command: Callable[[], int | None]) -> NoReturn:
    """Runs a command and ends the process; a mistake of the user becomes one sentence on standard error."""
    handlers = {signal.SIGTERM: _terminate, signal.SIGINT: _interrupt}
    if threading.current_thread() is not threading.main_thread():  # only there signals can be caught
        handlers = {}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = command() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _say("Interrupted; run the same command again to go on.", INTERRUPTED)
    except Terminated:
        code = _say("Terminated; run the same command again to go on.", TERMINATED)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (RuntimeError, MemoryError, ValueError, OSError) as error:
        message = sentence(error)
        if message is None:
            raise
        code = _say(message, USER_MISTAKE)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handlers[number]:  # a second Ctrl-C ends at once
                signal.signal(number, handler)
    sys.exit(code)


def sentence(error: BaseException) -> str | None:
    """What to tell the user, or None for a defect of ours, which deserves its traceback."""
    from nein.editors import EditorError
    from nein.loading.errors import out_of_memory
    from nein.metrics import MetricError

    if isinstance(error, UserError | EditorError | MetricError):
        return str(error)
    if out_of_memory(error):
        return "Memory ran out; lower --batch-size or choose a smaller --dtype (and another --out)."
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        part = ascii(error.object[max(0, error.start - 30) : error.end + 30])
        return f"The text {part} holds half a character (an unpaired surrogate); mend it where it comes from."
    if isinstance(error, OSError) and error.errno in (28, 122):  # no space left, quota exceeded
        return f"The disk is full ({error.filename or error.strerror}); free space and run the command again."
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"'{_shown(error.filename)}' cannot be used: {error.strerror}."
    return None


def _shown(path: object) -> str:
    text = os.fsdecode(path) if isinstance(path, bytes) else str(path)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-60:]}"


def printable(text: str) -> str:
    """Text for a terminal: what would move its cursor, clear it or turn the writing round is a "?"."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


def _say(sentence: str, code: int) -> int:
    rank = os.environ.get("RANK", "0")
    prefix = "" if rank == "0" else f"process {rank}: "
    if "://" in sentence:
        from nein.loading.references import without_credentials

        sentence = without_credentials(sentence)
    text = prefix + (f"error: {sentence}" if code == USER_MISTAKE else sentence)
    print(printable(text), file=sys.stderr, flush=True)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Threads in native code would abort an exit of the interpreter.
    signal.signal(number, lambda *_: os._exit(INTERRUPTED))
    os.write(2, b"\nEnding after the current batch (Ctrl-C again: at once).\n")  # print is not reentrant
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
