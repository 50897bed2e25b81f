"""Means, proportions and paired differences with 95 % intervals that respect clusters.

NeIn makes up to five samples from one source image; their scores are alike, so 500 samples tell less than 500
independent ones would. Every interval here is clustered by source image; `exact_interval`, which knows no
clusters, says so. Unscored values (None) never enter. Figures that are no means are in
`nein.statistics.bootstrap`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval.

    value           The mean, proportion or difference, in the unit of the input.
    low, high       Ends of the 95 % interval; None when it cannot be had (fewer than two clusters).
    standard_error  Cluster-robust; None like the interval.
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


def mean(values: Sequence[float], clusters: Sequence[Hashable]) -> Estimate | None:
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
    sums, _ = _cluster_sums(x - value, clusters)
    n, count = len(x), len(sums)
    if count < 2:
        return Estimate(value, None, None, None, n, count)
    error = math.sqrt(count / (count - 1) * float(sums @ sums)) / n
    reach = t_quantile(count - 1) * error
    return Estimate(value, value - reach, value + reach, error, n, count)


def proportion(values: Sequence[float], clusters: Sequence[Hashable]) -> Estimate | None:
    """Proportion of ones among zeros and ones, with Wilson's interval at the effective sample size.

    The effective size is n_eff = n / deff, with the design effect deff = SE^2 / (p (1 - p) / (n - 1)), SE
    from `mean`, never below 1 (clustering is not allowed to look like extra information). Where all values
    are equal, SE is zero and tells nothing about clustering; then values within a cluster are taken as
    copies of each other, which gives n_eff = n^2 / sum_g n_g^2, the smallest it can be. With z the t
    quantile at G - 1 degrees of freedom,

        centre = (p + z^2 / (2 n_eff)) / (1 + z^2 / n_eff),
        reach  = z / (1 + z^2 / n_eff) * sqrt(p (1 - p) / n_eff + z^2 / (4 n_eff^2)).

    So 0 of 500 has the interval [0, something above 0]. Sources: Wilson, JASA 22 (1927); Dean & Pagano,
    "Evaluating Confidence Interval Methods for Binomial Proportions in Clustered Surveys", J. Survey
    Statistics and Methodology 3 (2015), for the effective size in Wilson's interval.
    """
    plain = mean(values, clusters)
    if plain is None or plain.standard_error is None:
        return plain
    x = np.asarray(values, dtype=np.float64)
    if not np.isin(x, (0.0, 1.0)).all():
        raise AssertionError("a proportion needs values that are 0 or 1")
    n, p = plain.n, plain.value
    spread = p * (1 - p)
    if spread > 0:
        effect = max(1.0, plain.standard_error**2 * (n - 1) / spread)
    else:
        _, sizes = _cluster_sums(x, clusters)
        effect = float(sizes @ sizes) / n
    n_eff = n / effect
    z = t_quantile(plain.clusters - 1)
    shrink = 1 + z * z / n_eff
    centre = (p + z * z / (2 * n_eff)) / shrink
    reach = z / shrink * math.sqrt(spread / n_eff + z * z / (4 * n_eff * n_eff))
    low = 0.0 if p == 0 else max(0.0, centre - reach)
    high = 1.0 if p == 1 else min(1.0, centre + reach)
    return Estimate(p, low, high, plain.standard_error, n, plain.clusters)


def paired_difference(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    cluster_of: Mapping[str, Hashable],
) -> Estimate | None:
    """Mean of first - second over the ids scored in both, as in `mean`; None when there is no such id.

    Pairing by sample removes the difficulty of the sample from the difference: the two means alone would
    give a wider interval wherever their values rise and fall together.
    """
    ids = [key for key, value in first.items() if value is not None and second.get(key) is not None]
    differences = [float(first[key]) - float(second[key]) for key in ids]  # type: ignore[arg-type]
    return mean(differences, [cluster_of[key] for key in ids])


def difference_of_means(
    first: Sequence[float] | np.ndarray,
    first_clusters: Sequence[Hashable],
    second: Sequence[float] | np.ndarray,
    second_clusters: Sequence[Hashable],
) -> Estimate | None:
    """Mean of `first` minus mean of `second`; values of one cluster are alike, also across the two.

    With e_g = (residuals of `first` in g) / n_1 - (those of `second` in g) / n_2, each about its own mean,

        SE^2 = G / (G - 1) * sum_g e_g^2,

    which is `paired_difference` where every value has a partner, and does not need one. `n` is the larger of
    the two numbers of values. None where one of them is 0.
    """
    if not len(first) or not len(second):
        return None
    x, y = (np.asarray(values, dtype=np.float64) for values in (first, second))
    value = float(x.mean() - y.mean())
    parts = np.concatenate([(x - x.mean()) / len(x), (y.mean() - y) / len(y)])
    sums, _ = _cluster_sums(parts, [*first_clusters, *second_clusters])
    n, count = max(len(x), len(y)), len(sums)
    if count < 2:
        return Estimate(value, None, None, None, n, count)
    error = math.sqrt(count / (count - 1) * float(sums @ sums))
    # Where all pairs differ by the same amount, rounding errors are left; `bounded` asks for a zero.
    error = 0.0 if error <= 1e-13 * max(np.abs(x).max(), np.abs(y).max()) else error
    reach = t_quantile(count - 1) * error
    return Estimate(value, value - reach, value + reach, error, n, count)


def exact_interval(ones: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Clopper-Pearson's interval of a proportion: exact for independent trials, so too narrow for clusters.

    Source: Clopper & Pearson, Biometrika 26 (1934). Raises ValueError unless 0 <= ones <= n and n >= 1.
    """
    from scipy.special import betaincinv

    if not 0 <= ones <= n or n < 1:
        raise ValueError(f"{ones} of {n} is no proportion")
    tail = (1 - level) / 2
    low = 0.0 if ones == 0 else float(betaincinv(ones, n - ones + 1, tail))
    high = 1.0 if ones == n else float(betaincinv(ones + 1, n - ones, 1 - tail))
    return low, high


