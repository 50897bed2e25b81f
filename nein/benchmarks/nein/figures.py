"""Figures of runs on NeIn as rows of the frame: of one run, of an editor's two runs, and of parts of a run.

Columns besides the usual (`model` is the editor, `variant` the instruction track): group (of a breakdown),
statistic (of a gap), source ("printed": by the paper's authors).

task              metric
results           every metric of a run
limit             FID as of infinitely many pictures, or in `refused` why not
families          by family of negation, in `group`; below a denial of the whole it is another one
minimal_pairs     what decides an edit, by judge: see `nein.benchmarks.nein.minimal_pairs`
difficulty        by family, and of all together, where a sample is as difficult as level says in what axis
                  names; Removal of those whose object must go
gap               Removal with both instructions ("remove", "negative"), their difference "gap", their "ratio"
gap_by_template   the gap per template of the negative instruction, in `group`
by_template, by_object, by_size   Removal and Retention in parts of the samples, in `group`

Where the object must stay, Removal is a mistake: such samples are left out of the figures of the whole run
and have a row of their own, where lower is better. Their target is the sample itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from nein import statistics
from nein.benchmarks.nein import minimal_pairs, paper_numbers
from nein.benchmarks.nein.records import REMOVALS, TEMPLATES, Records, asked
from nein.engine.folder import Row
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable
from nein.statistics import Estimate
from nein.wording.families import LABELS
from nein.wording.languages.base import DEPTH, OTHERS

BELOW = " below a denial"
FAMILY_NOTE = " (object must stay: Removal ↓)"
ALL_FAMILIES = "all families"
PRINTED = ", as printed in the paper"


def unit(metric: str) -> str:
    return "%" if METRICS[metric].unit == "per cent" else ""


def of_run(run: Records) -> pd.DataFrame:
    made = of_table(run.every, run.run.read_corpus())
    return frames.label(made, model=run.name, variant=run.track)


def of_table(every: ScoreTable, corpus: Mapping[str, Row]) -> pd.DataFrame:
    """The figures of one run. corpus: what exists only for the whole (corpus.json)."""
    table = asked(every)
    rows: list[dict[str, Any]] = []
    for metric in METRICS:
        if (entry := corpus.get(metric)) is not None:
            numbers = {name: entry.get(name) for name in ("value", "low", "high", "standard_error", "n")}
            numbers |= {"clusters": entry.get("clusters"), "unscored": entry["n_unscored"]}
            what = {"task": "results", "metric": metric, "unit": unit(metric)}
            rows += [{**what, **numbers, "reasons": dict(entry["reasons"])}, *_limit(metric, entry)]
        elif len(of_metric := table.where(metric=metric)):
            rows.append(_figure(of_metric, metric, task="results"))
    for metric in REMOVALS:
        rows += minimal_pairs.of_rows(every.where(metric=metric), metric)
    for family in LABELS:  # sentences below a denial of the whole apart from the others
        members = every.where(family=family).frame
        deep = members[DEPTH].astype(float) > 0
        for below, stays in ((False, False), (False, True), (True, False), (True, True)):
            part = ScoreTable(members[(deep == below) & (members["stays"].notna() == stays)])
            group = family + (BELOW if below else "") + (FAMILY_NOTE if stays else "")
            for (metric,), of_metric in part.groups("metric"):
                rows.append(_figure(of_metric, metric, task="families", group=group))
    for axis, behind in ((OTHERS, DEPTH), (DEPTH, None)):  # an axis is read where those behind it are at 0
        frame = table.frame[table.frame[axis].notna()]
        known = ScoreTable(frame if behind is None else frame[~(frame[behind].astype(float) > 0)])
        for group in (ALL_FAMILIES, *LABELS):
            told = known if group == ALL_FAMILIES else known.where(family=group)
            for (metric,), of_metric in told.groups("metric"):
                for level in sorted(of_metric.names(axis)):
                    names = {"task": "difficulty", "group": group, "axis": axis, "level": str(level)}
                    rows.append(_figure(of_metric.where(**{axis: level}), metric, **names))
    return frames.frame(rows)


def _range(metric: str) -> tuple[float | None, float]:
    return METRICS[metric].range if METRICS[metric].span is not None else (None, 1.0)


def _figure(rows: ScoreTable, metric: str, **what: Any) -> dict[str, Any]:
    low, high = _range(metric)
    return rows.figure(unit=unit(metric), low=low, high=high, metric=metric, **what)


def estimate(rows: ScoreTable, metric: str) -> Estimate | None:
    """The mean of scores by one metric, with the interval of its kind."""
    return rows.estimate(*_range(metric))


def _limit(metric: str, entry: Row) -> Iterator[dict[str, Any]]:
    """What FID would be of infinitely many pictures (task "limit"), or in `refused` why not."""
    if not entry.get("left_out"):
        return
    from nein.metrics import fid

    what = {"task": "limit", "metric": metric, "unit": unit(metric), "n": entry["n"]}
    what["clusters"], needed = entry["clusters"], fid.LIMIT_IMAGES * entry["columns"]
    if entry["clusters"] < needed:
        why = f"needs {needed} source images, {fid.LIMIT_IMAGES} for each of {entry['columns']} columns"
        yield {**what, "value": None, "refused": f"{why}; {entry['clusters']} here"}
        return
    interval = fid.limit(fid.FidInterval.of(entry["value"], entry["left_out"]))
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    yield {**what, **ends, "standard_error": interval.standard_error}


def printed(editor: str, name: str) -> pd.DataFrame:
    """What the paper's Table 3 has of an editor on negative instructions; empty for others."""
    table = paper_numbers.figures(editor) or {}
    return frames.frame(
        {
            **frames.number(value / (100 if unit(metric) == "%" else 1), unit=unit(metric), n=24182),
            "task": "results", "metric": metric, "benchmark": "nein", "model": f"{name}{PRINTED}",
            "variant": "negative", "source": "printed",
        }
        for metric, value in table.items()
    )  # fmt: skip


