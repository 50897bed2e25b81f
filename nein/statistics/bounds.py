"""The interval of everything that is bounded: shares, means of values in a range, differences and ratios of
such. One idea serves them all.

Pictures are weighted at random, and one more picture is added that says the worst; the lower end of the
interval is what the figure then falls below with probability 2.5 %. The upper end is the same with a picture
that says the best. With a_g the sum and b_g the size of picture g, E independent standard exponentials, and a
picture more of sum a_0 and size b_0, the lower end L and the upper end U are where

    P(sum_g E_g (a_g - L b_g) + E_0 (a_0 - L b_0) <= 0) = 0.025,    a_0 / b_0 the lowest there can be,
    P(sum_g E_g (a_g - U b_g) + E_0 (a_0 - U b_0) >= 0) = 0.025,    a_0 / b_0 the highest.

For pictures of one size these are Gaffke's bounds of the mean of a bounded variable, and nothing is assumed
about how alike the samples of a picture are. For single yes/no samples they are Clopper and Pearson's exact
interval; the test that belongs to the interval of a paired difference (`tail` at zero) is then McNemar's
exact test. By construction an end rises with every value, stays in the range, and never meets the other.

Sources: Gaffke, Mathematical Methods of Statistics 14 (2005); Learned-Miller & Thomas, arXiv:1905.06208. That
they cover whatever the distribution is proved for yes/no values and for one or two pictures only; no
counterexample is known, and `benchmarks/coverage.py` looks for some in the shapes that occur here.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

TAIL = 0.025
#: The trapezoidal rule along the contour, t = s sinh(x): nodes are taken in blocks of `_BLOCK` until the
#: integrand is gone, at the latest at x = 12 (it decays at least like exp(-2 x)).
_STEP, _BLOCK = 0.05, 40
_NODES = np.arange(0.0, 12.0, _STEP)
_HEIGHT, _SLOPE = np.sinh(_NODES), np.cosh(_NODES) * np.where(_NODES == 0, 0.5, 1.0) * _STEP

_RESULTS = 65536  # of intervals and of p values that are remembered
_MANY, _ENDS = 200, 20  # terms of a sum; of more, neighbours are taken together

Terms = tuple[tuple[float, float, float], ...]  # (sum, size, how many pictures are of that kind)


#: How alike the samples of a picture are taken to be (intraclass correlation) while the data say nothing, and
#: how many dissenting samples, for every sample of a picture above the first, weigh as much as that.
ALIKE, WEIGHT = 0.6, 4.0


def design_effect(n: float, usual: float, count: int, variance: Any, pulls: Any) -> Any:
    """How many independent samples one more picture is worth: 1 + (usual - 1) rho. For one data set, or for
    many at once where `variance` and `pulls` are arrays (R,).

    n         Samples, or their weights.
    usual     The size of the picture to which a sample drawn at random belongs, sum b_g^2 / sum b_g.
    count     Pictures.
    variance  Of the samples, in units of the squared range (highest minus lowest value there can be).
    pulls     Sum over pictures of (sum of the picture - its size times the mean)^2, in the same units.

    rho is the intraclass correlation that the cluster-robust variance shows, between 0 and 1, drawn towards
    `ALIKE` with the weight of `WEIGHT` (usual - 1) dissenting samples: n times the variance of them are
    there, which is the smaller of yeses and noes where it is small, and nothing where all agree. So a sample
    more that agrees cannot make the picture more grow faster than the figure does, and the ends rise with it.
    """
    if usual <= 1 or count < 2:
        return np.full_like(variance, usual, dtype=np.float64)
    dissent, prior = np.asarray(n * variance), WEIGHT * (usual - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        seen = (count / (count - 1) * pulls / dissent - 1) / (usual - 1)
    alike = np.clip(np.nan_to_num(seen, nan=0.0, posinf=1.0), 0.0, 1.0)
    return 1 + (usual - 1) * (ALIKE * prior + alike * dissent) / (prior + dissent)


def kinds(sums: np.ndarray, sizes: np.ndarray) -> Terms:
    """Pictures of equal (sum, size) counted together, in order: what an interval depends on."""
    pairs, counts = np.unique(sums + 1j * sizes, return_counts=True)  # complex numbers are sorted by both
    return tuple(zip(pairs.real.tolist(), pairs.imag.tolist(), counts.astype(float).tolist(), strict=True))


P = ParamSpec("P")
Found = TypeVar("Found")


def _remembered(function: Callable[Concatenate[Terms, P], Found]) -> Callable[Concatenate[Terms, P], Found]:
    """The function, which is asked once for the same arguments; of terms, of which there may be one for every
    picture, a hash is kept."""
    results: dict[bytes, Found] = {}

    @functools.wraps(function)
    def asked(terms: Terms, *others: P.args, **named: P.kwargs) -> Found:
        said = hashlib.sha256(np.array(terms).tobytes())
        said.update(repr((others, named)).encode())
        key = said.digest()
        result = results.get(key)
        if result is None:
            if len(results) >= _RESULTS:  # other threads may fill and empty it meanwhile
                results.clear()
            result = results[key] = function(terms, *others, **named)
        return result

    return asked


@_remembered
def interval(
    terms: Terms, worst: tuple[float, float], best: tuple[float, float], tail: float = TAIL
) -> tuple[float, float]:
    """(L, U) of the ratio sum of a / sum of b.

    terms        As `kinds` gives them.
    worst, best  (a_0, b_0) of the picture more. `best` may have b_0 = 0: a ratio without an upper limit.
    """
    sums, sizes, counts = np.array(terms).T
    value = float(counts @ sums / (counts @ sizes))
    low, high = worst[0] / worst[1], best[0] / best[1] if best[1] else math.inf
    error = math.sqrt(float(counts @ (sums - value * sizes) ** 2)) / float(counts @ sizes)
    chance = _probability(terms)
    lower = _end(lambda at: chance(worst, at), low, value, tail, error)
    upper = -_end(lambda at: 1 - chance(best, -at), -high, -value, tail, error)
    return lower, upper


@_remembered
def p_value(terms: Terms, worst: tuple[float, float], best: tuple[float, float], at: float = 0.0) -> float:
    """Two-sided p of the hypothesis that the ratio is `at`: the level at which the interval just excludes
    it."""
    return min(1.0, 2 * probability(terms, worst, at), 2 * (1 - probability(terms, best, at)))


def probability(terms: Terms, more: tuple[float, float], at: float) -> float:
    """P(sum E (a - at b) <= 0) over the pictures and one more."""
    return _probability(terms)(more, at)


def _probability(terms: Terms) -> Callable[[tuple[float, float], float], float]:
    """The same as a function of the picture more and of `at`."""
    sums, sizes, counts = np.array(terms).T
    every = np.append(counts, 1.0)
    return lambda more, at: below_zero(np.append(sums - at * sizes, more[0] - at * more[1]), every)


def _end(chance: Callable[[float], float], low: float, value: float, tail: float, error: float) -> float:
    """Where `chance`, which rises from 0, is `tail`, between the end of the range and the value: the secant
    rule on the scale of normal quantiles, where it is nearly straight, from where it would be with that
    standard error, halving where that leaves the bracket."""
    from scipy.special import ndtri

    if value <= low:
        return value
    stride = max(1.0, abs(value))
    while math.isinf(low):  # from the value downwards, in ever longer strides
        stride *= 2
        low = value - stride if chance(value - stride) < tail else low
    goal, above = float(ndtri(tail)), value
    width = above - low
    points = [(value, float(ndtri(chance(value))))]
    guess = value + goal * error
    guess = guess if low < guess < above else (low + value) / 2
    while above - low > 1e-10 * width:
        height = float(ndtri(chance(guess)))
        low, above = (low, guess) if height > goal else (guess, above)
        if abs(height - goal) < 1e-9:
            return guess
        before, at = points[-1]
        points.append((guess, height))
        step = guess + (goal - height) * (guess - before) / (height - at) if height != at else math.nan
        guess = step if low < step < above else (low + above) / 2
    return guess


def below_zero(c: np.ndarray, counts: Sequence[float] | np.ndarray) -> float:
    """P(sum_j c_j Gamma(k_j) <= 0) of independent gamma variables of shape k_j; to 1e-9.

    By the inversion P = 1/2 pi i integral of exp(K(z)) / z, K(z) = -sum k_j log(1 - c_j z), along the
    vertical line through the saddle point of K, where the integrand does not oscillate. Source: Butler,
    Saddlepoint Approximations with Applications (2007), section 1.2 and 2.1.1.
    """
    c, k = np.asarray(c, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    used = (c != 0) & (k > 0)
    c, k = c[used], k[used]
    if not len(c) or not (c > 0).any():
        return 1.0
    if not (c < 0).any():
        return 0.0
    c = c / np.abs(c).max()
    if len(c) == 2:  # P(Gamma(k_+) |c_+| <= Gamma(k_-) |c_-|), a beta variable
        from scipy.special import betainc

        up = int(c[1] > 0)
        return float(betainc(k[up], k[1 - up], -c[1 - up] / (c[up] - c[1 - up])))
    if len(c) > _MANY:
        c, k = _thinned(c, k)
    z = _saddle(c, k)
    spread = 1 / math.sqrt(float((k * (c / (1 - c * z)) ** 2).sum()))
    if abs(z) < 0.5 * spread:  # away from the pole of 1 / z, but inside the strip
        edge = 1 / c.max() if z >= 0 else 1 / c.min()
        z = math.copysign(min(0.5 * spread, 0.5 * abs(edge)), edge)
        spread = 1 / math.sqrt(float((k * (c / (1 - c * z)) ** 2).sum()))
    area = first = 0.0
    # log(1 - c (z + ih)) by its size and angle: logarithms of real numbers take a third of the time.
    real = 1 - c * z
    base = float(k @ np.log(real))
    for start in range(0, len(_NODES), _BLOCK):
        part = slice(start, start + _BLOCK)
        height = spread * _HEIGHT[part]
        tilt = np.multiply.outer(c / real, height)
        size = np.exp(-base - (k @ np.log1p(tilt * tilt)) / 2) / np.hypot(z, height) * _SLOPE[part]
        area += float(size @ np.cos(k @ np.arctan(tilt) - np.arctan2(height, z)))
        first = max(first, size[0])
        if size[-1] < 1e-13 * first:
            break
    area *= spread / math.pi
    return min(1.0, max(0.0, 1 - area if z > 0 else -area))


def _thinned(c: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same sum with about `_MANY` terms: between the `_ENDS` outermost, neighbours of one sign become one
    gamma variable with their mean and their variance."""
    order = np.argsort(c)
    c, k = c[order], k[order]
    place = np.arange(len(c))
    inner = (place >= _ENDS) & (place < len(c) - _ENDS) & (place % (len(c) // _MANY + 1) != 0)
    starts = np.union1d(place[~inner], [np.searchsorted(c, 0.0)])
    means, squares = np.add.reduceat(k * c, starts), np.add.reduceat(k * c * c, starts)
    return squares / means, means**2 / squares


def _saddle(c: np.ndarray, k: np.ndarray) -> float:
    """The zero of K'(z) = sum k c / (1 - c z) between the poles on both sides of 0: Newton's steps, halving
    where they leave the bracket."""
    low, high, z = 1 / float(c.min()), 1 / float(c.max()), 0.0
    for _ in range(100):
        parts = c / (1 - c * z)
        slope = float(k @ parts)
        low, high = (low, z) if slope > 0 else (z, high)
        curve = float(k @ (parts * parts))
        if abs(slope) < 1e-6 * math.sqrt(curve):  # near enough for a contour
            return z
        step = z - slope / curve
        z = step if low < step < high else (low + high) / 2
    return z
