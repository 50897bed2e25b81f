"""Makes the estimates of a NegBench run, with intervals, from its table of scores: one row per number.

A row has a metric, and as further columns: kind and direction (retrieval), type (of questions), template (of
the chosen option). The metrics:

recall@k, BASELINE@k   recall; gap@k: original minus negated captions, paired
accuracy               of questions, and the estimates of `nein.benchmarks.baselines`; gap: accuracy where the
                       right option affirms minus where it denies; chance: of a constant scorer
drop                   accuracy on the control (questions without a negation) minus accuracy
right first            1 if the right option is always shown first
precision, recall, F1  of the answer yes (BEAF); F1 (TU, ID): of TU and 1 - ID
selected, offered      share of choices, and of options, by template; wrong: of the wrong choices
joint, joint chance    share of groups with every question right, by score (type), and by guessing; pair:
                       which of two is right (outcome); joint by difficulty: by level of an axis
effect, part           of minimal pairs (`nein.statistics.two_way`), by part (caption, picture, both): in the
                       unit of scores, and as share of the sum of squares; text alone; same caption
without@k              share of the images found that lack the denied object, with the columns statistic
                       ("judged", "corrected") and refused; avoided@k: negated minus original captions;
                       satisfied@k: share that pass the questions of a test"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nein import statistics
from nein.benchmarks import baselines
from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench.judged import KINDS as JUDGED
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import OUTCOMES
from nein.benchmarks.negbench.scoring import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from nein.datasets.negbench.other_tests import KEPT, REMOVED
from nein.datasets.negbench.records import AFFIRMATION, KINDS, NEGATED, NEGATION, ORIGINAL, TEMPLATES
from nein.datasets.negbench.registry import AFFIRMED
from nein.engine.folder import Row
from nein.reporting import figures as frames
from nein.reporting.figures import figure, number
from nein.reporting.scores import ScoreTable
from nein.statistics import calibration, two_way
from nein.statistics.calibration import Rates
from nein.statistics.estimates import Estimate

Figures = Iterator[Row]  # of figures.csv


def make_estimates(table: ScoreTable, rates: Rates | None = None) -> pd.DataFrame:
    """Every estimate of a table, by task and wording. rates: the judge's calibrated error, if it has one."""
    figures = []
    for (task, variant), part in table.groups("task", "variant"):
        rows = [
            *_estimate_retrieval(part),
            *_estimate_judged(part, rates),
            *_estimate_choices(part),
            *_estimate_groups(part),
            *_estimate_minimal_pairs(part),
        ]
        control = table.where(task=f"{task}{AFFIRMED}", variant=variant or None, metric="accuracy").scored
        own = part.where(metric="accuracy").scored
        if len(control) and len(own):
            rows.append(_subtract_means(control, own, metric="drop", type="all"))
        figures += [{"task": task, "variant": variant, **row} for row in rows]
    return frames.frame(figures)


def _subtract_means(first: ScoreTable, second: ScoreTable, **labels: Any) -> Row:
    """The estimate of the first table's mean minus the second's."""
    first_values = dict(zip(first.frame["id"], first.values, strict=True))
    second_values = dict(zip(second.frame["id"], second.values, strict=True))
    ids = [*first.frame["id"], *second.frame["id"]]
    source_of = dict(zip(ids, [*first.clusters, *second.clusters], strict=True))
    difference = statistics.difference_of_means(first_values, second_values, source_of)
    return figure(difference, unit="points", **labels)


# --- retrieval -------------------------------------------------------------------------------------
def _estimate_retrieval(table: ScoreTable) -> Figures:
    """Recall at each k, by direction and kind of captions, and the gap between the kinds."""
    for direction in (TEXT_TO_IMAGE, IMAGE_TO_TEXT):
        queries = table.where(direction=direction)
        for k in KS:
            for name in ("recall", *BASELINES):
                for kind in KINDS:
                    part = queries.where(metric=f"{name}@{k}", kind=kind)
                    if len(part):
                        yield part.figure(metric=f"{name}@{k}", kind=kind, direction=direction)
            original, negated = (queries.where(metric=f"recall@{k}", kind=kind) for kind in KINDS)
            if len(original) and len(negated):
                gap, unscored = _pair_gap(original, negated)
                yield figure(gap, unit="points", unscored=unscored, metric=f"gap@{k}", direction=direction)


