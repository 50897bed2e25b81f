"""Figures of runs on NeIn as rows of the frame: of one run, of an editor's two runs, and of parts of a run.

Columns besides the usual (`model` is the editor, `variant` the instruction track): group (of a breakdown),
statistic (of a gap), source ("printed": by the paper's authors).

task              metric
limit             FID as of infinitely many pictures, or in `refused` why not
families, difficulty, minimal_pairs   by family of negation, level of difficulty, and part of a minimal pair
gap               Removal with both instructions ("remove", "negative"), their difference "gap", their "ratio"
refusals          share of requests that a service declined: of all, and by negative instruction (`group`)
by_template, by_object, gap_by_template   Removal, Retention and the gap in parts of the samples

Where the object must stay, Removal is a mistake: such samples are left out of the figures of the whole run
and have a row of their own, where lower is better. Their target is the sample itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import safetensors

from nein import statistics
from nein.benchmarks.nein import paper_numbers
from nein.benchmarks.nein.runs import (
    REMOVALS,
    SCORES,
    TEMPLATES,
    CorpusRow,
    RunDir,
    in_order,
    scores_of,
    without_stays,
)
from nein.benchmarks.runner import Finished, selected
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.metrics import METRICS, MetricError
from nein.reporting import figures as frames
from nein.reporting.figures import Figure
from nein.reporting.scores import ScoreTable
from nein.statistics import Estimate, two_way
from nein.wording.families import CELLS, DEPTH, LABELS, OTHERS

BELOW = " below a denial"
FAMILY_NOTE = " (object must stay: Removal ↓)"
ALL_FAMILIES = "all families"
PRINTED = ", as printed in the paper"
ALL_FOUR = "all four"
ALL = "all"


def unit(metric: str) -> str:
    return "%" if METRICS[metric].unit == "per cent" else ""


def of_table(every: ScoreTable, corpus: Mapping[str, CorpusRow], track: str = "negative") -> pd.DataFrame:
    """The figures of one run. corpus: what exists only for the whole (corpus.json)."""
    table = without_stays(every)
    rows: list[Figure] = []
    for metric in METRICS:
        if (entry := corpus.get(metric)) is not None:
            ends = ("value", "low", "high", "standard_error", "n", "clusters")
            what: Figure = {"task": "results", "metric": metric, "unit": unit(metric)}
            what |= {"unscored": entry.n_unscored, "reasons": entry.reasons}
            rows += [what | {name: getattr(entry, name) for name in ends}, *_limit(metric, entry)]
        elif len(of_metric := table.where(metric=metric)):
            rows.append(_figure(of_metric, metric, task="results"))
    for metric in REMOVALS:
        rows += minimal_pairs(every.where(metric=metric), metric)
    named = every.names("family")
    for family in filter(named.__contains__, LABELS):  # sentences below a denial apart from the others
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
        for group in (ALL_FAMILIES, *LABELS) if len(known) else ():
            of_group = known if group == ALL_FAMILIES else known.where(family=group)
            for (metric,), of_metric in of_group.groups("metric"):
                for level in sorted(of_metric.names(axis)):
                    names = {"task": "difficulty", "group": group, "axis": axis, "level": str(level)}
                    rows.append(_figure(of_metric.where(**{axis: level}), metric, **names))
    return frames.frame({"variant": track, **row} for row in [*rows, *refusals(every)])


def refusals(every: ScoreTable) -> Iterator[Figure]:
    """The share of requests that a service declined (task "refusals"), where it declined any."""
    edits = every.frame.drop_duplicates("id")
    if edits["refused"].isna().all():
        return
    groups = {ALL: edits, **{name: edits[edits["template"] == name] for name in TEMPLATES}}
    for group, part in groups.items():
        share = statistics.bounded_mean(part["refused"].notna(), part["source"].cat.codes.tolist())
        if share is not None:
            yield frames.figure(share, unit="%", task="refusals", metric="refused", group=group)


def _figure(rows: ScoreTable, metric: str, **what: Any) -> Figure:
    return rows.described(estimate(rows, metric), unit=unit(metric), metric=metric, **what)


def estimate(rows: ScoreTable, metric: str) -> Estimate | None:
    """The mean of scores by one metric, with the interval of its kind."""
    return rows.estimate(*(METRICS[metric].range if METRICS[metric].span is not None else (None,)))


def _limit(metric: str, entry: CorpusRow) -> Iterator[Figure]:
    """What FID would be of infinitely many images (task "limit"), or in `refused` why not."""
    if not entry.left_out or entry.value is None:
        return
    from nein.metrics import fid

    what = {"task": "limit", "metric": metric, "unit": unit(metric), "n": entry.n, "clusters": entry.clusters}
    needed = fid.LIMIT_IMAGES * entry.columns
    if entry.clusters < needed:
        why = f"needs {needed} source images, {fid.LIMIT_IMAGES} for each of {entry.columns} columns"
        yield {**what, "value": None, "refused": f"{why}; {entry.clusters} here"}
        return
    interval = fid.limit(fid.FidInterval.of(entry.value, entry.left_out))
    ends = ("value", "low", "high", "standard_error")
    yield what | {name: getattr(interval, name) for name in ends}


def printed(editor: str, name: str) -> pd.DataFrame:
    """What the paper's Table 3 has of an editor on negative instructions; empty for others."""
    of_editor = {"editor": editor, "track": "negative"}
    table = paper_numbers.published("table3", of_editor) if editor in paper_numbers.ROW_OF else ()
    what = {"benchmark": "nein", "model": f"{name}{PRINTED}", "source": "printed"}
    return frames.frame(frames.number(row.value, unit=row.unit, n=row.n, **row.of, **what) for row in table)


