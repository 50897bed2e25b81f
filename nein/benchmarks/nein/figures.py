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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from metrics import METRICS
from nein import statistics
from nein.benchmarks.nein import minimal_pairs, paper_numbers
from nein.benchmarks.nein.records import REMOVALS, Records, shared
from nein.engine.folder import Row
from nein.reporting import figures as frames
from nein.statistics import Estimate
from nein.statistics.estimates import Clusters
from nein.wording.families import LABELS
from nein.wording.languages.base import DEPTH
from nein.wording.templates import NEGATIVE_TEMPLATES

BELOW = " below a denial"
FAMILY_NOTE = " (object must stay: Removal ↓)"
ALL_FAMILIES = "all families"
PRINTED = ", as printed in the paper"


def unit(metric: str) -> str:
    return "%" if METRICS[metric].unit == "per cent" else ""


def summarise(run: Records) -> pd.DataFrame:
    """The figures of one run."""
    rows: list[dict[str, Any]] = []
    corpus = run.run.read_corpus()
    for metric in METRICS:
        if metric in corpus:
            rows.append(_of_the_whole(metric, corpus[metric]))
            rows += _limit(metric, corpus[metric])
        elif metric in run.every and run.asked(metric).any():
            reasons = dict(run.reasons[metric].most_common())
            rows.append(_figure(run, metric, run.asked(metric), task="results", reasons=reasons))
    for metric in REMOVALS:
        if metric in run.every:
            rows += minimal_pairs.of_run(run, metric)
    figures = frames.frame([*rows, *_by_family(run), *_by_difficulty(run)])
    return frames.label(figures, benchmark="nein", model=run.name, variant=run.track)


def _by_family(run: Records) -> Iterator[dict[str, Any]]:
    """The figures of every family; of one whose sentences also stand below a denial, apart from these."""
    parts: dict[str, list[int]] = {}
    for place, edit in sorted(enumerate(run.edits), key=lambda item: bool(_depth(item[1]))):
        if edit.get("family") in LABELS:
            note = (BELOW if _depth(edit) else "") + (FAMILY_NOTE if edit.get("stays") else "")
            parts.setdefault(f"{edit['family']}{note}", []).append(place)
    for group in sorted(parts, key=lambda group: LABELS.index(group.partition(" ")[0])):
        for metric in run.every:
            yield _figure(run, metric, np.array(parts[group]), task="families", group=group)


def _depth(edit: Row) -> int:
    return int(edit.get("difficulty", {}).get(DEPTH, 0))


def _by_difficulty(run: Records) -> Iterator[dict[str, Any]]:
    """An axis is read where those behind it are at 0."""
    axes = list(dict.fromkeys(axis for edit in run.edits for axis in edit.get("difficulty", ())))
    for number, axis in enumerate(axes):
        levels: dict[tuple[str | None, int], list[int]] = {}
        for place, edit in enumerate(run.edits):
            amounts = edit.get("difficulty", {})
            if axis in amounts and not any(amounts.get(other) for other in axes[number + 1 :]):
                for group in (ALL_FAMILIES, edit.get("family")):
                    levels.setdefault((group, amounts[axis]), []).append(place)
        for group in (ALL_FAMILIES, *LABELS):
            for metric in run.every:
                for level in sorted(level for name, level in levels if name == group):
                    part = np.array(levels[group, level])
                    part = part[run.asked(metric)[part]]
                    if len(part):
                        what = {"group": group, "axis": axis, "level": str(level)}
                        yield _figure(run, metric, part, task="difficulty", **what)


def _figure(run: Records, metric: str, places: np.ndarray, **what: Any) -> dict[str, Any]:
    """The mean over the edits at some places, (m,) int64, or where (n,) bool is true."""
    values, clusters = run.every[metric][places], run.clusters.of(places)
    scored = ~np.isnan(values)
    summary = mean(metric, values[scored], clusters.of(scored))
    unscored = int((~scored).sum())
    return frames.figure(summary, unit=unit(metric), unscored=unscored, metric=metric, **what)


def estimate(metric: str, values: Mapping[str, float | None], sources: Mapping[str, str]) -> Estimate | None:
    """The mean of a metric. values, sources: sample id -> value or None, and -> source image."""
    scored = {name: value for name, value in values.items() if value is not None}
    return mean(metric, np.array([*scored.values()]), [sources[name] for name in scored])


def mean(metric: str, numbers: np.ndarray, clusters: Clusters) -> Estimate | None:
    """The mean of numbers (n,), none of them NaN, with the interval of the metric's kind."""
    if METRICS[metric].span is None:
        return statistics.mean(numbers, clusters)
    return statistics.bounded_mean(numbers, clusters, *METRICS[metric].range)


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


