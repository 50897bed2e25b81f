"""What was found, in one sentence: how far a model falls when what it is told becomes a negation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nein.reporting import format
from nein.reporting.figures import Figure


@dataclass(frozen=True)
class Gap:
    """A model with what it reaches without and with the negation, shares, and their difference."""

    model: str
    affirmed: Figure
    negated: Figure
    gap: Figure


def widest(gaps: Sequence[Gap], *, what: str, change: str, models: str = "models") -> str | None:
    """The widest gap, and among how many it is that; None without any.

    what, change  What is measured, and what becomes what: "accuracy", "a question becomes its negation".
    models        What they are called where there are several.
    """
    measured = [gap for gap in gaps if gap.gap["value"] is not None]
    if not measured:
        return None
    first, *_, last = sorted(measured, key=lambda one: -one.gap["value"]) * 2
    ends = [format.text(figure, interval="none") for figure in (first.affirmed, first.negated)]
    reach = f"a gap of {format.text(first.gap)} points"
    told = f"{what} goes from {ends[0]} % to {ends[1]} % when {change}: {reach}"
    if len(measured) == 1:
        return f"With {first.model}, {told}."
    smallest = format.text(last.gap, interval="none")
    most = f"Of {len(measured)} {models}, {first.model} loses most: {told}."
    return f"{most} Least is lost by {last.model}: {smallest}."
