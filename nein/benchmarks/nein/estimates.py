"""Computes the estimates of NeIn runs from their scores, as rows of the frame of `nein.reporting.figures`.

Parts: one run; minimal pairs; gaps and losses of an editor's runs; breakdowns; FID. In a row, `model` is the
editor, `variant` the instruction track, `group` the part of a breakdown, and `task` one of

results           every metric over the whole run
limit             FID for infinitely many images, or in `refused` the reason why not
families, difficulty, minimal_pairs   by family of negation, level of difficulty, part of a minimal pair
gap               Removal when told "Remove the X." ("affirmed") and when told that X is absent ("negated");
                  "gap", "ratio" (column `statistic`)
losses            removals lost by a rewriter, and by the editor behind it (`estimate_losses`)
refusals          share of requests that a service declined: of all, and by negative instruction (`group`)
by_template, by_object, gap_by_template   Removal, Retention and the gap in parts of the samples

If the object must stay, removing it is a mistake: such samples do not enter the estimates of the whole run.
They have rows of their own, in which lower is better. Their target is the sample itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import safetensors

from nein import statistics
from nein.benchmarks.nein import runs
from nein.benchmarks.nein.runs import REMOVAL_JUDGES, SCORES, TEMPLATES, CorpusRow, RunDir
from nein.benchmarks.runner import Finished, select_rows
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.metrics import METRICS, MetricError
from nein.reporting import figures as frames
from nein.reporting.figures import Figure
from nein.reporting.scores import ScoreTable
from nein.statistics import Estimate, two_way
from nein.wording.families import CELLS, DEPTH, FAMILY_NAMES, OTHERS

ALL_FAMILIES, ALL_FOUR, ALL = "all families", "all four", "all"  # in the column `group`
OVERALL: Any = {"task": "gap", "statistic": ("affirmed", "negated", "gap")}  # selects the gaps of whole runs


# --- one run ---------------------------------------------------------------------------------
def make_estimates(scores: ScoreTable, corpus: dict[str, CorpusRow], track: str = "negative") -> pd.DataFrame:
    """Every estimate of one run. scores: `RunDir.all_scores`; corpus: of the whole set (corpus.json)."""
    table = runs.drop_stays(scores)  # without Removal of objects that must stay
    frame = scores.frame
    rows: list[Figure] = []
    for metric in METRICS:
        if metric in corpus:
            rows += _describe_corpus(metric, corpus[metric])
        else:
            rows += _estimate_metrics(table.where(metric=metric), task="results")
    for metric in REMOVAL_JUDGES:
        rows += estimate_minimal_pairs(scores.where(metric=metric), metric)
    # By family; sentences below a denial, and objects that must stay, are groups of their own.
    ordered = pd.Categorical(frame["family"], FAMILY_NAMES)
    keys = [ordered, frame[DEPTH].astype(float) > 0, frame["stays"].notna()]
    for (family, below, stays), part in frame.groupby(keys, observed=True):
        group = f"{family} below a denial" if below else str(family)
        group += " (object must stay: Removal ↓)" if stays else ""
        rows += _estimate_metrics(ScoreTable(part), task="families", group=group)
    # By difficulty: the number of other things (only in sentences without a denial above), and the depth.
    for axis in (OTHERS, DEPTH):
        known = table.frame.dropna(subset=axis)
        if axis == OTHERS:
            known = known[~(known[DEPTH].astype(float) > 0)]
        for group in (ALL_FAMILIES, *FAMILY_NAMES):
            part = known if group == ALL_FAMILIES else known[known["family"] == group]
            for level, of_level in part.groupby(part[axis].astype(int)):
                labels = {"group": group, "axis": axis, "level": str(level)}
                rows += _estimate_metrics(ScoreTable(of_level), task="difficulty", **labels)
    # Refused requests.
    edits = frame.drop_duplicates("id")  # a sample is one request, whatever it was scored by
    for group in (ALL, *TEMPLATES) if edits["refused"].notna().any() else ():
        part = edits if group == ALL else edits[edits["template"] == group]
        share = statistics.bounded_mean(part["refused"].notna(), part["source"].cat.codes.tolist())
        if share is not None:
            rows.append(frames.figure(share, unit="%", task="refusals", metric="refused", group=group))
    return frames.frame({"variant": track, **row} for row in rows)


def _estimate_metrics(table: ScoreTable, **labels: Any) -> Iterator[Figure]:
    """The estimate of every metric of a table."""
    for (metric,), rows in table.groups("metric"):
        yield rows.make_figure(estimate_mean(rows, metric), unit=find_unit(metric), metric=metric, **labels)


def find_unit(metric: str) -> str:
    return "%" if METRICS[metric].unit == "per cent" else ""


def estimate_mean(rows: ScoreTable, metric: str) -> Estimate | None:
    """The mean of scores by one metric; its interval is bounded if the range of the metric is."""
    if METRICS[metric].span is None:
        return rows.estimate(low=None)
    return rows.estimate(*METRICS[metric].range)


def _describe_corpus(metric: str, entry: CorpusRow) -> Iterator[Figure]:
    """The rows of a metric of the whole set: of its images ("results"), of infinitely many ("limit")."""
    labels: Figure = {"metric": metric, "unit": find_unit(metric), "n": entry.n, "clusters": entry.clusters}
    unscored = {"unscored": entry.n_unscored, "reasons": entry.reasons}
    numbers = {name: getattr(entry, name) for name in frames.ESTIMATE}
    yield {**labels, "task": "results", **unscored, **numbers}
    if not entry.left_out or entry.value is None:
        return
    from nein.metrics import fid

    needed = fid.LIMIT_IMAGES * entry.columns  # source images for a stable extrapolation
    if entry.clusters < needed:
        reason = f"needs {needed} source images, {fid.LIMIT_IMAGES} for each of {entry.columns} columns"
        yield {**labels, "task": "limit", "value": None, "refused": f"{reason}; {entry.clusters} here"}
        return
    limit = fid.extrapolate(fid.FidInterval.jackknife(entry.value, entry.left_out))
    yield {**labels, "task": "limit", **{name: getattr(limit, name) for name in frames.ESTIMATE}}


# --- minimal pairs ---------------------------------------------------------------------------
def estimate_minimal_pairs(scores: ScoreTable, metric: str) -> Iterator[Figure]:
    """What decides an edit, by one judge: the instruction, the image, or both (task "minimal_pairs").

    The family "minimal_pairs" affirms and denies every object, for an image with it and one without: four
    cells. The change in presence is what the judge sees after the edit minus what it sees before. Thus an
    editor that does nothing changes nothing, however the judge errs. One that obeys has +1 of text, -1 of
    picture and 0 of interaction (`nein.statistics.two_way`); one that always removes, or always adds, what is
    named has 0, -1, 0.

    statistic: "change" by cell (group); "part" (group: text, picture, interaction); "obeyed" by cell and for
    all four together; "agrees": how often the judge is right about the unedited images.
    """
    rows = scores.where(family=tuple(CELLS)).frame
    cells = rows["family"].astype(str)
    names = []  # of the pairs
    for sample_id, cell in zip(rows["id"], cells, strict=True):  # the id of a sample is PAIR_CELL
        names.append(sample_id.removesuffix(f"_{cell.replace(', ', '_')}"))
    rows = rows.assign(pair=names, cell=cells, before=rows["before"].astype(float), after=1 - rows["value"])
    # Pairs with four cells; `scored`: those in which the judge answered before and after each edit.
    complete = rows[rows.groupby("pair")["cell"].transform("size") == len(CELLS)]
    pairs = complete.groupby("pair", sort=False)[["before", "after"]].agg(lambda values: values.notna().all())
    scored = pairs.index[pairs.all(axis=1)]
    if not len(pairs):
        return
    # (N, caption, image): 1 where the judge sees the object. Caption 1 denies it, image 1 is without it.
    presence = complete.pivot(index="pair", columns="cell", values=["before", "after"]).loc[scored]
    before = presence["before"][[*CELLS]].to_numpy().reshape(-1, 2, 2)
    after = presence["after"][[*CELLS]].to_numpy().reshape(-1, 2, 2)
    change = after - before
    obeyed = after == np.array([[1.0, 1.0], [0.0, 0.0]])
    clusters = complete.drop_duplicates("pair").set_index("pair")["source"].loc[scored].tolist()  # (N,)
    labels: Figure = {"task": "minimal_pairs", "metric": metric, "unscored": len(pairs) - len(scored)}

    def make_share(values: np.ndarray, **more: Any) -> Figure:  # values: (N,) in [0, 1]
        share = statistics.bounded_mean(values.astype(float), clusters)
        return frames.figure(share, unit="%", **more, **labels)

    for cell, (caption, image) in CELLS.items():
        moved = statistics.bounded_mean(change[:, caption, image], clusters, -1.0, 1.0)
        yield frames.figure(moved, unit="points", statistic="change", group=cell, **labels)
        yield make_share(obeyed[:, caption, image], statistic="obeyed", group=cell)
    # The image part is taken from the change, since `after` also shows what was there before.
    effects = two_way.effects(after, clusters, 1.0)
    effects[two_way.PICTURE] = two_way.effects(change, clusters, 2.0)[two_way.PICTURE]
    for part, effect in effects.items():
        yield frames.figure(effect, unit="points", statistic="part", group=part, **labels)
    yield make_share(obeyed.all((1, 2)), statistic="obeyed", group=ALL_FOUR)
    is_right = before == np.array([[1.0, 0.0], [1.0, 0.0]])
    yield make_share(is_right.mean((1, 2)), statistic="agrees")


# --- the gap of an editor, and what a rewriter loses -----------------------------------------
def estimate_gaps(loaded: Sequence[RunDir]) -> pd.DataFrame:
    """The negation gaps of the editors whose control ("Remove the X.") was run, in all and by template."""
    controls = {run.name: run for run in loaded if run.track == "remove"}
    return frames.frame(
        {**row, "model": run.name}
        for run in loaded
        if run.track == "negative" and run.name in controls
        for metric in REMOVAL_JUDGES
        for row in estimate_gap(controls[run.name].scores_by(metric), run.scores_by(metric), metric)
    )


def estimate_gap(affirmed: ScoreTable, negated: ScoreTable, metric: str) -> Iterator[Figure]:
    """The gap of an editor by one judge: Removal when told "Remove the X." minus when told X is absent."""
    first, second, clusters = affirmed.pair(negated)  # (N,) each, 0 or 1, of the same samples
    test = statistics.pairs_test(first, second, clusters)
    if test is None:
        return
    labels: Figure = {"task": "gap", "metric": metric, "measure": METRICS[metric].title}
    gap = frames.figure(test.difference, unit="points", p=test.p, p_least=test.least)
    affirmed_row, negated_row, gap_row = frames.gap(float(first.mean()), float(second.mean()), gap, **labels)
    yield from (affirmed_row, negated_row, {**gap, **gap_row})  # the gap also has p and clusters
    ratio = statistics.pairs_ratio(first, second, clusters)
    yield frames.figure(ratio, unit="", statistic="ratio", **labels)
    for template in [*sorted(negated.names("template"), key=TEMPLATES.index), None]:
        first, second, clusters = affirmed.pair(negated.where(template=template))
        difference = statistics.bounded_mean(first - second, clusters, -1.0, 1.0)
        if difference is not None:
            labels = {"task": "gap_by_template", "metric": metric, "group": template or "another sentence"}
            yield frames.figure(difference, unit="points", **labels)


STILL_THERE, GAP = "objects still there", 'gap to "Remove the X."'  # groups of the task "losses"


def estimate_losses(loaded: Sequence[RunDir]) -> Iterator[Figure]:
    """Removals lost by a rewriter, and by the editor ("painter") behind it (task "losses", `statistic`).

    In the group STILL_THERE, the loss of a sample is 1 where the judge still sees X, else 0. In GAP, it is
    Removal when told "Remove the X." minus Removal here: objects that the editor never removes cancel. The
    former is from the editor without its remedy, or else from its own run that was told so.

    The loss is the rewriter's where its text neither asks for the removal of X nor denies X (`OUTCOMES`
    dropped and affirmed), else the editor's. Both parts are means over the same samples, 0 where the loss is
    the other's: they add up to the "whole". Unscored: samples without a verdict, and those in which the rule
    cannot tell what the text says of X (`cannot_tell`).
    """
    controls = {run.name: run for run in loaded if run.track == "remove"}
    for run in (run for run in loaded if run.track == "negative"):
        for metric in REMOVAL_JUDGES:
            rewritten = run.scores_by(metric).frame.dropna(subset="outcome")
            if not len(rewritten):
                continue
            known = ScoreTable(rewritten[rewritten["outcome"] != runs.UNREAD])
            # Group -> scored samples; their value is the loss.
            tables = {STILL_THERE: known.scored.frame.assign(value=1 - known.scored.values)}
            if control := controls.get(run.name.rpartition("+")[0], controls.get(run.name)):
                affirmed = control.scores_by(metric).frame
                asks = affirmed["outcome"].isna() | affirmed["outcome"].isin(("removed", "denied"))
                gap = ScoreTable(affirmed[asks]).subtract(known).scored.frame.drop(columns="outcome")
                tables[GAP] = gap.merge(known.frame[["id", "outcome"]], on="id")
            for group, rows in tables.items():
                loss = rows["value"].to_numpy()  # (N,) 0 or 1, of the gap also -1
                by_rewriter = rows["outcome"].isin(("dropped", "affirmed")).to_numpy()  # (N,) bool
                of_rewriter = np.where(by_rewriter, loss, 0.0)
                parts = {"rewriter": of_rewriter, "painter": loss - of_rewriter, "whole": loss}
                labels: Figure = {"task": "losses", "metric": metric, "model": run.name, "group": group}
                labels |= {"unscored": len(rewritten) - len(rows), "cannot_tell": len(rewritten) - len(known)}
                low = 0.0 if group == STILL_THERE else -1.0
                for part, values in parts.items():
                    mean = statistics.bounded_mean(values, rows["source"].tolist(), low, 1.0)
                    yield frames.figure(mean, unit="points", statistic=part, **labels)


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """`Benchmark.gaps` of NeIn: a gap has the name of the run with negative instructions."""
    gap_rows = frames.select(estimate_gaps(runs.order_runs([entry.folder for entry in finished])), **OVERALL)
    names = {entry.folder.name: entry.name for entry in finished if entry.folder.track == "negative"}
    return gap_rows.assign(run=gap_rows["model"].map(names)) if len(gap_rows) else gap_rows


# --- breakdowns ------------------------------------------------------------------------------
def estimate_breakdowns(loaded: Sequence[RunDir]) -> pd.DataFrame:
    """Removal and Retention by template and object."""
    by_judges = tuple(name for name, metric in METRICS.items() if metric.by_judge and name != "auc_removal")
    parts = []
    for column, last_groups in (("template", TEMPLATES), ("object", [])):
        rows: list[Figure] = []
        for run in loaded:
            table = run.table.where(metric=by_judges)
            labels = {"task": f"by_{column}", "model": run.name, "variant": run.track}
            names = table.names(column)
            groups = sorted({*names} - {*last_groups}) + [name for name in last_groups if name in names]
            for group in groups:
                rows += _estimate_metrics(table.where(**{column: group}), group=group, **labels)
        if len({row["group"] for row in rows}) > 1:
            parts.append(frames.frame(rows))
    return frames.concat(parts)


# --- FID -------------------------------------------------------------------------------------
class Features(NamedTuple):
    """FID's features of the scored samples of a run, in data order."""

    edited: np.ndarray  # (N, D) float32
    target: np.ndarray  # (N, D) float32
    source_ids: list[str]  # (N,) source images
    once: list[int]  # the first row of every distinct target: with these, a target counts once


