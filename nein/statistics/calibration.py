"""Error rates of a judge on known truth, and figures corrected for them.

Sensitivity is the share of present objects the judge sees, specificity the share of absent ones it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from nein import statistics
from nein.statistics.estimates import ENOUGH, Clusters, Estimate, bounded, numbered, pairs

#: Below this sensitivity + specificity - 1 nothing is corrected: errors of the rates are multiplied by its
#: inverse, here five.
MIN_YOUDEN = 0.2
#: Half of the interval that labels are worth collecting for: a gap of 10 points between two figures that
#: have it is found with probability 0.8 (their standard errors are 2.6 points, that of the gap 3.6).
WORTH = 0.05


@dataclass(frozen=True)
class Rates:
    """None without such a case; auc: of the soft score; n_unscored: cases without a verdict, in neither
    rate."""

    sensitivity: Estimate | None
    specificity: Estimate | None
    auc: Estimate | None
    n_unscored: int

    @property
    def youden(self) -> Estimate | None:
        """sensitivity + specificity - 1."""
        if self.sensitivity is None or self.specificity is None:
            return None
        return propagated(lambda se, sp: se + sp - 1, self.sensitivity, self.specificity)


def propagated(function: Callable[..., float], *parts: Estimate) -> Estimate:
    """A function of independent estimates (MOVER): the distances at the ends of their intervals add up as
    squares. One without an interval counts as known. Source: Zou & Donner, Statistics in Medicine 27 (2008);
    Newcombe, Communications in Statistics 40 (2011)."""
    values = [part.value for part in parts]
    value = function(*values)
    down = up = 0.0
    for index, part in enumerate(parts):
        ends = [value if end is None else end for end in (part.low, part.high)]
        moved = [function(*values[:index], end, *values[index + 1 :]) for end in ends]
        down += max(0.0, value - min(moved)) ** 2
        up += max(0.0, max(moved) - value) ** 2
    n, clusters = sum(part.n for part in parts), min(part.clusters for part in parts)
    return Estimate(value, value - math.sqrt(down), value + math.sqrt(up), None, n, clusters)


def rates(
    present: Sequence[bool],
    verdicts: Sequence[bool | None],
    clusters: Sequence[Hashable],
    scores: Sequence[float | None] | None = None,
) -> Rates:
    """From cases of known truth. verdicts: None where nothing can be read; scores: soft ones of "present"."""
    shares = []
    for there in (True, False):
        cases = zip(present, verdicts, clusters, strict=True)
        hits = [(v == there, c) for truth, v, c in cases if truth == there and v is not None]
        shares.append(statistics.bounded_mean([hit for hit, _ in hits], [cluster for _, cluster in hits]))
    given = zip(scores or [None] * len(verdicts), present, clusters, strict=True)
    soft = [(score, truth, cluster) for score, truth, cluster in given if score is not None]
    auc = roc_auc(*zip(*soft, strict=True)) if soft else None
    return Rates(shares[0], shares[1], auc, sum(verdict is None for verdict in verdicts))


@dataclass(frozen=True)
class Corrected:
    """`value` is None where the correction is refused, with the reason. n: samples behind the correction, if
    not those of the raw figure; needed: labels for an interval of -/+ `WORTH`, None where none suffice."""

    value: float | None
    low: float | None
    high: float | None
    refused: str = ""
    n: int | None = None
    needed: int | None = None


def correct(judged: Estimate, judge: Rates, what: Literal["removal", "retention"] = "removal") -> Corrected:
    """The share of objects really gone, from the share r that the judge no longer sees:
    (r + Se - 1) / (Se + Sp - 1), if the judge errs on edited images as often as in its calibration. Refused
    where Se + Sp - 1 may be as low as `MIN_YOUDEN`. Source: Rogan & Gladen, American Journal of Epidemiology
    107 (1978).

    Of Retention, the share of objects really still there, the rates are exchanged. Objects that the judge saw
    before the edit are easier to see than others: the calibrated sensitivity is a lower bound at best, and a
    figure too high for it is refused.
    """
    hit, reject = judge.specificity, judge.sensitivity  # P(counted | it is so), P(not counted | it is not so)
    if what == "retention":
        hit, reject = reject, hit
    youden = judge.youden
    if hit is None or reject is None or youden is None or youden.low is None:
        return Corrected(None, None, None, "the calibration lacks present or absent objects")
    if youden.low <= MIN_YOUDEN:
        why = f"sensitivity + specificity - 1 is {youden.value:.2f} and may be as low as {youden.low:.2f}"
        return Corrected(None, None, None, f"{why}: this judge hardly tells present from absent")
    return _in_range(
        propagated(lambda r, yes, no: (r + no - 1) / (yes + no - 1), judged, hit, reject),
        f"{100 * judged.value:.1f} % cannot come from a judge with these error rates: it errs otherwise on "
        "these pictures than on those of the calibration",
    )


def _in_range(found: Estimate, impossible: str, n: int | None = None) -> Corrected:
    """A share, cut to 0 and 1, and its interval moved with it; refused where no part of that lies within."""
    value, low, high = found.value, found.low, found.high
    assert low is not None
    assert high is not None
    if low > 1 or high < 0:
        return Corrected(None, None, None, impossible, n)
    share = min(1.0, max(0.0, value))
    low, high = min(low, low + share - value), max(high, high + share - value)
    return Corrected(share, max(0.0, low), min(1.0, high), "", n)


def prediction_powered(
    judged: Mapping[str, float | None], labels: Mapping[str, float], cluster_of: Mapping[str, Hashable]
) -> Corrected:
    """The mean of the truth, from a judge's verdicts on all samples and people's labels on some, from 0 to 1.

    mean(label - w verdict) over a random part that is labelled + w mean(verdict) over the others, with the
    weight w that gives the least variance; the mean of the labels alone where that has the narrower interval.
    Source: Angelopoulos et al., "Prediction-powered inference", Science 382 (2023), and "PPI++",
    arXiv:2311.01453.
    """
    scored = {key: value for key, value in judged.items() if value is not None}
    both = [key for key in labels if key in scored]
    if not both:
        return Corrected(None, None, None, "no sample has both a label and a verdict", 0)
    others = [key for key in scored if key not in labels]
    known = np.array([labels[key] for key in both])  # (n,) labels
    seen, unseen = (np.array([scored[key] for key in part]) for part in (both, others))  # (n,), (m,) verdicts
    here, there = ([cluster_of[key] for key in part] for part in (both, others))
    weight = _tuned_weight(known, seen, unseen, numbered([*here, *there]))
    impossible = (
        "the labels contradict the judge by more than there can be: are they a random part of the samples?"
    )

    people = statistics.bounded_mean(known, here)
    assert people is not None
    alone = replace(_in_range(people, impossible, len(both)), needed=_labels_needed(people, 0.0, len(scored)))
    rest = statistics.bounded_mean(unseen, there)
    shift = statistics.bounded_mean(known - weight * seen, here, -1.0, 1.0, yes_no=True)
    if not weight or rest is None or shift is None:
        return alone
    found = propagated(lambda moved, mean: moved + weight * mean, shift, rest)
    tuned = _in_range(found, impossible, len(both))
    if not tuned.refused and _width(tuned) >= _width(alone):
        return alone
    return replace(tuned, needed=_labels_needed(shift, weight * _width(rest) / 2, len(scored)))


def _tuned_weight(known: np.ndarray, seen: np.ndarray, unseen: np.ndarray, numbers: np.ndarray) -> float:
    """The weight from 0 to 1 with the least cluster-robust variance of mean(known) + w (mean(unseen) -
    mean(seen)); 0 where fewer than `ENOUGH` clusters are labelled, whose spread says too little.

    known, seen, unseen  Labels (n,), verdicts on the same samples (n,) and on the others (m,).
    numbers              (n + m,) int64, the cluster of every sample.
    """
    count = len(known)
    if not len(unseen) or len(np.unique(numbers[:count])) < ENOUGH:
        return 0.0
    apart = np.concatenate([(seen - seen.mean()) / count, (unseen.mean() - unseen) / len(unseen)])
    verdicts = np.bincount(numbers, apart)  # (G,): what each cluster adds to mean(seen) - mean(unseen)
    people = np.bincount(numbers[:count], (known - known.mean()) / count, len(verdicts))  # (G,)
    spread = float(verdicts @ verdicts)
    return min(1.0, max(0.0, float(people @ verdicts) / spread)) if spread else 0.0


def _width(found: Corrected | Estimate) -> float:
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


def _labels_needed(labelled: Estimate, fixed: float, samples: int) -> int | None:
    """Labels with which half of the interval is `WORTH`: that of the labels' part shrinks with the root of
    their number, `fixed`, half of that of the others' verdicts, stays."""
    left = WORTH**2 - fixed**2
    if left <= 0:
        return None
    needed = math.ceil(labelled.n * (_width(labelled) / 2) ** 2 / left)
    return needed if needed <= samples else None


