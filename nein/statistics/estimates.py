"""Figures with 95 % intervals that respect clusters, one method for each kind of figure.

NeIn makes up to five samples from one source image; their scores are alike, so 500 samples tell less than 500
independent ones would. Every interval here takes source images for the independent units:

- what is bounded (a share, a mean of values in a range, a paired difference or a ratio of such): the interval
  of `nein.statistics.bounds`;
- a mean whose range says nothing (L1, LPIPS, a cosine): Student's t with the cluster-robust standard error;
- what is neither, a kappa or an area under a curve: `nein.statistics.bootstrap`.

`benchmarks/coverage.py` measures how often each covers (docs/explanation/statistics.md). Unscored values
(None) never enter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from nein.statistics import bounds

LEVEL = 0.95
#: The cluster of every value, by name, or what `cluster_columns` made of them.
Clusters: TypeAlias = "Sequence[Hashable] | Columns"


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval.

    value           The mean, share, difference or ratio, in the unit of the input.
    low, high       Ends of the 95 % interval; None when it cannot be had: a mean of one cluster, or one whose
                    clusters all agree, which is no certainty.
    standard_error  Cluster-robust; None with one cluster.
    n, clusters     Values and distinct clusters that entered.
    """

    value: float
    low: float | None
    high: float | None
    standard_error: float | None
    n: int
    clusters: int

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, JSON-serialisable."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Estimate | None:
        """What `as_dict` gave, among other entries or not; None where the value is None."""
        if entry["value"] is None:
            return None
        return cls(**{field.name: entry[field.name] for field in fields(cls)})


def mean(values: Sequence[float] | np.ndarray, clusters: Clusters) -> Estimate | None:
    """Mean with a cluster-robust interval, or None for no values.

    With residual sums e_g = sum over cluster g of (x_i - m), G clusters and n values,

        SE^2 = G / (G - 1) * sum_g e_g^2 / n^2,      interval = m -/+ t_{G-1, 0.975} SE.

    This is the sandwich estimator (CR1) for a regression on a constant: Cameron & Miller, "A Practitioner's
    Guide to Cluster-Robust Inference", Journal of Human Resources 50 (2015), eq. 11-12. With one value per
    cluster it is the ordinary standard error of a mean.
    """
    if not len(values):
        return None
    x = np.asarray(values, dtype=np.float64)
    value = float(x.mean())
    [sums] = _cluster_sums(clusters, x - value)
    error = _error(sums / len(x), float(np.abs(x).max()))
    if not error:
        return Estimate(value, None, None, error, len(x), len(sums))
    reach = t_quantile(len(sums) - 1) * error
    return Estimate(value, value - reach, value + reach, error, len(x), len(sums))


def bounded_mean(
    values: Sequence[float] | np.ndarray,
    clusters: Clusters,
    low: float = 0.0,
    high: float = 1.0,
    weights: Sequence[float] | np.ndarray | None = None,
) -> Estimate | None:
    """Mean of values in [low, high] with the interval of `bounds`, or None for no values: a share is the mean
    of zeros and ones.

    weights  Of the values, or None for equal ones: sum w x / sum w.

    The picture more is as large as `_one_more` says.
    """
    x = np.asarray(values, dtype=np.float64)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not w.sum():
        return None
    if x.size and not (x.min() >= low and x.max() <= high):
        raise AssertionError(f"values from {x.min()} to {x.max()} are not within [{low}, {high}]")
    sums, sizes = _cluster_sums(clusters, w * x, w)
    more = _one_more(x, w, sums, sizes, high - low)
    return _bounded(sums, sizes, low, high, int((w > 0).sum()), more)


def _bounded(sums: np.ndarray, sizes: np.ndarray, low: float, high: float, n: int, more: float) -> Estimate:
    terms = _terms(sums, sizes)
    value = float(min(high, max(low, sums.sum() / sizes.sum())))
    ends = bounds.interval(terms, (low * more, more), (high * more, more))
    used = sizes > 0
    error = _error((sums - value * sizes)[used] / sizes.sum(), max(abs(low), abs(high)))
    return Estimate(value, min(value, ends[0]), max(value, ends[1]), error, n, int(used.sum()))


def _one_more(
    values: np.ndarray, weights: np.ndarray, sums: np.ndarray, sizes: np.ndarray, span: float
) -> float:
    """`bounds.design_effect` of these values, which lie within a range of length `span`."""
    total = float(sizes.sum())
    mean = float(sums.sum()) / total
    variance, pulls = float(weights @ (values - mean) ** 2) / total, sums - mean * sizes
    usual, square = float(sizes @ sizes) / total, span**2
    return float(bounds.design_effect(total, usual, len(sizes), variance / square, pulls @ pulls / square))


