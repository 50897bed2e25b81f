"""The one way in which a figure becomes text: "88.4 [87.1, 89.6]", "11.2 ± 0.4", "0.43", "–" where nothing
is.

How many digits a figure is shown with is decided by its unit alone, so that a metric looks the same in every
table, caption and badge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nein.reporting.figures import Figure

DASH = "–"
Interval = Literal["ends", "reach", "none"]


class Unit(NamedTuple):
    """Values are shown times `scale`, with `digits` after the point."""

    scale: float
    digits: int


#: "%": per cent of a share; "points": a difference of shares; "": a number as it is; "count": whole.
UNITS = {"%": Unit(100.0, 1), "points": Unit(100.0, 1), "": Unit(1.0, 2), "count": Unit(1.0, 0)}


def number(value: float | None, unit: str, *, digits: int | None = None, sign: bool = False) -> str:
    """ "88.4"; with `sign` "+88.4"."""
    if value is None:
        return DASH
    scale, usual = UNITS[unit]
    places = usual if digits is None else digits
    return f"{round(scale * value, places) + 0.0:{'+' if sign else ''}.{places}f}"  # no "-0.0"


def text(figure: Figure | None, *, interval: Interval = "ends", digits: int | None = None) -> str:
    """A figure with its interval, or without where it has none.

    interval  "ends": [low, high]. "reach": ±, where both ends are equally far at the digits shown, else the
              ends: that of a share is not symmetric, least of all near 0 and 100.
    """
    if figure is None or figure["value"] is None:
        return DASH
    unit = figure["unit"]
    value = number(figure["value"], unit, digits=digits)
    low, high = figure.get("low"), figure.get("high")
    if low is None or high is None or interval == "none":
        return value
    half = 0.5 * 10 ** -(UNITS[unit].digits if digits is None else digits) / UNITS[unit].scale
    if interval == "reach" and abs(figure["value"] - (low + high) / 2) < half:
        return f"{value} ± {number((high - low) / 2, unit, digits=digits)}"
    return f"{value} [{number(low, unit, digits=digits)}, {number(high, unit, digits=digits)}]"


def p_value(p: float | None, least: float | None = None) -> str:
    """ "0.012". least: the smallest p there could have been; said where it is 0.05 or more."""
    shown = DASH if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
    return shown if least is None or least < 0.05 else f"{shown} (never below {least:.2g} here)"


def heading(title: str, higher_is_better: bool | None = None) -> str:
    """The title with its arrow: ↑ higher is better, ↓ lower is better."""
    return title if higher_is_better is None else f"{title} {'↑' if higher_is_better else '↓'}"


def counts(figures: Sequence[Figure], column: str) -> str:
    """An entry that the figures share, or its range: "48", "46-48"; "" without figures."""
    ends = sorted({figure[column] for figure in figures if figure[column] is not None})
    return "-".join(f"{end:.10g}" for end in dict.fromkeys((*ends[:1], *ends[-1:])))
