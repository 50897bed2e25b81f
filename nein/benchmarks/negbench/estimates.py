"""Estimates with intervals from the table of scores, as rows of the frame of figures.

Columns besides the usual: kind and direction (retrieval), type (of questions), template (of what was chosen).

recall@k, BASELINE@k   recall; gap@k: original minus negated captions, paired
accuracy               of questions, and the figures of `nein.benchmarks.baselines`; gap: accuracy where the
                       right option affirms minus where it denies; chance: of a constant scorer
drop                   accuracy on the control (questions without a negation) minus accuracy
right first            1 where the right option is always shown first
precision, recall, F1  of yes (BEAF); F1 (TU, ID): of TU and what is not ID
selected, offered      share of choices, and of options, by template; wrong: of the wrong choices
joint, joint chance    share of groups all answered right, by score (type), and by guess; pair: which of two
                       (outcome); joint by difficulty: of groups with that level of that axis
effect, part           of minimal pairs (`nein.statistics.two_way`), by part (caption, picture, both): in the
                       unit of scores, and as share of the sum of squares; text alone; same caption
without@k              share of what is found that lacks the denied thing, with the columns statistic
                       ("judged", "corrected") and refused; avoided@k: negated minus original captions;
                       satisfied@k: by the questions of a test
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
from nein.benchmarks.negbench.scores import IMAGE_TO_TEXT, OUTCOMES, TEXT_TO_IMAGE
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
    """All figures of a table, by task and wording. rates: the calibrated error of the judge, if any."""
    figures = []
    for (task, variant), part in table.groups("task", "variant"):
        parts = of_retrieval(part), of_judged(part, rates), of_choices(part), of_groups(part), of_pairs(part)
        rows = [row for each in parts for row in each]
        sides = [table.where(task=f"{task}{AFFIRMED}", variant=variant or None), part]
        values = [side.where(metric="accuracy").scored for side in sides]
        if all(map(len, values)):
            rows.append(_difference(*values, metric="drop", type="all"))
        figures += [{"task": task, "variant": variant, **row} for row in rows]
    return frames.frame(figures)


def _difference(first: ScoreTable, second: ScoreTable, **what: Any) -> Row:
    one, other = (dict(zip(side.frame["id"], side.values, strict=True)) for side in (first, second))
    source_of = dict(zip(first.frame["id"], first.clusters, strict=True))
    source_of |= dict(zip(second.frame["id"], second.clusters, strict=True))
    return figure(statistics.difference_of_means(one, other, source_of), unit="points", **what)


def of_retrieval(table: ScoreTable) -> Figures:
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
                gap, unscored = _gap(original, negated)
                yield figure(gap, unit="points", unscored=unscored, metric=f"gap@{k}", direction=direction)


def _gap(original: ScoreTable, negated: ScoreTable) -> tuple[Estimate | None, int]:
    """The negation gap over the items that have both kinds, paired, and how many pairs are unscored.

    The k-th captions of an item belong together, and both have to be scored, where it has as many of either
    kind. Elsewhere (a paraphrase was lost) all of its scored captions enter: paired by picture alone.
    """
    sides = []
    for place, side in enumerate((original, negated)):  # both have the same categories, so codes name items
        item = side.frame["item"].cat.codes.to_numpy(np.int64)
        columns = {"side": place, "item": item, "source": side.clusters, "value": side.values}
        sides.append(pd.DataFrame(columns))
    rows = pd.concat(sides, ignore_index=True)
    rows["pair"] = rows.groupby(["side", "item"]).cumcount() * 2**32 + rows["item"]
    asked = rows.groupby(["item", "side"]).size().unstack(fill_value=0)  # captions of each kind
    same, lost = rows["item"].map(asked[0] == asked[1]), rows["value"].isna()
    rows = rows[~lost & ~(same & lost.groupby(rows["pair"]).transform("any"))]
    rows = rows[rows.groupby("item")["side"].transform("nunique") == 2]
    scored = rows.groupby(["item", "side"]).size().unstack()
    n, total = (int(captions.max(axis=1).sum()) for captions in (scored, asked))
    halves = (rows[rows["side"] == place] for place in (0, 1))
    first, second = (dict(zip(half["pair"], half["value"], strict=True)) for half in halves)
    source_of = dict(zip(rows["pair"], rows["source"], strict=True))
    estimate = statistics.difference_of_means(first, second, source_of)
    return None if estimate is None else replace(estimate, n=n), total - n


def of_choices(table: ScoreTable) -> Figures:
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
        unscored = sum(end.unscored().total() for end in ends)
        yield _difference(*(end.scored for end in ends), unscored=unscored, metric="gap", type="all")
    for type_, members in types.items():
        others = table if type_ == "all" else table.where(type=type_)
        yield from baselines.figures(members, others, type=type_)
    chance = _of_each(questions, "templates", lambda templates: 1 / len(templates)).mean()
    yield number(float(chance), unit="%", n=len(questions), metric="chance", type="all")
    known = _of_each(questions, "templates", lambda names: all(names) and len(set(names)) > 1).astype(bool)
    typed = ScoreTable(questions.frame[known])
    for template in TEMPLATES:
        offered = _mass(typed, template, "templates")
        if offered.any():
            unscored = typed.unscored().total()
            share = statistics.bounded_mean(_mass(typed.scored, template), typed.scored.clusters)
            yield figure(share, unit="%", unscored=unscored, metric="selected", template=template)
            yield number(float(offered.mean()), unit="%", n=len(typed), metric="offered", template=template)
    for type_ in types:
        yield from _wrong(typed if type_ == "all" else typed.where(type=type_), type_)


def _of_each(table: ScoreTable, column: str, of: Callable[[list[str]], float]) -> np.ndarray:
    """(n,) a function of a column's entries, separated by "/"."""
    entries = table.frame[column].cat
    values = np.array([of(entry.split("/")) for entry in entries.categories], dtype=np.float64)
    return values[entries.codes] if len(values) else np.zeros(0)


