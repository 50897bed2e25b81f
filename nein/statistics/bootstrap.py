"""Intervals of figures that are no means (ROC-AUC, kappa, a mean of subsets), by random weights.

The idea of `nein.statistics.bounds`, with draws in place of an integral: source images are weighted at random
(the Bayesian bootstrap), and one more says the worst for the lower end, the best for the upper one. An
interval is therefore never of length zero, and keeps to the range. Source: Rubin, Annals of Statistics 9
(1981), for the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from nein.statistics.bounds import TAIL
from nein.statistics.estimates import Estimate, cluster_columns

DRAWS = 4000
_CELLS = 1_000_000  # numbers held at once: what decides the memory, whatever the number of clusters


def _interval(
    value: float, replicates: Callable[[np.ndarray, bool], np.ndarray], clusters: int, n: int, draws: int
) -> Estimate:
    """replicates  (weights (B, clusters + 1), whether the last picture says the best) -> (B,) values."""
    rng = np.random.default_rng(0)
    step = max(1, _CELLS // (clusters + 1))
    ends: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for start in range(0, draws, step):
        part = rng.standard_exponential((min(step, draws - start), clusters + 1))
        for end, best in zip(ends, (False, True), strict=True):
            end.append(replicates(part, best))
    low, high = (
        float(np.quantile(np.concatenate(end), level))
        for end, level in zip(ends, (TAIL, 1 - TAIL), strict=True)
    )
    return Estimate(value, min(value, low), max(value, high), None, n, clusters)


def statistic(
    function: Callable[[np.ndarray], np.ndarray],
    table: np.ndarray,
    clusters: Sequence[Hashable],
    worst: Sequence[float],
    best: Sequence[float],
    draws: int = DRAWS,
) -> Estimate | None:
    """A smooth function of column sums, with its interval; None where the function is NaN.

    function     (B, D) column sums -> (B,) values; equal for sums that differ by a factor.
    table        (n, D) one row per sample, e.g. indicator columns of a confusion table.
    worst, best  (D,) what a sample adds that makes the figure as low, as high, as it can be.
    """
    rows = np.asarray(table, dtype=np.float64)
    columns = cluster_columns(clusters)
    member, count = columns.member, columns.count
    sums = np.stack([np.bincount(member, weights=column, minlength=count) for column in rows.T], 1)
    sizes = np.bincount(member)
    more = float(sizes @ sizes) / len(rows)
    value = float(function(rows.sum(0)[None])[0])
    if math.isnan(value):
        return None

    def replicates(weights: np.ndarray, to_best: bool) -> np.ndarray:
        return function(weights[:, :-1] @ sums + more * np.outer(weights[:, -1], best if to_best else worst))

    return _interval(value, replicates, count, len(rows), draws)


def roc_auc(scores: Sequence[float], truth: Sequence[bool], weights: np.ndarray | None = None) -> np.ndarray:
    """Area under the ROC curve, ties counted half: the chance that a positive outscores a negative.

    weights  (B, n) sample weights, one row per draw, or None for one plain value. Returns (B,) or (1,); NaN
             where a draw lacks one of the two. Source: Fawcett, Pattern Recognition Letters 27 (2006).
    """
    x, positive = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=bool)
    if weights is None:
        weights = np.ones((1, len(x)))
    _, level = np.unique(x, return_inverse=True)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=-1))
    result = []
    step = max(1, _CELLS // max(1, len(x)))
    for start in range(0, len(weights), step):
        w = np.asarray(weights[start : start + step], dtype=np.float64)[:, order]
        up = np.add.reduceat(w * positive[order], starts, axis=1)
        down = np.add.reduceat(w * ~positive[order], starts, axis=1)
        below = np.cumsum(down, axis=1) - down
        with np.errstate(invalid="ignore", divide="ignore"):
            area = (up * (below + down / 2)).sum(1) / (up.sum(1) * down.sum(1))
            result.append(np.minimum(area, 1.0))
    return np.concatenate(result)


def roc_auc_interval(
    scores: Sequence[float], truth: Sequence[bool], clusters: Sequence[Hashable], draws: int = DRAWS
) -> Estimate | None:
    """`roc_auc` with its clustered interval; None unless both kinds occur. The picture more holds as many of
    either kind as pictures do on average, on the wrong end of all scores or on the right one."""
    value = float(roc_auc(scores, truth)[0]) if len(scores) else math.nan
    if math.isnan(value):
        return None
    columns = cluster_columns(clusters)
    member, count = columns.member, columns.count
    positive = np.asarray(truth, dtype=bool)
    share = float(positive.mean())
    sizes = np.bincount(member)
    more = float(sizes @ sizes) / len(positive)
    marks = [*scores, math.inf, -math.inf]

    def replicates(weights: np.ndarray, to_best: bool) -> np.ndarray:
        extra = more * weights[:, -1:] * [[share, 1 - share] if to_best else [1 - share, share]]
        each = np.concatenate([weights[:, member], extra], axis=1)
        return roc_auc(marks, [*positive, to_best, not to_best], each)

    return _interval(value, replicates, count, len(positive), draws)
