"""Figures of a run from its score rows, which are all that this module reads.

Intervals come in two kinds: "clustered" by picture, as everywhere in this package, and "normal", the paper's
p -/+ 1.96 sqrt(p (1 - p) / n), which takes questions about one picture for independent.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nein import statistics
from nein.benchmarks.baselines import BASELINES, GAIN, TEXT_ONLY
from nein.benchmarks.negvqa.scores import PROTOCOLS
from nein.datasets.negvqa.categories import AVERAGE, CATEGORIES, OTHER
from nein.datasets.negvqa.questions import VARIANTS
from nein.reporting import columns
from nein.reporting import figures as frames
from nein.reporting.columns import NONE, Scores
from nein.statistics import bootstrap
from nein.statistics.estimates import Estimate

#: What figures need of a row, besides its value.
KEYS = (
    "id", "variant", "subset", "category", "source", "answer", "scoring", "protocol", "letter", "reason",
    "baseline",
)  # fmt: skip
#: What can become of a pair -> the values of its original and its negated question.
OUTCOMES = {
    "both": (1.0, 1.0),
    "only_original": (1.0, 0.0),
    "only_negated": (0.0, 1.0),
    "neither": (0.0, 0.0),
}


def normal_interval(value: float, n: int) -> tuple[float, float]:
    """value -/+ 1.96 sqrt(value (1 - value) / n), not cut off at 0 and 1.

    The 95 % interval of NegVQA (arXiv:2505.22946), Table 1: it reproduces the printed bounds
    (`nein.benchmarks.negvqa.paper_numbers`). Raises ValueError unless 0 <= value <= 1 and n >= 1.
    """
    if not 0 <= value <= 1 or n < 1:
        raise ValueError(f"{value} of {n} is no proportion")
    reach = 1.96 * math.sqrt(value * (1 - value) / n)
    return value - reach, value + reach


def figures(scores: Scores, asking: str | None = None) -> pd.DataFrame:
    """Every figure of one model; columns besides the usual: scoring, protocol, category, subset, interval,
    reason, headline ("yes": of the scoring that stands for the model).

    task        metric
    accuracy    "accuracy" per variant and category, with either interval
    subsets     "accuracy" per variant and subset, and "difference"
    gap         over pairs scored in both: "original", "negated" (shares right), "gap" with its test, "ratio"
    outcomes    of pairs: "both", "only_original", "only_negated", "neither", and the test "mcnemar"
    position    share of letters that are A: "answered", "right"
    agreement   "same": share of questions whose generated and likeliest letters agree
    unread      "answers" without a letter, by reason
    blind       per variant and category, of the questions that were also asked without the picture and
                without the question: "text only", "picture only", and "gain over text", accuracy minus the
                former, paired

    scores  `KEYS` of the lines of scores.jsonl, and of blind.jsonl.
    asking  How a judge was asked; None for other models.
    """
    scored = scores.where(baseline=None)
    made: list[dict[str, Any]] = []
    for scoring in scored.distinct("scoring"):
        for protocol in PROTOCOLS:
            read = scored.where(scoring=scoring, protocol=protocol)
            rows = [entry for part in _PARTS for entry in part(read, protocol)]
            rows += _blind(read, scores.where(scoring=scoring, protocol=None), protocol)
            made += [{**entry, "scoring": scoring, "protocol": protocol} for entry in rows]
    both = agreement(scored)
    frame = frames.frame([*made, *([both] if both else [])])
    return frames.label(frame, headline=np.where(frame["scoring"] == headline(frame, asking), "yes", ""))


def headline(frame: pd.DataFrame, asking: str | None) -> str:
    """The scoring that stands for a model: what is written, unless no letter could be read there; of a judge
    asked about one option at a time, which seldom says yes to just one, the likeliest yes."""
    there = frames.select(frame, task="accuracy", protocol="fixed")
    scored = there.groupby("scoring", sort=False)["n"].sum()
    order = ("logprob", "generated") if asking == "options" else ("generated", "logprob")
    return next((name for name in order if scored.get(name)), str(next(iter(scored.index), "")))


def of_rows(scored: Iterable[Mapping[str, Any]], blind: Iterable[Mapping[str, Any]] = ()) -> Scores:
    """What `figures` takes, of lines of scores.jsonl and blind.jsonl."""
    return columns.of_rows(itertools.chain(scored, blind), KEYS)


def categories_of(rows: Scores) -> list[str]:
    """The categories that occur, in the paper's order, then the average."""
    present = {*rows.distinct("category")}
    return [*(c for c in (*CATEGORIES, OTHER) if c in present), AVERAGE]


