"""Figures of a run from its score rows, which are all that this module reads.

Intervals come in two kinds: `low`, `high` are clustered by picture, as everywhere in this package;
`normal_low`, `normal_high` are the paper's, p -/+ 1.96 sqrt(p (1 - p) / n), which take questions about one
picture for independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nein import statistics
from nein.benchmarks.negvqa.scores import PROTOCOLS
from nein.datasets.negvqa.categories import AVERAGE, CATEGORIES, OTHER
from nein.datasets.negvqa.questions import VARIANTS
from nein.statistics import bootstrap
from nein.statistics.estimates import Estimate

Rows = Sequence[Mapping[str, Any]]


def normal_interval(value: float, n: int) -> tuple[float, float]:
    """value -/+ 1.96 sqrt(value (1 - value) / n), not cut off at 0 and 1.

    The 95 % interval of NegVQA (arXiv:2505.22946), Table 1: it reproduces the printed bounds
    (`nein.benchmarks.negvqa.table1`). Raises ValueError unless 0 <= value <= 1 and n >= 1.
    """
    if not 0 <= value <= 1 or n < 1:
        raise ValueError(f"{value} of {n} is no proportion")
    reach = 1.96 * math.sqrt(value * (1 - value) / n)
    return value - reach, value + reach


def summary(scored: Rows, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a report says of one run, JSON-serialisable."""
    found: dict[str, Any] = {
        "reference": manifest["reference"],
        "model": manifest.get("models", {}).get("model", {}),
        "preset": manifest["preset"],
        "protocol": manifest["protocol"],
        "prompt": manifest["identity"]["prompt"],
        "asking": manifest["identity"].get("asking"),
        "data": manifest["data"],
        "accuracy": [], "subsets": [], "paired": [], "letters": [], "unscored": [],
    }  # fmt: skip
    scorings = list(dict.fromkeys(row["scoring"] for row in scored))
    for scoring in scorings:
        for protocol in PROTOCOLS:
            own = [r for r in scored if r["scoring"] == scoring and r["protocol"] == protocol]
            about = {"scoring": scoring, "protocol": protocol}
            for variant in VARIANTS:
                rows = [r for r in own if r["variant"] == variant]
                for category in categories_of(rows):
                    entry = accuracy(rows, category, protocol)
                    found["accuracy"].append({**about, "variant": variant, "category": category, **entry})
                for subset in dict.fromkeys(r["subset"] for r in rows):
                    entry = _pooled([r for r in rows if r["subset"] == subset])
                    found["subsets"].append({**about, "variant": variant, "subset": subset, **entry})
                found["letters"].append({**about, "variant": variant, **position(rows)})
                reasons = Counter(r["reason"] for r in rows if r["reason"])
                found["unscored"] += [
                    {**about, "variant": variant, "reason": reason, "count": count}
                    for reason, count in reasons.most_common()
                ]
            for category in categories_of(own):
                found["paired"].append({**about, "category": category, **paired(own, category)})
    if len(scorings) == 2:
        found["agreement"] = agreement(scored)
    return found


def headline(found: Mapping[str, Any]) -> str:
    """The scoring that stands for a run: what is written, unless no letter could be read there; of a judge
    asked about one option at a time, which seldom says yes to just one, the likeliest yes."""
    scored = {entry["scoring"]: 0 for entry in found["accuracy"]}
    for entry in found["accuracy"]:
        if entry["protocol"] == "fixed":
            scored[entry["scoring"]] += entry["n"]
    order = ("logprob", "generated") if found.get("asking") == "options" else ("generated", "logprob")
    return next((name for name in order if scored.get(name)), next(iter(scored)))