def _pair_gap(original: ScoreTable, negated: ScoreTable) -> tuple[Estimate | None, int]:
    """The paired negation gap over items with both kinds of captions, and the number of unscored pairs.

    If an item has as many captions of either kind, its k-th captions are a pair, which counts if both are
    scored. Otherwise (a paraphrase was lost) all of its scored captions count, paired by image alone."""
    # A row per caption; side: 0 original, 1 negated.
    sides = []
    for index, side in enumerate((original, negated)):
        # Both have the same categories, so equal codes are equal items.
        item = side.frame["item"].cat.codes.to_numpy(np.int64)
        columns = {"side": index, "item": item, "source": side.clusters, "value": side.values}
        sides.append(pd.DataFrame(columns))
    rows = pd.concat(sides, ignore_index=True)
    rows["pair"] = rows.groupby(["side", "item"]).cumcount() * 2**32 + rows["item"]  # (k, item) as one int64

    # The rows that count.
    counts = rows.groupby(["item", "side"]).size().unstack(fill_value=0)  # (items, 2) captions of each kind
    is_balanced = rows["item"].map(counts[0] == counts[1])
    is_unscored = rows["value"].isna()
    has_unscored_twin = is_unscored.groupby(rows["pair"]).transform("any")
    rows = rows[~is_unscored & ~(is_balanced & has_unscored_twin)]
    rows = rows[rows.groupby("item")["side"].transform("nunique") == 2]
    scored_counts = rows.groupby(["item", "side"]).size().unstack()  # (items, 2)
    n, total = int(scored_counts.max(axis=1).sum()), int(counts.max(axis=1).sum())  # pairs

    halves = (rows[rows["side"] == index] for index in (0, 1))
    originals, negations = (dict(zip(half["pair"], half["value"], strict=True)) for half in halves)
    source_of = dict(zip(rows["pair"], rows["source"], strict=True))
    estimate = statistics.difference_of_means(originals, negations, source_of)
    return None if estimate is None else replace(estimate, n=n), total - n


def _estimate_judged(table: ScoreTable, rates: Rates | None) -> Figures:
    """Shares of the first images found that lack the denied object, as judged and corrected for the judge."""
    for k in KS:
        for kind in JUDGED:
            satisfied = table.where(metric=f"satisfied@{k}", kind=kind)
            if len(satisfied):
                yield satisfied.figure(metric=f"satisfied@{k}", kind=kind, statistic="judged")
            verdicts = table.where(metric=f"without@{k}", kind=kind)
            if not len(verdicts):
                continue
            labels: Row = {"metric": f"without@{k}", "kind": kind, "direction": TEXT_TO_IMAGE}
            share = verdicts.estimate()
            yield verdicts.make_figure(share, unit="%", statistic="judged", **labels)
            if share is not None and rates is not None:
                corrected = calibration.correct(share, rates)
                row = number(corrected.value, unit="%", n=share.n, statistic="corrected", **labels)
                yield {**row, "low": corrected.low, "high": corrected.high, "refused": corrected.refused}

        # Paired by query: the share of images without the object, negated minus original caption.
        sides = []  # per kind: query -> source and share; NaN if a verdict is missing
        for kind in (NEGATED, ORIGINAL):
            verdicts = table.where(metric=f"without@{k}", kind=kind)
            rows = verdicts.frame.assign(item=verdicts.frame["item"].cat.codes, source=verdicts.clusters)
            columns = {"source": "first", "value": lambda values: values.mean(skipna=False)}
            sides.append(rows.groupby("item", sort=False).agg(columns))
        pairs = sides[0].join(sides[1], how="inner", rsuffix="_original").dropna()
        differences = (pairs["value"] - pairs["value_original"]).to_numpy()  # (queries,) in [-1, 1]
        avoided = statistics.bounded_mean(differences, pairs["source"].tolist(), -1.0, 1.0)
        if avoided is not None:
            yield figure(avoided, unit="points", metric=f"avoided@{k}", direction=TEXT_TO_IMAGE)