def together(figures: Mapping[Path, pd.DataFrame], runs: Sequence[RunDir]) -> pd.DataFrame:
    """The figures of all runs, with what the paper prints of its editors where the preset is the paper's.
    Figures of a plug-in's metric that is not installed here are left out. Raises UserError."""
    parts = []
    for run in runs:
        known = frames.select(figures[run.path], metric=(*METRICS, "refused"))
        if frames.select(known, task="results")[["n", "unscored"]].isna().any(axis=None):
            raise UserError(f"Figures of '{run.path}' lack a count; score the run again with nein eval.")
        parts.append(frames.label(known, model=run.name))
        if run.about.get("config", {}).get("preset") == "paper" and run.track == "negative":
            parts.append(printed(run.editor, run.name))
    return frames.concat(parts)


def gaps(runs: Sequence[RunDir]) -> pd.DataFrame:
    """The negation gaps of the editors whose control was run, in all and per negative template."""
    controls = {run.name: run for run in runs if run.track == "remove"}
    rows: list[Figure] = []
    for run in (run for run in runs if run.track == "negative" and run.name in controls):
        for metric in REMOVALS:
            found = gap(controls[run.name].of(metric), run.of(metric), metric)
            rows += [{**row, "model": run.name} for row in found]
    return frames.frame(rows)


def headline(found: pd.DataFrame) -> pd.DataFrame:
    """The rows of `gaps` as those of `figures.gap`, of what `measure` says."""
    names = {"remove": "affirmed", "negative": "negated", "gap": "gap"}
    rows = frames.select(found, task="gap", statistic=(*names,))
    if not len(rows):
        return rows
    titles = [METRICS[metric].title for metric in rows["metric"]]
    return rows.assign(statistic=[names[name] for name in rows["statistic"]], measure=titles)


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """As of `Benchmark.gaps`, by the name of the run with negative instructions."""
    found = headline(gaps(in_order([entry.folder for entry in finished])))
    names = {entry.folder.name: entry.name for entry in finished if entry.folder.track == "negative"}
    return found.assign(run=found["model"].map(names)) if len(found) else found


