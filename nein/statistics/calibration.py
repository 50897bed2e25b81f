"""Measure the error rates of a judge on known truth, correct estimates for them, and compare judges.

Sensitivity: share of present objects that a judge sees. Specificity: share of absent ones it calls absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from nein.statistics import estimates
from nein.statistics.estimates import Clusters, Estimate, Scores, estimate_bounded, number_clusters, pairs


# --- error rates -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rates:
    """Error rates of a judge; None: no case."""

    sensitivity: Estimate | None
    specificity: Estimate | None
    auc: Estimate | None  # area under the ROC curve of the soft score
    n_unscored: int  # cases without a verdict, which enter neither rate

    @property
    def youden(self) -> Estimate | None:
        """Youden's index: sensitivity + specificity - 1."""
        if self.sensitivity is None or self.specificity is None:
            return None
        return propagate(lambda se, sp: se + sp - 1, self.sensitivity, self.specificity)


def measure_rates(
    present: Sequence[bool],
    verdicts: Sequence[bool | None],
    clusters: Sequence[Hashable],
    scores: Sequence[float | None] | None = None,
) -> Rates:
    """Rates from N cases of known truth. verdicts: None where unreadable; scores: soft ones of "present"."""

    def share_right(is_present: bool) -> Estimate | None:
        """Share of right verdicts among the present objects, or among the absent ones."""
        used = [i for i, truth in enumerate(present) if truth == is_present and verdicts[i] is not None]
        return estimates.bounded_mean([verdicts[i] == is_present for i in used], [clusters[i] for i in used])

    auc = None
    if scores is not None:
        used = [i for i, score in enumerate(scores) if score is not None]
        soft = [score for score in scores if score is not None]
        auc = roc_auc(soft, [present[i] for i in used], [clusters[i] for i in used])
    return Rates(share_right(True), share_right(False), auc, sum(verdict is None for verdict in verdicts))


def roc_auc(scores: Sequence[float], truth: Sequence[bool], clusters: Sequence[Hashable]) -> Estimate | None:
    """Area under the ROC curve, ties as half; None unless both kinds of truth occur. Standard error:
    Obuchowski, Biometrics 53 (1997). The sample size is that of the rarer kind, which bounds the variance
    (Birnbaum & Klose, Annals of Mathematical Statistics 28 (1957))."""
    from scipy.stats import rankdata

    x, positive = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=bool)  # (N,), (N,)
    n_up, n_down = int(positive.sum()), int((~positive).sum())  # samples of each kind
    if not n_up or not n_down:
        return None
    inside = np.empty(len(x))  # (N,) ranks within the same kind
    inside[positive], inside[~positive] = rankdata(x[positive]), rankdata(x[~positive])
    beaten = rankdata(x) - inside  # (N,) samples of the other kind below, ties as half
    wins = np.where(positive, beaten / n_down, 1 - beaten / n_up)  # (N,) share of pairs in the right order
    value = float(wins[positive].mean())
    influences = (wins - value) / np.where(positive, n_up, n_down)  # (N,)
    numbers = number_clusters(clusters)
    sizes = np.bincount(numbers)  # (G,)
    return estimate_bounded(value, np.bincount(numbers, influences), sizes, min(n_up, n_down), 0.0)


BINS = 10  # of equal width over [0, 1]


def reliability(
    scores: Iterable[float], present: Iterable[bool], clusters: Iterable[Hashable]
) -> tuple[list[tuple[float, Estimate]], float]:
    """Reliability diagram: (mean soft score, share present) of every non-empty bin; and the expected
    calibration error: their mean distance, weighted by cases (Naeini et al., AAAI 2015)."""
    x = np.array([float(score) for score in scores])  # (N,)
    y = np.array(list(present), dtype=float)  # (N,) 1.0 for present
    cluster_list = list(clusters)
    bin_of = np.clip((x * BINS).astype(int), 0, BINS - 1)  # (N,)
    filled = []
    error = 0.0
    for index in np.unique(bin_of):
        inside = np.flatnonzero(bin_of == index)
        share = estimates.bounded_mean(y[inside].tolist(), [cluster_list[i] for i in inside])
        assert share is not None
        mean_score = float(x[inside].mean())
        filled.append((mean_score, share))
        error += len(inside) / len(x) * abs(mean_score - share.value)
    return filled, error


