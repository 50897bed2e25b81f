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

Where the object must stay, Removal is a mistake: such samples are left out of the figures for the whole run
and have a row of their own, where lower is better. Their target is the sample itself
(`Sample.source_path`), so that all other metrics mean the same in every family.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from metrics import METRICS
from nein import statistics
from nein.benchmarks.nein import minimal_pairs, negation_gap, paper_numbers
from nein.benchmarks.nein.runs import RunDir
from nein.benchmarks.runner import FIGURES
from nein.reporting import figures as frames
from nein.statistics import Estimate
from nein.statistics.estimates import Clusters, Columns
from nein.wording.families import CELLS, LABELS
from nein.wording.languages.base import DEPTH

Values = dict[str, dict[str, float | None]]
Row = Mapping[str, Any]
REMOVALS = {"removal_vqa": "VQA", "removal_ovd": "OVD"}
REMOVAL = (*REMOVALS, "auc_removal")
#: Cells of minimal pairs in which Removal says nothing.
_NO_REMOVAL = frozenset(label for label, cell in CELLS.items() if cell != CELLS["denied, there"])
BELOW = " below a denial"
FAMILY_NOTE = " (object must stay: Removal ↓)"
ALL_FAMILIES = "all families"
TRACKS = ("negative", "remove", "add")
PRINTED = ", as printed in the paper"


def unit(metric: str) -> str:
    return "%" if METRICS[metric].unit == "per cent" else ""


def of(run: RunDir) -> pd.DataFrame:
    """The figures of a complete run as its evaluation wrote them; worked out and written where it did not."""
    path = run.path / FIGURES
    if not path.exists():
        frames.write(path, summarise(run))
    return frames.label(frames.read(path), benchmark="nein", model=run.editor, variant=run.track)


def summarise(run: RunDir) -> pd.DataFrame:
    """The figures of a complete run from its canonical files."""
    figures = of_rows(run.read_edits(), run.scores(), run.read_corpus())
    return frames.label(figures, benchmark="nein", model=run.editor, variant=run.track)


def of_rows(edits: Sequence[Row], scores: Iterable[Row], corpus: Mapping[str, Row]) -> pd.DataFrame:
    """The figures of one run: edits.jsonl, scores.jsonl (read once) and what exists only for the whole
    (corpus.json)."""
    clusters = {edit["id"]: edit["source_id"] for edit in edits}
    reasons: dict[str, Counter[str]] = {}
    before: dict[str, dict[str, bool | None]] = {}
    every = _by_metric(scores, reasons, before)
    whole = _asked(edits, every)
    rows: list[dict[str, Any]] = []
    for metric in METRICS:
        if metric in corpus:
            rows.append(_of_the_whole(metric, corpus[metric]))
            rows += _limit(metric, corpus[metric])
        elif metric in whole:
            values = whole[metric]
            rows.append(
                _figure(metric, values, clusters, task="results", reasons=_common(reasons.get(metric)))
            )
    for metric in REMOVALS:
        if metric in every:
            rows += minimal_pairs.of_run(edits, every[metric], before.get(metric, {}), metric)
    rows += _by_family(edits, every, clusters)
    return frames.frame([*rows, *_by_difficulty(edits, whole, clusters)])


