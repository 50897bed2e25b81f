"""Runs against each other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrics import METRICS
from nein import statistics
from nein.benchmarks.config import Comparing
from nein.benchmarks.nein import corpus, figures
from nein.benchmarks.nein.records import Records
from nein.engine.errors import unknown
from nein.reporting.figures import figure, number
from nein.statistics import Estimate
from nein.statistics.estimates import pairs_test, t_p_value

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Comparison:
    """One metric of two runs.

    attempted      Samples of either run.
    means, scored  Means over the samples scored in both, and how many each run has scored.
    p, least       As in `statistics.PairedTest`.
    """

    metric: str
    runs: tuple[Records, Records]
    attempted: int
    means: tuple[float, float]
    scored: tuple[int, int]
    difference: Estimate
    p: float
    least: float | None
    detectable: float | None = None
    needed: int | None = None


def chosen(loaded: Sequence[Records], options: Comparing) -> list[tuple[Records, Records]]:
    """The pairs to compare: all, or every run of a track against the baseline's run of it. Raises UserError
    for a baseline that is not there."""
    if options.baseline is None:
        return list(itertools.combinations(loaded, 2))
    names = {name for run in loaded for name in (run.name, run.label)}
    if options.baseline not in names:
        raise unknown("baseline", options.baseline, sorted(names))
    base = [run for run in loaded if options.baseline in (run.name, run.label)]
    others = [run for run in loaded if run not in base]
    exact = len(base) == 1
    return [(run, one) for one in base for run in others if exact or run.track == one.track]


def comparisons(
    pairs: Sequence[tuple[Records, Records]], family: str = "metric", metrics: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of the frame for every metric of every pair (task "comparisons"): both means and their difference,
    with interval, p, p after Holm over its family, the smallest p that was possible, and power.

    family  "metric": p is corrected for the comparisons of the same metric; "all": for all of them.
    """
    tests = [
        made for runs in pairs for metric in metrics or METRICS if (made := compare(runs, metric)) is not None
    ]
    families: dict[str, list[Comparison]] = {}
    for one in tests:
        families.setdefault(one.metric if family == "metric" else "", []).append(one)
    adjusted: dict[int, float] = {}
    for members in families.values():
        holm = statistics.holm([one.p for one in members])
        adjusted |= {id(one): p for one, p in zip(members, holm, strict=True)}
    rows = []
    for one in tests:
        what: dict[str, Any] = {"benchmark": "nein", "task": "comparisons", "metric": one.metric}
        what |= {"first": one.runs[0].label, "second": one.runs[1].label}
        size = len(families[one.metric if family == "metric" else ""])
        unit = figures.unit(one.metric)
        for side, mean, n in zip(("first", "second"), one.means, one.scored, strict=True):
            rows.append({**number(mean, unit=unit, n=n), **what, "statistic": side})
        unscored = one.attempted - one.difference.n
        row = figure(one.difference, unit=unit, unscored=unscored, statistic="difference", **what)
        numbers = {"p": one.p, "p_least": one.least, "needed": one.needed, "detectable": one.detectable}
        rows.append({**row, **numbers, "p_holm": adjusted[id(one)], "family": str(size)})
    return rows


def out_of_reach(rows: Sequence[Mapping[str, Any]]) -> str:
    """What no difference could show, in a sentence: "" where every comparison can fall below 5 % after Holm.

    The least p after Holm is the least p times the size of the family, as if no other were small.
    """
    tests = [row for row in rows if row.get("statistic") == "difference" and row.get("p_least") is not None]
    least = {(row["clusters"], int(row["family"])): row["p_least"] for row in tests}
    blunt = {key: p for key, p in least.items() if p * key[1] >= SIGNIFICANT}
    if not blunt:
        return ""
    (images, size), p = max(blunt.items(), key=lambda item: item[1] * item[0][1])
    return (
        f"With {images} source images no p of a share can be below {p:.2g}, and corrected for {size} "
        f"comparisons not below {min(1.0, p * size):.2g}: however large a difference is, it cannot be "
        "significant here. Take more source images, or fewer comparisons (--baseline)."
    )


def compare(runs: tuple[Records, Records], metric: str) -> Comparison | None:
    """One comparison; None where a run lacks the metric or no sample is scored in both."""
    attempted = len(runs[0].place.keys() | runs[1].place.keys())
    if METRICS[metric].kind == "corpus":
        return _compare_whole(runs, metric, attempted)
    one, other = (run.of(metric) for run in runs)
    if not len(one) or not len(other):
        return None
    test = pairs_test(*one.pair(other), METRICS[metric].span)
    if test is None:
        return None
    return Comparison(
        metric, runs, attempted, test.means, (len(one.scored), len(other.scored)), test.difference,
        1.0 if test.p is None else test.p, test.least, test.detectable, test.needed,
    )  # fmt: skip


def _compare_whole(runs: tuple[Records, Records], metric: str, attempted: int) -> Comparison | None:
    """FID of two runs: the same groups of source images leave both, so their difference is paired. None where
    the runs have features of different source images."""
    one, other = (run.whole.get(metric) for run in runs)
    if one is None or other is None:
        return None
    if one["sources"] != other["sources"] or one["reference"] != other["reference"]:
        return None
    from metrics import fid

    gap = fid.difference(corpus.interval_of(one), corpus.interval_of(other))
    n = min(one["n"], other["n"])
    clusters = len(set(runs[0].sources.values()))
    estimate = Estimate(gap.value, gap.low, gap.high, gap.standard_error, n, clusters)
    p = 1.0
    if gap.standard_error and gap.value:
        p = t_p_value(gap.value, gap.standard_error, len(gap.left_out) - 1)
    return Comparison(
        metric, runs, attempted, (one["value"], other["value"]), (one["n"], other["n"]), estimate, p, None
    )