def reliability(
    scores: Iterable[float], present: Iterable[bool], clusters: Iterable[Hashable], bins: int = 10
) -> tuple[list[tuple[float, Estimate]], float]:
    """((mean soft score, share present) of equally wide bins over [0, 1] that are not empty; the expected
    calibration error: the mean distance of both, weighted by cases). Source: Naeini et al., AAAI 2015."""
    x = np.array([float(score) for score in scores])
    y, where = np.array(list(present), dtype=float), list(clusters)
    bin_of = np.clip((x * bins).astype(int), 0, bins - 1)
    filled, error = [], 0.0
    for index in np.unique(bin_of):
        inside = np.flatnonzero(bin_of == index)
        share = statistics.bounded_mean(y[inside].tolist(), [where[i] for i in inside])
        assert share is not None
        filled.append((float(x[inside].mean()), share))
        error += len(inside) / len(x) * abs(filled[-1][0] - share.value)
    return filled, error


def cohen_kappa(
    first: Mapping[str, float | None], second: Mapping[str, float | None], cluster_of: Mapping[str, Hashable]
) -> Estimate | None:
    """Agreement of two judges beyond chance, in any categories; None where it does not exist.

    (p_o - p_e) / (1 - p_e): p_o is the share of equal verdicts, p_e what the shares of the categories of
    either would give by chance. Source: Cohen, Educational and Psychological Measurement 20 (1960).
    """
    one, other, clusters = pairs(first, second, cluster_of)
    if not clusters:
        return None
    categories, codes = np.unique(np.concatenate([one, other]), return_inverse=True)
    count, (x, y) = len(categories), np.split(codes, 2)
    table = np.eye(count * count)[x * count + y]  # (n, C * C): the cell of every pair
    return _jackknife(_kappa, table, clusters)


