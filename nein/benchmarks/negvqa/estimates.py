"""Makes the estimates of a run of NegVQA from its table of scores: a row per number.

task        metric
accuracy    "accuracy" per variant and category, with each of the intervals below
subsets     "accuracy" per variant and subset, and "difference"
gap         over pairs scored in both: "original", "negated" (shares right), "gap" with its test, "ratio"
outcomes    of pairs: "both" right, "only_original", "only_negated", "neither"; tests "mcnemar", "clustered"
position    share of A among the answered letters ("answered") and among the right ones ("right")
agreement   "same": share of questions whose generated and likeliest letters agree
unread      "answers" without a letter, by reason
blind       per variant and category the estimates of `nein.benchmarks.baselines`

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

#: Outcome of a pair -> (value of the original question, value of the negated question).
OUTCOMES = {"both": (1, 1), "only_original": (1, 0), "only_negated": (0, 1), "neither": (0, 0)}


def make_estimates(scores: ScoreTable, asking: str | None = None) -> pd.DataFrame:
    """Every estimate of one model. asking: how a judge was asked; None for other models."""
    estimates: list[Row] = []
    answers = scores.where(metric="accuracy")
    baseline_rows = scores.where(metric=(*BASELINES, TEXT_READER))
    for (scoring, protocol), rows in answers.groups("scoring", "protocol"):
        parts: list[Iterable[Row]] = [_estimate_accuracies(rows, protocol)]
        if protocol == "fixed":  # under "paper" a baseline was not read
            # The text reader has no scoring, and is compared with every one.
            is_scored = baseline_rows.frame["scoring"].fillna(scoring) == scoring  # (baseline rows,) bool
            parts += [_estimate_subsets(rows), _estimate_positions(rows)]
            parts += [_compare_with_baselines(rows, ScoreTable(baseline_rows.frame[is_scored]))]
            parts += [compare_pairs(members, category) for category, members in split_by_category(rows)]
        estimates += [{**row, "scoring": scoring, "protocol": protocol} for part in parts for row in part]
    frame = frames.frame([*estimates, *measure_agreement(answers)])

    # The headline is the generated letter, unless none could be read. A judge that is asked about one option
    # at a time seldom says yes to exactly one, so its likeliest yes comes first.
    accuracies = frames.select(frame, task="accuracy", protocol="fixed")
    counts = accuracies.groupby("scoring", sort=False)["n"].sum()  # scoring -> questions with a letter
    order = ("logprob", "generated") if asking == "options" else ("generated", "logprob")
    candidates = [*(name for name in order if counts.get(name)), *counts.index, ""]  # the first one counts
    return frames.with_columns(frame, headline=np.where(frame["scoring"] == candidates[0], "yes", ""))


def split_by_category(rows: ScoreTable) -> Iterator[tuple[str, ScoreTable]]:
    """Yields the categories that occur, in the paper's order, then all rows as the average."""
    for category in (*CATEGORIES, OTHER):
        if len(members := rows.where(category=category)):
            yield category, members
    yield AVERAGE, rows


def _estimate_accuracies(rows: ScoreTable, protocol: str) -> Iterator[Row]:
    """Accuracy of every category, then the number of answers by the reason why they have no letter."""
    for variant in VARIANTS:
        labels: Row = {"task": "accuracy", "metric": "accuracy", "variant": variant, "unit": "%"}
        for category, members in split_by_category(rows.where(variant=variant)):
            estimate = estimate_accuracy(members, category, protocol)
            labels["category"] = category
            yield members.make_figure(estimate, **labels, interval="clustered")
            if protocol == "paper":
                yield members.make_figure(use_paper_interval(estimate), **labels, interval="normal")
    for variant in VARIANTS:
        reasons = Counter(rows.where(variant=variant).frame["reason"].dropna())
        labels = {"unit": "count", "task": "unread", "metric": "answers", "variant": variant}
        for reason, count in reasons.most_common():
            yield frames.number(count, reason=reason, **labels)


def estimate_accuracy(rows: ScoreTable, category: str, protocol: str) -> Estimate | None:
    """Share of right answers over all questions of a category. Under "paper" a category is instead the
    unweighted mean of its subsets' accuracies, as in the released notebook; the average is not."""
    scored = rows.scored
    if protocol != "paper" or category == AVERAGE or not len(scored):
        return rows.estimate()
    subset = scored.frame["subset"].cat.codes.to_numpy()  # (N,) int: subset of each question
    weights = 1 / np.bincount(subset)[subset]  # (N,) float64: every subset weighs the same
    return statistics.bounded_mean(scored.values, scored.clusters, weights=weights)