def grade(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a report on edited pictures cites of its judge: accuracy overall on questions and their negations,
    the gap, and which judge it was, asked and read how. Protocol "fixed", scoring by `headline`.

    found  As `summary` makes it, of a run with `--model judge`.
    """
    wanted = {"scoring": headline(found), "protocol": "fixed", "category": AVERAGE}

    def pick(what: str, **more: str) -> dict[str, Any]:
        entries = found[what]
        return next(dict(e) for e in entries if all(e[k] == v for k, v in {**wanted, **more}.items()))

    return {
        "kind": "negvqa",
        "judge": found["model"]["judge"],
        "class": found["model"].get("class", ""),
        "preset": found["preset"],
        "prompt": found["prompt"],
        "asking": found["asking"],
        "scoring": wanted["scoring"],
        "data": found["data"],
        "accuracy": {variant: pick("accuracy", variant=variant) for variant in VARIANTS},
        "gap": pick("paired"),
    }


def categories_of(rows: Rows) -> list[str]:
    """The categories that occur, in the paper's order, then the average."""
    present = {row["category"] for row in rows}
    return [*(c for c in (*CATEGORIES, OTHER) if c in present), AVERAGE]


def _in(rows: Rows, category: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if category in (AVERAGE, row["category"])]


def accuracy(rows: Rows, category: str, protocol: str) -> dict[str, Any]:
    """Share of right answers in a category, or overall (`AVERAGE`).

    protocol  "fixed": over all questions of the category. "paper": the unweighted mean of its subsets'
              accuracies, as the released notebook has it; the average is over all questions in both.
    """
    own = _in(rows, category)
    if protocol != "paper" or category == AVERAGE:
        return _pooled(own)
    scored = [row for row in own if row["value"] is not None]
    subsets = sorted({row["subset"] for row in scored})
    if len(subsets) < 2:
        return _pooled(own)
    # Columns: right answers per subset, then questions per subset.
    table = np.zeros((len(scored), 2 * len(subsets)))
    for line, row in enumerate(scored):
        column = subsets.index(row["subset"])
        table[line, column] = row["value"]
        table[line, len(subsets) + column] = 1

    def mean_of_subsets(sums: np.ndarray) -> np.ndarray:
        return (sums[:, : len(subsets)] / sums[:, len(subsets) :]).mean(1)

    estimate = bootstrap.statistic(mean_of_subsets, table, [row["source"] for row in scored])
    return _entry(estimate, len(own))


def _pooled(rows: Rows) -> dict[str, Any]:
    scored = [row for row in rows if row["value"] is not None]
    estimate = statistics.proportion([row["value"] for row in scored], [row["source"] for row in scored])
    return _entry(estimate, len(rows))


def _entry(found: Estimate | None, attempted: int) -> dict[str, Any]:
    if found is None:
        names = ("value", "low", "high", "normal_low", "normal_high")
        return {**dict.fromkeys(names), "n": 0, "clusters": 0, "n_unscored": attempted}
    low, high = normal_interval(min(1.0, max(0.0, found.value)), found.n)
    return {
        "value": found.value, "low": found.low, "high": found.high, "normal_low": low, "normal_high": high,
        "n": found.n, "clusters": found.clusters, "n_unscored": attempted - found.n,
    }  # fmt: skip


def paired(rows: Rows, category: str) -> dict[str, Any]:
    """Both questions of a pair together: outcomes, McNemar's test, and the negation gap with its interval.

    The gap is the mean of (original - negated) over pairs scored in both, clustered by picture, and `ratio`
    is accuracy on the original over accuracy on the negated questions (clustered bootstrap). `p` is the gap's
    cluster-robust test (`nein.statistics.paired_test`), `p_mcnemar` the exact test of McNemar, which takes
    pairs for independent.
    """
    own = _in(rows, category)
    sides = {v: {row["id"]: row["value"] for row in own if row["variant"] == v} for v in VARIANTS}
    source = {row["id"]: row["source"] for row in own}
    original, negated = sides["original"], sides["negated"]
    both = [key for key, value in original.items() if value is not None and negated.get(key) is not None]
    outcomes = Counter((original[key], negated[key]) for key in both)
    only_original, only_negated = outcomes[1.0, 0.0], outcomes[0.0, 1.0]
    test = statistics.paired_test(original, negated, source)
    gap = statistics.bounded(test.difference, -1.0, 1.0) if test else None
    times = bootstrap.ratio(original, negated, source)
    return {
        "both": outcomes[1.0, 1.0],
        "only_original": only_original,
        "only_negated": only_negated,
        "neither": outcomes[0.0, 0.0],
        "n": len(both),
        "n_unscored": len(original) - len(both),
        "p_mcnemar": mcnemar(only_original, only_negated),
        "gap": gap.value if gap else None,
        "low": gap.low if gap else None,
        "high": gap.high if gap else None,
        "clusters": gap.clusters if gap else 0,
        "p": test.p if test else None,
        "ratio": times.value if times else None,
        "ratio_low": times.low if times else None,
        "ratio_high": times.high if times else None,
    }


def mcnemar(first: int, second: int) -> float:
    """Two-sided p that two kinds of discordant pairs are equally likely, by the exact binomial test; 1.0 when
    there are none. Source: McNemar, Psychometrika 12 (1947), in its exact form."""
    from scipy.special import bdtr

    total = first + second
    return 1.0 if total == 0 else min(1.0, 2 * float(bdtr(min(first, second), total, 0.5)))


def position(rows: Rows) -> dict[str, Any]:
    """Share of "A" among the letters given, with its clustered interval, and among the right letters of the
    same questions: a model without a bias has the two alike."""
    given = [row for row in rows if row["letter"] is not None]
    found = statistics.proportion([float(r["letter"] == "A") for r in given], [r["source"] for r in given])
    right = sum(row["answer"] == "A" for row in given) / len(given) if given else None
    return {
        "share_a": found.value if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "right_a": right,
        "n": len(given),
    }


def agreement(scored: Rows) -> dict[str, Any]:
    """Share of questions whose generated and likeliest letters are the same, of those that have both."""
    letters: dict[tuple[str, str], dict[str, str | None]] = {}
    for row in scored:
        if row["protocol"] == "fixed":
            letters.setdefault((row["id"], row["variant"]), {})[row["scoring"]] = row["letter"]
    both = [own for own in letters.values() if all(own.values()) and len(own) == 2]
    same = sum(len(set(own.values())) == 1 for own in both)
    return {"same": same, "n": len(both), "share": same / len(both) if both else None}
