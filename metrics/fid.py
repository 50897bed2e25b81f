"""Computes FID, the Frechet distance of two sets of features (arXiv:1706.08500, eq. 6), and its interval.

    d = |m_a - m_b|^2 + tr S_a + tr S_b - 2 tr (S_a S_b)^(1/2)

m: mean (D,), S: covariance (D, D). With S = F^T F, the last trace is the sum of the singular values of
F_a F_b^T. It equals that of clean-fid's matrix square root, and is valid for singular covariances, too.
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


# --- the distance --------------------------------------------------------------------------
def frechet_distance(features_a: np.ndarray, features_b: np.ndarray) -> float:
    """Compute FID, >= 0, of features (N, D) and (M, D) in float64; denominator n - 1 as in clean-fid."""
    a, b = _check(features_a, "edited"), _check(features_b, "target")
    if a.shape[1] != b.shape[1]:
        raise MetricError(f"FID needs features of one network, not widths {a.shape[1]} and {b.shape[1]}.")
    if min(len(a), len(b)) <= a.shape[1]:
        return _compare_rows(a, b)
    shift = b.mean(0)  # (D,); without it, differences of large sums would lose digits
    return _compare_moments(_Moments.sum_rows(a - shift), _Moments.sum_rows(b - shift))


def _check(features: np.ndarray, side: str) -> np.ndarray:
    """Convert features to float64. Raises MetricError unless they are finite, (N, D), N >= 2 and D >= 1."""
    array = np.asarray(features, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] < 1:
        raise MetricError(f"FID needs features of shape (images, width), not {array.shape} ({side}).")
    if len(array) < 2:
        raise MetricError(f"FID needs at least 2 {side} images, not {len(array)}.")
    if bad := int((~np.isfinite(array).all(1)).sum()):
        raise MetricError(f"{bad} of {len(array)} {side} feature rows are not finite; exclude those samples.")
    return array


def _compare_rows(a: np.ndarray, b: np.ndarray) -> float:
    """Distance from rows, for fewer rows than columns: F is (rows, D), and no (D, D) matrix is needed."""
    mean_a, mean_b = a.mean(0), b.mean(0)
    f_a = (a - mean_a) / np.sqrt(len(a) - 1)  # (N, D)
    f_b = (b - mean_b) / np.sqrt(len(b) - 1)  # (M, D)
    cross = scipy.linalg.svdvals(f_a @ f_b.T).sum()  # singular values of (N, M)
    return _distance(mean_a - mean_b, (f_a**2).sum() + (f_b**2).sum(), cross)


@dataclass(frozen=True)
class _Moments:
    """Sums over n rows, shifted near zero, float64. Subtracting those of a part gives those of the rest."""

    n: int
    total: np.ndarray  # (D,) sum of rows
    outer: np.ndarray  # (D, D) sum of outer products

    @classmethod
    def sum_rows(cls, rows: np.ndarray) -> _Moments:
        return cls(len(rows), rows.sum(0), rows.T @ rows)

    def __sub__(self, other: _Moments) -> _Moments:
        return _Moments(self.n - other.n, self.total - other.total, self.outer - other.outer)

    def mean(self) -> np.ndarray:
        return self.total / self.n

    def covariance(self) -> np.ndarray:
        mean = self.mean()
        return (self.outer - self.n * np.outer(mean, mean)) / (self.n - 1)


def _compare_moments(a: _Moments, b: _Moments) -> float:
    """Distance from moments, for more rows than columns."""
    s_a, s_b = a.covariance(), b.covariance()
    try:  # F with S_a = F^T F
        f_a = scipy.linalg.cholesky(s_a, lower=False, check_finite=False)
    except scipy.linalg.LinAlgError:  # S_a is singular
        values, vectors = scipy.linalg.eigh(s_a)
        f_a = np.sqrt(np.clip(values, 0, None))[:, None] * vectors.T  # (D, D)
    # Eigenvalues of F_a S_b F_a^T are the squared singular values of F_a F_b^T.
    inner = f_a @ s_b @ f_a.T  # (D, D)
    eigenvalues = scipy.linalg.eigh((inner + inner.T) / 2, eigvals_only=True, check_finite=False)
    cross = np.sqrt(np.clip(eigenvalues, 0, None)).sum()
    return _distance(a.mean() - b.mean(), np.trace(s_a) + np.trace(s_b), cross)


def _distance(difference: np.ndarray, traces: float, cross: float) -> float:
    """The formula above. difference: of the means, (D,); traces: tr S_a + tr S_b; cross: the last trace."""
    return max(0.0, float(difference @ difference + traces - 2 * cross))  # rounding can go below 0


# --- the interval, from FIDs without each group of source images ----------------------------
class FidInterval(NamedTuple):
    """FID with its 95 % interval, which needs two groups."""

    value: float
    low: float | None  # None: there is no interval
    high: float | None
    standard_error: float | None
    left_out: tuple[float, ...] = ()  # FID without each group

    @classmethod
    def jackknife(cls, value: float, left_out: Sequence[float]) -> FidInterval:
        """Make the interval from the G values d_g = left_out. Its half-width is the 97.5 % quantile of t with
        G - 1 degrees of freedom, times the standard error sqrt((G - 1) / G * sum (d_g - mean d)^2)."""
        count = len(left_out)
        if count < 2:
            return cls(value, None, None, None)
        d = np.asarray(left_out, dtype=np.float64)  # (G,)
        error = float(np.sqrt((count - 1) / count * np.sum((d - d.mean()) ** 2)))
        half_width = float(scipy.special.stdtrit(count - 1, 0.975)) * error
        return cls(value, value - half_width, value + half_width, error, tuple(map(float, left_out)))


#: Number of feature columns up to which one thread of BLAS is faster than several.
NARROW = 256


def jackknife_interval(
    edited: np.ndarray, target: np.ndarray, clusters: Sequence[str], *,
    target_clusters: Sequence[str] = (), groups: int = 20,
) -> FidInterval:  # fmt: skip
    """Delete-a-group jackknife interval of `frechet_distance(edited, target)`, clustered by source image.

    clusters, target_clusters   Source image of every row; by default both sets have the same rows.
    groups                      Number of groups; source images are assigned by the SHA-256 of their names.

    A group leaves both sets at once, so the interval covers the choice of source images. It lies around the
    mean FID of N such images: compare FIDs at equal N only. Cut at 0. Cost: G + 1 distances. Source: Kott,
    Journal of Official Statistics 17 (2001)."""
    target_clusters = target_clusters or clusters
    if len(clusters) != len(edited) or len(target_clusters) != len(target):
        raise MetricError(
            f"One source image per row is needed: {len(edited)} and {len(target)} rows, "
            f"{len(clusters)} and {len(target_clusters)} names."
        )
    value = frechet_distance(edited, target)
    a, b = _check(edited, "edited"), _check(target, "target")
    names = sorted({*clusters, *target_clusters}, key=lambda n: hashlib.sha256(str(n).encode()).digest())
    group_of = {name: index % groups for index, name in enumerate(names)}
    groups_a = np.array([group_of[name] for name in clusters])  # (N,)
    groups_b = np.array([group_of[name] for name in target_clusters])  # (M,)
    masks = [(groups_a == g, groups_b == g) for g in range(min(groups, len(names)))]  # (N,), (M,) bool
    if any((~in_a).sum() < 2 or (~in_b).sum() < 2 for in_a, in_b in masks):  # a distance needs two rows
        return FidInterval(value, None, None, None)
    with threadpool_limits(1 if a.shape[1] <= NARROW else None, "blas"):
        if min(len(a), len(b)) <= a.shape[1]:
            left_out = [_compare_rows(a[~in_a], b[~in_b]) for in_a, in_b in masks]
        else:
            shift = b.mean(0)
            a, b = a - shift, b - shift
            all_a, all_b = _Moments.sum_rows(a), _Moments.sum_rows(b)
            left_out = [
                _compare_moments(all_a - _Moments.sum_rows(a[in_a]), all_b - _Moments.sum_rows(b[in_b]))
                for in_a, in_b in masks
            ]
    return _clip(FidInterval.jackknife(value, left_out))


def subtract(first: FidInterval, second: FidInterval) -> FidInterval:
    """Interval of first - second, for two sets of edits of the same source images."""
    if len(first.left_out) != len(second.left_out):
        raise MetricError("The difference of two FIDs needs both on the same groups of source images.")
    pairs = zip(first.left_out, second.left_out, strict=True)
    return FidInterval.jackknife(first.value - second.value, [a - b for a, b in pairs])


#: Source images per feature column from which `extrapolate` is reliable (docs/explanation/statistics.md).
LIMIT_IMAGES = 3


def extrapolate(distance: FidInterval) -> FidInterval:
    """Estimate FID for infinitely many images: G d - (G - 1) mean d_g is without the bias of order 1 / N.
    Sources: Quenouille, Biometrika 43 (1956); Chong & Forsyth, CVPR 2020 (arXiv:1911.07023)."""
    count = len(distance.left_out)
    if count < 2:
        return distance
    value = count * distance.value - (count - 1) * sum(distance.left_out) / count
    return _clip(FidInterval.jackknife(value, distance.left_out))


def _clip(interval: FidInterval) -> FidInterval:
    """Cut an interval at 0, the smallest distance."""
    low, high = (None if end is None else max(0.0, end) for end in (interval.low, interval.high))
    return interval._replace(value=max(0.0, interval.value), low=low, high=high)