# --- questions -------------------------------------------------------------------------------------
def _estimate_choices(table: ScoreTable) -> Figures:
    """Accuracy by type of question with gap, baselines and chance; and which templates are chosen."""
    questions = table.where(metric="accuracy")
    if not len(questions):
        return
    types = {"all": questions}  # type of question -> its rows
    for template in TEMPLATES:
        if template in questions.names("type"):
            types[template] = questions.where(type=template)

    # Accuracy by type, the gap between affirming and denying options, and baselines.
    for type_, members in types.items():
        accuracy = members.figure(metric="accuracy", type=type_)
        if accuracy["value"] == 1 and members.scored.frame["alike"].notna().all():  # ties went to the first
            accuracy["refused"] = "all options tie"
        yield accuracy
    if questions.frame["first"].notna().all() and len(questions) > 1:
        yield number(1.0, unit="%", n=len(questions), metric="right first", type="all")
    if {AFFIRMATION, NEGATION} <= types.keys():
        affirming, denying = types[AFFIRMATION], types[NEGATION]
        unscored = affirming.count_reasons().total() + denying.count_reasons().total()
        gap = _subtract_means(affirming.scored, denying.scored, metric="gap", type="all")
        yield {**gap, "unscored": unscored}
    for type_, members in types.items():
        baseline_rows = table if type_ == "all" else table.where(type=type_)
        yield from baselines.estimate_baselines(members, baseline_rows, type=type_)
    chance = _map_entries(questions, "templates", lambda templates: 1 / len(templates)).mean()
    yield number(float(chance), unit="%", n=len(questions), metric="chance", type="all")

    # The templates of the chosen options, over questions with options of several known templates.
    is_mixed = _map_entries(questions, "templates", lambda names: all(names) and len(set(names)) > 1)
    mixed = ScoreTable(questions.frame[is_mixed.astype(bool)])
    for template in TEMPLATES:
        offered = _template_shares(mixed, template, "templates")
        if offered.any():
            unscored = mixed.count_reasons().total()
            share = statistics.bounded_mean(_template_shares(mixed.scored, template), mixed.scored.clusters)
            yield figure(share, unit="%", unscored=unscored, metric="selected", template=template)
            yield number(float(offered.mean()), unit="%", n=len(mixed), metric="offered", template=template)
    for type_ in types:
        yield from _estimate_wrong(mixed if type_ == "all" else mixed.where(type=type_), type_)


def _map_entries(table: ScoreTable, column: str, function: Callable[[list[str]], float]) -> np.ndarray:
    """(n,) float64: a function of each row's entry, split at "/"; computed once per distinct entry."""
    entries = table.frame[column].cat
    values = np.array([function(entry.split("/")) for entry in entries.categories], dtype=np.float64)
    return values[entries.codes] if len(values) else np.zeros(0)


def _template_shares(table: ScoreTable, template: str, column: str = "chosen") -> np.ndarray:
    """(n,) float64: the share of each question's options, chosen or all (`column`), with the template."""
    return _map_entries(table, column, lambda templates: templates.count(template) / len(templates))


def _estimate_wrong(rows: ScoreTable, type_: str) -> Figures:
    """Which share of the wrong choices falls on each template; n: the number of wrong choices."""
    scored = rows.scored
    wrong = 1.0 - scored.values  # (n,) wrong part of each choice: ties count in part
    if not wrong.sum():
        return
    for template in TEMPLATES:
        right = np.where(scored.frame["type"] == template, scored.values, 0.0)  # (n,)
        hits = _template_shares(scored, template) - right  # (n,) wrong part on this template
        shares = np.divide(hits, wrong, out=np.zeros_like(hits), where=wrong != 0)
        estimate = statistics.bounded_mean(shares, scored.clusters, weights=wrong)
        row = figure(estimate, unit="%", unscored=rows.count_reasons().total(), metric="wrong", type=type_)
        yield {**row, "template": template, "n": round(float(wrong.sum()), 3)}