def _mass(table: ScoreTable, template: str, column: str = "chosen") -> np.ndarray:
    """(n,) share of each choice, or of the options, that has a template."""
    return _of_each(table, column, lambda templates: templates.count(template) / len(templates))


def _wrong(rows: ScoreTable, type_: str) -> Figures:
    """Of the choices that are wrong, the share that falls on each template; n is how many are wrong."""
    scored = rows.scored
    wrong = 1.0 - scored.values  # (n,) how much of each choice
    if not wrong.sum():
        return
    for template in TEMPLATES:
        right = np.where(scored.frame["type"] == template, scored.values, 0.0)
        hits = _mass(scored, template) - right
        shares = np.divide(hits, wrong, out=np.zeros_like(hits), where=wrong != 0)
        estimate = statistics.bounded_mean(shares, scored.clusters, weights=wrong)
        what: Row = {"metric": "wrong", "type": type_, "template": template}
        row = figure(estimate, unit="%", unscored=rows.unscored().total(), **what)
        yield {**row, "n": round(float(wrong.sum()), 3)}


def of_groups(table: ScoreTable) -> Figures:
    joint = table.where(metric="joint")
    for score in joint.names("type"):
        members, guessed = joint.where(type=score), table.where(metric="joint chance", type=score)
        yield members.figure(metric="joint", type=score)
        chance = float(guessed.values.mean())
        yield number(chance, unit="%", n=len(guessed), metric="joint chance", type=score)
        falls = table.where(metric="pair", type=score)
        for outcome in OUTCOMES if len(falls) else ():
            yield falls.where(outcome=outcome).figure(metric="pair", type=score, outcome=outcome)
        yield from _by_difficulty(members, score)
    if {REMOVED, KEPT} <= {*joint.names("type")}:
        yield from _of_beaf(table)