def _in(rows: Scores, category: str) -> Scores:
    return rows if category == AVERAGE else rows.where(category=category)


def _accuracies(rows: Scores, protocol: str) -> Iterator[dict[str, Any]]:
    for variant in VARIANTS:
        members = rows.where(variant=variant)
        for category in categories_of(members):
            estimate = accuracy(members, category, protocol)
            what: dict[str, Any] = {"task": "accuracy", "metric": "accuracy", "variant": variant}
            what |= {"category": category, "unit": "%"}
            what["unscored"] = len(_in(members, category)) - (estimate.n if estimate else 0)
            yield frames.figure(estimate, **what, interval="clustered")
            yield frames.figure(normal(estimate), **what, interval="normal")


def accuracy(rows: Scores, category: str, protocol: str) -> Estimate | None:
    """Share of right answers in a category, or overall (`AVERAGE`).

    protocol  "fixed": over all questions of the category. "paper": the unweighted mean of its subsets'
              accuracies, as the released notebook has it; the average is over all questions in both.
    """
    members = _in(rows, category)
    scored = members.scored
    subsets = sorted(scored.distinct("subset"))
    if protocol != "paper" or category == AVERAGE or len(subsets) < 2:
        return _pooled(members)
    # Columns: right answers per subset, then questions per subset.
    table = np.zeros((len(scored), 2 * len(subsets)))
    for column, subset in enumerate(subsets):
        here = scored.places["subset"] == scored.names["subset"].index(subset)
        table[here, column] = scored.value[here]
        table[here, len(subsets) + column] = 1

    def mean_of_subsets(sums: np.ndarray) -> np.ndarray:
        return (sums[:, : len(subsets)] / sums[:, len(subsets) :]).mean(1)

    none, each = [0.0] * len(subsets), [1.0] * len(subsets)
    clusters = scored.clusters("source")
    return bootstrap.statistic(mean_of_subsets, table, clusters, [*none, *each], [*each, *each])


def _pooled(rows: Scores) -> Estimate | None:
    scored = rows.scored
    return statistics.bounded_mean(scored.value, scored.clusters("source"))


def normal(estimate: Estimate | None) -> Estimate | None:
    """The same share with the paper's interval."""
    if estimate is None:
        return None
    low, high = normal_interval(min(1.0, max(0.0, estimate.value)), estimate.n)
    return replace(estimate, low=low, high=high, standard_error=None)


def _by_subset(rows: Scores, protocol: str) -> Iterator[dict[str, Any]]:
    if protocol != "fixed":
        return
    for subset in rows.distinct("subset"):
        ends = []
        for variant in VARIANTS:
            members = rows.where(subset=subset, variant=variant)
            ends.append(estimate := _pooled(members))
            yield frames.figure(
                estimate, unit="%", unscored=len(members) - (estimate.n if estimate else 0), task="subsets",
                metric="accuracy", variant=variant, subset=subset,
            )  # fmt: skip
        first, second = ends
        if first and second:
            drop = first.value - second.value
            yield frames.number(drop, unit="points", task="subsets", metric="difference", subset=subset)


def _blind(rows: Scores, blind: Scores, protocol: str) -> Iterator[dict[str, Any]]:
    if protocol != "fixed":
        return
    for variant in VARIANTS:
        seen, unseen = rows.where(variant=variant), blind.where(variant=variant)
        for category in categories_of(unseen) if len(unseen) else ():
            what: dict[str, Any] = {"task": "blind", "variant": variant, "category": category}
            for baseline in BASELINES:
                members = _in(unseen, category).where(baseline=baseline)
                if not len(members):
                    continue
                share = _pooled(members)
                unscored = len(members) - (share.n if share else 0)
                yield frames.figure(share, unit="%", unscored=unscored, metric=baseline, **what)
            alone = _in(unseen, category).where(baseline=TEXT_ONLY)
            with_picture, without, clusters = _pairs_of(seen, alone)
            gain = statistics.bounded_mean(with_picture - without, clusters, -1.0, 1.0)
            unscored = len(alone) - (gain.n if gain else 0)
            yield frames.figure(gain, unit="points", unscored=unscored, metric=GAIN, **what)


def _pairs(rows: Scores, protocol: str) -> Iterator[dict[str, Any]]:
    if protocol == "fixed":
        for category in categories_of(rows):
            yield from paired(rows, category)