def _by_family(edits: Sequence[Row], every: Values, clusters: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The figures of every family; of one whose sentences also stand below a denial, apart from these."""
    parts: dict[str, set[str]] = {}
    for edit in sorted(edits, key=lambda edit: bool(_depth(edit))):
        if edit.get("family") in LABELS:
            note = (BELOW if _depth(edit) else "") + (FAMILY_NOTE if edit.get("stays") else "")
            parts.setdefault(f"{edit['family']}{note}", set()).add(edit["id"])
    for group in sorted(parts, key=lambda group: LABELS.index(group.partition(" ")[0])):
        for metric, column in every.items():
            values = {key: value for key, value in column.items() if key in parts[group]}
            if values:
                yield _figure(metric, values, clusters, task="families", group=group)


def _depth(edit: Row) -> int:
    return int(edit.get("difficulty", {}).get(DEPTH, 0))


def _by_difficulty(
    edits: Sequence[Row], whole: Values, clusters: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """An axis is read where those behind it are at 0."""
    axes = list(dict.fromkeys(axis for edit in edits for axis in edit.get("difficulty", ())))
    for place, axis in enumerate(axes):
        levels: dict[tuple[str | None, int], set[str]] = {}
        for edit in edits:
            amounts = edit.get("difficulty", {})
            if axis in amounts and not any(amounts.get(other) for other in axes[place + 1 :]):
                for group in (ALL_FAMILIES, edit.get("family")):
                    levels.setdefault((group, amounts[axis]), set()).add(edit["id"])
        for group in (ALL_FAMILIES, *LABELS):
            for metric, column in whole.items():
                for level in sorted(level for name, level in levels if name == group):
                    part = {key: value for key, value in column.items() if key in levels[group, level]}
                    if part:
                        what = {"group": group, "axis": axis, "level": str(level)}
                        yield _figure(metric, part, clusters, task="difficulty", **what)


def values_of(edits: Sequence[Row], scores: Iterable[Row]) -> Values:
    """Metric -> sample id -> value or None; Removal only of samples whose object must go."""
    return _asked(edits, _by_metric(scores))


def _asked(edits: Sequence[Row], every: Values) -> Values:
    stays = {edit["id"] for edit in edits if edit.get("stays") or edit.get("family") in _NO_REMOVAL}
    return {
        metric: {key: value for key, value in column.items() if key not in stays}
        if stays and metric in REMOVAL
        else column
        for metric, column in every.items()
    }


def _by_metric(
    scores: Iterable[Row],
    reasons: dict[str, Counter[str]] | None = None,
    before: dict[str, dict[str, bool | None]] | None = None,
) -> Values:
    """Metric -> sample id -> value. reasons: is given, per metric, why samples have none; before: whether the
    judge saw the object in the unedited picture, of those where that was asked."""
    values: Values = {}
    for row in scores:
        values.setdefault(row["metric"], {})[sys.intern(row["id"])] = row["value"]
        if row["value"] is None and reasons is not None:
            reasons.setdefault(row["metric"], Counter())[row["reason"]] += 1
        if before is not None and "present_before" in row.get("detail", ()):
            before.setdefault(row["metric"], {})[row["id"]] = row["detail"]["present_before"]
    return values


def _common(reasons: Counter[str] | None) -> dict[str, int] | None:
    return reasons and dict(reasons.most_common())


def estimate(metric: str, values: Mapping[str, float | None], clusters: Mapping[str, str]) -> Estimate | None:
    """Its mean with the interval of its kind."""
    every = np.array([*values.values()], dtype=np.float64)
    scored = ~np.isnan(every)
    sources = [*map(clusters.__getitem__, itertools.compress(values, scored))]
    return _estimate(metric, every[scored], sources)


def _estimate(metric: str, numbers: np.ndarray, sources: Clusters) -> Estimate | None:
    """The same of numbers (n,) and their clusters."""
    if METRICS[metric].span is None:
        return statistics.mean(numbers, sources)
    return statistics.bounded_mean(numbers, sources, *METRICS[metric].range)


def _figure(
    metric: str, values: Mapping[str, float | None], clusters: Mapping[str, str], **what: Any
) -> dict[str, Any]:
    summary = estimate(metric, values, clusters)
    unscored = len(values) - (summary.n if summary else 0)
    return frames.figure(summary, unit=unit(metric), unscored=unscored, metric=metric, **what)


def _of_the_whole(metric: str, entry: Row) -> dict[str, Any]:
    numbers = {name: entry.get(name) for name in ("value", "low", "high", "standard_error", "n", "clusters")}
    what = {"task": "results", "metric": metric, "unit": unit(metric), "reasons": dict(entry["reasons"])}
    return {**what, **numbers, "unscored": entry["n_unscored"]}


def _limit(metric: str, entry: Row) -> Iterator[dict[str, Any]]:
    """What FID would be of infinitely many pictures (task "limit"), or in `refused` why not."""
    if not entry.get("left_out"):
        return
    from metrics import fid

    what = {"task": "limit", "metric": metric, "unit": unit(metric), "n": entry["n"]}
    needed = fid.LIMIT_IMAGES * entry["columns"]
    if entry["clusters"] < needed:
        why = f"needs {needed} source images, {fid.LIMIT_IMAGES} for each of {entry['columns']} columns"
        yield {
            **what,
            "value": None,
            "clusters": entry["clusters"],
            "refused": f"{why}; {entry['clusters']} here",
        }
        return
    interval = fid.limit(fid.FidInterval.of(entry["value"], entry["left_out"]))
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    yield {**what, **ends, "standard_error": interval.standard_error, "clusters": entry["clusters"]}


def printed(editor: str, name: str) -> pd.DataFrame:
    """What the paper's Table 3 has of an editor on negative instructions, called `name` and so; empty for
    others."""
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


def gaps(
    told: Values, denied: Values, edits: Sequence[Row], clusters: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The negation gap of an editor, in all and per template of the negative instruction.

    told, denied  Values of its run with "Remove the X." and of the one that says X is absent.
    edits         Of the latter.
    """
    template_of = {edit["id"]: edit["template"] for edit in edits}
    for metric in REMOVALS:
        if metric not in told or metric not in denied:
            continue
        first, second = told[metric], denied[metric]
        test = statistics.paired_test(first, second, clusters)
        if test is None:
            continue
        what: dict[str, Any] = {"task": "gap", "metric": metric}
        for name, values in (("remove", first), ("negative", second)):
            scored = [value for value in values.values() if value is not None]
            yield frames.number(sum(scored) / len(scored), unit="%", n=len(scored), statistic=name, **what)
        yield frames.figure(
            test.difference, unit="points", statistic="gap", p=test.p, p_least=test.least, **what
        )
        yield frames.figure(statistics.ratio(first, second, clusters), unit="", statistic="ratio", **what)
        rows = [
            {"id": key, "value": value, "template": template_of[key], "source_id": clusters[key]}
            for key, value in second.items()
        ]
        for gap in negation_gap.gap_by_template(rows, [{"id": k, "value": v} for k, v in first.items()]):
            ends = {"value": gap.estimate, "low": gap.low, "high": gap.high, "n": gap.n, "unit": "points"}
            group = negation_gap.template_name(gap.template)
            yield {"task": "gap_by_template", "metric": metric, "group": group, **ends}


# --- parts of a run ------------------------------------------------------------------------


def breakdown(
    task: str,
    numbers: Mapping[str, np.ndarray],
    edits: Iterable[Row],
    clusters: Columns,
    group_of: Callable[[Row], Any],
    shown: Callable[[Any], str] = str,
    order: Sequence[Any] = (),
) -> Iterator[dict[str, Any]]:
    """Removal and Retention of the samples of every group, sorted; edits of group None are left out.

    numbers  Metric -> value of every edit, NaN where it has none, (n,) float64. clusters: of the edits.
    """
    groups: dict[Any, list[int]] = {}
    for place, edit in enumerate(edits):
        if (group := group_of(edit)) is not None:
            groups.setdefault(group, []).append(place)
    chosen = [m for m in METRICS if METRICS[m].by_judge and m != "auc_removal" and m in numbers]
    for group in sorted(groups, key=lambda g: (list(order).index(g) if g in order else -1, g)):
        places = np.array(groups[group])
        for metric in chosen:
            scored = places[~np.isnan(numbers[metric][places])]
            mean = _estimate(metric, numbers[metric][scored], clusters.of(scored))
            unscored = len(places) - len(scored)
            yield frames.figure(
                mean, unit=unit(metric), unscored=unscored, task=task, metric=metric, group=shown(group)
            )
