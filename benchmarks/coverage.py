"""How often do 95 % intervals hold the truth? The methods of `nein.statistics` beside others, on made data.

    python -m benchmarks.coverage [--repeats 1000] [--more 4000] [--seed 0] [--kinds shares,differences,...]
        [--results FILE] [--quick]

Data sets are drawn from a known truth again and again, from two grids of scenarios: on `TUNED` the constants
of `nein.statistics.bounds` were chosen; `HELD_OUT` has other numbers of samples, other sizes of pictures,
other ways in which the samples of a picture are alike, and other truths, and was run when they were chosen.
All methods see the same data sets, many at a time. For every method and grid the tables have its lowest
coverage over all scenarios, in how many it is surely below 94 %, and the mean width in points; over both,
where the lowest is, how often an interval had length 0 and how often it left the range; then lowest coverage
and mean width by n and by the intraclass correlation. Scenarios in which one of the methods marked "ours"
covers less than 95.5 % are drawn again, `--more` times. `--results` keeps every scenario as a line, so that a
study that was stopped goes on. `--quick` takes a minute. docs/explanation/statistics.md holds the results.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import betaincinv, expit, logit, ndtr, ndtri, stdtrit
from scipy.stats import beta as beta_variable
from tabulate import tabulate

from metrics import fid
from nein import statistics
from nein.statistics import bounds

Ends = tuple[np.ndarray, np.ndarray]
Z = float(ndtri(0.975))
#: Pairs added at either end of the range by one of the methods of differences. With 1, as Bonett and Price
#: have it, coverage of single pairs falls below 94 % where few pairs differ, all in one direction.
ADDED = 1.5


@dataclass(frozen=True)
class Case:
    """`values` (R, n): R data sets of one scenario. clusters (n,): the picture of every sample, in order.

    first, second   Where the values are paired differences or a ratio is asked for: what they are made of.
    """

    values: np.ndarray
    clusters: np.ndarray
    truth: float
    low: float = 0.0
    high: float = 1.0
    first: np.ndarray | None = None
    second: np.ndarray | None = None

    @property
    def n(self) -> int:
        return self.values.shape[1]

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.bincount(self.clusters).astype(float)

    @cached_property
    def means(self) -> np.ndarray:
        return self.values.mean(1)

    @property
    def span(self) -> float:
        return self.high - self.low

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(R, G)."""
        return np.add.reduceat(values, np.flatnonzero(np.diff(self.clusters, prepend=-1)), axis=1)

    @cached_property
    def pulls(self) -> np.ndarray:
        """(R, G) sums of residuals."""
        return self.sums(self.values) - self.means[:, None] * self.sizes

    def errors(self) -> np.ndarray:
        """(R,) cluster-robust standard errors (CR1)."""
        count = len(self.sizes)
        return np.sqrt(count / (count - 1) * (self.pulls**2).sum(1)) / self.n

    def plain(self) -> np.ndarray:
        """(R,) effective sizes by the design effect that is seen, 1 where all values agree."""
        variance = self.values.var(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            size = variance / self.errors() ** 2 * self.n / (self.n - 1)
        return np.clip(np.nan_to_num(size, nan=self.n, posinf=self.n), 1, self.n)

    @property
    def usual(self) -> float:
        """The size of the picture to which a sample drawn at random belongs."""
        return float(self.sizes @ self.sizes) / self.n

    def effect(self, span: float) -> np.ndarray:
        """(R,) design effects as ours has them."""
        square = span**2
        variance, pulls = self.values.var(1) / square, (self.pulls**2).sum(1) / square
        return bounds.design_effect(self.n, self.usual, len(self.sizes), variance, pulls)

    @cached_property
    def size(self) -> np.ndarray:
        """(R,) effective sizes by a pooled ICC: the one that is seen, drawn towards 1 with the weight of
        2 (usual - 1) dissenting samples. With less an end may fall where one sample more agrees."""
        if self.usual <= 1 or len(self.sizes) < 2:
            return np.full(len(self.values), self.n / self.usual)
        dissent = self.n * self.values.var(1) / self.span**2
        between, count = (self.pulls**2).sum(1) / self.span**2, len(self.sizes)
        with np.errstate(invalid="ignore", divide="ignore"):
            seen = (count / (count - 1) * between / dissent - 1) / (self.usual - 1)
        prior = 2 * (self.usual - 1)
        alike = (prior + np.clip(np.nan_to_num(seen), 0, 1) * dissent) / (prior + dissent)
        return self.n / (1 + (self.usual - 1) * alike)

    @property
    def once(self) -> np.ndarray:
        """(R,) effective sizes where every picture counts once."""
        return np.full(len(self.values), self.n / self.usual)

    def t(self) -> float:
        return float(stdtrit(len(self.sizes) - 1, 0.975))

    def of(self, values: np.ndarray) -> Case:
        """The same pictures with other values, from 0 to 1."""
        return Case(values, self.clusters, math.nan)


# --- methods ---------------------------------------------------------------------------------------------


def wilson(case: Case, size: np.ndarray, z: float) -> Ends:
    p = case.means
    centre, reach = p + z * z / (2 * size), z * np.sqrt(p * (1 - p) / size + z * z / (4 * size * size))
    return (centre - reach) / (1 + z * z / size), (centre + reach) / (1 + z * z / size)


def wilson_seen(case: Case) -> Ends:
    return wilson(case, case.plain(), case.t())


def wilson_pooled(case: Case) -> Ends:
    return wilson(case, case.size, Z)


def clopper_once(case: Case) -> Ends:
    """Every picture counts once, whatever its samples say."""
    return _share(case, case.once)


def logit_t(case: Case) -> Ends:
    """The logit with its cluster-robust standard error, after adding a picture at either end of the range."""
    usual = case.sizes @ case.sizes / case.n
    sizes = np.append(case.sizes, [usual, usual])
    ends = np.broadcast_to([0.0, usual], (len(case.values), 2))
    sums = np.concatenate([(case.sums(case.values) - case.low * case.sizes) / case.span, ends], axis=1)
    mean = sums.sum(1) / sizes.sum()
    error = sandwich(sums - mean[:, None] * sizes, sizes)
    reach = stdtrit(len(sizes) - 1, 0.975) * error / (mean * (1 - mean))
    low, high = (expit(logit(mean) + to) for to in (-reach, reach))
    return case.low + case.span * low, case.low + case.span * high


def agresti_coull(case: Case) -> Ends:
    return _added(case, case.size, Z * Z / 2, Z)


def clopper_seen(case: Case) -> Ends:
    """Korn and Graubard's: with the design effect that is seen and its degrees of freedom."""
    m = np.minimum(case.n, case.plain() * (stdtrit(case.n - 1, 0.975) / case.t()) ** 2)
    ones = case.means * m
    low = np.where(ones > 0, beta_variable.ppf(0.025, np.maximum(ones, 1e-9), m - ones + 1), 0)
    high = np.where(ones < m, beta_variable.ppf(0.975, ones + 1, np.maximum(m - ones, 1e-9)), 1)
    return low, high


def sandwich_t(case: Case) -> Ends:
    reach = case.t() * case.errors()
    return case.means - reach, case.means + reach


def reduced_t(case: Case) -> Ends:
    """Bias-reduced sandwich (CR2) with Satterthwaite's degrees of freedom."""
    reach = stdtrit(freedom(case.sizes), 0.975) * sandwich(case.pulls, case.sizes)
    return case.means - reach, case.means + reach


def reduced_cut(case: Case) -> Ends:
    """The same cut at the range; Wilson's bound for as many trials as pictures where all agree."""
    low, high = reduced_t(case)
    z, count = case.t(), len(case.sizes)
    reach = np.where(case.errors() < 1e-13, case.span * z * z / (count + z * z), 0)
    return np.maximum(case.low, low - reach), np.minimum(case.high, high + reach)


def _added(case: Case, size: np.ndarray, each: float, quantile: float) -> Ends:
    """Wald's interval with `each` samples added at either end of the range."""
    m = size + 2 * each
    centre = (size * case.means + each * (case.low + case.high)) / m
    square = (size * (case.values**2).mean(1) + each * (case.low**2 + case.high**2)) / m
    reach = quantile * np.sqrt(np.maximum(0, square - centre**2) / m)
    return np.maximum(case.low, centre - reach), np.minimum(case.high, centre + reach)


def agresti_min(case: Case) -> Ends:
    """Half a pair added to each of the four kinds."""
    return _added(case, case.size, 0.5, Z)


def bonett_price(case: Case) -> Ends:
    """One pair of either discordant kind added."""
    return _added(case, case.size, 1.0, Z)


def bonett_price_more(case: Case) -> Ends:
    return _added(case, case.size, ADDED, stdtrit(case.size + 2 * ADDED - 1, 0.975))


def bonett_price_seen(case: Case) -> Ends:
    return _added(case, case.plain(), 1.0, Z)


def bonett_price_once(case: Case) -> Ends:
    """Every picture counts once, whatever its samples say."""
    return _added(case, case.once, ADDED, stdtrit(case.once + 2 * ADDED - 1, 0.975))


def newcombe(case: Case) -> Ends:
    """Newcombe's method 10: Wilson's intervals of the two shares put together (MOVER)."""
    sides = [case.of(values) for values in (case.first, case.second) if values is not None]
    ends = [wilson_pooled(side) for side in sides]
    r = _correlation(sides)
    a, b = (side.means - low for side, (low, _) in zip(sides, ends, strict=True))
    c, d = (high - side.means for side, (_, high) in zip(sides, ends, strict=True))
    return (
        case.means - np.sqrt(np.maximum(0, a * a - 2 * r * a * d + d * d)),
        case.means + np.sqrt(np.maximum(0, c * c - 2 * r * c * b + b * b)),
    )


def _correlation(sides: list[Case]) -> np.ndarray:
    one, other = (side.pulls for side in sides)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (one * other).sum(1) / np.sqrt((one**2).sum(1) * (other**2).sum(1))
    return np.nan_to_num(r)


def one_more(case: Case) -> Ends:
    """Ours: pictures are weighted at random, and one more says the worst or the best."""
    return _by_drawing(case, case.effect(case.span))


def whole_more(case: Case) -> Ends:
    """The picture more is as large as the others, however alike samples are."""
    return _by_drawing(case, np.full(len(case.values), case.usual))


def one_more_ratio(case: Case) -> Ends:
    return _by_drawing(case, _flat(case))


def _flat(case: Case) -> np.ndarray:
    return np.full(len(case.values), 1 + bounds.ALIKE * (case.usual - 1))


#: The sizes of the picture more: in scenarios near the limit it is worked out exactly, and not by drawing,
#: whether these intervals hold the truth.
EXACT: dict[Callable[[Case], Ends], Callable[[Case], np.ndarray]] = {
    one_more: lambda case: case.effect(case.span),
    whole_more: lambda case: np.full(len(case.values), case.usual),
    one_more_ratio: _flat,
}


def holds(case: Case, more: np.ndarray) -> np.ndarray:
    """(R,) whether the interval of `nein.statistics.bounds` holds the truth, by its integral."""
    seen: dict[Any, bool] = {}
    found = np.empty(len(case.values), dtype=bool)
    ratio = math.isinf(case.high)
    assert not ratio or (case.first is not None and case.second is not None)
    tops = case.sums(case.first if ratio else case.values)  # type: ignore[arg-type]
    bottoms = case.sums(case.second) if ratio else np.broadcast_to(case.sizes, tops.shape)  # type: ignore[arg-type]
    for place, (top, bottom, size) in enumerate(zip(tops, bottoms, more.tolist(), strict=True)):
        key = bounds.kinds(top, bottom), size
        if key not in seen:
            worst, best = (case.low * size, size), (size, 0.0) if ratio else (case.high * size, size)
            below = bounds.probability(key[0], worst, case.truth)
            seen[key] = below >= 0.025 and bounds.probability(key[0], best, case.truth) <= 0.975
        found[place] = seen[key]
    return found


DRAWS, _AT_ONCE = 399, 50


def _by_drawing(case: Case, more: np.ndarray) -> Ends:
    """The ends, for the width, by drawing, where `nein.statistics.bounds` integrates. Every 50 data sets have
    weights of their own; the tenth lowest of 399 is at 2.5 %.

    more  (R,) sizes of the picture more.
    """
    lows, highs = [], []
    rng = np.random.default_rng([case.n, len(case.sizes), int(1e6 * abs(float(case.values.mean())))])
    for start in range(0, len(case.values), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        weights = rng.standard_exponential((DRAWS, len(case.sizes) + 1), dtype=np.float32)
        sizes = np.multiply.outer(more[part].astype(np.float32), weights[:, -1])
        weights = weights[:, :-1]
        if case.second is None or not math.isinf(case.high):
            above = case.sums(case.values[part]).astype(np.float32) @ weights.T
            below = weights @ case.sizes.astype(np.float32)
            low, high = ((above + end * sizes) / (below + sizes) for end in (case.low, case.high))
        else:
            assert case.first is not None
            above, below = (
                case.sums(side[part]).astype(np.float32) @ weights.T for side in (case.first, case.second)
            )
            with np.errstate(divide="ignore"):
                low, high = above / (below + sizes), (above + sizes) / below
        lows.append(np.partition(low, 9, axis=1)[:, 9])
        highs.append(np.partition(high, DRAWS - 10, axis=1)[:, DRAWS - 10])
    return np.concatenate(lows).astype(float), np.concatenate(highs).astype(float)


def sandwich(pulls: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The cluster-robust standard error of a mean.

    pulls  (..., G) sums of the residuals of every cluster.     sizes  (G,).

        SE^2 = sum_g pulls_g^2 / (1 - sizes_g / n) / n^2, which is the bias-reduced estimator CR2 for a
    regression on a constant. Source: Bell & McCaffrey, Survey Methodology 28 (2002).
    """
    n = sizes.sum()
    return np.sqrt((pulls**2 / (1 - sizes / n)).sum(-1)) / n


def freedom(sizes: np.ndarray) -> float:
    """Degrees of freedom of `sandwich` for clusters of these sizes, by Satterthwaite's approximation: G - 1
    where all have one size.

    That is (tr M)^2 / tr M^2 with M_gh = p_g' Omega p_h, p_g = c_g (1_g - sizes_g / n), c_g =
    (1 - sizes_g / n)^(-1/2), and Omega the correlation of values of which those of one cluster are copies.
    Source: Bell & McCaffrey, as above; Imbens & Kolesar, Review of Economics and Statistics 98 (2016).
    """
    b, n = np.asarray(sizes, dtype=np.float64), float(sizes.sum())
    u = b**2 / (1 - b / n)
    level, slope = float(b @ b) / n**2, -1 / n
    crossed = u * (level + 2 * slope * b)
    u0, u1, u2 = float(u.sum()), float(u @ b), float(u @ b**2)
    squares = float(u @ u + 2 * u @ crossed)
    squares += level**2 * u0**2 + 4 * level * slope * u0 * u1 + 2 * slope**2 * (u0 * u2 + u1**2)
    return float((u + crossed).sum()) ** 2 / squares


def hall(case: Case) -> Ends:
    """CR2 and Satterthwaite's degrees of freedom, corrected for skewness: with g = sum pulls^3 / (n SE)^3 not
    t but t + g t^2 / 3 + g^2 t^3 / 27 + g / 6 is taken for Student's. Source: Hall, Journal of the Royal
    Statistical Society B 54 (1992), section 2."""
    error = sandwich(case.pulls, case.sizes)
    with np.errstate(invalid="ignore", divide="ignore"):
        third = np.nan_to_num((case.pulls**3).sum(-1) / (case.n * error) ** 3) / 3
    reach = stdtrit(freedom(case.sizes), 0.975)

    def back(to: float) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            bent = (np.cbrt(1 + 3 * third * (to - third / 2)) - 1) / third
        return np.where(np.abs(third) > 1e-6, bent, to)

    return case.means - back(reach) * error, case.means - back(-reach) * error


def johnson(case: Case) -> Ends:
    """Johnson's correction for skewness of the bias-reduced t."""
    low, high = reduced_t(case)
    pulls = case.pulls
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = np.nan_to_num((pulls**3).sum(1) / (6 * (pulls**2).sum(1))) / case.n
    return low + shift, high + shift


def delta_ratio(case: Case) -> Ends:
    """The logarithm of the ratio with its cluster-robust standard error."""
    assert case.first is not None
    assert case.second is not None
    one, other = case.of(case.first), case.of(case.second)
    value = one.means / other.means
    parts = one.sums(case.first) - value[:, None] * other.sums(case.second)
    count = len(case.sizes)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(count / (count - 1) * (parts**2).sum(1)) / case.first.sum(1)
        reach = np.exp(np.nan_to_num(case.t() * error))
    return value / reach, value * reach


def clopper(case: Case) -> Ends:
    return _share(case, case.size)


def _share(case: Case, size: np.ndarray) -> Ends:
    """Clopper and Pearson's interval of so many trials. Values between the ends spread less than zeros and
    ones, so they are worth more trials, where 2 dissenting samples are added on both sides."""
    mean, variance = (case.means - case.low) / case.span, case.values.var(1) / case.span**2
    most = np.maximum(mean * (1 - mean), 0.0)
    trials = size * np.maximum((size * most + 2) / (size * np.minimum(variance, most) + 2), 1.0)
    yes, no = mean * trials, (1 - mean) * trials
    low = np.where(yes > 1e-9, betaincinv(np.maximum(yes, 1e-9), no + 1, 0.025), 0.0)
    high = np.where(no > 1e-9, betaincinv(yes + 1, np.maximum(no, 1e-9), 0.975), 1.0)
    return case.low + case.span * np.minimum(low, mean), case.low + case.span * np.maximum(high, mean)


def mover(case: Case) -> Ends:
    """Clopper and Pearson's intervals of the two means put together on the scale of logarithms."""
    sides = [case.of(values) for values in (case.first, case.second) if values is not None]
    (one, (low, high)), (other, (least, most)) = ((side.means, clopper(side)) for side in sides)
    few = np.minimum(*(side.size * side.values.var(1) for side in sides))
    r = _correlation(sides) * few / (few + 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b, c, d = (
            np.log(x) - np.log(y) for x, y in ((one, low), (most, other), (high, one), (other, least))
        )
        down, up = (np.sqrt(np.maximum(x**2 + y**2 - 2 * r * x * y, 0.0)) for x, y in ((a, b), (c, d)))
        value = one / other
        ends = (
            np.where(one > 0, value * np.exp(-down), 0),
            np.where(one > 0, value * np.exp(up), high / least),
        )
    return np.nan_to_num(ends[0]), np.nan_to_num(ends[1], nan=np.inf, posinf=np.inf)


# --- scenarios -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Scenarios: all combinations of n, sizes of pictures, shapes, and intraclass correlations.

    The constants of `nein.statistics.bounds` were chosen on scenarios like those of TUNED; HELD_OUT was drawn
    afterwards.
    """

    name: str
    ns: tuple[int, ...]
    sizes: tuple[str, ...]
    shapes: tuple[str, ...]
    alike: tuple[float, ...]


TUNED = Grid("tuned", (8, 16, 24, 48, 100, 500), ("1", "4", "1-5"), ("beta",), (0, 0.2, 0.6, 0.8, 0.95, 1))
HELD_OUT = Grid("held out", (12, 36, 150), ("2", "10", "1-20"), ("normal", "mixed"), (0.1, 0.4, 0.7, 0.9, 1))


@dataclass(frozen=True)
class Scenario:
    """n samples in pictures of `kind`, alike by `alike` in the way of `shape`, of a truth that only its kind
    of figure reads."""

    grid: str
    n: int
    kind: str
    shape: str
    alike: float
    truth: Any

    @property
    def clusters(self) -> np.ndarray:
        return clusters_of(self.kind, self.n)

    def __str__(self) -> str:
        truth = " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in np.atleast_1d(self.truth))
        return f"n {self.n}, pictures of {self.kind}, {self.shape} ICC {self.alike:g}, {truth}"


def clusters_of(kind: str, n: int) -> np.ndarray:
    """(n,) the picture of every sample."""
    least, most = (int(end) for end in (kind.split("-") * 2)[:2])
    sizes = np.random.default_rng(n).integers(least, most + 1, n)
    return np.repeat(np.arange(n), sizes)[:n]


def probabilities(rng: np.random.Generator, case: Scenario, repeats: int, p: float) -> np.ndarray:
    """(repeats, n) of a yes, the same for the samples of a picture, with mean p.

    beta    Beta distributed, `case.alike` being the intraclass correlation.
    normal  Samples are yes where a normal variable is high, of which pictures make up the share `case.alike`.
    mixed   Of this share of the pictures all samples are yes or all no; the others have p.
    """
    clusters, alike = case.clusters, case.alike
    shape = (repeats, int(clusters[-1]) + 1)
    if alike == 0 or p in (0.0, 1.0):
        each = np.full(shape, p)
    elif alike == 1:
        each = (rng.random(shape) < p).astype(float)
    elif case.shape == "beta":
        each = rng.beta(p * (1 - alike) / alike, (1 - p) * (1 - alike) / alike, shape)
    elif case.shape == "normal":
        each = ndtr((ndtri(p) + math.sqrt(alike) * rng.normal(size=shape)) / math.sqrt(1 - alike))
    else:
        each = np.where(rng.random(shape) < alike, rng.random(shape) < p, p)
    return each[:, clusters]


def scenarios(grid: Grid, truths: tuple[Any, ...]) -> Iterator[Scenario]:
    for n, kind in itertools.product(grid.ns, grid.sizes):
        if clusters_of(kind, n)[-1] >= 1:
            alike = ((grid.shapes[0], 0.0),) if kind == "1" else itertools.product(grid.shapes, grid.alike)
            for (shape, icc), truth in itertools.product(alike, truths):
                yield Scenario(grid.name, n, kind, shape, icc, truth)


def shares(rng: np.random.Generator, case: Scenario, repeats: int) -> Case:
    each = probabilities(rng, case, repeats, case.truth)
    return Case((rng.random(each.shape) < each).astype(float), case.clusters, case.truth)


def means_of_shares(rng: np.random.Generator, case: Scenario, repeats: int) -> Case:
    """As Retention: of one to three things of a sample, the share that is still there."""
    each = probabilities(rng, case, repeats, case.truth)
    things = np.random.default_rng(case.n).integers(1, 4, case.n)
    return Case(rng.binomial(things, each) / things, case.clusters, case.truth)


def _drawn(rng: np.random.Generator, case: Scenario, repeats: int, p: float) -> np.ndarray:
    """(repeats, n) yes or no. At an intraclass correlation of 1 all samples of a picture are copies."""
    return rng.random((repeats, case.n)) < probabilities(rng, case, repeats, p)


def verdicts(rng: np.random.Generator, case: Scenario, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Of two runs, by the shares of (only the first says yes, only the second); of the rest both say yes or
    both no with even chances."""
    plus, minus = case.truth
    moves, up, both = (
        _drawn(rng, case, repeats, p) for p in (plus + minus, plus / (plus + minus) if plus else 0.0, 0.5)
    )
    return np.where(moves, up, both).astype(float), np.where(moves, ~up, both).astype(float)


def differences(rng: np.random.Generator, case: Scenario, repeats: int) -> Case:
    first, second = verdicts(rng, case, repeats)
    plus, minus = case.truth
    return Case(first - second, case.clusters, plus - minus, -1.0, 1.0, first, second)


def ratios(rng: np.random.Generator, case: Scenario, repeats: int) -> Case:
    """Data sets in which nothing is below are left out, as reports do."""
    first, second = verdicts(rng, case, repeats)
    some = second.sum(1) > 0
    first, second = first[some], second[some]
    plus, minus = case.truth
    rest = (1 - plus - minus) / 2
    truth = (plus + rest) / (minus + rest)
    return Case(first - second, case.clusters, truth, 0.0, math.inf, first, second)


def unbounded(rng: np.random.Generator, case: Scenario, repeats: int) -> Case:
    """Normal values, and skewed ones as L1 and LPIPS are: gamma of shape 4 (skewness 1), of shape 1 (2),
    log-normal (1.7); uniform, and Student's t with 5 degrees of freedom (long tails). All with mean 1."""
    clusters = case.clusters
    draw: dict[str, Callable[..., Any]] = {
        "normal": lambda size: rng.normal(1, 0.5, size),
        "gamma-4": lambda size: rng.gamma(4, 1 / 4, size),
        "gamma-1": lambda size: rng.gamma(1, 1, size),
        "uniform": lambda size: rng.uniform(0, 2, size),
        "t-5": lambda size: 1 + 0.5 * rng.standard_t(5, size),
        "lognormal": lambda size: rng.lognormal(-0.125, 0.5, size),
    }
    own, picture = (draw[case.truth](size) for size in ((repeats, case.n), (repeats, int(clusters[-1]) + 1)))
    mixed = 1 + math.sqrt(case.alike) * (picture[:, clusters] - 1) + math.sqrt(1 - case.alike) * (own - 1)
    return Case(mixed, clusters, 1.0, -math.inf, math.inf)


@dataclass(frozen=True)
class Kind:
    """A kind of figure: how it is drawn, the truths on either grid, and the methods that are compared; the
    one in use says "ours"."""

    title: str
    draw: Callable[[np.random.Generator, Scenario, int], Case]
    tuned: tuple[Any, ...]
    held_out: tuple[Any, ...]
    methods: Mapping[str, Callable[[Case], Ends]]
    unit: str = "width"

    def scenarios(self, ns: tuple[int, ...]) -> Iterator[Scenario]:
        """ns  Which numbers of samples, where they are on a grid."""
        for grid, truths in ((TUNED, self.tuned), (HELD_OUT, self.held_out)):
            yield from (case for case in scenarios(grid, truths) if case.n in ns)


NS = (*TUNED.ns, *HELD_OUT.ns)
#: Shares of pairs in which only the first says yes, in which only the second does.
PAIRS = ((0.9, 0.0), (0.75, 0.01), (0.5, 0.3), (0.4, 0.1), (0.2, 0.2), (0.15, 0.1), (0.1, 0.0), (0.03, 0.01),
         (0.0, 0.0))  # fmt: skip
OTHER_PAIRS = ((0.02, 0.95), (0.1, 0.6), (0.45, 0.45), (0.3, 0.3), (0.05, 0.05), (0.0, 0.15), (0.01, 0.02))
KINDS: dict[str, Kind] = {
    "shares": Kind(
        "Shares", shares, (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0), (0.03, 0.15, 0.4, 0.6, 0.85, 0.97), {
            "Clopper-Pearson, pooled ICC": clopper,
            "Clopper-Pearson, a picture counts once": clopper_once,
            "Clopper-Pearson, design effect seen": clopper_seen,
            "Wilson, pooled ICC": wilson_pooled,
            "Wilson, t, design effect seen": wilson_seen,
            "Agresti-Coull, pooled ICC": agresti_coull,
            "Bonett-Price with 1.5, t, pooled ICC": bonett_price_more,
            "logit, CR2, t, a picture added at either end": logit_t,
            "sandwich CR2, t, cut": reduced_cut,
            "one picture more, as large as the others": whole_more,
        "one picture more (ours)": one_more,
        }),
    "differences": Kind("Paired differences of shares", differences, PAIRS, OTHER_PAIRS, {
        "Bonett-Price with 1.5, t, pooled ICC": bonett_price_more,
        "Bonett-Price, pooled ICC": bonett_price,
        "Bonett-Price with 1.5, t, a picture counts once": bonett_price_once,
        "Bonett-Price, design effect seen": bonett_price_seen,
        "Agresti-Min, pooled ICC": agresti_min,
        "Newcombe (MOVER), pooled ICC": newcombe,
        "Clopper-Pearson, pooled ICC": clopper,
        "logit, CR2, t, a picture added at either end": logit_t,
        "sandwich CR2, t, cut": reduced_cut,
        "one picture more, as large as the others": whole_more,
        "one picture more (ours)": one_more,
    }),
    "bounded": Kind(
        "Means of values in a range", means_of_shares, (0.5, 0.8, 0.9, 0.95, 0.98), (0.15, 0.6, 0.85, 0.97), {
            "Clopper-Pearson, pooled ICC": clopper,
            "Clopper-Pearson, a picture counts once": clopper_once,
            "Bonett-Price with 1.5, t, pooled ICC": bonett_price_more,
            "Agresti-Coull, pooled ICC": agresti_coull,
            "logit, CR2, t, a picture added at either end": logit_t,
            "sandwich CR2, t, cut": reduced_cut,
            "one picture more, as large as the others": whole_more,
        "one picture more (ours)": one_more,
        }),
    "ratios": Kind("Ratios of paired shares", ratios, PAIRS[:-2], OTHER_PAIRS[:-2], {
        "MOVER of Clopper-Pearson, logarithms": mover,
        "delta method, logarithms, t": delta_ratio,
        "one picture more (ours)": one_more_ratio,
    }, "median of log(high / low)"),
    "unbounded": Kind(
        "Means of other values", unbounded, ("normal", "gamma-4", "gamma-1"),
        ("uniform", "t-5", "lognormal"), {
            "CR2, t, Hall's correction": hall,
            "CR2, t (Bell-McCaffrey)": reduced_t,
            "CR2, t, Johnson's correction": johnson,
            "CR1, t (ours)": sandwich_t,
        }),
}  # fmt: skip


# --- the study -------------------------------------------------------------------------------------------


def measure(kind: str, case: Scenario, repeats: int, seed: int, only: str = "") -> dict[str, Any]:
    """One scenario: how often each method covers, its mean width, how often it is empty or out of range."""
    digest = hashlib.sha256(f"{seed} {kind} {case} {repeats}".encode()).digest()
    made = KINDS[kind].draw(np.random.default_rng(list(digest[:8])), case, repeats)
    row: dict[str, Any] = {"kind": kind, "scenario": str(case), "grid": case.grid, "n": case.n,
                           "alike": case.alike, "truth": str(case.truth), "repeats": repeats,
                           "data sets": len(made.values), "methods": {}}  # fmt: skip
    for name, method in KINDS[kind].methods.items():
        if only in name and len(made.values):
            low, high = method(made)
            if only and method in EXACT:
                held = holds(made, EXACT[method](made))
            else:
                held = (low <= made.truth + 1e-9) & (made.truth - 1e-9 <= high)
            outside = (low < made.low - 1e-5) | (high > made.high + 1e-5)
            row["methods"][name] = [
                float(held.mean()),
                _width(kind, low, high),
                int((high - low < 1e-12).sum()),
                int(outside.sum()),
                len(low),
            ]
    return row


def _width(kind: str, low: np.ndarray, high: np.ndarray) -> float:
    if kind != "ratios":
        return float((high - low).mean())
    with np.errstate(divide="ignore"):
        return float(np.median(np.log(np.minimum(high, 1e3) / np.maximum(low, 1e-3))))


def study(kind: str, ns: tuple[int, ...], repeats: int, more: int, seed: int, path: Path | None) -> str:
    """The tables of one kind of figure; scenarios that `path` has are not drawn again."""
    known = {(row["kind"], row["scenario"], row["repeats"]): row for row in _read(path)}
    rows = []
    for case in KINDS[kind].scenarios(ns):
        row = _again(known, path, kind, case, repeats, seed)
        ours = [entry[0] for name, entry in row["methods"].items() if "(ours)" in name]
        if more > repeats and ours and min(ours) < 0.955:
            better = _again(known, path, kind, case, more, seed, "(ours)")
            row = {**row, "methods": {**row["methods"], **better["methods"]}}
        rows.append(row)
    tables = [_overall(rows, kind), _by(rows, "n", "n"), _by(rows, "alike", "ICC")]
    return "\n\n".join([f"### {KINDS[kind].title}", *tables])


def _again(
    known: Mapping[Any, dict[str, Any]],
    path: Path | None,
    kind: str,
    case: Scenario,
    repeats: int,
    seed: int,
    only: str = "",
) -> dict[str, Any]:
    if (kind, str(case), repeats) in known:
        return known[kind, str(case), repeats]
    row = measure(kind, case, repeats, seed, only)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return row


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _overall(rows: list[dict[str, Any]], kind: str) -> str:
    scale, digits = (1, 2) if kind == "ratios" else (100, 1)
    lines = []
    for name in KINDS[kind].methods:
        cells, lowest = [], []
        for grid in (TUNED, HELD_OUT):
            chosen = [row for row in rows if row["grid"] == grid.name and name in row["methods"]]
            entries = [(row["methods"][name], row["scenario"]) for row in chosen]
            below = sum(entry[0] < 0.94 - 2 * math.sqrt(0.94 * 0.06 / entry[-1]) for entry, _ in entries)
            lowest.append(min(entries))
            cells += [
                f"{100 * min(entries)[0][0]:.1f}",
                f"{below} of {len(entries)}",
                f"{scale * np.mean([entry[1] for entry, _ in entries]):.{digits}f}",
            ]
        every = [row["methods"][name] for row in rows if name in row["methods"]]
        lines.append([
            name, *cells, min(lowest)[1], f"{100 * np.mean([entry[0] for entry in every]):.1f}",
            sum(entry[2] for entry in every), sum(entry[3] for entry in every),
        ])  # fmt: skip
    unit = KINDS[kind].unit
    heads = ["method", *(f"{grid.name}: {what}" for grid in (TUNED, HELD_OUT)
             for what in ("lowest %", "surely below 94", unit)),
             "lowest of all", "mean %", "length 0", "out of range"]  # fmt: skip
    return tabulate(lines, heads, tablefmt="pipe", disable_numparse=True)


def _by(rows: list[dict[str, Any]], key: str, word: str) -> str:
    """Lowest coverage and mean width of every method by a property of the scenarios, on both grids."""
    scale, digits = (1, 2) if rows[0]["kind"] == "ratios" else (100, 1)
    values = sorted({row[key] for row in rows})
    lines = []
    for name in KINDS[rows[0]["kind"]].methods:
        line = [name]
        for value in values:
            entries = [row["methods"][name] for row in rows if row[key] == value and name in row["methods"]]
            cover, width = min(entry[0] for entry in entries), np.mean([entry[1] for entry in entries])
            line.append(f"{100 * cover:.1f} / {scale * width:.{digits}f}")
        lines.append(line)
    heads = ["lowest % / width", *(f"{word} {value:g}" for value in values)]
    return tabulate(lines, heads, tablefmt="pipe", disable_numparse=True)


def monotone(seed: int, tries: int) -> str:
    """Whether an end ever falls when one sample rises to the highest value."""
    rng = np.random.default_rng(seed)
    falls = dict.fromkeys(("shares", "differences", "means"), 0)
    for _ in range(tries):
        n = int(rng.integers(8, 60))
        kind = str(rng.choice(TUNED.sizes + HELD_OUT.sizes))
        case_of = Scenario(TUNED.name, n, kind, "beta", 0.3, 0.0)
        clusters = case_of.clusters
        each = probabilities(rng, case_of, 1, float(rng.choice([0.5, 0.8, 0.95])))[0]
        yes = (rng.random(n) < each).astype(float)
        sets = {"shares": yes, "differences": yes - (rng.random(n) < 0.3), "means": rng.binomial(3, each) / 3}
        for name, values in sets.items():
            less = np.flatnonzero(values < 1)
            if not len(less) or clusters[-1] < 1:
                continue
            more = values.copy()
            more[rng.choice(less)] = 1.0
            lowest = -1.0 if name == "differences" else 0.0
            ends = []
            for x in (values, more):
                found = statistics.bounded_mean(x, clusters.tolist(), lowest)
                assert found is not None
                ends.append(np.array([found.low, found.high], dtype=float))
            falls[name] += bool((ends[1] < ends[0] - 1e-9).any())
    counts = ", ".join(f"{name} {count}" for name, count in falls.items())
    return (
        f"One sample more at the highest value, {tries} random data sets: an end of ours falls in {counts}."
    )


def distances(repeats: int, seed: int, quick: bool) -> str:
    """Coverage of the interval of FID, of what N pictures give on average and of the limit."""
    rows = []
    rng = np.random.default_rng(seed)
    for width in (8,) if quick else (8, 32):
        sides = [_pictures(rng, 60_000, width, 1)]
        limit = fid.frechet_distance(*sides[0])
        for size in (1, 3):
            for n in (24, 48, 96) if quick else (24, 48, 96, 288, 960):
                names = [str(i // size) for i in range(n)]
                found = [
                    fid.jackknife_interval(*_pictures(rng, n, width, size), names) for _ in range(repeats)
                ]
                usual = np.mean([one.value for one in found])
                held = np.mean([one.low <= usual <= one.high for one in found])  # type: ignore[operator]
                ends = [fid.limit(one) for one in found]
                far = np.mean([one.low <= limit <= one.high for one in ends])  # type: ignore[operator]
                plain = np.mean([one.low <= limit <= one.high for one in found])  # type: ignore[operator]
                rows.append([width, n, size, f"{n / size / width:.1f}", f"{usual:.3f}", f"{limit:.3f}",
                             *(f"{100 * share:.0f}" for share in (held, plain, far))])  # fmt: skip
    heads = ["columns", "pictures", "per source", "sources per column", "FID of N", "limit",
             "interval holds FID of N %", "holds the limit %", "limit's interval holds it %"]  # fmt: skip
    return "### FID\n\n" + tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def _pictures(rng: np.random.Generator, n: int, width: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of n edits and targets, `size` per source image; three in ten are not edited at all."""
    mixing = np.random.default_rng(9).normal(size=(width, width)) / math.sqrt(width)
    target = np.repeat(rng.normal(size=(n // size, width)), size, 0)
    lean = np.repeat(rng.normal(size=(n // size, width)), size, 0)
    edited = 0.8 * target + 0.4 * rng.normal(size=target.shape) + 0.2 * lean + 0.3 / math.sqrt(width)
    edited = np.where(rng.random((len(target), 1)) < 0.3, target, edited)
    return edited @ mixing, target @ mixing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats: a minute")
    parser.add_argument("--repeats", type=int, help="data sets per scenario (default 1000; quick: 100)")
    parser.add_argument("--more", type=int, help="of scenarios near the limit (default 4000; quick: none)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join([*KINDS, "fid"]), help="which tables")
    parser.add_argument("--results", type=Path, help="JSON lines of the scenarios, to go on with")
    options = parser.parse_args()
    repeats = options.repeats or (100 if options.quick else 1000)
    more = options.more or (0 if options.quick else 4000)
    ns = (8, 12, 24, 36) if options.quick else NS
    today = datetime.date.today().isoformat()
    error = 100 * math.sqrt(0.95 * 0.05 / repeats)
    near = 100 * math.sqrt(0.95 * 0.05 / max(more, repeats))
    print(
        f"{today}, seed {options.seed}, n {list(ns)}; {repeats} data sets per scenario (standard error of a"
    )
    print(f"coverage {error:.1f} points), {more} of scenarios near the limit ({near:.1f})\n")
    for kind in options.kinds.split(","):
        start = time.perf_counter()
        if kind == "fid":
            print(distances(max(20, repeats // 10), options.seed, options.quick))
        else:
            print(study(kind, ns, repeats, more, options.seed, options.results))
        if kind == "shares":
            print(f"\n{monotone(options.seed, repeats)}")
        print(f"\n({time.perf_counter() - start:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
