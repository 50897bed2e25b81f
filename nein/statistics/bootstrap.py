"""The paired, clustered bootstrap: intervals for figures that are no means (ratios, ROC-AUC, FID, kappa).

Whole source images are drawn with replacement. One `Resampler` serves all runs on the same data: the same
draw for two editors makes their difference paired. A draw is a row of counts, one per source image, so a
statistic that is a function of sums needs one matrix product for thousands of draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nein.statistics.estimates import LEVEL, Estimate, t_quantile

DRAWS = 2000
_CELLS = 40_000_000  # numbers held at once by statistics that need a row per draw and sample


@dataclass(frozen=True)
class Resampler:
    """`counts` (draws, G) float32: how often each of the G source images is in each draw.

    index  Source image -> column.
    """

    index: Mapping[Hashable, int]
    counts: np.ndarray

    @classmethod
    def of(cls, clusters: Sequence[Hashable], *, draws: int = DRAWS, seed: int = 0) -> Resampler:
        """For the distinct `clusters`; their sorted order decides the columns, so the order given does
        not."""
        names = sorted(set(clusters), key=str)
        size = len(names)
        rng = np.random.default_rng(seed)
        counts = np.zeros((draws, size), dtype=np.float32)
        step = max(1, _CELLS // max(1, size))
        for start in range(0, draws, step):
            rows = min(step, draws - start)
            picks = rng.integers(0, size, (rows, size)) + size * np.arange(rows)[:, None]
            counts[start : start + rows] = np.bincount(picks.ravel(), minlength=rows * size).reshape(
                rows, size
            )
        return cls({name: column for column, name in enumerate(names)}, counts)

    def columns(self, clusters: Sequence[Hashable]) -> np.ndarray:
        """(n,) column of every sample's source image."""
        return np.array([self.index[name] for name in clusters], dtype=np.int64)

    def totals(self, values: Sequence[float] | np.ndarray, clusters: Sequence[Hashable]) -> np.ndarray:
        """(draws,) or (draws, D) sums of the values, (n,) or (n, D), in every draw; float64."""
        x = np.asarray(values, dtype=np.float64)
        sums = np.zeros((len(self.index), *x.shape[1:]))
        np.add.at(sums, self.columns(clusters), x)
        return self.counts.astype(np.float64) @ sums

    def weights(self, clusters: Sequence[Hashable]) -> np.ndarray:
        """(draws, n) float32 weight of every sample in every draw."""
        return self.counts[:, self.columns(clusters)]


def interval(
    value: float, replicates: np.ndarray, *, n: int, clusters: int, method: str = "percentile"
) -> Estimate:
    """An `Estimate` from the replicates of a statistic.

    method  "percentile": their 2.5 and 97.5 % quantiles, which keep to the statistic's range. "normal":
            2 value - mean of the replicates, plus and minus t(G - 1) standard deviations; for statistics that
            resampling shifts, as it does FID, where a draw holds fewer distinct pictures. In simulations
            with known FID it covers in 94 to 95 % of the cases, percentiles in 89 to 91 %.

    Fewer than two source images, or replicates that do not exist in more than a tenth of the draws, give no
    interval. Source: Davison & Hinkley, Bootstrap Methods and their Application (1997), sections 2.4,
    5.2-5.3.
    """
    finite = replicates[np.isfinite(replicates)]
    if clusters < 2 or len(finite) < 0.9 * len(replicates):
        return Estimate(value, None, None, None, n, clusters)
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    if method == "normal":
        reach = t_quantile(clusters - 1) * finite.std(ddof=1)
        low, high = 2 * value - finite.mean() - reach, 2 * value - finite.mean() + reach
    elif method != "percentile":
        raise AssertionError(f"no method {method!r}")
    return Estimate(value, float(low), float(high), float(finite.std(ddof=1)), n, clusters)


def ratio(
    numerator: Mapping[str, float | None],
    denominator: Mapping[str, float | None],
    cluster_of: Mapping[str, Hashable],
    resampler: Resampler | None = None,
) -> Estimate | None:
    """mean(numerator) / mean(denominator) over the ids scored in both; None without ids or for a zero
    below."""
    ids = [key for key, value in numerator.items() if value is not None and denominator.get(key) is not None]
    if not ids:
        return None
    clusters = [cluster_of[key] for key in ids]
    above = np.array([float(numerator[key]) for key in ids])  # type: ignore[arg-type]
    below = np.array([float(denominator[key]) for key in ids])  # type: ignore[arg-type]
    if below.sum() == 0:
        return None
    resampler = resampler or Resampler.of(clusters)
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = resampler.totals(above, clusters) / resampler.totals(below, clusters)
    return interval(float(above.sum() / below.sum()), draws, n=len(ids), clusters=len(set(clusters)))


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
            result.append((up * (below + down / 2)).sum(1) / (up.sum(1) * down.sum(1)))
    return np.concatenate(result)


def roc_auc_interval(
    scores: Sequence[float], truth: Sequence[bool], clusters: Sequence[Hashable], draws: int = DRAWS
) -> Estimate | None:
    """`roc_auc` with its clustered interval; None unless both kinds occur."""
    value = float(roc_auc(scores, truth)[0]) if len(scores) else math.nan
    if math.isnan(value):
        return None
    weights = Resampler.of(clusters, draws=draws).weights(clusters)
    return interval(value, roc_auc(scores, truth, weights), n=len(scores), clusters=len(set(clusters)))


def statistic(
    function: Callable[[np.ndarray], np.ndarray],
    table: np.ndarray,
    clusters: Sequence[Hashable],
    resampler: Resampler | None = None,
) -> Estimate:
    """A smooth function of column sums, with its interval.

    function  (B, D) column sums -> (B,) values.
    table     (n, D) one row per sample, e.g. indicator columns of a confusion table.
    """
    resampler = resampler or Resampler.of(clusters)
    value = float(function(np.asarray(table, dtype=np.float64).sum(0)[None])[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = function(resampler.totals(table, clusters))
    return interval(value, draws, n=len(table), clusters=len(set(clusters)))
