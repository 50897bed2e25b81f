"""Mistakes a user can correct: the exception, and the sentence for an unknown name."""

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
    """A mistake the user can correct; the message is one sentence: value, what is allowed, what to do."""


class UnavailableError(UserError):
    """A model cannot be asked at all: that is about no single sample, and ends the command."""


def unknown(what: str, name: str, allowed: Iterable[str], hint: str = "") -> UserError:
    """The error for a name that is not in a list: near match first, then the list, then a hint.

    >>> str(unknown("metric", "clipi", ["clip_i", "dino"]))
    "Unknown metric 'clipi'; did you mean 'clip_i'? Allowed: clip_i, dino."
    """
    names = list(allowed)
    near = near_match(name, names)
    guess = f"; did you mean '{near}'?" if near else "."
    listing = f" Allowed: {', '.join(names)}." if names else ""
    return UserError(f"Unknown {what} '{name}'{guess}{listing}{' ' + hint if hint else ''}")


def choose(what: str, name: str, allowed: Iterable[str]) -> str:
    """`name`, which must be one of `allowed` to the letter. Raises UserError as `unknown` says it."""
    if name in (names := list(allowed)):
        return name
    raise unknown(what, name, names)


def chosen(what: str, name: str, allowed: Iterable[str]) -> str:
    """The allowed name that is meant (`spelled`). Raises UserError as `unknown` says it."""
    if (match := spelled(name, names := list(allowed))) is not None:
        return match
    raise unknown(what, name, names)


def spelled(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that differs from `name` in case, hyphens, underscores, spaces and brackets at most.

    >>> spelled("CLIP-I", ["clip_i", "dino"])
    'clip_i'
    """
    names = list(allowed)
    return name if name in names else next((other for other in names if plain(other) == plain(name)), None)


def plain(name: str) -> str:
    """Letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, name.casefold()))


def near_match(name: str, allowed: Iterable[str]) -> str | None:
    """The closest allowed name, or None when nothing is close (difflib ratio below 0.6)."""
    names = list(allowed)
    close = difflib.get_close_matches(str(name).lower(), [n.lower() for n in names], n=1)
    return next((n for n in names if n.lower() == close[0]), None) if close else None


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


log = logging.getLogger(__name__)

Item = TypeVar("Item")

#: What a model or an image library raises on input that it cannot digest. A mistake in our own code
#: (TypeError, AttributeError, ...) is not caught.
MODEL_ERRORS = (RuntimeError, ValueError, OSError, IndexError, ArithmeticError)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def message(error: BaseException) -> str:
    """All of an error's message on one line, at most 300 characters, or the name of its class."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


#: Takes the tracebacks of errors in a user's code; shown nowhere, unless somebody listens.
tracebacks = logging.getLogger("nein.tracebacks")
tracebacks.propagate = False
tracebacks.addHandler(logging.NullHandler())


def reason(error: BaseException) -> str:
    """One line for an unscored sample: the kind of error, its first line, and where in a user's code."""
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
    """Whether memory ran out; PyTorch's class is known by name, for it is not imported here."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def isolated(
    work: Callable[[Sequence[Item]], Iterable[Any]],
    items: Sequence[Item],
    failed: Callable[[BaseException], Any] = reason,
    errors: tuple[type[BaseException], ...] = MODEL_ERRORS,
) -> list[Any]:
    """`work(items)`, one result per item; where that raises one of `errors`, one item at a time: the culprit
    has `failed(error)`. Out of memory, and a model that is not available, end the command."""
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
        return [result for item in items for result in isolated(work, [item], failed, errors)]
    if len(results) != len(items):
        raise AssertionError(f"{len(items)} items were given and {len(results)} results came back")
    return results


def isolated_answers(
    ask: Callable[[list[Any], list[Any]], Iterable[Any]],
    pictures: Iterable[Any],
    texts: Iterable[Any],
    failed: Callable[[BaseException], Any] = reason,
) -> list[Any]:
    """`ask(pictures, texts)`, an answer per picture; one that fails costs itself only, as in `isolated`."""
    pairs = [*zip(pictures, texts, strict=True)]
    return isolated(lambda part: ask([one for one, _ in part], [text for _, text in part]), pairs, failed)