# --- the gap -------------------------------------------------------------------------------


def gaps(runs: Sequence[Records]) -> pd.DataFrame:
    """The negation gaps of the editors whose control was run, in all and per negative template."""
    by_track = {(run.name, run.track): run for run in runs}
    rows: list[dict[str, Any]] = []
    for (name, track), denied in by_track.items():
        told = by_track.get((name, "remove"))
        if track == "negative" and told is not None:
            for metric in REMOVALS:
                rows += [{**row, "model": name} for row in gap(told.of(metric), denied.of(metric), metric)]
    return frames.frame(rows)


def gap(told: ScoreTable, denied: ScoreTable, metric: str) -> Iterator[dict[str, Any]]:
    """The gap of an editor by one judge, between its runs with "Remove the X." and with X said absent."""
    first, second, clusters = told.pair(denied)
    test = statistics.pairs_test(first, second, clusters)
    if test is None:
        return
    what: dict[str, Any] = {"task": "gap", "metric": metric}
    for name, rows in (("remove", told.scored), ("negative", denied.scored)):
        yield frames.number(float(rows.values.mean()), unit="%", n=len(rows), statistic=name, **what)
    yield frames.figure(test.difference, unit="points", statistic="gap", p=test.p, p_least=test.least, **what)
    ratio = statistics.pairs_ratio(first, second, clusters)
    yield frames.figure(ratio, unit="", statistic="ratio", **what)
    for template in [*sorted(denied.names("template"), key=TEMPLATES.index), None]:
        first, second, clusters = told.pair(denied.where(template=template))
        lost = statistics.bounded_mean(first - second, clusters, -1.0, 1.0)
        if lost is not None:
            ends = {"value": lost.value, "low": lost.low, "high": lost.high, "n": lost.n, "unit": "points"}
            group = template or "another sentence"
            yield {"task": "gap_by_template", "metric": metric, "group": group, **ends}


# --- parts of a run ------------------------------------------------------------------------


def breakdowns(loaded: Sequence[Records], sizes: Mapping[str, str], order: Sequence[str]) -> pd.DataFrame:
    """Removal and Retention by template, object and size of the source image. sizes: source id -> class."""
    chosen = tuple(name for name, metric in METRICS.items() if metric.by_judge and name != "auc_removal")
    parts = []
    for column, known in (("template", TEMPLATES), ("object", ()), ("size", order)):
        rows = []
        for run in loaded:
            table = run.table.where(metric=chosen)
            table = ScoreTable(table.frame.assign(size=table.frame["source"].map(sizes)))
            names = [*(name for name in sorted(table.names(column)) if name not in known), *known]
            for group in (name for name in names if name in table.names(column)):
                for (metric,), members in table.where(**{column: group}).groups("metric"):
                    what = {"model": run.name, "variant": run.track, "group": group}
                    rows.append(_figure(members, metric, task=f"by_{column}", **what))
        if len({row["group"] for row in rows}) > 1:
            parts.append(frames.frame(rows))
    return frames.concat(parts)
