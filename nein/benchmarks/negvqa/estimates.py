"""The figures of a run of NegVQA, of its table of scores.

task        metric
accuracy    "accuracy" per variant and category, with either interval
subsets     "accuracy" per variant and subset, and "difference"
gap         over pairs scored in both: "original", "negated" (shares right), "gap" with its test, "ratio"
outcomes    of pairs: "both", "only_original", "only_negated", "neither", and the test "mcnemar"
position    share of letters that are A: "answered", "right"
agreement   "same": share of questions whose generated and likeliest letters agree
unread      "answers" without a letter, by reason
blind       per variant and category the figures of `nein.benchmarks.baselines`: of the questions that were
            also asked without the picture and without the question, and of all beside the text reader

Intervals are "clustered" by image; under "paper" also "normal", the paper's p -/+ 1.96 sqrt(p (1 - p) / n).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from nein import statistics
from nein.benchmarks import baselines
from nein.benchmarks.baselines import BASELINES, TEXT_READER
from nein.datasets.negvqa import AVERAGE, CATEGORIES, OTHER, VARIANTS
from nein.engine.folder import Row
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable
from nein.statistics.estimates import Estimate

#: What can become of a pair -> the values of its original and its negated question.
OUTCOMES = {"both": (1, 1), "only_original": (1, 0), "only_negated": (0, 1), "neither": (0, 0)}


def of_table(scores: ScoreTable, asking: str | None = None) -> pd.DataFrame:
    """Every figure of one model. asking: how a judge was asked; None for other models."""
    figures: list[Row] = []
    scored, others = scores.where(metric="accuracy"), scores.where(metric=(*BASELINES, TEXT_READER))
    for (scoring, protocol), rows in scored.groups("scoring", "protocol"):
        parts: list[Iterable[Row]] = [_accuracies(rows, protocol), _unread(rows)]
        if protocol == "fixed":
            of_scoring = others.frame["scoring"].fillna(scoring) == scoring  # the text reader has none
            parts += [_by_subset(rows), _blind(rows, ScoreTable(others.frame[of_scoring])), _positions(rows)]
            parts += [paired(members, category) for category, members in by_category(rows)]
        figures += [{**row, "scoring": scoring, "protocol": protocol} for part in parts for row in part]
    both = agreement(scored)
    frame = frames.frame([*figures, *([both] if both else [])])
    return frames.label(frame, headline=np.where(frame["scoring"] == headline(frame, asking), "yes", ""))


def headline(frame: pd.DataFrame, asking: str | None) -> str:
    """The scoring that stands for a model: what is written, unless no letter could be read there; of a judge
    that is asked about each option, and seldom says yes to just one, the likeliest yes."""
    accuracies = frames.select(frame, task="accuracy", protocol="fixed")
    scored = accuracies.groupby("scoring", sort=False)["n"].sum()
    order = ("logprob", "generated") if asking == "options" else ("generated", "logprob")
    return next((name for name in order if scored.get(name)), str(next(iter(scored.index), "")))


def by_category(rows: ScoreTable) -> Iterator[tuple[str, ScoreTable]]:
    """The categories that occur, in the paper's order, then the average, of all rows."""
    for category in (*CATEGORIES, OTHER):
        if len(members := rows.where(category=category)):
            yield category, members
    yield AVERAGE, rows


def _accuracies(rows: ScoreTable, protocol: str) -> Iterator[Row]:
    for variant in VARIANTS:
        what: Row = {"task": "accuracy", "metric": "accuracy", "variant": variant, "unit": "%"}
        for category, members in by_category(rows.where(variant=variant)):
            estimate = accuracy(members, category, protocol)
            yield members.described(estimate, **what, category=category, interval="clustered")
            if protocol == "paper":
                yield members.described(normal(estimate), **what, category=category, interval="normal")


def accuracy(rows: ScoreTable, category: str, protocol: str) -> Estimate | None:
    """Share of right answers over all questions of a category; under "paper", but for the average, the
    unweighted mean of its subsets' accuracies, as the released notebook has it."""
    scored = rows.scored
    if protocol != "paper" or category == AVERAGE or not len(scored):
        return rows.estimate()
    subset = scored.frame["subset"].cat.codes.to_numpy()
    weights = 1 / np.bincount(subset)[subset]
    return statistics.bounded_mean(scored.values, scored.clusters, weights=weights)


