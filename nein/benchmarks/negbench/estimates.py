"""The estimates of a run of NegBench with their intervals, made from its table of scores: one row per number.

Further columns: kind and direction (retrieval), type (of questions), template (of the chosen option).

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
                       satisfied@k: share that pass the questions of a test
"""

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

Figures = Iterator[Row]


def make_estimates(table: ScoreTable, rates: Rates | None = None) -> pd.DataFrame:
    """Every estimate of a table, by task and wording. rates: the judge's calibrated error, if it has one."""
    figures = []
    for (task, variant), part in table.groups("task", "variant"):
        parts = (
            _estimate_retrieval(part),
            _estimate_judged(part, rates),
            _estimate_choices(part),
            _estimate_groups(part),
            _estimate_minimal_pairs(part),
        )
        rows = [row for estimates in parts for row in estimates]
        sides = [table.where(task=f"{task}{AFFIRMED}", variant=variant or None), part]
        values = [side.where(metric="accuracy").scored for side in sides]
        if all(map(len, values)):
            rows.append(_subtract_means(*values, metric="drop", type="all"))
        figures += [{"task": task, "variant": variant, **row} for row in rows]
    return frames.frame(figures)


def _subtract_means(first: ScoreTable, second: ScoreTable, **labels: Any) -> Row:
    values, other_values = (dict(zip(side.frame["id"], side.values, strict=True)) for side in (first, second))
    source_of = dict(zip(first.frame["id"], first.clusters, strict=True))
    source_of |= dict(zip(second.frame["id"], second.clusters, strict=True))
    return figure(statistics.difference_of_means(values, other_values, source_of), unit="points", **labels)


def _estimate_retrieval(table: ScoreTable) -> Figures:
    """Recall at each k, by direction and kind of captions, and the gap between the kinds."""
    for direction in (TEXT_TO_IMAGE, IMAGE_TO_TEXT):
        of_direction = table.where(direction=direction)
        for k in KS:
            kinds = {}
            for metric in (f"recall@{k}", *(f"{baseline}@{k}" for baseline in BASELINES)):
                parts = {kind: of_direction.where(metric=metric, kind=kind) for kind in KINDS}
                kinds[metric] = parts
                for kind, part in parts.items():
                    if len(part):
                        yield part.figure(metric=metric, kind=kind, direction=direction)
            original, negated = kinds[f"recall@{k}"].values()
            if len(original) and len(negated):
                gap, unscored = _pair_gap(original, negated)
                yield figure(gap, unit="points", unscored=unscored, metric=f"gap@{k}", direction=direction)


def _pair_gap(original: ScoreTable, negated: ScoreTable) -> tuple[Estimate | None, int]:
    """The paired negation gap over items with both kinds of captions, and the number of unscored pairs.

    If an item has as many captions of either kind, its k-th captions are a pair, which counts if both are
    scored. Otherwise (a paraphrase was lost) all of its scored captions count, paired by image alone.
    """
    sides = []
    for index, side in enumerate((original, negated)):  # both have the same categories, so codes name items
        item = side.frame["item"].cat.codes.to_numpy(np.int64)
        columns = {"side": index, "item": item, "source": side.clusters, "value": side.values}
        sides.append(pd.DataFrame(columns))
    rows = pd.concat(sides, ignore_index=True)  # a row per caption
    rows["pair"] = rows.groupby(["side", "item"]).cumcount() * 2**32 + rows["item"]  # (k, item) as one int64
    counts = rows.groupby(["item", "side"]).size().unstack(fill_value=0)  # (items, 2) captions of each kind
    is_balanced, is_unscored = rows["item"].map(counts[0] == counts[1]), rows["value"].isna()
    rows = rows[~is_unscored & ~(is_balanced & is_unscored.groupby(rows["pair"]).transform("any"))]
    rows = rows[rows.groupby("item")["side"].transform("nunique") == 2]
    scored_counts = rows.groupby(["item", "side"]).size().unstack()  # (items, 2)
    n, total = (int(captions.max(axis=1).sum()) for captions in (scored_counts, counts))
    halves = (rows[rows["side"] == index] for index in (0, 1))
    first, second = (dict(zip(half["pair"], half["value"], strict=True)) for half in halves)
    source_of = dict(zip(rows["pair"], rows["source"], strict=True))
    estimate = statistics.difference_of_means(first, second, source_of)
    return None if estimate is None else replace(estimate, n=n), total - n


