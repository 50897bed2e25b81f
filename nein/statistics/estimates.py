"""Estimate means, differences and ratios with 95 % intervals, and test paired differences.

Values are clustered by source image, the independent unit; unscored ones (None) never enter. Intervals:

- a share: Clopper-Pearson at the effective size;
- a mean of values in a range, with `GRADED_CLUSTERS` source images: Wilson with t at the effective size;
- a paired difference of these: Bonett-Price at the same sizes; a ratio: Bonett-Price's for ratios;
- a mean without a useful range (L1, LPIPS, a cosine): Student's t with the cluster-robust standard error.

The p of a difference is that of its interval. Sources and coverage: docs/explanation/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

Clusters: TypeAlias = Sequence[Hashable]  # the source image of every value
Ends: TypeAlias = tuple[Any, Any]  # low and high end of an interval, floats or arrays
Scores: TypeAlias = Mapping[str, float | None]  # value by sample id; None: unscored

LEVEL = 0.95  # of every interval
Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution
PRIOR_CORRELATION = 0.6  # intraclass correlation that is assumed before the data (`effective_size`)
#: Source images from which on the variance of values in a range gives their interval. With fewer, coverage
#: would be below 95 %, and values count as yes and no.
GRADED_CLUSTERS = 13


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval (None for a mean of one cluster, or of clusters that all agree)."""

    value: float
    low: float | None
    high: float | None
    standard_error: float | None  # cluster-robust; None with one cluster
    n: int  # values that entered
    clusters: int  # distinct clusters of these


# --- means -----------------------------------------------------------------------------------------------
def mean(values: Sequence[float] | np.ndarray, clusters: Clusters) -> Estimate | None:
    """Mean of values without a range; None for no values. Interval: m -/+ t_{G-1, 0.975} SE, where SE^2 is
    G / (G - 1) * sum_g e_g^2 / n^2, e_g the sum of residuals of cluster g (CR1). Source: Cameron & Miller,
    Journal of Human Resources 50 (2015), eq. 11-12."""
    if not len(values):
        return None
    x = np.asarray(values, dtype=np.float64)
    value = float(x.mean())
    sums = np.bincount(number_clusters(clusters), x - value)  # (G,) sums of residuals
    error = _robust_error(sums / len(x), float(np.abs(x).max()))
    if not error:
        return Estimate(value, None, None, error, len(x), len(sums))
    reach = _critical_value(len(sums) - 1) * error
    return Estimate(value, value - reach, value + reach, error, len(x), len(sums))


def bounded_mean(
    values: Sequence[float] | np.ndarray,
    clusters: Clusters,
    low: float = 0.0,
    high: float = 1.0,
    weights: Sequence[float] | np.ndarray | None = None,
    *,
    yes_no: bool = False,
) -> Estimate | None:
    """Weighted mean of values in [low, high], (n,); None for no values. Interval, at the effective size:
    Clopper-Pearson, Wilson (see `GRADED_CLUSTERS`), or Bonett-Price for a negative `low` (paired
    differences). yes_no: values inside the range count as yes and no, too."""
    return _estimate_range(values, clusters, low, high, weights, yes_no=yes_no)[0]


