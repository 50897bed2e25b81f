"""Errors that a user can correct, the matching of typed names, and `isolate`, which works on a batch although
one of its items fails."""

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
#: Gets the tracebacks of errors in a user's code; prints nothing, but may have listeners.
tracebacks = logging.getLogger("nein.tracebacks")
tracebacks.propagate = False
tracebacks.addHandler(logging.NullHandler())
#: Exceptions of models and image libraries on bad input. Bugs of ours (TypeError, ...) are not caught.
MODEL_ERRORS = (RuntimeError, ValueError, OSError, IndexError, ArithmeticError)
Item = TypeVar("Item")


class UserError(ValueError):
    """An error that the user can correct. Its message is one sentence: what was given; what is allowed; what
    to do. `code` is a word for programs; it stays when the message is reworded."""

    def __init__(self, message: str = "", code: str = "user") -> None:
        super().__init__(message)
        self.code = code


class UnavailableError(UserError):
    """A model that cannot be asked at all: the command ends, since no single sample is the cause."""


# --- names that a user types ---


def unknown(noun: str, name: str, allowed: Iterable[str], hint: str = "") -> UserError:
    """The error, to be raised, for a name that is not in a list; names the closest, then all, then a hint.

    >>> str(unknown("metric", "clipi", ["clip_i", "dino"]))
    "Unknown metric 'clipi'; did you mean 'clip_i'? Allowed: clip_i, dino."
    """
    near = near_match(name, names := list(allowed))
    guess = f"; did you mean '{near}'?" if near else "."
    listing = f" Allowed: {', '.join(names)}." if names else ""
    return UserError(f"Unknown {noun} '{name}'{guess}{listing}{' ' + hint if hint else ''}", "unknown-name")


def choose(noun: str, name: str, allowed: Iterable[str]) -> str:
    """`name`, which must be one of `allowed` exactly. Raises the UserError of `unknown`."""
    if name in (names := list(allowed)):
        return name
    raise unknown(noun, name, names)


def match_name(noun: str, name: str, allowed: Iterable[str]) -> str:
    """The allowed name that equals `name` apart from case and every sign that is no letter or digit. Raises
    the UserError of `unknown`.

    >>> match_name("metric", "CLIP-I", ["clip_i", "dino"])
    'clip_i'
    """
    if name in (names := list(allowed)):
        return name
    for candidate in names:
        if fold_name(candidate) == fold_name(name):
            return candidate
    raise unknown(noun, name, names)


def fold_name(name: str) -> str:
    """The letters and digits of a name, without case."""
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
        raise UserError("\n".join([f"{source} has {total} problem{'s' * (total > 1)}:", *lines]))


# --- an error in one line ---


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def message(error: BaseException) -> str:
    """The whole message of an error on one line, at most 300 characters, or the name of its class."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def reason(error: BaseException) -> str:
    """One line for an unscored sample: the class of the error, its first line, and the innermost line of the
    user's own code, if the error passed through it."""
    error_class = type(error).__name__
    sentence = f"{error_class}: {first_line(error)}" if str(error).strip() else error_class
    libraries = ("<", str(Path(os.__file__).parent))  # "<": frames without a file; the standard library
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file, is_ours = frame.f_code.co_filename, str(frame.f_globals.get("__name__")).startswith("nein.")
        if not (is_ours or "site-packages" in file or file.startswith(libraries)):
            sentence += f" ({Path(file).name}:{line}, in {frame.f_code.co_name})"
            tracebacks.error("%s", sentence, exc_info=error)
            break
    return sentence


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; PyTorch, which is not imported here, has its own class."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


# --- a batch of which one item may fail ---


def isolate(
    work: Callable[[Sequence[Item]], Iterable[Any]],
    items: Sequence[Item],
    describe: Callable[[BaseException], Any] = reason,
    errors: tuple[type[BaseException], ...] = MODEL_ERRORS,
) -> list[Any]:
    """`work(items)`, a result per item. If it raises one of `errors`, each item is tried alone; a culprit
    gets `describe(error)`. Out of memory and an unavailable model end the command."""
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
    """`ask(images, texts)`, an answer per image, with `isolate`."""
    pairs = [*zip(images, texts, strict=True)]
    return isolate(
        lambda part: ask([image for image, _ in part], [text for _, text in part]), pairs, describe
    )
