"""The Frechet distance of two sets of features (Heusel et al., arXiv:1706.08500, eq. 6), and an interval.

    d = |m_a - m_b|^2 + tr S_a + tr S_b - 2 tr (S_a S_b)^(1/2)

The last trace is the sum of the singular values of F_a F_b^T, where S = F^T F: the number that clean-fid
takes from a matrix square root, also for singular covariances.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.special
from threadpoolctl import threadpool_limits

from nein.metrics.base import MetricError

Names = Sequence[str]


class FidInterval(NamedTuple):
    """low, high: None with one source image. left_out: distances without each group of source images."""

    value: float
    low: float | None
    high: float | None
    standard_error: float | None
    left_out: tuple[float, ...] = ()

    @classmethod
    def of(cls, value: float, left_out: Sequence[float]) -> FidInterval:
        """Of G groups: standard error sqrt((G - 1) / G * sum (d_g - mean d)^2), times t(G - 1)."""
        count = len(left_out)
        if count < 2:
            return cls(value, None, None, None)
        replicates = np.asarray(left_out, dtype=np.float64)
        error = float(np.sqrt((count - 1) / count * np.sum((replicates - replicates.mean()) ** 2)))
        reach = float(scipy.special.stdtrit(count - 1, 0.975)) * error
        return cls(value, value - reach, value + reach, error, tuple(map(float, left_out)))


def difference(first: FidInterval, second: FidInterval) -> FidInterval:
    """first - second, of two sets of edits of the same source images."""
    if len(first.left_out) != len(second.left_out):
        raise MetricError("The difference of two FIDs needs both on the same groups of source images.")
    pairs = zip(first.left_out, second.left_out, strict=True)
    return FidInterval.of(first.value - second.value, [a - b for a, b in pairs])


#: Source images per column of the features from which `limit` covers (docs/explanation/statistics.md).
LIMIT_IMAGES = 3


def limit(distance: FidInterval) -> FidInterval:
    """For infinitely many pictures: G d - (G - 1) mean d_g takes off the part of the bias that falls as 1 /
    N. Source: Quenouille, Biometrika 43 (1956); Chong & Forsyth, CVPR 2020 (arXiv:1911.07023)."""
    count = len(distance.left_out)
    if count < 2:
        return distance
    value = count * distance.value - (count - 1) * sum(distance.left_out) / count
    return _positive(FidInterval.of(value, distance.left_out))


def _positive(interval: FidInterval) -> FidInterval:
    """Cut at 0, below which no distance is."""
    low, high = (None if end is None else max(0.0, end) for end in (interval.low, interval.high))
    return interval._replace(value=max(0.0, interval.value), low=low, high=high)


#: Columns of the features up to which the threads of BLAS wait for each other longer than they work.
NARROW = 256


@dataclass(frozen=True)
class _Moments:
    """Count, sum (D,) and sum of outer products (D, D) of rows already shifted near zero; float64."""

    n: int
    total: np.ndarray
    outer: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> _Moments:
        return cls(len(rows), rows.sum(0), rows.T @ rows)

    def __sub__(self, other: _Moments) -> _Moments:
        return _Moments(self.n - other.n, self.total - other.total, self.outer - other.outer)

    def mean(self) -> np.ndarray:
        return self.total / self.n

    def covariance(self) -> np.ndarray:
        mean = self.mean()
        return (self.outer - self.n * np.outer(mean, mean)) / (self.n - 1)


def frechet_distance(features_a: np.ndarray, features_b: np.ndarray) -> float:
    """Of the rows of (N, D) and (M, D), >= 0; float64, denominator n - 1 as clean-fid. Raises MetricError."""
    a, b = _check(features_a, "edited"), _check(features_b, "target")
    if a.shape[1] != b.shape[1]:
        raise MetricError(f"FID needs features of one network, not widths {a.shape[1]} and {b.shape[1]}.")
    if min(len(a), len(b)) <= a.shape[1]:
        return _from_rows(a, b)
    shift = b.mean(0)
    return _from_moments(_Moments.of(a - shift), _Moments.of(b - shift))


def jackknife_interval(
    edited: np.ndarray, target: np.ndarray, clusters: Names, *, target_clusters: Names = (), groups: int = 20
) -> FidInterval:
    """Delete-a-group jackknife interval of `frechet_distance(edited, target)`, clustered by source image.

    clusters, target_clusters   Source image of every row; by default the rows of both correspond.
    groups                      Source images are split into that many groups by the SHA-256 of their names.

    A group leaves both sets at once: the interval covers the choice of source images, around what N such
    images give on average, so compare FIDs at equal N only. Cut at 0. Cost: G + 1 distances. Source: Kott,
    Journal of Official Statistics 17 (2001).
    """
    target_clusters = target_clusters or clusters
    if len(clusters) != len(edited) or len(target_clusters) != len(target):
        raise MetricError(
            f"One source image per row is needed: {len(edited)} and {len(target)} rows, "
            f"{len(clusters)} and {len(target_clusters)} names."
        )
    value = frechet_distance(edited, target)
    names = {*clusters, *target_clusters}
    ordered = sorted(names, key=lambda name: hashlib.sha256(str(name).encode()).digest())
    member = {name: index % groups for index, name in enumerate(ordered)}
    a, b = _check(edited, "edited"), _check(target, "target")
    of_a, of_b = (np.array([member[name] for name in names]) for names in (clusters, target_clusters))
    parts = [(of_a == g, of_b == g) for g in range(max(member.values()) + 1)]
    if min(min((~in_a).sum(), (~in_b).sum()) for in_a, in_b in parts) < 2:
        return FidInterval(value, None, None, None)
    with threadpool_limits(1 if a.shape[1] <= NARROW else None, "blas"):
        if min(len(a), len(b)) <= a.shape[1]:
            left_out = [_from_rows(a[~in_a], b[~in_b]) for in_a, in_b in parts]
        else:
            a, b = a - b.mean(0), b - b.mean(0)
            all_a, all_b = _Moments.of(a), _Moments.of(b)
            left_out = [
                _from_moments(all_a - _Moments.of(a[in_a]), all_b - _Moments.of(b[in_b]))
                for in_a, in_b in parts
            ]
    return _positive(FidInterval.of(value, left_out))


def _check(features: np.ndarray, what: str) -> np.ndarray:
    array = np.asarray(features, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] < 1:
        raise MetricError(f"FID needs features of shape (images, width), not {array.shape} ({what}).")
    if len(array) < 2:
        raise MetricError(f"FID needs at least 2 {what} images, not {len(array)}.")
    if bad := int((~np.isfinite(array).all(1)).sum()):
        raise MetricError(
            f"{bad} of {len(array)} {what} feature rows are not finite; leave those samples out."
        )
    return array


def _from_rows(a: np.ndarray, b: np.ndarray) -> float:
    """Few rows: S = F^T F with F the centred rows, so no D x D matrix is needed."""
    mean_a, mean_b = a.mean(0), b.mean(0)
    f_a = (a - mean_a) / np.sqrt(len(a) - 1)
    f_b = (b - mean_b) / np.sqrt(len(b) - 1)
    cross = scipy.linalg.svdvals(f_a @ f_b.T).sum()
    return _distance(mean_a - mean_b, (f_a**2).sum() + (f_b**2).sum(), cross)


def _from_moments(a: _Moments, b: _Moments) -> float:
    s_a, s_b = a.covariance(), b.covariance()
    try:  # F with S_a = F^T F
        f_a = scipy.linalg.cholesky(s_a, lower=False, check_finite=False)
    except scipy.linalg.LinAlgError:  # singular
        values, vectors = scipy.linalg.eigh(s_a)
        f_a = np.sqrt(np.clip(values, 0, None))[:, None] * vectors.T
    inner = f_a @ s_b @ f_a.T
    eigenvalues = scipy.linalg.eigh((inner + inner.T) / 2, eigvals_only=True, check_finite=False)
    cross = np.sqrt(np.clip(eigenvalues, 0, None)).sum()
    return _distance(a.mean() - b.mean(), np.trace(s_a) + np.trace(s_b), cross)


def _distance(difference: np.ndarray, traces: float, cross: float) -> float:
    return max(0.0, float(difference @ difference + traces - 2 * cross))  # below it by rounding alone
