"""Finished runs against each other, sample by sample: differences, corrected tests, power."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from nein import statistics
from nein.engine.errors import unknown
from nein.reporting import figures as frames
from nein.reporting import format, report, tables
from nein.reporting.figures import figure, number
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import Column, Row, Table

_DIFFERENCE = {"statistic": "difference"}
NOTE = (
    "Means and differences over the samples scored in both runs, intervals and tests clustered by source "
    "image. p below 0.05: the interval excludes 0. Holm: corrected for the number of comparisons in the next "
    "column (--family, --baseline). Needed: source images for 80 % power at the 5 % level, if the true "
    "difference is this large. gap: the difference of both runs' negation gaps."
)
COMPARISONS = Table(
    "comparisons",
    "Paired comparisons",
    (Row("first", "A"), Row("second", "B"), Row("metric"), Row("variant")),
    (
        Column("A: mean", {"statistic": "first"}),
        Column("B: mean", {"statistic": "second"}),
        Column("A - B", _DIFFERENCE),
        Column("p", _DIFFERENCE, tables.p_value()),
        Column("p (Holm)", _DIFFERENCE, tables.p_value("p_holm")),
        Column("of", _DIFFERENCE, tables.entry("family")),
        Column("pairs", _DIFFERENCE, tables.count()),
        Column("source images", _DIFFERENCE, tables.count("clusters")),
        Column("needed", _DIFFERENCE, lambda figures: tables.count("needed")(figures) or format.DASH),
    ),
    {"task": "comparisons"},
    NOTE,
)


def printed(
    form: str, compared: pd.DataFrame, shown: Sequence[Table], other: pd.DataFrame | None = None
) -> str:
    """What `nein compare` prints in a format; `other`: further figures of the tables."""
    if form == "csv":
        return frames.to_csv(compared)
    figures = compared if other is None or form == "tex" else frames.concat([compared, other])
    if form == "text":
        return report.headline(figures, shown, [shown[0].note], ["Every row: --format md, csv or tex"])
    return (tables.latex if form == "tex" else tables.markdown)(tables.sheets(shown, figures), "Comparison")


def chosen(names: Sequence[str], baseline: str | None) -> list[tuple[str, str]]:
    """The pairs to compare: all, or every run with the baseline. Raises UserError for an unknown one."""
    if baseline is None:
        return list(itertools.combinations(names, 2))
    if baseline not in names:
        raise unknown("baseline", baseline, sorted(names))
    return [(name, baseline) for name in names if name != baseline]


def comparisons(
    scores: Mapping[str, ScoreTable], pairs: Sequence[tuple[str, str]], gap: tuple[str, str] | None,
    metrics: Sequence[str], family: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of the frame for every metric and variant of every pair of runs (task "comparisons"): both means
    and their difference, with interval, tests and power.

    scores  Run -> its table, with one row of every sample, metric and variant; values are from 0 to 1.
    gap     Two variants whose difference is compared, too.
    """
    rows: list[dict[str, Any]] = []
    for first, second in pairs:
        one, other = scores[first], scores[second]
        for metric in metrics or one.names("metric"):
            mine, theirs = one.where(metric=metric), other.where(metric=metric)
            for (variant,), part in mine.groups("variant"):
                what = {"metric": metric, "variant": variant}
                rows += tested(first, second, part, theirs.where(variant=variant or None), 1.0, "%", **what)
            if gap is not None:
                affirmed, negated = ([side.where(variant=name) for side in (mine, theirs)] for name in gap)
                mine, theirs = (a.less(b) for a, b in zip(affirmed, negated, strict=True))
                rows += tested(first, second, mine, theirs, 2.0, "points", metric=metric, variant="gap")
    return corrected(rows, family)


def corrected(rows: list[dict[str, Any]], family: str) -> list[dict[str, Any]]:
    """Adds to the differences their p after Holm, and over how many: those of a metric ("metric"), the gaps
    of a metric, or "all"."""
    tests = [row for row in rows if row["statistic"] == "difference"]
    families: dict[Any, list[dict[str, Any]]] = {}
    for row in tests:
        key = (row["metric"], row.get("variant") == "gap") if family == "metric" else None
        families.setdefault(key, []).append(row)
    for members in families.values():
        adjusted = statistics.holm([1.0 if row["p"] is None else row["p"] for row in members])
        for row, p in zip(members, adjusted, strict=True):
            row |= {"p_holm": None if row["p"] is None else p, "family": str(len(members))}
    return rows


def tested(
    first: str, second: str, one: ScoreTable, other: ScoreTable, span: float | None, unit: str, **what: Any
) -> Iterator[dict[str, Any]]:
    """The rows of one comparison; none without samples scored in both. span: as of `pairs_test`."""
    a, b, clusters = one.pair(other)
    test = statistics.pairs_test(a, b, clusters, span)
    if test is None:
        return
    what |= {"task": "comparisons", "first": first, "second": second}
    yield {**number(test.means[0], unit=unit, n=len(one.scored)), **what, "statistic": "first"}
    yield {**number(test.means[1], unit=unit, n=len(other.scored)), **what, "statistic": "second"}
    unscored = len({*one.names("id"), *other.names("id")}) - len(a)
    numbers = {"p": test.p, "p_least": test.least, "needed": test.needed, "detectable": test.detectable}
    row = figure(test.difference, unit="points" if unit == "%" else unit, unscored=unscored, **what)
    yield {**row, **numbers, "statistic": "difference"}
