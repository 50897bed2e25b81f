"""Errors that a user can correct, with their sentences and codes; and work of which one item may fail."""

from __future__ import annotations

import difflib
import logging
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar


class UserError(ValueError):
    """An error that the user can correct. Its message is one sentence: what was given; what is allowed; what
    to do. `code` is a word for programs that does not change with the sentence."""

    def __init__(self, message: str = "", code: str = "user") -> None:
        super().__init__(message)
        self.code = code


class UnavailableError(UserError):
    """A model that cannot be asked at all: the command ends, since no single sample is the cause."""


def unknown(noun: str, name: str, allowed: Iterable[str], hint: str = "") -> UserError:
    """The error for a name that is not in a list: near match first, then the list, then a hint.

    >>> str(unknown("metric", "clipi", ["clip_i", "dino"]))
    "Unknown metric 'clipi'; did you mean 'clip_i'? Allowed: clip_i, dino."
    """
    names = list(allowed)
    near = near_match(name, names)
    guess = f"; did you mean '{near}'?" if near else "."
    listing = f" Allowed: {', '.join(names)}." if names else ""
    return UserError(f"Unknown {noun} '{name}'{guess}{listing}{' ' + hint if hint else ''}", "unknown-name")


def choose(noun: str, name: str, allowed: Iterable[str]) -> str:
    """`name`, which must be one of `allowed` exactly. Raises the UserError of `unknown`."""
    if name in (names := list(allowed)):
        return name
    raise unknown(noun, name, names)


def match_name(noun: str, name: str, allowed: Iterable[str]) -> str:
    """The allowed name that equals `name` but for case, hyphens, underscores, spaces and brackets. Raises the
    UserError of `unknown`.

    >>> match_name("metric", "CLIP-I", ["clip_i", "dino"])
    'clip_i'
    """
    names = list(allowed)
    for match in (name, *(other for other in names if plain(other) == plain(name))):
        if match in names:
            return match
    raise unknown(noun, name, names)


def plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def near_match(name: str, allowed: Iterable[str]) -> str | None:
    """The closest allowed name, or None below a difflib ratio of 0.6."""
    names = list(allowed)
    close = difflib.get_close_matches(str(name).lower(), [n.lower() for n in names], n=1)
    return next((n for n in names if n.lower() == close[0]), None) if close else None


def shortlist(items: Iterable[str], limit: int = 10) -> str:
    """The first `limit` items joined by commas, with a count of the rest."""
    all_items = list(items)
    listed = ", ".join(all_items[:limit])
    more = len(all_items) - limit
    return f"{listed} and {more} more" if more > 0 else listed


@dataclass
class Problems:
    """Collects the problems of a data set, to report all of them at once: kind -> items."""

    _by_kind: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, item: str) -> None:
        self._by_kind.setdefault(kind, []).append(item)

    def raise_if_any(self, source: str) -> None:
        if not self._by_kind:
            return
        lines = [f"  {len(items)} x {kind}: {shortlist(items, 8)}" for kind, items in self._by_kind.items()]
        total = sum(len(items) for items in self._by_kind.values())
        head = f"{source} has {total} problem{'s' * (total > 1)}:"
        raise UserError("\n".join([head, *lines]))


log = logging.getLogger(__name__)

Item = TypeVar("Item")

#: Exceptions of models and image libraries on bad input. Bugs of ours (TypeError, ...) are not caught.
MODEL_ERRORS = (RuntimeError, ValueError, OSError, IndexError, ArithmeticError)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def message(error: BaseException) -> str:
    """The whole message of an error on one line, at most 300 characters, or the name of its class."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


#: Gets the tracebacks of errors in a user's code; prints nothing, but may have listeners.
tracebacks = logging.getLogger("nein.tracebacks")
tracebacks.propagate = False
tracebacks.addHandler(logging.NullHandler())


def reason(error: BaseException) -> str:
    """One line for an unscored sample: the class of the error, its first line, and its place in the user's
    code."""
    kind = type(error).__name__
    text = f"{kind}: {first_line(error)}" if str(error).strip() else kind
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file, ours = frame.f_code.co_filename, str(frame.f_globals.get("__name__")).startswith("nein.")
        if not (ours or "site-packages" in file or file.startswith(("<", str(Path(os.__file__).parent)))):
            text += f" ({Path(file).name}:{line}, in {frame.f_code.co_name})"
            tracebacks.error("%s", text, exc_info=error)
            break
    return text


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; PyTorch, which is not imported here, has its own class."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def isolate(
    work: Callable[[Sequence[Item]], Iterable[Any]],
    items: Sequence[Item],
    failed: Callable[[BaseException], Any] = reason,
    errors: tuple[type[BaseException], ...] = MODEL_ERRORS,
) -> list[Any]:
    """`work(items)`, a result per item. If it raises one of `errors`, each item is tried alone, and the
    culprit gets `failed(error)`. Out of memory and an unavailable model end the command."""
    if not items:
        return []
    try:
        results = list(work(items))
    except errors as error:
        if out_of_memory(error) or isinstance(error, UnavailableError):
            raise
        if len(items) == 1:
            return [failed(error)]
        log.warning("%d items together failed (%s); trying them one by one", len(items), reason(error))
        return [result for item in items for result in isolate(work, [item], failed, errors)]
    if len(results) != len(items):
        raise AssertionError(f"{len(items)} items were given and {len(results)} results came back")
    return results


def isolate_answers(
    ask: Callable[[list[Any], list[Any]], Iterable[Any]],
    images: Iterable[Any],
    texts: Iterable[Any],
    failed: Callable[[BaseException], Any] = reason,
) -> list[Any]:
    """`ask(images, texts)`, an answer per image, with `isolate`."""
    pairs = [*zip(images, texts, strict=True)]
    return isolate(lambda part: ask([image for image, _ in part], [text for _, text in part]), pairs, failed)