def _kappa(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, C * C) counts -> kappa and 1 - p_e, (B,) each."""
    count = math.isqrt(sums.shape[1])
    shares = (sums / sums.sum(1, keepdims=True)).reshape(-1, count, count)
    apart = 1 - (shares.sum(1) * shares.sum(2)).sum(1)
    return 1 - (shares * (1 - np.eye(count))).sum((1, 2)) / apart, apart


def krippendorff_alpha(
    verdicts: Sequence[Mapping[str, float | None]], cluster_of: Mapping[str, Hashable]
) -> Estimate | None:
    """Nominal alpha over any number of judges; None where no sample has two verdicts or all are the same.

    Over the samples u with at least two verdicts, n_uc of them c, m_u = sum_c n_uc, n_c = sum_u n_uc:

        alpha = 1 - (N - 1) * sum_u sum_{c != k} n_uc n_uk / (m_u - 1) / sum_{c != k} n_c n_k.

    Source: Krippendorff, Content Analysis (2004), section 11.3.
    """
    categories = sorted({value for judge in verdicts for value in judge.values() if value is not None})
    ids = list(dict.fromkeys(key for judge in verdicts for key in judge))
    each_of = (np.array([*map(judge.get, ids)], dtype=np.float64) for judge in verdicts)
    counts = sum((given[:, None] == np.array(categories) for given in each_of), np.zeros((len(ids), 1)))
    size = counts.sum(1)
    used = size >= 2
    if not used.any():
        return None
    counts, size = counts[used], size[used]
    differ = (size**2 - (counts**2).sum(1)) / (size - 1)
    clusters = [cluster_of[key] for key, enters in zip(ids, used, strict=True) if enters]
    return _jackknife(_alpha, np.column_stack([differ, counts]), clusters)


def _alpha(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, 1 + C) sums of what differs and of verdicts -> alpha and the disagreement of chance, (B,) each."""
    differ, counts = sums[:, 0], sums[:, 1:]
    n = counts.sum(1)
    chance = (n**2 - (counts**2).sum(1)) / (n * (n - 1))
    return 1 - differ / n / chance, chance


def _jackknife(
    function: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], table: np.ndarray, clusters: Clusters
) -> Estimate | None:
    """A figure from -1 to 1 of the sums of a table, (n, D); None where it is NaN. Every cluster is left out
    once; a figure that then does not exist counts as -1. function: (B, D) sums -> (B,) figures, and how far
    chance disagrees."""
    numbers = numbered(clusters)
    sums = np.stack([np.bincount(numbers, each) for each in table.T], 1)  # (G, D)
    total = sums.sum(0)[None]
    with np.errstate(invalid="ignore", divide="ignore"):
        [value], [chance] = function(total)
        left_out, _ = function(total - sums)
    if np.isnan(value):
        return None
    pulls = np.nan_to_num(left_out, nan=-1.0, neginf=-1.0) - value
    n, sizes = len(table) * min(1.0, 2 * float(chance)), np.bincount(numbers)
    return bounded(float(value), pulls * (len(sizes) - 1) / len(sizes), sizes, n, -1.0)


def roc_auc(scores: Sequence[float], truth: Sequence[bool], clusters: Sequence[Hashable]) -> Estimate | None:
    """Area under the ROC curve, ties counted half; None unless both kinds occur.

    Standard error: Obuchowski, Biometrics 53 (1997). As many samples count as the rarer kind has, which
    bounds the variance (Birnbaum & Klose, Annals of Mathematical Statistics 28 (1957)).
    """
    from scipy.stats import rankdata

    x, positive = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=bool)
    n_up, n_down = int(positive.sum()), int((~positive).sum())
    if not n_up or not n_down:
        return None
    inside = np.empty(len(x))  # ranks among the own kind
    inside[positive], inside[~positive] = rankdata(x[positive]), rankdata(x[~positive])
    beaten = rankdata(x) - inside  # how many of the other kind are below, ties half
    wins = np.where(positive, beaten / n_down, 1 - beaten / n_up)
    value = float(wins[positive].mean())
    parts = (wins - value) / np.where(positive, n_up, n_down)
    numbers = numbered(clusters)
    return bounded(value, np.bincount(numbers, parts), np.bincount(numbers), min(n_up, n_down), 0.0)