def read_features(run: RunDir, metric: str = "fid") -> Features | None:
    """The features of the finished blocks of a run; None if no sample has any."""
    done = run.list_blocks(runs.score_output(metric))
    numbers = [number for number in run.blocks.units.numbers if number in done]
    return _join_features(run, [_read_block(run, metric, number) for number in numbers])


#: A block of features: (ids of samples, "ids", and keys of targets, "targets"; side -> (n, D) float32).
_Block = tuple[Mapping[str, Any], dict[str, np.ndarray]]


def _read_block(run: RunDir, metric: str, number: int) -> _Block:
    """A block from its file. Raises UserError."""
    path = run.feature_path(metric, number)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {side: file.get_tensor(side) for side in ("edited", "target")}
            about = json.loads((file.metadata() or {})["about"])
    except (OSError, KeyError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise UserError(f"'{path}' is damaged ({error}); remove it and rerun the command.") from None
    if about.get("images") != run.pixels(number, about.get("ids", ())):
        raise UserError(f"'{path}' belongs to other images; remove it and rerun the command.")
    return about, tensors


def _join_features(run: RunDir, blocks: Sequence[_Block]) -> Features | None:
    """The features of the selected samples; None without any."""
    rows = []  # (id, key of the target, features of the edit (D,), of the target (D,)) per sample
    for about, tensors in blocks:
        columns = about["ids"], about["targets"], tensors["edited"], tensors["target"]
        rows += [row for row in zip(*columns, strict=True) if row[0] in run.sources]
    if not rows:
        return None
    ids, keys, edited, target = zip(*rows, strict=True)  # rows to columns
    once = sorted(np.unique(keys, return_index=True)[1].tolist())
    return Features(np.stack(edited), np.stack(target), [run.sources[name] for name in ids], once)


def compute_corpus_metric(metric: str, run: RunDir) -> CorpusRow:
    """The metric of the whole selection. An earlier value of the same features is reused, since an interval
    takes minutes. Protocol "paper" compares with every target once; "fixed" with the target of every sample,
    so that a scene has the same weight on both sides."""
    is_paper = run.about["config"]["protocol"] == "paper"
    units = run.blocks.units
    # Reuse the earlier value if its inputs are the same.
    reasons = [row.reason for row in select_rows(run, runs.score_output(metric), units) if row.reason]
    blocks = [_read_block(run, metric, number) for number in units.numbers]
    ingredients = {
        "samples": [*run.edits],
        "identity": run.outputs(SCORES)[metric],
        "features": [about for about, _ in blocks],
        "reasons": reasons,
    }
    seal = json_digest(ingredients)[:16]  # 64 bits
    earlier = run.corpus().get(metric)
    if earlier is not None and earlier.seal == seal:
        return earlier
    # Describe the two sets of images.
    features = _join_features(run, blocks)
    n = len(features.edited) if features else 0  # scored samples
    target_rows = features.once if features and is_paper else list(range(n))
    entry = CorpusRow(n=n, n_unscored=len(run.edits) - n, n_target=len(target_rows), seal=seal)
    entry.reasons = dict(Counter(reasons).most_common(5))
    entry.reference = "unique targets" if is_paper else "per sample"
    if features is None or min(n, len(target_rows)) < 2:
        entry.reasons = entry.reasons or {"fewer than two images": 1}
        return entry
    # Compute the distance.
    measure_distance = METRICS[metric].corpus
    assert measure_distance is not None, metric
    sources = features.source_ids
    target_sources = [sources[row] for row in target_rows]
    try:
        interval = measure_distance(features.edited, features.target[target_rows], sources, target_sources)
    except MetricError as error:
        return dataclasses.replace(entry, n=0, n_unscored=len(run.edits), reasons={str(error): 1})
    for name in frames.ESTIMATE:
        setattr(entry, name, getattr(interval, name))
    entry.clusters, entry.columns = len(set(sources)), features.edited.shape[1]
    entry.left_out = list(interval.left_out)
    entry.sources = json_digest({"sources": sorted(set(sources))})[:16]
    return entry
