"""Thousands of resamples of the Frechet distance without touching the features again.

Two ways. *Exact*: with the count, sum and sum of outer products of every source image, the moments of a draw
are one matrix product and its distance one small eigenvalue problem; right for narrow features. *Linear*: the
distance is differentiable in both distributions, so to first order a draw moves it by the weighted sum of its
pictures' influence; right for 2048 columns, where one distance takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import scipy.linalg

from metrics.base import MetricError, choose
from metrics.fid import frechet_distance

#: Widest features for which the exact way holds D x D sums per source image.
EXACT_WIDTH = 128


def fid_replicates(
    edited: np.ndarray,
    target: np.ndarray,
    edited_columns: Sequence[int] | np.ndarray,
    target_columns: Sequence[int] | np.ndarray,
    counts: np.ndarray,
    method: Literal["auto", "exact", "linear"] = "auto",
) -> np.ndarray:
    """(B,) Frechet distances of B draws of source images; NaN where a draw has fewer than two pictures.

    edited, target                  (N, D) and (M, D) features.
    edited_columns, target_columns  The source image of every row, as a column of `counts`.
    counts                          (B, G) how often each source image is in each draw. The same counts for
                                    two editors make their difference paired.
    method                          "auto" is exact up to D = 128. "linear" needs more rows than columns on
                                    both sides (the covariances must be regular) and raises MetricError
                                    otherwise; it is centred on the distance itself, where the exact
                                    replicates
                                    lie higher (a draw holds fewer distinct pictures).

    Influence functions: with T = S_a^(-1/2) (S_a^(1/2) S_b S_a^(1/2))^(1/2) S_a^(-1/2), the derivative of the
    distance with respect to S_a is I - T, with respect to m_a it is 2 (m_a - m_b) (Malago, Montrucchio &
    Pistone, Information Geometry 1 (2018), section 3, for the Bures distance).
    """
    choose("method", method, ("auto", "exact", "linear"))
    a, b = np.asarray(edited, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if method == "exact" or (method == "auto" and a.shape[1] <= EXACT_WIDTH):
        return _exact(a, b, np.asarray(edited_columns), np.asarray(target_columns), counts)
    return _linear(a, b, np.asarray(edited_columns), np.asarray(target_columns), counts)


def _exact(
    a: np.ndarray, b: np.ndarray, columns_a: np.ndarray, columns_b: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    shift = b.mean(0)
    moments = [
        _moments(rows - shift, columns, counts.shape[1]) for rows, columns in ((a, columns_a), (b, columns_b))
    ]
    width = a.shape[1]
    result = np.empty(len(counts))
    step = max(1, 4_000_000 // (width * width))
    for start in range(0, len(counts), step):
        chunk = counts[start : start + step].astype(np.float64)
        (mean_a, s_a), (mean_b, s_b) = (_draw(chunk, table, width) for table in moments)
        root = _root(s_a)
        inner = root @ s_b @ root
        values = np.linalg.eigvalsh((inner + np.swapaxes(inner, 1, 2)) / 2)
        cross = np.sqrt(np.clip(values, 0, None)).sum(1)
        traces = np.trace(s_a, axis1=1, axis2=2) + np.trace(s_b, axis1=1, axis2=2)
        result[start : start + step] = ((mean_a - mean_b) ** 2).sum(1) + traces - 2 * cross
    sizes = [counts @ np.bincount(c, minlength=counts.shape[1]) for c in (columns_a, columns_b)]
    return np.where(np.minimum(*sizes) < 2, np.nan, result)


def _moments(rows: np.ndarray, columns: np.ndarray, size: int) -> np.ndarray:
    """(G, 1 + D + D*D): count, sum and sum of outer products of every source image."""
    width = rows.shape[1]
    table = np.zeros((size, 1 + width + width * width))
    for column in np.unique(columns):
        members = rows[columns == column]
        table[column, 0] = len(members)
        table[column, 1 : 1 + width] = members.sum(0)
        table[column, 1 + width :] = (members.T @ members).ravel()
    return table


def _draw(counts: np.ndarray, table: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """((B, D) means, (B, D, D) covariances) of the draws."""
    sums = counts @ table
    n = np.maximum(sums[:, 0], 2)[:, None]
    mean = sums[:, 1 : 1 + width] / n
    outer = sums[:, 1 + width :].reshape(-1, width, width)
    return mean, (outer - n[:, :, None] * mean[:, :, None] * mean[:, None, :]) / (n - 1)[:, :, None]


def _root(matrices: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrices)
    return (vectors * np.sqrt(np.clip(values, 0, None))[:, None, :]) @ np.swapaxes(vectors, 1, 2)


def _linear(
    a: np.ndarray, b: np.ndarray, columns_a: np.ndarray, columns_b: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    if min(len(a), len(b)) <= a.shape[1]:
        raise MetricError(
            f"The linear bootstrap of FID needs more than {a.shape[1]} pictures on both sides, not {len(a)} "
            f"and {len(b)}."
        )
    value = frechet_distance(a, b)
    mean_a, mean_b = a.mean(0), b.mean(0)
    s_a, s_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    to_b, to_a = _transport(s_a, s_b), _transport(s_b, s_a)
    pull_a = _influence(a - mean_a, 2 * (mean_a - mean_b), to_b)
    pull_b = _influence(b - mean_b, 2 * (mean_b - mean_a), to_a)
    result = np.full(len(counts), value)
    for pull, columns in ((pull_a, columns_a), (pull_b, columns_b)):
        size = counts.shape[1]
        sums = np.bincount(columns, weights=pull, minlength=size)
        n = counts @ np.bincount(columns, minlength=size)
        with np.errstate(invalid="ignore", divide="ignore"):
            result = result + np.where(n < 2, np.nan, (counts @ sums) / n)
    return result


def _transport(s_a: np.ndarray, s_b: np.ndarray) -> np.ndarray:
    """The linear map that takes N(0, S_a) to N(0, S_b) optimally."""
    values, vectors = scipy.linalg.eigh(s_a)
    values = np.clip(values, values.max() * 1e-12, None)
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    inner = root @ s_b @ root
    inside, basis = scipy.linalg.eigh((inner + inner.T) / 2)
    middle = (basis * np.sqrt(np.clip(inside, 0, None))) @ basis.T
    return inverse @ middle @ inverse


def _influence(centred: np.ndarray, slope: np.ndarray, transport: np.ndarray) -> np.ndarray:
    """(n,) influence of every row, made to have mean zero."""
    quadratic = (centred**2).sum(1) - np.einsum("ij,ij->i", centred @ transport, centred)
    pull = centred @ slope + quadratic
    return pull - pull.mean()
