"""Runs against each other, and the command `nein compare`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nein.benchmarks import paired
from nein.benchmarks.config import Comparing
from nein.benchmarks.nein import figures, runs
from nein.benchmarks.nein.config import CompareConfig
from nein.benchmarks.nein.reporting import sections
from nein.benchmarks.nein.runs import REMOVALS, RunDir
from nein.benchmarks.runner import Finished
from nein.engine.errors import UserError, unknown
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting.figures import figure, number
from nein.statistics import Estimate
from nein.statistics.estimates import p_value

SIGNIFICANT = 0.05


def compare(finished: Sequence[Finished], options: CompareConfig) -> str:
    """Every pair of the runs, tested and corrected for their number. Raises UserError."""
    loaded = runs.in_order([entry.folder for entry in finished])
    controls = {run.name: run for run in loaded if run.track == "remove"}
    loaded = [run for run in loaded if options.track in (run.track, "all")]
    if len(loaded) < 2:
        raise UserError(
            f"A comparison needs two runs; {len(loaded)} complete run of track '{options.track}' is there "
            "(--track all compares every track)."
        )
    rows = comparisons(chosen(loaded, options), options.family, options.metrics, controls)
    if not rows:
        raise UserError("These runs have no metric in common; score them with the same --metrics.")
    compared = frames.frame(rows, benchmark="nein")
    tables = [sections.comparisons(out_of_reach(rows)), sections.COVERAGE]
    results = figures.together({entry.folder.path: entry.figures for entry in finished}, loaded)
    return paired.printed(options.format, compared, tables, results[results["unscored"] > 0])


def chosen(loaded: Sequence[RunDir], options: Comparing) -> list[tuple[RunDir, RunDir]]:
    """The pairs to compare: all, or every run of a track against the baseline's. Raises UserError."""
    if options.baseline is None:
        return list(itertools.combinations(loaded, 2))
    names = {name for run in loaded for name in (run.name, run.label)}
    if options.baseline not in names:
        raise unknown("baseline", options.baseline, sorted(names))
    base = [run for run in loaded if options.baseline in (run.name, run.label)]
    others = [run for run in loaded if run not in base]
    exact = len(base) == 1
    return [(run, baseline) for baseline in base for run in others if exact or run.track == baseline.track]


def comparisons(
    pairs: Sequence[tuple[RunDir, RunDir]], family: str = "metric", metrics: Sequence[str] = (),
    controls: Mapping[str, RunDir] = MappingProxyType({}),
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of the frame for every metric of every pair (`nein.benchmarks.paired`).

    controls  Editor -> its run of "Remove the X.", by which the negation gaps of two editors are compared.
    """
    rows = [row for both in pairs for metric in metrics or METRICS for row in compared(*both, metric)]
    for one, other in pairs:
        if any(run.track != "negative" or run.name not in controls for run in (one, other)):
            continue
        for metric in (name for name in REMOVALS if name in (metrics or REMOVALS)):
            first, second = (controls[run.name].of(metric).less(run.of(metric)) for run in (one, other))
            rows += paired.tested(
                one.name, other.name, first, second, 2.0, "points", metric=metric, variant="gap"
            )
    return paired.corrected(rows, family)


def compared(one: RunDir, other: RunDir, metric: str) -> Iterator[dict[str, Any]]:
    """One comparison; nothing where a run lacks the metric or no sample is scored in both."""
    if METRICS[metric].kind == "corpus":
        yield from _compare_whole(one, other, metric)
    elif metric in one.metrics and metric in other.metrics:
        yield from paired.tested(
            one.label, other.label, one.of(metric), other.of(metric), METRICS[metric].span,
            figures.unit(metric), metric=metric,
        )  # fmt: skip


def _compare_whole(one: RunDir, other: RunDir, metric: str) -> Iterator[dict[str, Any]]:
    """FID of two runs of the same source images: the same groups of these leave both, which pairs them."""
    first, second = (run.corpus().get(metric, {"value": None}) for run in (one, other))
    if first["value"] is None or second["value"] is None:
        return
    if any(first[key] != second[key] for key in ("sources", "reference")):
        return
    from nein.metrics import fid

    gap = fid.difference(*(
        fid.FidInterval(
            side["value"], side["low"], side["high"], side["standard_error"], tuple(side["left_out"])
        )
        for side in (first, second)
    ))  # fmt: skip
    n = min(first["n"], second["n"])
    ends = gap.value, gap.low, gap.high, gap.standard_error
    estimate = Estimate(*ends, n, len(set(one.sources.values())))
    p = 1.0
    if gap.standard_error and gap.value:
        p = p_value(gap.value / gap.standard_error, len(gap.left_out) - 1)
    what: Any = {"task": "comparisons", "metric": metric, "first": one.label, "second": other.label}
    for side, entry in (("first", first), ("second", second)):
        yield number(entry["value"], unit="", n=entry["n"], statistic=side, **what)
    unscored = len(one.index.keys() | other.index.keys()) - n
    yield figure(estimate, unit="", unscored=unscored, statistic="difference", p=p, **what)


def out_of_reach(rows: Sequence[Mapping[str, Any]]) -> str:
    """What no difference could show, in a sentence: "" where every comparison can fall below 5 % after Holm,
    which is the least p times the size of the family, as if no other were small."""
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
