"""Mistakes a user can mend: the exception, the sentence for an unknown name, and many mistakes at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake the user can mend. The message is one clear sentence: value, what is allowed, what to do."""


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


def chosen(what: str, name: str, allowed: Iterable[str]) -> str:
    """The allowed name that is meant (`spelled`). Raises UserError as `unknown` says it."""
    names = list(allowed)
    match = spelled(name, names)
    if match is None:
        raise unknown(what, name, names)
    return match


def near_match(name: str, allowed: Iterable[str]) -> str | None:
    """The closest allowed name, or None when nothing is close (difflib ratio below 0.6)."""
    names = list(allowed)
    close = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
    return next((n for n in names if n.lower() == close[0]), None) if close else None


def shortlist(items: Iterable[str], limit: int = 10) -> str:
    """The first `limit` items joined by commas, with a count of the rest."""
    all_items = list(items)
    shown = ", ".join(all_items[:limit])
    rest = len(all_items) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


class Problems:
    """Collects what is wrong with a data set, so that it is said at once: kind of problem -> where it is."""

    def __init__(self) -> None:
        self._by_kind: dict[str, list[str]] = {}

    def add(self, kind: str, what: str) -> None:
        self._by_kind.setdefault(kind, []).append(what)

    def raise_if_any(self, where: str) -> None:
        if not self._by_kind:
            return
        lines = [f"  {len(items)} x {kind}: {shortlist(items, 8)}" for kind, items in self._by_kind.items()]
        total = sum(len(items) for items in self._by_kind.values())
        head = f"{where} has {total} problem{'s' * (total > 1)}; mend these first:"
        raise UserError("\n".join([head, *lines]))