def normal(estimate: Estimate | None) -> Estimate | None:
    """The same share with the interval of NegVQA's Table 1 (arXiv:2505.22946), not cut off at 0 and 1."""
    if estimate is None:
        return None
    value = min(1.0, max(0.0, estimate.value))
    reach = 1.96 * math.sqrt(value * (1 - value) / estimate.n)
    return replace(estimate, low=value - reach, high=value + reach, standard_error=None)


def _by_subset(rows: ScoreTable) -> Iterator[Row]:
    for (subset,), members in rows.groups("subset"):
        what = {"task": "subsets", "subset": subset}
        ends = [members.where(variant=v).figure(metric="accuracy", variant=v, **what) for v in VARIANTS]
        yield from ends
        first, second = (end["value"] for end in ends)
        if first is not None and second is not None:
            yield frames.number(first - second, unit="points", metric="difference", **what)


def _blind(rows: ScoreTable, others: ScoreTable) -> Iterator[Row]:
    """Of the questions that were also asked without a half, and of all beside the text reader."""
    for variant in VARIANTS if len(others) else ():
        seen = rows.where(variant=variant)
        for category, members in by_category(others.where(variant=variant)):
            what = {"task": "blind", "variant": variant, "category": category}
            yield from baselines.figures(seen, members, **what)


def paired(rows: ScoreTable, category: str) -> Iterator[Row]:
    """Both questions of a pair together: the negation gap with its test, and the outcomes with McNemar's,
    which takes pairs for independent."""
    first, second = (rows.where(variant=variant) for variant in VARIANTS)
    original, negated, clusters = first.pair(second)
    n = len(original)
    what: Row = {"task": "gap", "category": category}
    *ends, gap = rows.gap(*VARIANTS, **what)
    for row in (*ends, gap):  # original, negated, gap: metrics here
        yield {**row, "metric": row["variant"], "variant": ""}
    ratio = statistics.pairs_ratio(original, negated, clusters)
    yield frames.figure(ratio, unit="", metric="ratio", **what)
    what |= {"task": "outcomes", "unscored": len(first) - n, "n": n}
    counts = {name: int(((original == a) & (negated == b)).sum()) for name, (a, b) in OUTCOMES.items()}
    for name, count in counts.items():
        yield frames.number(count / n if n else None, unit="%", metric=name, **what)
    exact = mcnemar(counts["only_original"], counts["only_negated"])
    for metric, p in (("mcnemar", exact), ("clustered", gap.get("p"))):
        yield frames.number(None, unit="", metric=metric, p=p, **what)


def mcnemar(first: int, second: int) -> float:
    """Two-sided p that two kinds of discordant pairs are equally likely, by the exact binomial test; 1.0 when
    there are none. Source: McNemar, Psychometrika 12 (1947), in its exact form."""
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def _positions(rows: ScoreTable) -> Iterator[Row]:
    """Share of "A" among the letters given and among the right letters of the same questions."""
    for variant in VARIANTS:
        members = rows.where(variant=variant)
        given = ScoreTable(members.frame[members.frame["letter"].notna()])
        answered = (given.frame["letter"] == "A").to_numpy(np.float64)
        right = len(given.where(answer="A")) / len(given) if len(given) else None
        what: Row = {"task": "position", "variant": variant, "unit": "%"}
        yield frames.figure(statistics.bounded_mean(answered, given.clusters), metric="answered", **what)
        yield frames.number(right, metric="right", n=len(given), **what)


def agreement(scored: ScoreTable) -> Row | None:
    """Share of questions whose generated and likeliest letters are the same, of those that have both; None
    where one way of scoring was not asked for."""
    fixed = scored.where(protocol="fixed").frame
    fixed = fixed.astype({"scoring": str})
    letters = fixed.pivot(index=["id", "variant"], columns="scoring", values="letter")
    if letters.shape[1] < 2:
        return None
    both = letters.dropna()
    same, n = int((both.iloc[:, 0] == both.iloc[:, 1]).sum()), len(both)
    return frames.number(same / n if n else None, unit="%", n=n, task="agreement", metric="same")


def _unread(rows: ScoreTable) -> Iterator[Row]:
    for variant in VARIANTS:
        reasons = Counter(rows.where(variant=variant).frame["reason"].dropna())
        what: Row = {"unit": "count", "task": "unread", "metric": "answers", "variant": variant}
        for reason, count in reasons.most_common():
            yield frames.number(count, reason=reason, **what)
