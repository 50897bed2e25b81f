"""Runs against each other, and the resampled FID that this needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metrics import METRICS
from nein import statistics
from nein.benchmarks.nein import corpus, results_table
from nein.benchmarks.nein.reporting.collect import Run
from nein.benchmarks.nein.reporting.sections import (
    Table,
    mean_of,
    number,
    p_text,
    record,
    span,
)
from nein.statistics import bootstrap
from nein.statistics.estimates import Estimate


def fid_draws(loaded: Sequence[Run]) -> dict[str, np.ndarray]:
    """Run label -> bootstrap replicates of its FID. All runs see the same draws of source images, so that
    differences are paired; runs without features, or with too few pictures, are left out."""
    scored = [r for r in loaded if r.summary["metrics"].get("fid", {}).get("value") is not None]
    if not scored:
        return {}
    sampler = bootstrap.Resampler.of([source for run in scored for source in run.sources.values()])
    found = {run.label: _fid_draws(run, _once(run), sampler) for run in scored}
    return {label: draws for label, draws in found.items() if draws is not None}


def fid_intervals(loaded: Sequence[Run], draws: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """Run label -> FID as the run has it, with the bootstrap's interval over source images."""
    found = {}
    for run in loaded:
        if run.label in draws:
            entry, clusters = run.summary["metrics"]["fid"], len(set(run.sources.values()))
            estimate = bootstrap.interval(
                entry["value"], draws[run.label], n=entry["n"], clusters=clusters, method="normal"
            )
            found[run.label] = statistics.bounded(estimate, 0.0, float("inf"))
    return found


def _fid_draws(run: Run, once: bool, sampler: bootstrap.Resampler) -> np.ndarray | None:
    from metrics.base import MetricError
    from metrics.fid_bootstrap import fid_replicates

    kept = corpus.read(run.directory)
    if kept is None or len(kept.ids) < 2:
        return None
    chosen = kept.unique_targets() if once else list(range(len(kept.ids)))
    columns = sampler.columns(kept.source_ids)
    try:
        return fid_replicates(kept.edited, kept.target[chosen], columns, columns[chosen], sampler.counts)
    except MetricError:  # too few pictures for wide features; the jackknife's interval stays
        return None


def _once(run: Run) -> bool:
    return run.manifest.get("config", {}).get("protocol") == "paper"


def comparisons(
    pairs: Sequence[tuple[Run, Run]], draws: Mapping[str, np.ndarray], metrics: Sequence[str] | None = None
) -> Table:
    """`draws`: as `fid_draws` gives them. Every metric of every pair: difference, interval, p, p after Holm
    over the whole table, power."""
    found = []
    for first, second in pairs:
        for metric in metrics or METRICS:
            test = compare(first, second, metric, draws)
            if test is not None:
                found.append((first, second, metric, test))
    adjusted = statistics.holm([test["p"] for *_, test in found])
    rows, data = [], []
    for (first, second, metric, test), p_holm in zip(found, adjusted, strict=True):
        info = METRICS[metric]
        difference = test["difference"]
        digits = 2 if info.scale == 1 else 1
        needed = "–" if test["needed"] is None else str(test["needed"])
        rows.append([
            first.label, second.label, results_table.heading(info), number(test["first"], info),
            number(test["second"], info),
            span(difference, info.scale, digits), p_text(test["p"]), p_text(p_holm), str(difference.n),
            str(difference.clusters), needed,
        ])  # fmt: skip
        data.append({**record(difference, first=first.label, second=second.label, metric=metric),
                     **{k: test[k] for k in ("first", "second", "p", "p_t", "p_flip", "needed",
                     "detectable")},
                     "p_holm": p_holm, "first_n": test["first_n"], "second_n": test["second_n"],
                     "attempted": test["attempted"],
                     "first_label": first.label, "second_label": second.label})  # fmt: skip
    for line in data:
        line["first_value"], line["second_value"] = line.pop("first"), line.pop("second")
        line["first"], line["second"] = line.pop("first_label"), line.pop("second_label")
    columns = [
        "A",
        "B",
        "metric",
        "A: mean",
        "B: mean",
        "A - B",
        "p",
        "p (Holm)",
        "pairs",
        "source images",
        "needed",
    ]
    note = (
        "Means and differences over the samples scored in both runs, intervals and tests clustered by "
        "source image. p: a cluster-robust t test; below 30 source images the larger of it and of a "
        "test that swaps the runs within source images; FID: bootstrap. Holm: "
        f"corrected for the {len(found)} comparisons of this table. Needed: source images to find a true "
        "difference of this size with probability 0.8 at the 5 % level."
    )
    return Table("comparisons", "Paired comparisons", columns, rows, data, note)


def compare(first: Run, second: Run, metric: str, draws: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """One comparison: difference (`Estimate`), tests, power and coverage; None where a run lacks the
    metric."""
    if metric == "fid":
        return _compare_fid(first, second, draws)
    if metric not in first.values or metric not in second.values:
        return None
    a, b = first.values[metric], second.values[metric]
    found = statistics.paired_test(a, b, first.sources)
    if found is None:
        return None
    both = [i for i in a if a[i] is not None and b.get(i) is not None]
    return {
        "difference": found.difference, "p": found.p, "p_t": found.p_t, "p_flip": found.p_flip,
        "needed": found.needed, "detectable": found.detectable,
        "first": mean_of({i: a[i] for i in both}), "second": mean_of({i: b[i] for i in both}),
        "first_n": sum(v is not None for v in a.values()), "second_n": sum(v is not None for v in b.values()),
        "attempted": len({*first.edits, *second.edits}),
    }  # fmt: skip


def _compare_fid(first: Run, second: Run, draws: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """FID of two runs: the same draws of source images for both, so their difference is paired.

    p: twice the smaller tail of the draws' differences, shifted to have mean 0, beyond the difference found.
    """
    if first.label not in draws or second.label not in draws:
        return None
    entries = [run.summary["metrics"]["fid"] for run in (first, second)]
    values = [float(entry["value"]) for entry in entries]
    n = min(entry["n"] for entry in entries)
    clusters = len({*first.sources.values()} & {*second.sources.values()})
    moved = draws[first.label] - draws[second.label]
    moved = moved[np.isfinite(moved)]
    found = bootstrap.interval(values[0] - values[1], moved, n=n, clusters=clusters, method="normal")
    if found.low is None or not found.standard_error:
        p = 1.0
    else:
        p = float((1 + (np.abs(moved - moved.mean()) >= abs(found.value)).sum()) / (1 + len(moved)))
    return {
        "difference": found, "p": p, "p_t": None, "p_flip": None, "needed": None, "detectable": None,
        "first": values[0], "second": values[1],
        "first_n": entries[0]["n"], "second_n": entries[1]["n"],
        "attempted": len({*first.edits, *second.edits}),
    }  # fmt: skip