def _estimate_range(
    values: Sequence[float] | np.ndarray,
    clusters: Clusters,
    low: float,
    high: float,
    weights: Sequence[float] | np.ndarray | None = None,
    *,
    yes_no: bool = False,
) -> tuple[Estimate | None, float | None]:
    """`bounded_mean`, and of paired differences the two-sided p of no difference, from the interval."""
    x = np.asarray(values, dtype=np.float64)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
    total = float(w.sum())
    if not total:
        return None, None
    if x.size and not (x.min() >= low and x.max() <= high):
        raise AssertionError(f"values from {x.min()} to {x.max()} are not within [{low}, {high}]")
    # Scale to the unit range: differences to [-1, 1], other values to [0, 1]; weights to sum 1.
    scale, offset = (max(high, -low), 0.0) if low < 0 else (high - low, low)
    x, w = (x - offset) / scale, w / total  # (n,), (n,)
    value = min(1.0, max(-1.0, float((w * total) @ x) / total))  # clips the last bit of a weighted mean
    up, down = float(w @ np.maximum(x, 0)), float(w @ np.maximum(-x, 0))  # parts above and below 0
    binary = up + down - value**2  # variance if all values were -1, 0 or 1, with the same parts
    graded = not yes_no and bool(np.any((x != 0) & (np.abs(x) != 1) & (w > 0)))
    sample = _find_effective_sample(w * (x - value), w, clusters, binary, graded=graded)
    n = int((w > 0).sum())
    p = None
    if low < 0:
        middle, error = bonett_price(up, down, sample.size)
        reach = _critical_value(sample.freedom) * error
        ends = max(-1.0, middle - reach), min(1.0, middle + reach)
        p = 1.0 if abs(value) <= ROUNDING else p_value(middle / error, sample.freedom)
    elif sample.freedom is None:
        ends = clopper_pearson(value, sample.size)
    else:
        ends = wilson(value * sample.size, sample.size, _critical_value(sample.freedom))
    return sample.estimate(value, ends, n, scale, offset), p


def _critical_value(freedom: int | None) -> float:
    """Half-width of an interval in standard errors. freedom: of Student's t; None: normal distribution."""
    if freedom is None:
        return Z
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))


# --- effective size: clustered values as independent ones ------------------------------------------------
@dataclass(frozen=True)
class _EffectiveSample:
    """Clustered values as independent ones with the same information."""

    size: float  # effective size
    error: float | None  # cluster-robust standard error
    clusters: int
    freedom: int | None = None  # of Student's t; None for the normal distribution

    def estimate(self, value: float, ends: Ends, n: int, scale: float = 1.0, offset: float = 0.0) -> Estimate:
        """Estimate in the unit of the input; the interval is widened to hold the value."""
        value, low, high = (offset + scale * float(x) for x in (value, *ends))
        error = None if self.error is None else scale * self.error
        return Estimate(value, min(value, low), max(value, high), error, n, self.clusters)


def _find_effective_sample(
    parts: np.ndarray,
    shares: np.ndarray,
    clusters: Clusters,
    binary: float,
    n: float | None = None,
    graded: bool = False,
) -> _EffectiveSample:
    """parts, shares: part of every value in the error of the estimate, and its weight, (n,) each; the sum of
    weights is 1. binary, graded: see `effective_size`. n: size of an unpaired difference, whose sides may be
    alike in a cluster; None: Kish's size."""
    numbers = number_clusters(clusters)
    influences = np.bincount(numbers, parts)  # (G,) part of every cluster in the error
    weights = np.bincount(numbers, shares)  # (G,)
    influences, weights = influences[weights > 0], weights[weights > 0]
    error = _robust_error(influences, 1.0)
    size = n or 1 / float(shares @ shares)  # Kish's, of unequal weights
    spread = size * float(parts @ parts)
    robust = None if error is None else size * error**2
    if n and robust is not None:
        spread = min(spread, robust)
    is_graded = graded and bool(error) and len(weights) >= GRADED_CLUSTERS
    image_size = size * float(weights @ weights)
    effective = effective_size(size, image_size, binary, spread, robust, graded=is_graded)
    return _EffectiveSample(float(effective), error, len(weights), len(weights) - 1 if is_graded else None)


def estimate_bounded(value: float, parts: np.ndarray, sizes: np.ndarray, n: float, low: float) -> Estimate:
    """An estimate in [low, 1] that is not a mean (kappa, AUC). parts, sizes: part of every cluster in its
    error and number of its samples, (G,) each; n: number of yes/no samples with at most this variance."""
    scale, count = 1 - low, int(sizes.sum())
    share, error = (value - low) / scale, _robust_error(parts / scale, 1.0)
    binary = share * (1 - share)
    robust = None if error is None else n * error**2
    spread = binary if robust is None else robust
    size = effective_size(n, float(sizes @ sizes) / count, binary, spread, robust)
    ends = clopper_pearson(share, size)
    return _EffectiveSample(float(size), error, len(sizes)).estimate(share, ends, count, scale, low)


