"""Compares finished runs sample by sample: differences with intervals, tests, power.

Scores of two runs -> rows of `nein.reporting.figures` -> the table `COMPARISONS`, for `nein compare`, reports
and `nein mend`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from nein import statistics
from nein.loading.errors import unknown
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting import tables
from nein.reporting.figures import Figure, figure, number
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import Column, Row, Table
from nein.statistics import Estimate
from nein.statistics.estimates import p_value

_DIFFERENCE = {"statistic": "difference"}  # selects the rows of differences, without the two means
NOTE = (
    "Means and differences over the samples scored in both runs; intervals and tests are clustered by source "
    "image. p below 0.05: the interval excludes 0. Holm: p corrected for the number of comparisons in the "
    "next column (--family, --baseline). Needed: source images for 80 % power at the 5 % level, if the true "
    "difference is as large. gap: the difference between the two negation gaps."
)


def name_metric(metric: str) -> str:
    """The title of a metric with ↑ (higher is better) or ↓; a benchmark's own metric goes by its name."""
    entry = METRICS.get(metric)
    return f"{entry.title} {'↑' if entry.higher_is_better else '↓'}" if entry else metric


_ROWS = (Row("first", "A"), Row("second", "B"), Row("metric", names=name_metric), Row("variant"))
_COLUMNS = (
    Column("A: mean", {"statistic": "first"}),
    Column("B: mean", {"statistic": "second"}),
    Column("A - B", _DIFFERENCE),
    Column("p", _DIFFERENCE, tables.p_value()),
    Column("p (Holm)", _DIFFERENCE, tables.p_value("p_holm")),
    Column("of", _DIFFERENCE, tables.entry("family")),
    Column("pairs", _DIFFERENCE, tables.count()),
    Column("unscored", _DIFFERENCE, tables.count("unscored")),
    Column("source images", _DIFFERENCE, tables.count("clusters")),
    Column("needed", _DIFFERENCE, lambda figures: tables.count("needed")(figures) or tables.DASH),
)
COMPARISONS = Table("comparisons", "Paired comparisons", _ROWS, _COLUMNS, note=NOTE)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a run."""

    scores: ScoreTable  # one row per sample, metric and variant
    gaps: ScoreTable | None = None  # its negation gap by sample and metric; None: it has none
    # Metric of the whole set (FID) -> `value`, `n`, ..., and `left_out`: without each group of source images.
    corpus: Mapping[str, Figure] = field(default_factory=dict)

    def list_metrics(self) -> list[str]:
        """Its metrics, those of `METRICS` first, in the order there."""
        present = [*self.scores.names("metric"), *self.corpus]
        listed = [name for name in METRICS if name in present]
        return [*listed, *(name for name in present if name not in listed)]


def choose_pairs(names: Sequence[str], baseline: str | None) -> list[tuple[str, str]]:
    """All pairs; or every other run with the baseline: a run, or all runs of an EDITOR. Raises UserError."""
    if baseline is None:
        return list(itertools.combinations(names, 2))
    baselines = [name for name in names if baseline in (name, name.rpartition("/")[0])]
    if not baselines:
        editors = {name.rpartition("/")[0] or name for name in names}
        raise unknown("baseline", baseline, sorted({*names, *editors}))
    others = [name for name in names if name not in baselines]
    pairs = [(name, against) for against in baselines for name in others]
    if len(baselines) == 1:
        return pairs
    # Several runs of the baseline's editor: each is compared with the others of its track.
    return [pair for pair in pairs if pair[0].rpartition("/")[2] == pair[1].rpartition("/")[2]]


def compare_runs(
    sides: Mapping[str, Side],
    pairs: Sequence[tuple[str, str]],
    metrics: Sequence[str] = (),
    family: str = "metric",
) -> list[Figure]:
    """Rows (task "comparisons") for every metric and variant of every pair of runs: both means, and their
    difference with interval, tests and power."""
    rows: list[Figure] = []
    for first, second in pairs:
        for metric in metrics or sides[first].list_metrics():
            labels = {"task": "comparisons", "first": first, "second": second, "metric": metric}
            rows += ({**labels, **row} for row in compare_metric(sides[first], sides[second], metric))
    return correct_p(rows, family)


def compare_metric(first: Side, second: Side, metric: str) -> Iterator[Figure]:
    """The rows of a metric; none if no sample is scored in both runs."""
    if metric in first.corpus and metric in second.corpus:
        yield from _compare_corpus(first.corpus[metric], second.corpus[metric])
        return
    entry = METRICS.get(metric)
    span = entry.span if entry else 1.0  # width of the range of values; a benchmark's own metric is a share
    unit = "%" if entry is None or entry.unit == "per cent" else ""
    for (variant,), part in first.scores.where(metric=metric).groups("variant"):
        other = second.scores.where(metric=metric, variant=variant or None)
        for row in _compare_tables(part, other, span, unit):
            yield {**row, "variant": variant}
    if first.gaps is not None and second.gaps is not None:
        first_gaps, second_gaps = first.gaps.where(metric=metric), second.gaps.where(metric=metric)
        for row in _compare_tables(first_gaps, second_gaps, 2.0, "points"):
            yield {**row, "variant": "gap"}


def _compare_tables(first: ScoreTable, second: ScoreTable, span: float | None, unit: str) -> Iterator[Figure]:
    """The rows of one comparison. span: width of the range of values; None: they have none."""
    a, b, clusters = first.pair(second)  # (N,) each: values of the samples scored in both, source images
    test = statistics.pairs_test(a, b, clusters, span)
    if test is None:
        return
    yield number(test.means[0], unit=unit, n=len(first.scored), statistic="first")
    yield number(test.means[1], unit=unit, n=len(second.scored), statistic="second")
    unscored = len({*first.names("id"), *second.names("id")}) - len(a)
    numbers = {"p": test.p, "p_least": test.least, "needed": test.needed, "detectable": test.detectable}
    row = figure(test.difference, unit="points" if unit == "%" else unit, unscored=unscored)
    yield {**row, **numbers, "statistic": "difference"}


def _compare_corpus(first: Figure, second: Figure) -> Iterator[Figure]:
    """FID of two runs on the same source images, paired by the jackknife: both leave out the same groups."""
    if first["value"] is None or second["value"] is None:
        return
    if any(first[key] != second[key] for key in ("sources", "reference")):
        return
    from nein.metrics.fid import FidInterval, subtract

    intervals = [FidInterval(**{key: side[key] for key in FidInterval._fields}) for side in (first, second)]
    change = subtract(intervals[0], intervals[1])
    n = min(first["n"], second["n"])
    p = 1.0
    if change.standard_error and change.value:
        p = p_value(change.value / change.standard_error, len(change.left_out) - 1)
    for statistic, entry in (("first", first), ("second", second)):
        yield number(entry["value"], unit="", n=entry["n"], statistic=statistic)
    estimate = Estimate(change.value, change.low, change.high, change.standard_error, n, first["clusters"])
    unscored = max(entry["n"] + entry["n_unscored"] for entry in (first, second)) - n
    yield figure(estimate, unit="", unscored=unscored, statistic="difference", p=p)


def correct_p(rows: list[Figure], family: str) -> list[Figure]:
    """Adds p after Holm and the size of the family to every difference. family: "metric" (the differences of
    a metric; its gaps are a family of their own) or "all"."""
    families: dict[Any, list[Figure]] = {}  # key of a family -> its differences
    for row in (row for row in rows if row["statistic"] == "difference"):
        key = (row["metric"], row.get("variant") == "gap") if family == "metric" else None
        families.setdefault(key, []).append(row)
    for members in families.values():
        adjusted = statistics.holm([1.0 if row["p"] is None else row["p"] for row in members])
        for row, p in zip(members, adjusted, strict=True):
            row |= {"p_holm": None if row["p"] is None else p, "family": str(len(members))}
    return rows


def list_worse(rows: Sequence[Figure], points: float) -> list[str]:
    """A sentence for every difference whose interval lies beyond `points` to the first run's disadvantage."""
    sentences = []
    for row in rows:
        if row["statistic"] != "difference" or row["low"] is None:
            continue
        entry, scale = METRICS.get(row["metric"]), frames.UNITS[row["unit"]].scale
        # A gap is worse when it grows, whatever the direction of its metric.
        falls = row.get("variant") != "gap" and (entry is None or entry.higher_is_better)
        if (-row["high"] if falls else row["low"]) * scale > points:
            metric = entry.title if entry else row["metric"]
            name = f"{metric} {row['variant']}" if row.get("variant") else metric
            start = f"{row['first']} is worse than {row['second']} by more than {points:g}"
            sentences.append(f"{start}: {name} {tables.format_estimate(row)}")
    return sentences


def make_table(rows: Sequence[Figure]) -> Table:
    """`COMPARISONS`, with a warning if no comparison can reach a corrected p below 5 %."""
    tests = frames.select(pd.DataFrame(rows), **_DIFFERENCE)
    if "p_least" not in tests or tests["p_least"].isna().all():
        return COMPARISONS
    # The smallest p that a test of each family can reach, after Holm.
    tests = tests.assign(corrected=tests["p_least"].astype(float) * tests["family"].astype(int))
    best = tests.loc[tests["corrected"].idxmin()]
    if best["corrected"] < 0.05:
        return COMPARISONS
    note = (
        f"{NOTE} With {best['clusters']:g} source images, p of a share cannot be below "
        f"{best['p_least']:.2g}, and corrected for {best['family']} comparisons not below "
        f"{min(1.0, best['corrected']):.2g}: no difference can be significant here, however large. Use more "
        "source images, or fewer comparisons (--baseline)."
    )
    return dataclasses.replace(COMPARISONS, note=note)