# --- groups of questions ---------------------------------------------------------------------------
def _estimate_groups(table: ScoreTable) -> Figures:
    """Shares of groups of questions that are answered right together, by score."""
    joint = table.where(metric="joint")
    for score in joint.names("type"):
        members, chances = joint.where(type=score), table.where(metric="joint chance", type=score)
        yield members.figure(metric="joint", type=score)
        chance = float(chances.values.mean())
        yield number(chance, unit="%", n=len(chances), metric="joint chance", type=score)
        pairs = table.where(metric="pair", type=score)
        for outcome in OUTCOMES if len(pairs) else ():
            yield pairs.where(outcome=outcome).figure(metric="pair", type=score, outcome=outcome)
        yield from _estimate_difficulty(members, score)
    if {REMOVED, KEPT} <= {*joint.names("type")}:
        yield from _estimate_beaf(table)


def _estimate_beaf(table: ScoreTable) -> Figures:
    """Precision, recall, F1 as in BEAF's `beaf_metric.py`; F1 of TU and 1 - ID as in arXiv:2407.13442."""
    questions = table.where(metric="accuracy").scored
    is_yes = (questions.frame["answer"] == "yes").to_numpy()  # (n,) bool: yes is right
    is_right = questions.values == 1  # (n,) bool: the model is right
    answered_yes = ScoreTable(questions.frame[is_yes == is_right])  # right with yes, or wrong where it is no
    should_be_yes = ScoreTable(questions.frame[is_yes])
    yield answered_yes.figure(metric="precision", type="all")
    yield should_be_yes.figure(metric="recall", type="all")
    understood = table.where(metric="joint", type=REMOVED).scored.values  # TU
    undecided = table.where(metric="pair", type=KEPT, outcome=OUTCOMES[1:3]).scored.values
    means = {
        "F1": (answered_yes.values, should_be_yes.values),
        "F1 (TU, ID)": (understood, 1 - 2 * undecided),  # two rows per pair, so their mean is ID / 2
    }
    for metric, (first, second) in means.items():
        value = None
        if len(first) and len(second) and first.mean() + second.mean():  # their harmonic mean
            a, b = float(first.mean()), float(second.mean())
            value = 2 * a * b / (a + b)
        yield number(value, unit="%", n=len(questions), metric=metric, type="all")


def _estimate_difficulty(joint: ScoreTable, score: str) -> Figures:
    """The joint score at every level of each axis, over groups where the later axes are at 0."""
    levels = {text: json.loads(text) for text in joint.names("difficulty")}  # JSON -> axis -> level
    axes = list(dict.fromkeys(axis for entry in levels.values() for axis in entry))
    for index, axis in enumerate(axes):
        texts_of: dict[int, list[str]] = {}  # level of this axis -> JSON texts
        for text, entry in levels.items():
            if not any(entry[later] for later in axes[index + 1 :]):
                texts_of.setdefault(entry[axis], []).append(text)
        for level, texts in sorted(texts_of.items()):
            members = joint.where(difficulty=tuple(texts))
            labels = {"metric": "joint by difficulty", "type": score, "axis": axis, "level": str(level)}
            yield members.figure(**labels)


def _estimate_minimal_pairs(table: ScoreTable) -> Figures:
    """What decides the scores of minimal pairs: caption, image, or both; over pairs with all four scores."""
    cells = table.where(metric=("cell", "answer cell"))
    if not len(cells):
        return
    pairs = cells.values.reshape(-1, 2, 2)  # (pairs, caption, image)
    complete = np.isfinite(pairs).all((1, 2))
    scores, unscored = pairs[complete], int((~complete).sum())
    clusters = np.array(cells.clusters).reshape(-1, 4)[complete, 0].tolist()  # one per pair
    are_answers = "cell" not in cells.names("metric")  # 0 or 1, not scores of a model's own scale
    for part, estimate in two_way.effects(scores, clusters, span=1.0 if are_answers else None).items():
        yield figure(estimate, unit="", unscored=unscored, metric="effect", part=part)
    for part, estimate in two_way.shares(scores, clusters).items():
        yield figure(estimate, unit="%", unscored=unscored, metric="part", part=part)
    yield figure(two_way.text_alone(scores, clusters), unit="%", unscored=unscored, metric="text alone")
    if not are_answers:
        same_caption = two_way.same_caption(scores, clusters)
        yield figure(same_caption, unit="%", unscored=unscored, metric="same caption")