def _terms(sums: np.ndarray, sizes: np.ndarray) -> bounds.Terms:
    """The clusters as `bounds` counts them."""
    used = sizes > 0
    return bounds.kinds(sums[used], sizes[used])


def _error(parts: np.ndarray, size: float) -> float | None:
    """Cluster-robust standard error from what every cluster pulls; 0 where all of it is rounding."""
    count = len(parts)
    if count < 2:
        return None
    error = math.sqrt(count / (count - 1) * float(parts @ parts))
    return 0.0 if error <= 1e-13 * size else error


def pairs(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    cluster_of: Mapping[str, Hashable],
) -> tuple[np.ndarray, np.ndarray, list[Hashable]]:
    """Both values and the cluster of every id that is scored in both."""
    one, other = (np.array([*map(side.get, first)], dtype=np.float64) for side in (first, second))
    both = ~(np.isnan(one) | np.isnan(other))
    return one[both], other[both], [*map(cluster_of.__getitem__, itertools.compress(first, both))]


def paired_difference(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    cluster_of: Mapping[str, Hashable],
    span: float | None = 1.0,
) -> Estimate | None:
    """Mean of first - second over the ids scored in both; None when there is no such id.

    span  How far apart two values can be, 1 for shares: the difference is bounded by it, and None for values
          whose range says nothing (`mean`).

    Pairing by sample removes the difficulty of the sample from the difference: the two means alone would
    give a wider interval wherever their values rise and fall together.
    """
    one, other, clusters = pairs(first, second, cluster_of)
    return _difference(one - other, clusters, span)


def _difference(apart: np.ndarray, clusters: Clusters, span: float | None) -> Estimate | None:
    return mean(apart, clusters) if span is None else bounded_mean(apart, clusters, -span, span)


def difference_of_means(
    first: Sequence[float] | np.ndarray,
    first_clusters: Sequence[Hashable],
    second: Sequence[float] | np.ndarray,
    second_clusters: Sequence[Hashable],
) -> Estimate | None:
    """Mean of `first` minus mean of `second`, both of values from 0 to 1; values of one cluster are alike,
    also across the two.

    Where the two go pair by pair through the same clusters, this is `paired_difference`. Otherwise a
    cluster's sum is what it adds to one mean less what it adds to the other, its size the mean of its shares
    of the two sets, and pairs are taken to be as alike as `bounds.ALIKE`. `n` is the larger of the two
    numbers of values. None where one of them is 0.
    """
    if not len(first) or not len(second):
        return None
    x, y = (np.asarray(values, dtype=np.float64) for values in (first, second))
    if list(first_clusters) == list(second_clusters):
        return bounded_mean(x - y, first_clusters, -1.0, 1.0)
    n, clusters = max(len(x), len(y)), [*first_clusters, *second_clusters]
    shares = np.concatenate([np.full(len(x), n / len(x)), np.full(len(y), n / len(y))]) / 2
    sums, sizes = _cluster_sums(clusters, shares * np.concatenate([2 * x, -2 * y]), shares)
    usual = float(sizes @ sizes) / float(sizes.sum())
    return _bounded(sums, sizes, -1.0, 1.0, n, 1 + bounds.ALIKE * max(0.0, usual - 1))


def ratio(
    numerator: Mapping[str, float | None],
    denominator: Mapping[str, float | None],
    cluster_of: Mapping[str, Hashable],
) -> Estimate | None:
    """mean(numerator) / mean(denominator) over the ids scored in both, of values from 0 to 1; None without
    ids or for a zero below. The interval of `bounds`, from 0 upwards: the picture more has nothing above, or
    nothing below."""
    return pairs_ratio(*pairs(numerator, denominator, cluster_of))


def pairs_ratio(above: np.ndarray, below: np.ndarray, clusters: Clusters) -> Estimate | None:
    """`ratio` of the values of the pairs, (n,) float64 each."""
    if not below.sum():
        return None
    tops, bottoms, sizes = _cluster_sums(clusters, above, below, np.ones(len(below)))
    value = float(tops.sum() / bottoms.sum())
    terms, more = bounds.kinds(tops, bottoms), 1 + bounds.ALIKE * (float(sizes @ sizes / sizes.sum()) - 1)
    low, high = bounds.interval(terms, (0.0, more), (more, 0.0))
    error = _error((tops - value * bottoms) / bottoms.sum(), value)
    return Estimate(value, min(value, low), max(value, high), error, len(above), len(sizes))


def effective_size(share: Estimate) -> float:
    """How many independent trials would give a proportion the standard error it has; between 1 and n.

    Where all values are equal the standard error is no guide, and clusters are taken as single trials.
    """
    spread = share.value * (1 - share.value)
    if not share.standard_error or spread <= 0:
        return float(max(1, share.clusters))
    return float(min(share.n, max(1.0, spread / share.standard_error**2)))