def _estimate_choices(table: ScoreTable) -> Figures:
    """Accuracy by type of question with gap, baselines and chance; and which templates are chosen."""
    questions = table.where(metric="accuracy")
    if not len(questions):
        return
    present = questions.names("type")
    types = {"all": questions, **{t: questions.where(type=t) for t in TEMPLATES if t in present}}
    for type_, members in types.items():
        of_type = members.figure(metric="accuracy", type=type_)
        if of_type["value"] == 1 and members.scored.frame["alike"].notna().all():  # ties went to the first
            of_type["refused"] = "all options tie"
        yield of_type
    if questions.frame["first"].notna().all() and len(questions) > 1:
        yield number(1.0, unit="%", n=len(questions), metric="right first", type="all")
    if {AFFIRMATION, NEGATION} <= types.keys():
        ends = [types[type_] for type_ in (AFFIRMATION, NEGATION)]
        unscored = sum(end.count_reasons().total() for end in ends)
        yield _subtract_means(*(end.scored for end in ends), unscored=unscored, metric="gap", type="all")
    for type_, members in types.items():
        others = table if type_ == "all" else table.where(type=type_)
        yield from baselines.estimate_baselines(members, others, type=type_)
    chance = _map_entries(questions, "templates", lambda templates: 1 / len(templates)).mean()
    yield number(float(chance), unit="%", n=len(questions), metric="chance", type="all")
    # --- the templates of the chosen options, over questions whose options have several
    is_typed = _map_entries(questions, "templates", lambda names: all(names) and len(set(names)) > 1)
    typed = ScoreTable(questions.frame[is_typed.astype(bool)])
    for template in TEMPLATES:
        offered = _template_shares(typed, template, "templates")
        if offered.any():
            unscored = typed.count_reasons().total()
            share = statistics.bounded_mean(_template_shares(typed.scored, template), typed.scored.clusters)
            yield figure(share, unit="%", unscored=unscored, metric="selected", template=template)
            yield number(float(offered.mean()), unit="%", n=len(typed), metric="offered", template=template)
    for type_ in types:
        yield from _estimate_wrong(typed if type_ == "all" else typed.where(type=type_), type_)


def _map_entries(table: ScoreTable, column: str, function: Callable[[list[str]], float]) -> np.ndarray:
    """(n,) float64: a function of each row's entry, split at "/"; computed once per distinct entry."""
    entries = table.frame[column].cat
    values = np.array([function(entry.split("/")) for entry in entries.categories], dtype=np.float64)
    return values[entries.codes] if len(values) else np.zeros(0)


def _template_shares(table: ScoreTable, template: str, column: str = "chosen") -> np.ndarray:
    """(n,) float64: the share of each choice, or of each question's options, with that template."""
    return _map_entries(table, column, lambda templates: templates.count(template) / len(templates))


