"""The one way in which a figure becomes text: "88.4 [87.1, 89.6]", "11.2 ± 0.4", "0.43", "–" for nothing.

The unit alone decides the digits, so that a metric looks the same in every table, caption and badge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd

from nein.reporting import figures as frames
from nein.reporting.figures import UNITS, Figure

DASH = "–"
Interval = Literal["ends", "reach", "none"]


def number(value: float | None, unit: str, *, digits: int | None = None, sign: bool = False) -> str:
    """ "88.4"; with `sign` "+88.4"."""
    if value is None:
        return DASH
    scale, usual = UNITS[unit]
    places = usual if digits is None else digits
    return f"{round(scale * value, places) + 0.0:{'+' if sign else ''}.{places}f}"  # no "-0.0"


def text(figure: Figure | None, *, interval: Interval = "ends", digits: int | None = None) -> str:
    """A figure with its interval, if it has one. "ends": [low, high]; "reach": ±, where both ends are equally
    far at the digits shown, else the ends."""
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
    """ "0.012". least: the smallest p that was possible; stands in its place where it is 0.05 or more."""
    if least is not None and least >= 0.05:
        return f"never below {least:.2g} here"
    return DASH if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def heading(title: str, higher_is_better: bool | None = None) -> str:
    """The title with its arrow: ↑ higher is better, ↓ lower is better."""
    return title if higher_is_better is None else f"{title} {'↑' if higher_is_better else '↓'}"


def counts(figures: Sequence[Figure], column: str) -> str:
    """An entry that the figures share, or its range: "48", "46-48"; "" without figures."""
    ends = sorted({figure[column] for figure in figures if figure[column] is not None})
    return "-".join(f"{end:.10g}" for end in dict.fromkeys((*ends[:1], *ends[-1:])))


def widest(gaps: pd.DataFrame, *, what: str, change: str, models: str = "models") -> str | None:
    """The widest and the smallest gap of several models (rows of `figures.gap`), in a sentence; None without
    any.

    what, change  What is measured, and what becomes what: "accuracy", "a question becomes its negation".
    """
    by_model: dict[tuple[str, str], dict[str, Figure]] = {}
    for row in frames.records(gaps):
        by_model.setdefault((row["model"], row.get("source", "")), {})[row["statistic"]] = row
    measured = [rows for rows in by_model.values() if rows["gap"]["value"] is not None]
    if not measured:
        return None
    measured.sort(key=lambda rows: -rows["gap"]["value"])
    first, last = measured[0], measured[-1]["gap"]
    ends = " to ".join(f"{text(first[end], interval='none')} %" for end in ("affirmed", "negated"))
    loss = f"{what} goes from {ends} when {change}: a gap of {text(first['gap'])} points"
    if len(measured) == 1:
        return f"With {last['model']}, {loss}."
    most = f"Of {len(measured)} {models}, {first['gap']['model']} loses most: {loss}"
    return f"{most}; {last['model']} loses least: {text(last)}."