def gap(affirmed: ScoreTable, negated: ScoreTable, metric: str) -> Iterator[Figure]:
    """The gap of an editor by one judge, between its runs with "Remove the X." and with X said absent."""
    first, second, clusters = affirmed.pair(negated)
    test = statistics.pairs_test(first, second, clusters)
    if test is None:
        return
    what: Figure = {"task": "gap", "metric": metric}
    for name, values in (("remove", first), ("negative", second)):  # of the pairs
        yield frames.number(float(values.mean()), unit="%", n=len(values), statistic=name, **what)
    yield frames.figure(test.difference, unit="points", statistic="gap", p=test.p, p_least=test.least, **what)
    ratio = statistics.pairs_ratio(first, second, clusters)
    yield frames.figure(ratio, unit="", statistic="ratio", **what)
    for template in [*sorted(negated.names("template"), key=TEMPLATES.index), None]:
        first, second, clusters = affirmed.pair(negated.where(template=template))
        lost = statistics.bounded_mean(first - second, clusters, -1.0, 1.0)
        if lost is not None:
            ends = {"value": lost.value, "low": lost.low, "high": lost.high, "n": lost.n, "unit": "points"}
            group = template or "another sentence"
            yield {"task": "gap_by_template", "metric": metric, "group": group, **ends}


def breakdowns(loaded: Sequence[RunDir]) -> pd.DataFrame:
    """Removal and Retention by template and object."""
    chosen = tuple(name for name, metric in METRICS.items() if metric.by_judge and name != "auc_removal")
    parts = []
    for column, known in (("template", TEMPLATES), ("object", ())):
        rows = []
        for run in loaded:
            table = run.table.where(metric=chosen)
            names = [*(name for name in sorted(table.names(column)) if name not in known), *known]
            for group in (name for name in names if name in table.names(column)):
                for (metric,), members in table.where(**{column: group}).groups("metric"):
                    what = {"model": run.name, "variant": run.track, "group": group}
                    rows.append(_figure(members, metric, task=f"by_{column}", **what))
        if len({row["group"] for row in rows}) > 1:
            parts.append(frames.frame(rows))
    return frames.concat(parts)


def minimal_pairs(scores: ScoreTable, metric: str) -> Iterator[Figure]:
    """What decides an edit by one judge: the instruction, the picture, or both (task "minimal_pairs").

    Of the family "minimal_pairs": every object affirmed and denied, of a picture with it and of one without.
    The change in presence is what a judge sees after the edit less what it sees before, so that an editor
    which does nothing changes nothing however the judge errs. One that obeys has +1 of text, -1 of picture
    and 0 of interaction (`nein.statistics.two_way`); one that removes, or adds, whatever is named 0, -1, 0.

    statistic: "change" by cell (group), "part" (group: text, picture, interaction), "obeyed" by cell and for
    all four together, "agrees" (the judge with the data, about the unedited pictures).
    """
    cells: dict[str, dict[tuple[int, int], tuple[float, float] | None]] = {}
    source: dict[str, str] = {}
    rows = scores.where(family=tuple(CELLS)).frame
    columns = [rows[name].tolist() for name in ("id", "source", "family", "value", "before")]
    for sample, picture, label, gone, seen in zip(*columns, strict=True):
        name = sample.removesuffix(f"_{label.replace(', ', '_')}")
        known = gone == gone and seen == seen  # neither is NaN
        cells.setdefault(name, {})[CELLS[label]] = (float(seen), 1.0 - gone) if known else None
        source[name] = picture
    whole = {name: four for name, four in cells.items() if len(four) == len(CELLS)}
    if not whole:
        return
    scored = {name: four for name, four in whole.items() if None not in four.values()}
    seen_in = np.array([[[four[c, i] for i in (0, 1)] for c in (0, 1)] for four in scored.values()], float)
    first, after = np.moveaxis(seen_in.reshape(-1, 2, 2, 2), -1, 0)  # each (samples, caption, picture)
    # Captions ask for the object, or for its absence; the first picture has it.
    change, right = after - first, after == np.array([[1.0, 1.0], [0.0, 0.0]])
    clusters = [source[name] for name in scored]
    what: Figure = {"task": "minimal_pairs", "metric": metric, "unscored": len(whole) - len(scored)}

    def share(values: np.ndarray, statistic: str, **group: Any) -> Figure:
        estimate = statistics.bounded_mean(values.astype(float), clusters)
        return frames.figure(estimate, unit="%", statistic=statistic, **group, **what)

    for label, cell in CELLS.items():
        column = (slice(None), *cell)
        moved = statistics.bounded_mean(change[column], clusters, -1.0, 1.0)
        yield frames.figure(moved, unit="points", statistic="change", group=label, **what)
        yield share(right[column], "obeyed", group=label)
    picture = two_way.effects(change, clusters, 2.0)[two_way.PICTURE]
    for part, effect in {**two_way.effects(after, clusters, 1.0), two_way.PICTURE: picture}.items():
        yield frames.figure(effect, unit="points", statistic="part", group=part, **what)
    yield share(right.all((1, 2)), "obeyed", group=ALL_FOUR)
    yield share((first == np.array([[1.0, 0.0], [1.0, 0.0]])).mean((1, 2)), "agrees")