def paired(rows: Scores, category: str) -> list[dict[str, Any]]:
    """Both questions of a pair together: the negation gap with its test, and the outcomes with McNemar's.

    The gap is the mean of (original - negated) over pairs scored in both, clustered by picture, and "ratio"
    accuracy on the original over accuracy on the negated questions. Its `p` respects pictures
    (`nein.statistics.paired_test`); that of "mcnemar" takes pairs for independent.
    """
    first, second = (_in(rows, category).where(variant=variant) for variant in VARIANTS)
    original, negated, clusters = _pairs_of(first, second)
    test = statistics.pairs_test(original, negated, clusters)
    n, unscored = len(original), len(first) - len(original)
    counts = {
        name: int(((original == one) & (negated == other)).sum()) for name, (one, other) in OUTCOMES.items()
    }
    told, denied = counts["both"] + counts["only_original"], counts["both"] + counts["only_negated"]
    in_gap: dict[str, Any] = {"task": "gap", "category": category}
    in_outcomes: dict[str, Any] = {"task": "outcomes", "category": category, "unscored": unscored}
    return [
        frames.number(told / n if n else None, unit="%", n=n, metric="original", **in_gap),
        frames.number(denied / n if n else None, unit="%", n=n, metric="negated", **in_gap),
        frames.figure(
            test.difference if test else None, unit="points", unscored=unscored, metric="gap",
            p=test and test.p, p_least=test and test.least, **in_gap,
        ),
        frames.figure(
            statistics.pairs_ratio(original, negated, clusters), unit="", metric="ratio", **in_gap
        ),
        *(
            frames.number(count / n if n else None, unit="%", n=n, metric=name, **in_outcomes)
            for name, count in counts.items()
        ),
        frames.number(
            None, unit="", n=n, metric="mcnemar", **in_outcomes,
            p=mcnemar(counts["only_original"], counts["only_negated"]),
        ),
        frames.number(None, unit="", n=n, metric="clustered", p=test and test.p, **in_outcomes),
    ]  # fmt: skip


def _pairs_of(first: Scores, second: Scores) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Both values and the picture of every question that is scored in both, in the order of the first."""
    one, other = first.value, second.values_by("id")[first.places["id"]]
    both = ~(np.isnan(one) | np.isnan(other))
    return one[both], other[both], first.of(both).clusters("source")


def mcnemar(first: int, second: int) -> float:
    """Two-sided p that two kinds of discordant pairs are equally likely, by the exact binomial test; 1.0 when
    there are none. Source: McNemar, Psychometrika 12 (1947), in its exact form."""
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def _positions(rows: Scores, protocol: str) -> Iterator[dict[str, Any]]:
    if protocol == "fixed":
        for variant in VARIANTS:
            yield from position(rows.where(variant=variant), variant)


def position(rows: Scores, variant: str) -> list[dict[str, Any]]:
    """Share of "A" among the letters given, with its clustered interval, and among the right letters of the
    same questions: a model without a bias has the two alike."""
    given = rows.of(rows.places["letter"] != NONE)
    said = np.array([letter == "A" for letter in given.of_each("letter")], dtype=np.float64)
    share = statistics.bounded_mean(said, given.clusters("source"))
    right = len(given.where(answer="A")) / len(given) if len(given) else None
    what: dict[str, Any] = {"task": "position", "variant": variant, "unit": "%"}
    return [
        frames.figure(share, metric="answered", **what),
        frames.number(right, metric="right", n=len(given), **what),
    ]


def agreement(scored: Scores) -> dict[str, Any] | None:
    """Share of questions whose generated and likeliest letters are the same, of those that have both; None
    where one way of scoring was not asked for."""
    scorings = scored.distinct("scoring")
    if len(scorings) < 2:
        return None
    fixed = scored.where(protocol="fixed")
    same = n = 0
    for variant in VARIANTS:
        letters = np.full((len(scorings), len(scored.names["id"])), NONE)
        for line, scoring in zip(letters, scorings, strict=True):
            rows = fixed.where(scoring=scoring, variant=variant)
            line[rows.places["id"]] = rows.places["letter"]
        both = letters[:, (letters != NONE).all(0)]
        same, n = same + int((both == both[0]).all(0).sum()), n + both.shape[1]
    return frames.number(same / n if n else None, unit="%", n=n, task="agreement", metric="same")


def _unread(rows: Scores, protocol: str) -> Iterator[dict[str, Any]]:
    for variant in VARIANTS:
        reasons = Counter(filter(None, rows.where(variant=variant).of_each("reason")))
        for reason, count in reasons.most_common():
            yield frames.number(
                count, unit="count", task="unread", metric="answers", variant=variant, reason=reason
            )


_PARTS = (_accuracies, _by_subset, _pairs, _positions, _unread)