def _robust_error(parts: np.ndarray, size: float) -> float | None:
    """Cluster-robust standard error from the part of every cluster in it, (G,); None for one cluster, 0 if
    all parts are rounding errors of values of this size."""
    count = len(parts)
    if count < 2:
        return None
    error = math.sqrt(count / (count - 1) * float(parts @ parts))
    return 0.0 if error <= 1e-13 * size else error


# --- differences and ratios ------------------------------------------------------------------------------
def pairs(
    first: Scores, second: Scores, cluster_of: Mapping[str, Hashable]
) -> tuple[np.ndarray, np.ndarray, list[Hashable]]:
    """Values of both sides, (n,) each, and clusters, over the ids that are scored in both."""
    x = np.array([*first.values()], dtype=np.float64)  # None becomes NaN
    y = np.array([second.get(key) for key in first], dtype=np.float64)
    is_scored = ~(np.isnan(x) | np.isnan(y))
    ids = [key for key, scored in zip(first, is_scored, strict=True) if scored]
    return x[is_scored], y[is_scored], [cluster_of[key] for key in ids]


def difference_of_means(
    first: Mapping[Hashable, float], second: Mapping[Hashable, float], cluster_of: Mapping[Hashable, Hashable]
) -> Estimate | None:
    """Mean of `first` minus mean of `second`, values in [0, 1] by id; None if one is empty. Equal ids are
    paired; others get Agresti-Caffo's interval at the effective sizes, and the `n` of the larger side."""
    if not first or not second:
        return None
    x, y = (np.array([*side.values()], dtype=np.float64) for side in (first, second))
    clusters = [cluster_of[key] for side in (first, second) for key in side]
    if first.keys() == second.keys():
        paired = np.array([second[key] for key in first], dtype=np.float64)
        return bounded_mean(x - paired, clusters[: len(x)], -1.0, 1.0)
    # Unpaired: part of every value in the error, its weight, (n_x + n_y,) each; variance of yes and no.
    mean_x, mean_y, n = float(x.mean()), float(y.mean()), max(len(x), len(y))
    parts = np.concatenate([(x - mean_x) / len(x), (mean_y - y) / len(y)])
    shares = np.concatenate([np.full(len(x), 0.5 / len(x)), np.full(len(y), 0.5 / len(y))])
    binary = n * (mean_x * (1 - mean_x) / len(x) + mean_y * (1 - mean_y) / len(y))
    sample = _find_effective_sample(parts, shares, clusters, binary, n)
    design_effect = n / sample.size
    ends = agresti_caffo(mean_x, len(x) / design_effect, mean_y, len(y) / design_effect)
    return sample.estimate(mean_x - mean_y, ends, n)


def pairs_ratio(above: np.ndarray, below: np.ndarray, clusters: Clusters) -> Estimate | None:
    """Ratio of means of pairs, mean(above) / mean(below), each (n,) in [0, 1]; None if `below` is all 0."""
    if not below.sum():
        return None
    top, bottom, mean_both = float(above.mean()), float(below.mean()), float((above * below).mean())
    value, first, second = top / bottom, top - mean_both, bottom - mean_both
    n, scale = len(above), max(1.0, value)
    # Variance of above - value * below for yes/no pairs; `first` and `second` are shares of only one yes.
    binary = (first + second * value**2 + mean_both * (1 - value) ** 2) / scale**2
    parts = (above - value * below) / (scale * n)
    sample = _find_effective_sample(parts, np.full(n, 1 / n), clusters, binary)
    ends = bonett_price_ratio(*(sample.size * share for share in (mean_both, first, second)))
    ratio = sample.estimate(value, ends, n)
    error = ratio.standard_error
    return replace(ratio, standard_error=None if error is None else error * scale / bottom)


