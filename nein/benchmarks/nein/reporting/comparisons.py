"""Runs against each other, and the resampled FID that this needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metrics import METRICS
from nein import statistics
from nein.benchmarks.nein import corpus, figures
from nein.benchmarks.nein.reporting.collect import Run
from nein.reporting import figures as frames
from nein.reporting.figures import figure, number
from nein.statistics import bootstrap


def fid_draws(loaded: Sequence[Run]) -> dict[str, np.ndarray]:
    """Run label -> bootstrap replicates of its FID. All runs see the same draws of source images, so that
    differences are paired; runs without features, or with too few pictures, are left out."""
    scored = [r for r in loaded if (frames.pick(r.figures, task="results", metric="fid") or {}).get("value")]
    if not scored:
        return {}
    sampler = bootstrap.Resampler.of([source for run in scored for source in run.sources.values()])
    draws_of = {run.label: _fid_draws(run, _once(run), sampler) for run in scored}
    return {label: draws for label, draws in draws_of.items() if draws is not None}


def _fid_draws(run: Run, once: bool, sampler: bootstrap.Resampler) -> np.ndarray | None:
    from metrics.base import MetricError
    from metrics.fid_bootstrap import fid_replicates

    features = corpus.read(run.directory)
    if features is None or len(features.ids) < 2:
        return None
    chosen = features.unique_targets() if once else list(range(len(features.ids)))
    columns = sampler.columns(features.source_ids)
    try:
        return fid_replicates(
            features.edited, features.target[chosen], columns, columns[chosen], sampler.counts
        )
    except MetricError:  # too few pictures for wide features; the jackknife's interval stays
        return None


def _once(run: Run) -> bool:
    return run.manifest.get("config", {}).get("protocol") == "paper"


def comparisons(
    pairs: Sequence[tuple[Run, Run]], draws: Mapping[str, np.ndarray], metrics: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of the frame for every metric of every pair (task "comparisons"): both means and their difference,
    with interval, p, p after Holm over all of them, and power. draws: as `fid_draws` gives them."""
    tests = [
        (first, second, metric, test)
        for first, second in pairs
        for metric in metrics or METRICS
        if (test := compare(first, second, metric, draws)) is not None
    ]
    adjusted = statistics.holm([test["p"] for *_, test in tests])
    rows = []
    for (first, second, metric, test), p_holm in zip(tests, adjusted, strict=True):
        what: dict[str, Any] = {"benchmark": "nein", "task": "comparisons", "metric": metric}
        what |= {"first": first.label, "second": second.label}
        unit = figures.unit(metric)
        for side in ("first", "second"):
            n = test[f"{side}_n"]
            rows.append({**number(test[side], unit=unit, n=n), **what, "statistic": side})
        powers = {key: test[key] for key in ("p", "p_t", "p_flip", "needed", "detectable")}
        unscored = test["attempted"] - test["difference"].n
        row = figure(test["difference"], unit=unit, unscored=unscored, statistic="difference", **what)
        rows.append({**row, **powers, "p_holm": p_holm})
    return rows


def compare(first: Run, second: Run, metric: str, draws: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """One comparison: difference (`Estimate`), tests, power and coverage; None where a run lacks the
    metric."""
    if metric == "fid":
        return _compare_fid(first, second, draws)
    if metric not in first.values or metric not in second.values:
        return None
    a, b = first.values[metric], second.values[metric]
    test = statistics.paired_test(a, b, first.sources)
    if test is None:
        return None
    both = [i for i in a if a[i] is not None and b.get(i) is not None]
    return {
        "difference": test.difference, "p": test.p, "p_t": test.p_t, "p_flip": test.p_flip,
        "needed": test.needed, "detectable": test.detectable,
        "first": _mean([a[i] for i in both]), "second": _mean([b[i] for i in both]),
        "first_n": sum(v is not None for v in a.values()), "second_n": sum(v is not None for v in b.values()),
        "attempted": len({*first.edits, *second.edits}),
    }  # fmt: skip


def _compare_fid(first: Run, second: Run, draws: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """FID of two runs: the same draws of source images for both, so their difference is paired.

    p: twice the smaller tail of the draws' differences, shifted to have mean 0, beyond the difference found.
    """
    if first.label not in draws or second.label not in draws:
        return None
    entries = [frames.pick(run.figures, task="results", metric="fid") for run in (first, second)]
    assert entries[0] is not None
    assert entries[1] is not None
    values = [float(entry["value"]) for entry in entries if entry is not None]
    n = min(entries[0]["n"], entries[1]["n"])
    clusters = len({*first.sources.values()} & {*second.sources.values()})
    moved = draws[first.label] - draws[second.label]
    moved = moved[np.isfinite(moved)]
    difference = bootstrap.interval(values[0] - values[1], moved, n=n, clusters=clusters, method="normal")
    if difference.low is None or not difference.standard_error:
        p = 1.0
    else:
        p = float((1 + (np.abs(moved - moved.mean()) >= abs(difference.value)).sum()) / (1 + len(moved)))
    return {
        "difference": difference, "p": p, "p_t": None, "p_flip": None, "needed": None, "detectable": None,
        "first": values[0], "second": values[1],
        "first_n": entries[0]["n"], "second_n": entries[1]["n"],
        "attempted": len({*first.edits, *second.edits}),
    }  # fmt: skip


def _mean(values: Sequence[Any]) -> float:
    return sum(values) / len(values)