# --- interval of a function of estimates -----------------------------------------------------------------
def propagate(function: Callable[..., float], *parts: Estimate) -> Estimate:
    """A function of independent estimates, with its interval (MOVER): the changes of its value at the ends of
    their intervals are added as squares. An estimate without an interval counts as exact. Source: Zou &
    Donner, Statistics in Medicine 27 (2008); Newcombe, Communications in Statistics 40 (2011)."""
    values = [part.value for part in parts]
    value = function(*values)
    down = up = 0.0  # squared distances from the value to the ends of its interval
    for index, part in enumerate(parts):
        ends = [value if end is None else end for end in (part.low, part.high)]
        moved = [function(*values[:index], end, *values[index + 1 :]) for end in ends]
        down += max(0.0, value - min(moved)) ** 2
        up += max(0.0, max(moved) - value) ** 2
    n, clusters = sum(part.n for part in parts), min(part.clusters for part in parts)
    return Estimate(value, value - math.sqrt(down), value + math.sqrt(up), None, n, clusters)


# --- corrected estimates ---------------------------------------------------------------------------------
#: Smallest sensitivity + specificity - 1 for a correction, which divides by it: here errors grow fivefold.
MIN_YOUDEN = 0.2
#: Half-width that the labels should give an interval: a gap of 10 points between two such estimates is then
#: found with probability 0.8 (the standard errors are 2.6 points each, and 3.6 of the gap).
TARGET_HALF_WIDTH = 0.05


@dataclass(frozen=True)
class Corrected:
    """A corrected estimate with its interval, or the reason why there is none."""

    value: float | None
    low: float | None
    high: float | None
    refused: str = ""  # the reason; the value is then None
    n: int | None = None  # samples used; None: those of the raw estimate
    needed: int | None = None  # labels for an interval of -/+ `TARGET_HALF_WIDTH`; None: no number suffices


def correct(
    judged: Estimate, judge: Rates, quantity: Literal["removal", "retention"] = "removal"
) -> Corrected:
    """Share of objects really gone, from the share r that the judge no longer sees: (r + Se - 1) /
    (Se + Sp - 1), if the judge errs on edited images as often as in its calibration. Refused if Se + Sp - 1
    may be as low as `MIN_YOUDEN`. Source: Rogan & Gladen, American Journal of Epidemiology 107 (1978).

    For Retention, the share of objects still there, the two rates swap. Objects that the judge saw before the
    edit are easier to see: sensitivity is then a lower bound, and a share too high for it is refused.
    """
    counted_if_true, rejected_if_false = judge.specificity, judge.sensitivity  # true: the object is gone
    if quantity == "retention":  # true: it is there
        counted_if_true, rejected_if_false = rejected_if_false, counted_if_true
    youden = judge.youden
    if counted_if_true is None or rejected_if_false is None or youden is None or youden.low is None:
        return Corrected(None, None, None, "the calibration lacks present or absent objects")
    if youden.low <= MIN_YOUDEN:
        doubt = f"sensitivity + specificity - 1 is {youden.value:.2f} and may be as low as {youden.low:.2f}"
        return Corrected(None, None, None, f"{doubt}: this judge hardly tells present from absent")
    rates = counted_if_true, rejected_if_false
    share = propagate(lambda r, yes, no: (r + no - 1) / (yes + no - 1), judged, *rates)
    why = (
        f"{100 * judged.value:.1f} % cannot come from a judge with these error rates: it errs otherwise on "
        "these pictures than on those of the calibration"
    )
    return _clip_share(share, why)


def correct_difference(judged: Estimate, judge: Rates) -> Corrected:
    """Difference of two true shares, from the difference d of the shares that a judge sees: d divided by
    Se + Sp - 1, clipped to [-1, 1]. Refused as in `correct`."""
    youden = judge.youden
    if youden is None or youden.low is None or youden.low <= MIN_YOUDEN:
        return Corrected(None, None, None, "this judge hardly tells present from absent")
    difference = propagate(lambda d, rate: d / rate, judged, youden)
    ends = (difference.value, difference.low, difference.high)
    value, low, high = (None if end is None else min(1.0, max(-1.0, end)) for end in ends)
    return Corrected(value, low, high)


def _clip_share(estimate: Estimate, why: str, n: int | None = None) -> Corrected:
    """A share clipped to [0, 1], with its interval; refused for reason `why` if the interval is outside."""
    low, high = estimate.low, estimate.high
    assert low is not None
    assert high is not None
    if low > 1 or high < 0:
        return Corrected(None, None, None, why, n)
    share = min(1.0, max(0.0, estimate.value))
    # An end moves with the value where that widens the interval.
    low, high = min(low, low + share - estimate.value), max(high, high + share - estimate.value)
    return Corrected(share, max(0.0, low), min(1.0, high), "", n)