def effective_size(share: Estimate) -> float:
    """How many independent trials would give a proportion the standard error it has; between 1 and n.

    Where all values are equal the standard error is no guide, and clusters are taken as single trials.
    """
    spread = share.value * (1 - share.value)
    if not share.standard_error or spread <= 0:
        return float(max(1, share.clusters))
    return float(min(share.n, max(1.0, spread / share.standard_error**2)))


def bounded(estimate: Estimate, low: float, high: float) -> Estimate:
    """The estimate of a quantity that cannot leave [low, high], with an interval that does not either.

    Where all values are equal the standard error is 0 and says nothing: then the interval reaches
    (high - low) z^2 / (G + z^2) to both sides, Wilson's bound for G trials with one outcome.
    """
    if estimate.low is None or estimate.high is None:
        return estimate
    reach = 0.0
    if estimate.standard_error == 0:
        z = t_quantile(estimate.clusters - 1)
        reach = (high - low) * z * z / (estimate.clusters + z * z)
    ends = (min(high, max(low, estimate.low - reach)), max(low, min(high, estimate.high + reach)))
    return Estimate(estimate.value, *ends, estimate.standard_error, estimate.n, estimate.clusters)


@dataclass(frozen=True)
class PairedTest:
    """The difference of two runs over the samples scored in both, with its tests.

    difference   Mean of first - second, as `paired_difference` gives it.
    p_t          Two-sided p of the cluster-robust t test (G - 1 degrees of freedom), the test that belongs to
                 the interval; None with fewer than two clusters.
    p_flip       Two-sided p of the randomisation test that swaps the two runs within whole clusters; exact
                 for any size where the difference is symmetric under the null hypothesis.
    p            p_t from `MANY` clusters on; with fewer, or without a standard error, the larger of the two,
                 so that a small sample cannot make it small.
    detectable   The smallest true difference found with probability `POWER` at this size.
    needed       Clusters needed to find a true difference of the size observed with probability `POWER`; None
                 where nothing differs.
    """

    difference: Estimate
    p_t: float | None
    p_flip: float
    p: float
    detectable: float | None
    needed: int | None


POWER = 0.8
FLIPS = 9999
MANY = 30  # clusters from which the t distribution is trusted; randomisation cannot show p below 1 / flips
_CELLS = 20_000_000  # clusters times flips; with thousands of clusters fewer flips are made


def paired_test(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    cluster_of: Mapping[str, Hashable],
    *,
    flips: int = FLIPS,
    seed: int = 0,
) -> PairedTest | None:
    """Compares two runs sample by sample, source images being the independent units; None without pairs.

    The randomisation test flips the sign of all differences of a source image together, `flips` times, and
    counts how often the sum is at least as far from 0: p = (1 + count) / (1 + flips). With 13 clusters or
    fewer all sign patterns are counted instead. Source: Edgington & Onghena, Randomization Tests (2007);
    power: n = (z_0.975 + z_0.8)^2 SE^2 n / d^2, the normal approximation.
    """
    ids = [key for key, value in first.items() if value is not None and second.get(key) is not None]
    differences = [float(first[key]) - float(second[key]) for key in ids]  # type: ignore[arg-type]
    clusters = [cluster_of[key] for key in ids]
    difference = mean(differences, clusters)
    if difference is None:
        return None
    sums, _ = _cluster_sums(np.asarray(differences), clusters)
    p_flip = _flip_test(sums, flips, seed)
    error = difference.standard_error
    if not error:  # one cluster, or all differences alike: only the randomisation test can speak
        return PairedTest(difference, None, p_flip, p_flip, None, None)
    from scipy.special import ndtri, stdtr

    p_t = 2 * float(stdtr(difference.clusters - 1, -abs(difference.value) / error))
    reach = float(ndtri((1 + LEVEL) / 2) + ndtri(POWER))
    needed = (
        None
        if difference.value == 0
        else math.ceil(difference.clusters * (reach * error / difference.value) ** 2)
    )
    p = p_t if difference.clusters >= MANY else max(p_t, p_flip)
    return PairedTest(difference, p_t, p_flip, p, reach * error, needed)


def _flip_test(sums: np.ndarray, flips: int, seed: int) -> float:
    sums = sums[sums != 0]
    if not len(sums):
        return 1.0
    observed = abs(sums.sum()) * (1 - 1e-12)
    if len(sums) <= 13:
        patterns = 1 - 2 * ((np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1)
        return float(np.mean(np.abs(patterns @ sums) >= observed))
    rng = np.random.default_rng(seed)
    count = 0
    step = max(1, _CELLS // 10 // len(sums))
    flips = min(flips, _CELLS // len(sums))
    for start in range(0, flips, step):
        rows = min(step, flips - start)
        signs = rng.integers(0, 2, (rows, len(sums)), dtype=np.int8).astype(np.float32)
        count += int((np.abs(sums.sum() - 2 * (signs @ sums)) >= observed).sum())
    return (1 + count) / (1 + flips)


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


def _cluster_sums(values: np.ndarray, clusters: Iterable[Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """Sum and size of every cluster, in order of first appearance."""
    index: dict[Hashable, int] = {}
    member = np.array([index.setdefault(name, len(index)) for name in clusters])
    if len(member) != len(values):
        raise AssertionError(f"{len(values)} values but {len(member)} cluster names")
    sums = np.bincount(member, weights=values, minlength=len(index))
    return sums, np.bincount(member, minlength=len(index)).astype(np.float64)


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))