def _of_beaf(table: ScoreTable) -> Figures:
    """As BEAF's `beaf_metric.py`, and its paper's F1 of TU and what is not ID (arXiv:2407.13442)."""
    questions = table.where(metric="accuracy").scored
    present, right = (questions.frame["answer"] == "yes").to_numpy(), questions.values == 1
    answered_yes, found = ScoreTable(questions.frame[present == right]), ScoreTable(questions.frame[present])
    yield answered_yes.figure(metric="precision", type="all")
    yield found.figure(metric="recall", type="all")
    understood = table.where(metric="joint", type=REMOVED).scored.values
    alone = table.where(metric="pair", type=KEPT, outcome=OUTCOMES[1:3]).scored.values  # two of a pair
    both = {"F1": (answered_yes.values, found.values), "F1 (TU, ID)": (understood, 1 - 2 * alone)}
    for metric, (first, second) in both.items():
        a, b = (float(part.mean()) if len(part) else 0.0 for part in (first, second))
        value = 2 * a * b / (a + b) if len(first) and len(second) and a + b else None
        yield number(value, unit="%", n=len(questions), metric=metric, type="all")


def _by_difficulty(joint: ScoreTable, score: str) -> Figures:
    """An axis is read where those behind it are at 0."""
    levels = {text: json.loads(text) for text in joint.names("difficulty")}
    axes = list(dict.fromkeys(axis for each in levels.values() for axis in each))
    for index, axis in enumerate(axes):
        easy = {t: each for t, each in levels.items() if not any(each[other] for other in axes[index + 1 :])}
        for level in sorted({each[axis] for each in easy.values()}):
            members = joint.where(difficulty=tuple(t for t, each in easy.items() if each[axis] == level))
            what = {"metric": "joint by difficulty", "type": score, "axis": axis, "level": str(level)}
            yield members.figure(**what)


def of_pairs(table: ScoreTable) -> Figures:
    """Of minimal pairs whose four questions are there."""
    cells = table.where(metric=("cell", "answer cell"))
    if not len(cells):
        return
    each = cells.values.reshape(-1, 2, 2)  # (pairs, caption, picture)
    complete = np.isfinite(each).all((1, 2))
    scores, unscored = each[complete], int((~complete).sum())
    clusters = np.array(cells.clusters)[::4][complete].tolist()
    answers = "cell" not in cells.names("metric")
    for part, estimate in two_way.effects(scores, clusters, 1.0 if answers else None).items():
        yield figure(estimate, unit="", unscored=unscored, metric="effect", part=part)
    for part, estimate in two_way.shares(scores, clusters).items():
        yield figure(estimate, unit="%", unscored=unscored, metric="part", part=part)
    more = {"text alone": two_way.text_alone} | ({} if answers else {"same caption": two_way.same_caption})
    for metric, estimator in more.items():
        yield figure(estimator(scores, clusters), unit="%", unscored=unscored, metric=metric)


def of_judged(table: ScoreTable, rates: Rates | None) -> Figures:
    for k in KS:
        for kind in JUDGED:
            satisfied = table.where(metric=f"satisfied@{k}", kind=kind)
            if len(satisfied):
                yield satisfied.figure(metric=f"satisfied@{k}", kind=kind, statistic="judged")
            found = table.where(metric=f"without@{k}", kind=kind)
            if not len(found):
                continue
            what: Row = {"metric": f"without@{k}", "kind": kind, "direction": TEXT_TO_IMAGE}
            share = found.estimate()
            yield found.described(share, unit="%", statistic="judged", **what)
            if share is not None and rates is not None:
                right = calibration.correct(share, rates)
                row = number(right.value, unit="%", n=share.n, statistic="corrected", **what)
                yield {**row, "low": right.low, "high": right.high, "refused": right.refused}
        sides = []  # query -> source, share of what it found that is without the thing; NaN without a verdict
        for kind in (NEGATED, ORIGINAL):
            found = table.where(metric=f"without@{k}", kind=kind)
            rows = found.frame.assign(item=found.frame["item"].cat.codes, source=found.clusters)
            by_query = rows.groupby("item", sort=False)
            lacking = by_query["value"].apply(lambda verdicts: verdicts.isna().any())
            sides.append(by_query.agg({"source": "first", "value": "mean"}).mask(lacking))
        apart = sides[0].join(sides[1], how="inner", rsuffix="_other").dropna()
        avoided = statistics.bounded_mean(
            (apart["value"] - apart["value_other"]).to_numpy(), apart["source"].tolist(), -1.0, 1.0
        )
        if avoided is not None:
            yield figure(avoided, unit="points", metric=f"avoided@{k}", direction=TEXT_TO_IMAGE)