def gaps(runs: Sequence[Records]) -> pd.DataFrame:
    """The negation gaps of the editors whose control was run, in all and per template of the negative
    instruction."""
    by_track = {(run.name, run.track): run for run in runs}
    rows: list[dict[str, Any]] = []
    for (name, track), denied in by_track.items():
        told = by_track.get((name, "remove"))
        if track == "negative" and told is not None:
            for metric in REMOVALS:
                judged = f"{name} ({REMOVALS[metric]})"
                rows += [{**row, "model": name, "judged": judged} for row in gap(told, denied, metric)]
    return frames.label(frames.frame(rows), benchmark="nein") if rows else frames.frame(rows)


def gap(told: Records, denied: Records, metric: str) -> Iterator[dict[str, Any]]:
    """The gap of an editor by one judge. told: its run with "Remove the X."; denied: the one that says X is
    absent."""
    if metric not in told.numbers or metric not in denied.numbers:
        return
    first_places, places = shared(told, denied)
    first, second = told.numbers[metric][first_places], denied.numbers[metric][places]
    both = ~(np.isnan(first) | np.isnan(second))
    first, second, places = first[both], second[both], places[both]
    clusters = denied.clusters.of(places)
    test = statistics.pairs_test(first, second, clusters)
    if test is None:
        return
    what: dict[str, Any] = {"task": "gap", "metric": metric}
    for name, run in (("remove", told), ("negative", denied)):
        scored = run.numbers[metric][~np.isnan(run.numbers[metric])]
        yield frames.number(float(scored.mean()), unit="%", n=len(scored), statistic=name, **what)
    yield frames.figure(test.difference, unit="points", statistic="gap", p=test.p, p_least=test.least, **what)
    ratio = statistics.pairs_ratio(first, second, clusters)
    yield frames.figure(ratio, unit="", statistic="ratio", **what)
    said = [denied.edits[place]["template"] for place in places]
    for template in sorted(set(said), key=lambda index: (index is None, index or 0)):
        here = np.array([index == template for index in said])
        lost = statistics.bounded_mean((first - second)[here], clusters.of(here), -1.0, 1.0)
        assert lost is not None
        ends = {"value": lost.value, "low": lost.low, "high": lost.high, "n": lost.n, "unit": "points"}
        yield {"task": "gap_by_template", "metric": metric, "group": template_name(template), **ends}


def template_name(template: int | None) -> str:
    """ "No {S} in the image." with X for the object; "another sentence" for None."""
    return "another sentence" if template is None else NEGATIVE_TEMPLATES[template].replace("{S}", "X")


# --- parts of a run ------------------------------------------------------------------------


def breakdowns(loaded: Sequence[Records], sizes: Mapping[str, str], order: Sequence[str]) -> pd.DataFrame:
    """Removal and Retention by template, object and source image size. sizes: source id -> size class;
    order: of the classes."""
    kinds: dict[str, tuple[Callable[[Row], Any], Callable[[Any], str], Sequence[Any]]] = {
        "by_template": (lambda edit: edit["template"], template_name, range(len(NEGATIVE_TEMPLATES))),
        "by_object": (lambda edit: edit["object"], str, ()),
        "by_size": (lambda edit: sizes.get(edit["source_id"]), str, order),
    }
    parts = []
    for task, (group_of, shown, places) in kinds.items():
        rows = [
            {**row, "model": run.name, "variant": run.track}
            for run in loaded
            for row in breakdown(task, run, group_of, shown, places)
        ]
        if len({row["group"] for row in rows}) > 1:
            parts.append(frames.frame(rows))
    return frames.label(frames.concat(parts), benchmark="nein")


def breakdown(
    task: str,
    run: Records,
    group_of: Callable[[Row], Any],
    shown: Callable[[Any], str] = str,
    order: Sequence[Any] = (),
) -> Iterator[dict[str, Any]]:
    """Removal and Retention of the samples of every group, sorted; edits of group None are left out."""
    groups: dict[Any, list[int]] = {}
    for place, edit in enumerate(run.edits):
        if (group := group_of(edit)) is not None:
            groups.setdefault(group, []).append(place)
    chosen = [m for m in METRICS if METRICS[m].by_judge and m != "auc_removal" and m in run.numbers]
    for group in sorted(groups, key=lambda g: (list(order).index(g) if g in order else -1, g)):
        places = np.array(groups[group])
        for metric in chosen:
            scored = places[~np.isnan(run.numbers[metric][places])]
            share = mean(metric, run.numbers[metric][scored], run.clusters.of(scored))
            unscored = len(places) - len(scored)
            yield frames.figure(
                share, unit=unit(metric), unscored=unscored, task=task, metric=metric, group=shown(group)
            )
