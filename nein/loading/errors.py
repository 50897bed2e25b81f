"""`UserError`, an error that the user can correct, and helpers: names that a user types, errors in one line,
and `isolate`, which finds the item that fails a batch."""

from __future__ import annotations

import difflib
import logging
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

log = logging.getLogger(__name__)


class UserError(ValueError):
    """An error that the user can correct. Its message is one sentence: what was given, what is allowed, what
    to do. `code` is a word for programs, which stays when the message is reworded."""

    def __init__(self, message: str = "", code: str = "user") -> None:
        super().__init__(message)
        self.code = code


class UnavailableError(UserError):
    """A model that answers no request: the command ends, since no single sample is the cause."""


# --- names that a user types -------------------------------------------------------------------
def unknown(noun: str, name: str, allowed: Iterable[str], hint: str = "") -> UserError:
    """The error for a name that is not in a list: tells the closest name, all names, and a hint.

    >>> str(unknown("metric", "clipi", ["clip_i", "dino"]))
    "Unknown metric 'clipi'; did you mean 'clip_i'? Allowed: clip_i, dino."
    """
    names = list(allowed)
    near = near_match(name, names)
    guess = f"; did you mean '{near}'?" if near else "."
    listing = f" Allowed: {', '.join(names)}." if names else ""
    return UserError(f"Unknown {noun} '{name}'{guess}{listing}{' ' + hint if hint else ''}", "unknown-name")


def choose(noun: str, name: str, allowed: Iterable[str]) -> str:
    """Returns `name` if it is one of `allowed`; else raises the UserError of `unknown`."""
    names = list(allowed)
    if name not in names:
        raise unknown(noun, name, names)
    return name


def match_name(noun: str, name: str, allowed: Iterable[str]) -> str:
    """The allowed name that equals `name` but for case, blanks and punctuation. Raises the UserError of
    `unknown`.

    >>> match_name("metric", "CLIP-I", ["clip_i", "dino"])
    'clip_i'
    """
    names = list(allowed)
    if name in names:
        return name
    for candidate in names:
        if fold_name(candidate) == fold_name(name):
            return candidate
    raise unknown(noun, name, names)


def fold_name(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, name.casefold()))


def near_match(name: str, allowed: Iterable[str]) -> str | None:
    """The closest allowed name, or None below a difflib ratio of 0.6."""
    names = list(allowed)
    matches = difflib.get_close_matches(str(name).lower(), [word.lower() for word in names], n=1)
    return next((word for word in names if word.lower() in matches), None)


def shortlist(items: Iterable[str], limit: int = 10) -> str:
    """The first `limit` items joined by commas, with a count of the rest."""
    all_items = list(items)
    listed = ", ".join(all_items[:limit])
    more = len(all_items) - limit
    return f"{listed} and {more} more" if more > 0 else listed


@dataclass
class Problems:
    """Collects the problems of a data set, to report all of them at once."""

    _by_kind: dict[str, list[str]] = field(default_factory=dict)  # kind of problem -> items that have it

    def add(self, kind: str, item: str) -> None:
        self._by_kind.setdefault(kind, []).append(item)

    def raise_if_any(self, source: str) -> None:
        if not self._by_kind:
            return
        lines = [f"  {len(items)} x {kind}: {shortlist(items, 8)}" for kind, items in self._by_kind.items()]
        total = sum(len(items) for items in self._by_kind.values())
        raise UserError("\n".join([f"{source} has {total} problem{'' if total == 1 else 's'}:", *lines]))


# --- an error in one line ----------------------------------------------------------------------
#: Gets the tracebacks of errors in a user's code. It prints nothing; `nein.engine.run` listens.
tracebacks = logging.getLogger("nein.tracebacks")
tracebacks.propagate = False
tracebacks.addHandler(logging.NullHandler())


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def message(error: BaseException) -> str:
    """The message of an error on one line, at most 300 characters, or the name of its class."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def reason(error: BaseException) -> str:
    """One line for an unscored sample: the class of the error, its first line, and the innermost line of the
    user's own code, if the error passed through it."""
    error_class = type(error).__name__
    sentence = f"{error_class}: {first_line(error)}" if str(error).strip() else error_class
    libraries = ("<", str(Path(os.__file__).parent))  # frames without a file ("<string>"); standard library
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):  # innermost first
        file = frame.f_code.co_filename
        is_ours = str(frame.f_globals.get("__name__")).startswith("nein.")
        if not (is_ours or "site-packages" in file or file.startswith(libraries)):
            sentence += f" ({Path(file).name}:{line}, in {frame.f_code.co_name})"
            tracebacks.error("%s", sentence, exc_info=error)
            break
    return sentence


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; PyTorch has its own class, and is not imported for it."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


# --- the item that fails a batch ---------------------------------------------------------------
#: Exceptions of models and image libraries on bad input. Bugs of ours (TypeError, ...) are not caught.
MODEL_ERRORS = (RuntimeError, ValueError, OSError, IndexError, ArithmeticError)
Item = TypeVar("Item")


def isolate(
    work: Callable[[Sequence[Item]], Iterable[Any]],
    items: Sequence[Item],
    describe: Callable[[BaseException], Any] = reason,
    errors: tuple[type[BaseException], ...] = MODEL_ERRORS,
) -> list[Any]:
    """The results of `work(items)`, one per item. If it raises one of `errors`, each item is tried alone;
    an item that raises has the result `describe(error)`. Out of memory and UnavailableError are raised."""
    if not items:
        return []
    try:
        results = list(work(items))
    except errors as error:
        if out_of_memory(error) or isinstance(error, UnavailableError):
            raise
        if len(items) == 1:
            return [describe(error)]
        log.warning("%d items together failed (%s); trying them one by one", len(items), reason(error))
        return [result for item in items for result in isolate(work, [item], describe, errors)]
    if len(results) != len(items):
        raise AssertionError(f"{len(items)} items were given and {len(results)} results came back")
    return results


def isolate_answers(
    ask: Callable[[list[Any], list[Any]], Iterable[Any]],
    images: Iterable[Any],
    texts: Iterable[Any],
    describe: Callable[[BaseException], Any] = reason,
) -> list[Any]:
    """`isolate` for `ask(images, texts)`, which returns an answer per image."""

    def ask_pairs(pairs: Sequence[tuple[Any, Any]]) -> Iterable[Any]:
        return ask([image for image, _ in pairs], [text for _, text in pairs])

    return isolate(ask_pairs, [*zip(images, texts, strict=True)], describe)