class Features(NamedTuple):
    """The scored samples of a run, in data order: (N, D) float32, source images, and the first row of every
    distinct target: the reference set of the paper's protocol."""

    edited: np.ndarray
    target: np.ndarray
    source_ids: list[str]
    once: list[int]


def read_features(run: RunDir, metric: str = "fid") -> Features | None:
    """The features of the samples of a run; None without any."""
    done, parts = run.done(scores_of(metric)), []
    for number in (number for number in run.blocks.units.numbers if number in done):
        tensors, about = _features(run, metric, number)
        rows = zip(about["ids"], about["targets"], tensors["edited"], tensors["target"], strict=True)
        parts += [row for row in rows if row[0] in run.sources]
    if not parts:
        return None
    ids, keys, edited, target = (list(column) for column in zip(*parts, strict=True))
    once = sorted(np.unique(keys, return_index=True)[1].tolist())
    return Features(np.stack(edited), np.stack(target), [run.sources[name] for name in ids], once)


def of_whole(metric: str, run: RunDir) -> CorpusRow:
    """The metric of the selection; the one there for the same features, since an interval takes minutes.
    Protocol "paper": against every target once; "fixed": against that of every sample, so that both sets
    weigh the scenes alike."""
    paper, numbers = run.about["config"]["protocol"] == "paper", run.blocks.units.numbers
    rows = selected(run, scores_of(metric), run.blocks.units)
    reasons = [row.reason for row in rows if row.reason]
    made_of = {
        "samples": [*run.edits],
        "identity": run.outputs(SCORES)[metric],
        "features": [_features(run, metric, number)[1] for number in numbers],
        "reasons": reasons,
    }
    seal = json_digest(made_of)[:16]
    earlier = run.corpus().get(metric)
    if earlier is not None and earlier.seal == seal:
        return earlier
    features = read_features(run, metric)
    n = len(features.edited) if features is not None else 0
    chosen = features.once if features is not None and paper else list(range(n))
    entry = CorpusRow(n=n, n_unscored=len(run.edits) - n, n_target=len(chosen), seal=seal)
    entry.reasons = dict(Counter(reasons).most_common(5))
    entry.reference = "unique targets" if paper else "per sample"
    if features is None or min(n, len(chosen)) < 2:
        entry.reasons = entry.reasons or {"fewer than two images": 1}
        return entry
    distance, sources = METRICS[metric].corpus, features.source_ids
    assert distance is not None, metric
    try:
        found = distance(features.edited, features.target[chosen], sources, [sources[i] for i in chosen])
    except MetricError as error:
        return dataclasses.replace(entry, n=0, n_unscored=len(run.edits), reasons={str(error): 1})
    for name in ("value", "low", "high", "standard_error"):
        setattr(entry, name, getattr(found, name))
    entry.clusters, entry.columns = len(set(sources)), features.edited.shape[1]
    entry.left_out, entry.sources = list(found.left_out), json_digest({"sources": sorted(set(sources))})[:16]
    return entry


def _features(run: RunDir, metric: str, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The features of a block, and of which samples and targets they are. Raises UserError."""
    path = run.feature_path(metric, number)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {side: file.get_tensor(side) for side in ("edited", "target")}
            about = json.loads((file.metadata() or {})["about"])
    except (OSError, KeyError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise UserError(f"'{path}' is damaged ({error}); remove it, give the same command again.") from None
    if about.get("images") != run.pixels(number, about.get("ids", ())):
        raise UserError(f"'{path}' is of other images; remove it and give the same command again.")
    return tensors, about
