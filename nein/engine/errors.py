"""Mistakes a user can correct, many at once; the exception itself is `nein.loading.errors`'."""

from __future__ import annotations

from collections.abc import Iterable

from nein.loading.errors import UserError, chosen, near_match, plain, spelled, unknown

__all__ = ["Problems", "UserError", "chosen", "near_match", "plain", "shortlist", "spelled", "unknown"]


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