# --- paired tests ----------------------------------------------------------------------------------------
POWER = 0.8  # probability of finding a difference, for `detectable` and `needed`
TEST_CLUSTERS = 6  # clusters for which p can be below 5 %, 2 / 2^6
#: A mean of differences below this part of the largest counts as 0: additions in another order give it.
ROUNDING = 1e-12


@dataclass(frozen=True)
class PairedTest:
    """The difference of two runs over the samples scored in both."""

    difference: Estimate
    means: tuple[float, float]  # of both runs
    #: Two-sided: below 0.05 if the interval excludes 0, never below `least`; 1.0 for equal values, None for
    #: fewer than `TEST_CLUSTERS` clusters, or unbounded values without a standard error.
    p: float | None
    least: float | None  # smallest p of a sign-flip test of G clusters, 2 / 2^G; None: unbounded values
    detectable: float | None  # smallest true difference that is found with probability `POWER`
    needed: int | None  # clusters to find the observed difference with that probability; None: equal values


def pairs_test(
    first: np.ndarray, second: np.ndarray, clusters: Clusters, span: float | None = 1.0
) -> PairedTest | None:
    """Test of two values of the same samples, (n,) each; None without samples. span: the largest possible
    difference; None for values without a useful range (`mean`)."""
    differences = first - second  # (n,)
    p = least = None
    if span:
        difference, p = _estimate_range(differences, clusters, -span, span)
    else:
        difference = mean(differences, clusters)
    if difference is None:
        return None
    if p is not None:
        least = 2.0 ** (1 - difference.clusters)
        p = None if difference.clusters < TEST_CLUSTERS else max(p, least)
    elif difference.value == 0:
        p = 1.0
    elif difference.standard_error:
        p = p_value(difference.value / difference.standard_error, difference.clusters - 1)
    is_equal = abs(difference.value) <= ROUNDING * float(np.abs(differences).max())
    detectable, needed = _power(difference, is_equal)
    if needed and least:
        needed = max(needed, TEST_CLUSTERS)
    return PairedTest(difference, (float(first.mean()), float(second.mean())), p, least, detectable, needed)


def _power(difference: Estimate, is_equal: bool) -> tuple[float | None, int | None]:
    """`detectable` and `needed` of the t test: (z + z_power)^2 SE^2 G / d^2 + z^2 / 2 clusters. Source:
    Guenther, The American Statistician 35 (1981)."""
    from scipy.special import ndtri

    error, count = difference.standard_error, difference.clusters
    if not error:
        return None, None
    z = Z + float(ndtri(POWER))
    spare = count - Z**2 / 2  # clusters left for the power
    detectable = error * z * math.sqrt(count / spare) if spare > 0 else None
    if is_equal:
        return detectable, None
    return detectable, math.ceil(count * (z * error / difference.value) ** 2 + Z**2 / 2)


def p_value(deviation: float, freedom: int | None) -> float:
    """Two-sided p of a deviation in standard errors. freedom: of Student's t; None: normal distribution."""
    from scipy.special import ndtr, stdtr

    below = ndtr(-abs(deviation)) if freedom is None else stdtr(freedom, -abs(deviation))
    return 2 * float(below)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given. Source: Holm, Scandinavian Journal of Statistics 6 (1979)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = p.argsort(kind="stable")
    p[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in p]