def prediction_powered(
    judged: Scores, labels: Mapping[str, float], cluster_of: Mapping[str, Hashable]
) -> Corrected:
    """Mean of the truth in [0, 1], from a judge's verdicts on all samples and people's labels on some.

    mean(label - w verdict) over the labelled samples, drawn at random, + w mean(verdict) over the others,
    with the weight w of least variance; or the mean of the labels if its interval is narrower. Source:
    Angelopoulos et al., "Prediction-powered inference", Science 382 (2023), and "PPI++", arXiv:2311.01453.
    """
    scored = {key: value for key, value in judged.items() if value is not None}
    common = [key for key in labels if key in scored]
    if not common:
        return Corrected(None, None, None, "no sample has both a label and a verdict", 0)
    others = [key for key in scored if key not in labels]
    truth = np.array([labels[key] for key in common])  # (n,) labels
    judged_common = np.array([scored[key] for key in common])  # (n,) verdicts
    judged_others = np.array([scored[key] for key in others])  # (m,) verdicts
    clusters = [cluster_of[key] for key in common]
    other_clusters = [cluster_of[key] for key in others]
    weight = _tune_weight(truth, judged_common, judged_others, number_clusters([*clusters, *other_clusters]))
    why = "the labels contradict the judge by more than there can be: are they a random part of the samples?"
    # Plain: the labels alone.
    label_mean = estimates.bounded_mean(truth, clusters)
    assert label_mean is not None
    needed = _labels_needed(label_mean, 0.0, len(scored))
    plain = replace(_clip_share(label_mean, why, len(common)), needed=needed)
    # Tuned: labels and verdicts. label - w verdict lies in [-1, 1]; as yes and no, it has the wider interval.
    others_mean = estimates.bounded_mean(judged_others, other_clusters)
    rest = estimates.bounded_mean(truth - weight * judged_common, clusters, -1.0, 1.0, yes_no=True)
    if not weight or others_mean is None or rest is None:
        return plain  # the verdicts add nothing
    total = propagate(lambda part, mean: part + weight * mean, rest, others_mean)
    tuned = _clip_share(total, why, len(common))
    if not tuned.refused and _width(tuned) >= _width(plain):
        return plain  # the labels alone are more exact
    return replace(tuned, needed=_labels_needed(rest, weight * _width(others_mean) / 2, len(scored)))


def _tune_weight(truth: np.ndarray, judged: np.ndarray, others: np.ndarray, numbers: np.ndarray) -> float:
    """Weight w in [0, 1] of least cluster-robust variance of mean(truth) + w (mean(others) - mean(judged)): a
    regression slope. 0 with fewer labelled clusters than `GRADED_CLUSTERS`: its variance is too uncertain.

    truth, judged, others  Labels (n,), verdicts on the same samples (n,) and on the others (m,).
    numbers                (n + m,) int64, the cluster of every sample.
    """
    count = len(truth)
    if not len(others) or len(np.unique(numbers[:count])) < estimates.GRADED_CLUSTERS:
        return 0.0
    # Parts of samples in mean(judged) - mean(others), (n + m,); their and the labels' sums by cluster, (G,).
    parts = np.concatenate([(judged - judged.mean()) / count, (others.mean() - others) / len(others)])
    verdict_influences = np.bincount(numbers, parts)
    label_influences = np.bincount(numbers[:count], (truth - truth.mean()) / count, len(verdict_influences))
    variance = float(verdict_influences @ verdict_influences)
    slope = float(label_influences @ verdict_influences) / variance if variance else 0.0
    return min(1.0, max(0.0, slope))


def _labels_needed(labelled: Estimate, verdict_half_width: float, samples: int) -> int | None:
    """Number of labels for a half-width of `TARGET_HALF_WIDTH`; None if `samples` do not suffice. The labels'
    part of it shrinks with the root of their number; that of the other verdicts does not."""
    remaining = TARGET_HALF_WIDTH**2 - verdict_half_width**2
    if remaining <= 0:
        return None
    needed = math.ceil(labelled.n * (_width(labelled) / 2) ** 2 / remaining)
    return needed if needed <= samples else None


def _width(interval: Corrected | Estimate) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