def use_paper_interval(estimate: Estimate | None) -> Estimate | None:
    """The same share with the interval of NegVQA's Table 1 (arXiv:2505.22946), not cut off at 0 and 1."""
    if estimate is None:
        return None
    value = min(1.0, max(0.0, estimate.value))  # rounding may leave [0, 1]
    half_width = 1.96 * math.sqrt(value * (1 - value) / estimate.n)
    return replace(estimate, low=value - half_width, high=value + half_width, standard_error=None)


def _estimate_subsets(rows: ScoreTable) -> Iterator[Row]:
    for (subset,), members in rows.groups("subset"):
        labels = {"task": "subsets", "subset": subset}
        pair = [members.where(variant=v).figure(metric="accuracy", variant=v, **labels) for v in VARIANTS]
        yield from pair
        original, negated = (row["value"] for row in pair)
        if original is not None and negated is not None:
            yield frames.number(original - negated, unit="points", metric="difference", **labels)


def _compare_with_baselines(rows: ScoreTable, baseline_rows: ScoreTable) -> Iterator[Row]:
    """Estimates per variant and category. baseline_rows: of the blind model and of the text reader."""
    if not len(baseline_rows):
        return
    for variant in VARIANTS:
        answers = rows.where(variant=variant)
        for category, members in split_by_category(baseline_rows.where(variant=variant)):
            labels = {"task": "blind", "variant": variant, "category": category}
            yield from baselines.estimate_baselines(answers, members, **labels)


def compare_pairs(rows: ScoreTable, category: str) -> Iterator[Row]:
    """The negation gap of a category with its test, and the outcomes of its pairs with McNemar's test."""
    originals, negations = rows.where(variant="original"), rows.where(variant="negated")
    original, negated, clusters = originals.pair(negations)  # (n,) each: values 0 or 1, and the image
    n = len(original)
    labels: Row = {"task": "gap", "category": category}
    gap_rows = list(rows.gap(*VARIANTS, **labels))  # variants "original", "negated", "gap": metrics here
    for row in gap_rows:
        yield {**row, "metric": row["variant"], "variant": ""}
    ratio = statistics.pairs_ratio(original, negated, clusters)
    yield frames.figure(ratio, unit="", metric="ratio", **labels)
    labels |= {"task": "outcomes", "unscored": len(originals) - n, "n": n}
    counts = {name: int(((original == a) & (negated == b)).sum()) for name, (a, b) in OUTCOMES.items()}
    for name, count in counts.items():
        yield frames.number(count / n if n else None, unit="%", metric=name, **labels)
    exact = mcnemar(counts["only_original"], counts["only_negated"])
    for metric, p in (("mcnemar", exact), ("clustered", gap_rows[-1].get("p"))):
        yield frames.number(None, unit="", metric=metric, p=p, **labels)


def mcnemar(first: int, second: int) -> float:
    """Two-sided p of "both kinds of discordant pairs are equally likely"; first, second: their counts, 1.0 if
    both are 0. Source: McNemar, Psychometrika 12 (1947), as an exact binomial test."""
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def _estimate_positions(rows: ScoreTable) -> Iterator[Row]:
    """Share of "A" among the letters that were answered, and among the right letters of these questions."""
    for variant in VARIANTS:
        members = rows.where(variant=variant)
        lettered = ScoreTable(members.frame[members.frame["letter"].notna()])
        answered = (lettered.frame["letter"] == "A").to_numpy(np.float64)  # (N,) 1 for "A"
        right = len(lettered.where(answer="A")) / len(lettered) if len(lettered) else None
        labels: Row = {"task": "position", "variant": variant, "unit": "%"}
        yield frames.figure(statistics.bounded_mean(answered, lettered.clusters), metric="answered", **labels)
        yield frames.number(right, metric="right", n=len(lettered), **labels)


def measure_agreement(scores: ScoreTable) -> Iterator[Row]:
    """Share of questions whose generated and likeliest letters are the same, among those that have both."""
    fixed = scores.where(protocol="fixed").frame.astype({"scoring": str})
    letters = fixed.pivot(index=["id", "variant"], columns="scoring", values="letter")
    if letters.shape[1] == 2:  # (questions, scorings)
        pairs = letters.dropna()
        same, n = int((pairs.iloc[:, 0] == pairs.iloc[:, 1]).sum()), len(pairs)
        yield frames.number(same / n if n else None, unit="%", n=n, task="agreement", metric="same")