@dataclass(frozen=True)
class PairedTest:
    """The difference of two runs over the samples scored in both, with its test.

    difference   Mean of first - second, as `paired_difference` gives it.
    means        Of both, over the same samples.
    p            Two-sided p of the test that belongs to the interval, with all pairs: it is below 0.05 where
                 the 95 % interval leaves out 0. Of bounded values `bounds.p_value` (McNemar's test where
                 every pair is a cluster of its own), of others the cluster-robust t test; 1.0 where nothing
                 differs, None where unbounded values have no standard error.
    least        The smallest p that these clusters could give at all, were every pair to differ by all that
                 is possible in one direction; None for unbounded values, where there is none.
    detectable   The smallest true difference found with probability `POWER` at this size.
    needed       Clusters needed to find a true difference of the size observed with probability `POWER`; None
                 where nothing differs.
    """

    difference: Estimate
    means: tuple[float, float]
    p: float | None
    least: float | None
    detectable: float | None
    needed: int | None


POWER = 0.8
#: A mean of differences that is this small beside the largest of them is 0 but for the order of additions.
ROUNDING = 1e-12


def paired_test(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    cluster_of: Mapping[str, Hashable],
    span: float | None = 1.0,
) -> PairedTest | None:
    """Compares two runs sample by sample, source images being the independent units; None without pairs.

    span  As in `paired_difference`.
    """
    return pairs_test(*pairs(first, second, cluster_of), span)


def pairs_test(
    one: np.ndarray, other: np.ndarray, clusters: Clusters, span: float | None = 1.0
) -> PairedTest | None:
    """`paired_test` of the values of the pairs, (n,) float64 each.

    Power: n = (z_0.975 + z_0.8)^2 SE^2 n / d^2, the normal approximation.
    """
    columns = cluster_columns(clusters)
    difference = _difference(one - other, columns, span)
    if difference is None:
        return None
    means = float(one.mean()), float(other.mean())
    p, least = _t_test(difference), None
    if span is not None:
        each = np.ones(len(one))
        sums, sizes = _cluster_sums(columns, one - other, each)
        more = _one_more(one - other, each, sums, sizes, 2 * span)
        most = _one_more(span * each, each, span * sizes, sizes, 2 * span)
        p = bounds.p_value(_terms(sums, sizes), (-span * more, more), (span * more, more))
        least = bounds.p_value(_terms(span * sizes, sizes), (-span * most, most), (span * most, most))
    error = difference.standard_error
    if not error:
        return PairedTest(difference, means, p, least, None, None)
    from scipy.special import ndtri

    reach = float(ndtri((1 + LEVEL) / 2) + ndtri(POWER))
    needed = None
    if abs(difference.value) > ROUNDING * float(np.abs(one - other).max()):
        needed = math.ceil(difference.clusters * (reach * error / difference.value) ** 2)
    return PairedTest(difference, means, p, least, reach * error, needed)


def _t_test(mean: Estimate) -> float | None:
    """p of a mean of zero; None without a standard error, unless the mean is zero."""
    if mean.value == 0:
        return 1.0
    return t_p_value(mean.value, mean.standard_error, mean.clusters - 1) if mean.standard_error else None


def t_p_value(value: float, error: float, freedom: int) -> float:
    """Two-sided p of Student's t = value / error."""
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -abs(value) / error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given: the chance that any of the claims is false stays below the
    level.

    Sorted ascending, p_(k) is multiplied by m - k + 1 and never falls below its predecessor. Source: Holm,
    Scandinavian Journal of Statistics 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


@dataclass(frozen=True)
class Columns:
    """member: the column of every value's cluster, (n,) int64, in order of first appearance; count: how many
    clusters there are."""

    member: np.ndarray
    count: int

    def of(self, chosen: np.ndarray) -> Columns:
        """The clusters of some of the values: (n,) bool, or their places, (m,) int64."""
        member = self.member[chosen]
        there = np.bincount(member, minlength=self.count) > 0
        return Columns((np.cumsum(there) - 1)[member], int(there.sum()))


def cluster_columns(clusters: Clusters) -> Columns:
    """The clusters as columns, which may be worked out once for many figures."""
    if isinstance(clusters, Columns):
        return clusters
    index = {name: column for column, name in enumerate(dict.fromkeys(clusters))}
    return Columns(np.fromiter(map(index.__getitem__, clusters), np.int64, len(clusters)), len(index))


def _cluster_sums(clusters: Clusters, *values: np.ndarray) -> list[np.ndarray]:
    """Sums of the values (n,) of every cluster, each (G,)."""
    columns = cluster_columns(clusters)
    if any(len(columns.member) != len(each) for each in values):
        raise AssertionError(f"{len(values[0])} values but {len(columns.member)} cluster names")
    return [np.bincount(columns.member, weights=each, minlength=columns.count) for each in values]


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))