def _estimate_wrong(rows: ScoreTable, type_: str) -> Figures:
    """The share of the wrong choices that falls on each template; n: the number of wrong choices."""
    scored = rows.scored
    wrong = 1.0 - scored.values  # (n,) wrong part of each choice: ties count in part
    if not wrong.sum():
        return
    for template in TEMPLATES:
        right = np.where(scored.frame["type"] == template, scored.values, 0.0)  # (n,)
        hits = _template_shares(scored, template) - right  # (n,) wrong part on this template
        shares = np.divide(hits, wrong, out=np.zeros_like(hits), where=wrong != 0)
        estimate = statistics.bounded_mean(shares, scored.clusters, weights=wrong)
        labels: Row = {"metric": "wrong", "type": type_, "template": template}
        row = figure(estimate, unit="%", unscored=rows.count_reasons().total(), **labels)
        yield {**row, "n": round(float(wrong.sum()), 3)}


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
    present, right = (questions.frame["answer"] == "yes").to_numpy(), questions.values == 1  # (n,) bool
    said_yes, is_yes = ScoreTable(questions.frame[present == right]), ScoreTable(questions.frame[present])
    yield said_yes.figure(metric="precision", type="all")
    yield is_yes.figure(metric="recall", type="all")
    understood = table.where(metric="joint", type=REMOVED).scored.values  # TU
    changed = table.where(
        metric="pair", type=KEPT, outcome=OUTCOMES[1:3]
    ).scored.values  # two rows a pair: ID / 2
    means = {"F1": (said_yes.values, is_yes.values), "F1 (TU, ID)": (understood, 1 - 2 * changed)}
    for metric, (first, second) in means.items():
        a, b = (float(part.mean()) if len(part) else 0.0 for part in (first, second))
        value = 2 * a * b / (a + b) if len(first) and len(second) and a + b else None  # harmonic mean
        yield number(value, unit="%", n=len(questions), metric=metric, type="all")


def _estimate_difficulty(joint: ScoreTable, score: str) -> Figures:
    """The joint score at every level of each axis, over groups where the later axes are at 0."""
    levels = {text: json.loads(text) for text in joint.names("difficulty")}  # JSON -> axis -> level
    axes = list(dict.fromkeys(axis for level_of in levels.values() for axis in level_of))
    for index, axis in enumerate(axes):
        later = axes[index + 1 :]
        level_of = {text: entry[axis] for text, entry in levels.items() if not any(entry[a] for a in later)}
        for level in sorted({*level_of.values()}):
            members = joint.where(difficulty=tuple(text for text, own in level_of.items() if own == level))
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
    clusters = np.array(cells.clusters)[::4][complete].tolist()  # one per pair
    answers = "cell" not in cells.names("metric")  # 0 or 1, not scores of a model's own scale
    for part, estimate in two_way.effects(scores, clusters, 1.0 if answers else None).items():
        yield figure(estimate, unit="", unscored=unscored, metric="effect", part=part)
    for part, estimate in two_way.shares(scores, clusters).items():
        yield figure(estimate, unit="%", unscored=unscored, metric="part", part=part)
    more = {"text alone": two_way.text_alone} | ({} if answers else {"same caption": two_way.same_caption})
    for metric, estimator in more.items():
        yield figure(estimator(scores, clusters), unit="%", unscored=unscored, metric=metric)


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
            yield verdicts.describe(share, unit="%", statistic="judged", **labels)
            if share is not None and rates is not None:
                corrected = calibration.correct(share, rates)
                row = number(corrected.value, unit="%", n=share.n, statistic="corrected", **labels)
                yield {**row, "low": corrected.low, "high": corrected.high, "refused": corrected.refused}
        sides = []  # query -> source, share of its images that lack the object; NaN if a verdict is missing
        for kind in (NEGATED, ORIGINAL):
            verdicts = table.where(metric=f"without@{k}", kind=kind)
            rows = verdicts.frame.assign(item=verdicts.frame["item"].cat.codes, source=verdicts.clusters)
            by_query = rows.groupby("item", sort=False)
            is_incomplete = by_query["value"].apply(lambda values: values.isna().any())
            sides.append(by_query.agg({"source": "first", "value": "mean"}).mask(is_incomplete))
        pairs = sides[0].join(sides[1], how="inner", rsuffix="_other").dropna()
        differences = (pairs["value"] - pairs["value_other"]).to_numpy()  # (queries,) in [-1, 1]
        avoided = statistics.bounded_mean(differences, pairs["source"].tolist(), -1.0, 1.0)
        if avoided is not None:
            yield figure(avoided, unit="points", metric=f"avoided@{k}", direction=TEXT_TO_IMAGE)