# --- agreement of judges ---------------------------------------------------------------------------------
def cohen_kappa(first: Scores, second: Scores, cluster_of: Mapping[str, Hashable]) -> Estimate | None:
    """Agreement of two judges beyond chance, in any categories: (p_o - p_e) / (1 - p_e), p_o the share of
    equal verdicts, p_e its expectation by chance. None without samples, or if p_e is 1. Source: Cohen,
    Educational and Psychological Measurement 20 (1960)."""
    first_values, second_values, clusters = pairs(first, second, cluster_of)  # (n,) each
    if not clusters:
        return None
    both = np.concatenate([first_values, second_values])
    categories, codes = np.unique(both, return_inverse=True)  # (C,), (2 n,)
    count = len(categories)
    x, y = np.split(codes, 2)  # (n,) each, category of either judge
    table = np.eye(count * count)[x * count + y]  # (n, C * C) one-hot: the cell of every pair
    return _jackknife(_kappa, table, clusters)


def _kappa(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, C * C) counts -> kappa and 1 - p_e, the disagreement expected by chance, (B,) each."""
    count = math.isqrt(sums.shape[1])  # C categories
    shares = (sums / sums.sum(1, keepdims=True)).reshape(-1, count, count)  # (B, C, C)
    chance_disagreement = 1 - (shares.sum(1) * shares.sum(2)).sum(1)
    return 1 - (shares * (1 - np.eye(count))).sum((1, 2)) / chance_disagreement, chance_disagreement


def krippendorff_alpha(verdicts: Sequence[Scores], cluster_of: Mapping[str, Hashable]) -> Estimate | None:
    """Nominal alpha over any number of judges; None where no sample has two verdicts or all are the same.

    Over the samples u with at least two verdicts, n_uc of them c, m_u = sum_c n_uc, n_c = sum_u n_uc:

        alpha = 1 - (N - 1) * sum_u sum_{c != k} n_uc n_uk / (m_u - 1) / sum_{c != k} n_c n_k.

    Source: Krippendorff, Content Analysis (2004), section 11.3.
    """
    categories = sorted({value for judge in verdicts for value in judge.values() if value is not None})
    ids = list(dict.fromkeys(key for judge in verdicts for key in judge))
    counts = np.zeros((len(ids), len(categories)))  # (U, C) verdicts of each category per sample
    for judge in verdicts:
        given = np.array([judge.get(key) for key in ids], dtype=np.float64)  # (U,) None becomes NaN
        counts += given[:, None] == np.array(categories)
    size = counts.sum(1)  # (U,) verdicts per sample
    used = size >= 2
    if not used.any():
        return None
    counts, size = counts[used], size[used]
    differ = (size**2 - (counts**2).sum(1)) / (size - 1)  # (U,) sum_{c != k} n_uc n_uk / (m_u - 1)
    clusters = [cluster_of[key] for key, enters in zip(ids, used, strict=True) if enters]
    return _jackknife(_alpha, np.column_stack([differ, counts]), clusters)


def _alpha(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, 1 + C) sums of unequal pairs and of verdicts -> alpha and the disagreement by chance, (B,) each."""
    differ, counts = sums[:, 0], sums[:, 1:]
    n = counts.sum(1)
    chance_disagreement = (n**2 - (counts**2).sum(1)) / (n * (n - 1))
    return 1 - differ / n / chance_disagreement, chance_disagreement


def _jackknife(
    statistic: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], table: np.ndarray, clusters: Clusters
) -> Estimate | None:
    """An estimate in [-1, 1] from the column sums of a table, (n, D), with the error of leaving out each
    cluster once; None for NaN. statistic: sums, (B, D) -> estimates and disagreements by chance, (B,) each.
    An estimate that does not exist without a cluster counts as -1."""
    numbers = number_clusters(clusters)
    sums = np.stack([np.bincount(numbers, column) for column in table.T], 1)  # (G, D)
    total = sums.sum(0)[None]  # (1, D)
    with np.errstate(invalid="ignore", divide="ignore"):
        [value], [chance_disagreement] = statistic(total)
        leave_one_out, _ = statistic(total - sums)  # (G,)
    if np.isnan(value):
        return None
    influences = np.nan_to_num(leave_one_out, nan=-1.0, neginf=-1.0) - value  # (G,)
    sizes = np.bincount(numbers)  # (G,)
    # Rare dissent tells as much as fewer samples with even odds, whose disagreement by chance is 1/2.
    n = len(table) * min(1.0, 2 * float(chance_disagreement))
    return estimate_bounded(float(value), influences * (len(sizes) - 1) / len(sizes), sizes, n, -1.0)