def number_clusters(clusters: Clusters) -> np.ndarray:
    """Number of each value's cluster, (n,) int64, from 0 in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.fromiter((numbers.setdefault(name, len(numbers)) for name in clusters), np.int64)


# --- formulas at the effective size, for numbers or arrays -----------------------------------------------
def effective_size(n: Any, group: Any, binary: Any, spread: Any, robust: Any, *, graded: bool = False) -> Any:
    """Number of independent yes/no samples with the same information: n / design effect.

    n       Samples.
    group   Mean number of samples in the image of a random sample: sum b^2 / sum b, b of each image.
    binary  Variance of a value if all values were at the ends of their range, with the same mean.
    spread  Variance of a value.
    robust  n times the cluster-robust variance of the mean; None for one image.
    graded  Whether values lie between the ends; the prior then has their variance, not that of yes and no.

    The observed design effect is robust / binary, with an intraclass correlation in [0, 1]. Few dissenting
    samples (n binary) say little about it: it is averaged with the one of `PRIOR_CORRELATION`, which has the
    weight of one image. The size is Korn & Graubard's, Survey Methodology 24 (1998), without their factor of
    t; the average is ours.
    """
    group = np.maximum(group, 1.0)
    dissent, assumed = n * binary, 1 + (group - 1) * PRIOR_CORRELATION
    with np.errstate(invalid="ignore", divide="ignore"):
        clustering = group  # the part of the observed design effect that is due to clusters
        if robust is not None:
            clustering = np.clip(np.nan_to_num(np.divide(robust, spread), nan=1.0), 1.0, group)
        observed = np.nan_to_num(np.divide(spread, binary) * clustering, nan=1.0)
        assumed *= spread / binary if graded else 1.0
    return n * (dissent + group) / (dissent * observed + group * assumed)


def clopper_pearson(share: Any, n: Any) -> Ends:
    """Interval of a share of n samples (n: any real). Source: Clopper & Pearson, Biometrika 26 (1934)."""
    from scipy.special import betaincinv

    yes, no = np.multiply(share, n), np.multiply(1 - np.asarray(share), n)
    low = np.where(yes > 0, betaincinv(np.maximum(yes, 1e-300), no + 1, (1 - LEVEL) / 2), 0.0)
    high = np.where(no > 0, betaincinv(yes + 1, np.maximum(no, 1e-300), (1 + LEVEL) / 2), 1.0)
    return low, high


def bonett_price(up: Any, down: Any, n: Any) -> tuple[Any, Any]:
    """Middle and standard error (not ends) of a paired difference up - down, shares of +1 and -1 among n
    pairs, a pair added to each. Source: Bonett & Price, J. of Educational and Behavioral Stat. 37 (2012)."""
    more, less = (np.multiply(up, n) + 1) / (n + 2), (np.multiply(down, n) + 1) / (n + 2)
    middle = more - less
    return middle, np.sqrt((more + less - middle**2) / (n + 2))


def agresti_caffo(first: Any, n_first: Any, second: Any, n_second: Any) -> Ends:
    """Interval of the difference of two independent shares, with a yes and a no added to both. Source:
    Agresti & Caffo, The American Statistician 54 (2000)."""
    p_first, p_second = (first * n_first + 1) / (n_first + 2), (second * n_second + 1) / (n_second + 2)
    reach = Z * np.sqrt(p_first * (1 - p_first) / (n_first + 2) + p_second * (1 - p_second) / (n_second + 2))
    return np.maximum(-1.0, p_first - p_second - reach), np.minimum(1.0, p_first - p_second + reach)


def bonett_price_ratio(n_both: Any, n_first: Any, n_second: Any) -> Ends:
    """Interval of the ratio of two paired shares, from the numbers of pairs in which both, only the first and
    only the second are yes. Source: Bonett & Price, Statistics in Medicine 25 (2006)."""
    n, above, below = n_both + n_first + n_second, n_both + n_first, n_both + n_second
    apart = np.sqrt((n_first + n_second + 2) / ((above + 1) * (below + 1)))
    weights = [np.sqrt((1 - (x + 1) / (n + 2)) / (x + 1)) for x in (above, below)]
    z = Z * apart / (weights[0] + weights[1])
    low_above, high_above = wilson(above, n, z)
    low_below, high_below = wilson(below, n, z)
    return low_above / high_below, high_above / low_below


def wilson(yes: Any, n: Any, z: Any) -> Ends:
    """Interval of the share yes / n, of z standard errors on each side. Source: Wilson, Journal of the
    American Statistical Association 22 (1927)."""
    middle, reach = 2 * yes + z**2, z * np.sqrt(z**2 + 4 * yes * (1 - yes / n))
    return (middle - reach) / (2 * (n + z**2)), (middle + reach) / (2 * (n + z**2))
