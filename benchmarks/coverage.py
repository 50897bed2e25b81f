"""How often do 95 % intervals hold the truth? The methods of `nein.statistics` beside others, on made data.

    python -m benchmarks.coverage [--quick] [--repeats 400] [--seed 0] [--kinds shares,differences,...]

Data sets are drawn from a known truth again and again: n samples in pictures of 1, of 4, or of 1 to 5,
alike within a picture (intraclass correlation 0 to 0.6), with shares up to 1. For every method the table
has its lowest coverage over all scenarios and where that is, the mean, the mean width in points, how often an
interval had length 0, and how often it left the range. `--quick` takes a minute. The results are in
docs/explanation/statistics.md.
"""

from __future__ import annotations

import argparse
import datetime
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta as beta_variable
from scipy.stats import t as student
from tabulate import tabulate

from metrics import fid
from nein import statistics

Ends = tuple[np.ndarray, np.ndarray]
SIZES = ("1", "4", "1-5")
ALIKE = (0.0, 0.2, 0.6)


@dataclass(frozen=True)
class Case:
    """`values` (R, n): R data sets of one scenario. clusters (n,): the picture of every sample."""

    values: np.ndarray
    clusters: np.ndarray
    truth: float
    name: str
    low: float = 0.0
    high: float = 1.0

    @property
    def sums(self) -> np.ndarray:
        """(R, G)."""
        return self.values @ np.eye(self.clusters[-1] + 1)[self.clusters]

    @property
    def sizes(self) -> np.ndarray:
        return np.bincount(self.clusters).astype(float)

    @property
    def means(self) -> np.ndarray:
        return self.values.mean(1)

    def errors(self) -> np.ndarray:
        """(R,) cluster-robust standard errors."""
        pulls = self.sums - self.means[:, None] * self.sizes
        count = len(self.sizes)
        return np.sqrt(count / (count - 1) * (pulls**2).sum(1)) / self.values.shape[1]

    def effective(self, alone: float) -> np.ndarray:
        """(R,) n over the design effect, never above n; `alone` where all values agree."""
        n, variance = self.values.shape[1], self.values.var(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            size = np.where(variance > 0, variance / self.errors() ** 2 * n / (n - 1), alone)
        return np.clip(np.nan_to_num(size, nan=n, posinf=n), 1, n)

    def pictures(self) -> float:
        """n^2 / sum of squared sizes: the samples, were those of a picture copies of each other."""
        return float(self.values.shape[1] ** 2 / (self.sizes**2).sum())

    def t(self) -> float:
        return float(student.ppf(0.975, len(self.sizes) - 1))


# --- methods ---------------------------------------------------------------------------------------------


def wilson(case: Case, alone: float, z: float) -> Ends:
    p, m = case.means, case.effective(alone)
    centre, reach = p + z * z / (2 * m), z * np.sqrt(p * (1 - p) / m + z * z / (4 * m * m))
    return (centre - reach) / (1 + z * z / m), (centre + reach) / (1 + z * z / m)


def wilson_before(case: Case) -> Ends:
    return wilson(case, case.pictures(), case.t())


def wilson_one(case: Case) -> Ends:
    return wilson(case, case.values.shape[1], case.t())


def korn_graubard(case: Case) -> Ends:
    """Clopper and Pearson's at the effective size, with its degrees of freedom; one if all agree."""
    n = case.values.shape[1]
    m = np.minimum(n, case.effective(n) * (student.ppf(0.975, n - 1) / case.t()) ** 2)
    ones = case.means * m
    low = np.where(ones > 0, beta_variable.ppf(0.025, np.maximum(ones, 1e-9), m - ones + 1), 0)
    high = np.where(ones < m, beta_variable.ppf(0.975, ones + 1, np.maximum(m - ones, 1e-9)), 1)
    return low, high


def student_t(case: Case) -> Ends:
    reach = case.t() * case.errors()
    return case.means - reach, case.means + reach


def bounded_before(case: Case) -> Ends:
    """t, cut at the range; Wilson's bound for G trials where the standard error is 0."""
    low, high = student_t(case)
    z, count = case.t(), len(case.sizes)
    reach = np.where(case.errors() < 1e-13, (case.high - case.low) * z * z / (count + z * z), 0)
    return np.maximum(case.low, low - reach), np.minimum(case.high, high + reach)


def agresti_min(case: Case) -> Ends:
    """Wald's interval of a paired difference with half a pair added to each of the four kinds."""
    return _with_pairs_added(case, 0.5, 2)


def bonett_price(case: Case) -> Ends:
    """Wald's interval with one discordant pair of either kind added."""
    return _with_pairs_added(case, 1.0, 2)


def _with_pairs_added(case: Case, each: float, total: float) -> Ends:
    n = case.effective(case.values.shape[1])
    up, down = ((sign * case.values).clip(0).mean(1) * n + each for sign in (1, -1))
    m = n + total
    centre = (up - down) / m
    reach = ndtri(0.975) * np.sqrt(np.maximum(0, (up + down) / m - centre**2) / m)
    return np.maximum(-1, centre - reach), np.minimum(1, centre + reach)


def bca(case: Case) -> Ends:
    """Bias-corrected and accelerated bootstrap over pictures, 400 draws."""
    count = len(case.sizes)
    picks = np.random.default_rng(0).multinomial(count, [1 / count] * count, 400)
    sums, weights = case.sums @ picks.T, picks @ case.sizes
    draws = np.sort(sums / weights, axis=1)
    below = (draws < case.means[:, None]).mean(1)
    equal = (draws == case.means[:, None]).mean(1)
    bias = ndtri(np.clip(below + equal / 2, 1 / 800, 1 - 1 / 800))
    n = case.values.shape[1]
    left = (case.values.sum(1)[:, None] - case.sums) / (n - case.sizes)
    apart = left.mean(1)[:, None] - left
    with np.errstate(invalid="ignore", divide="ignore"):
        pace = np.nan_to_num((apart**3).sum(1) / (6 * (apart**2).sum(1) ** 1.5))
    ends = []
    for z in (-1.96, 1.96):
        level = ndtr(bias + (bias + z) / (1 - pace * (bias + z)))
        ends.append(draws[np.arange(len(draws)), np.clip((level * 400).astype(int), 0, 399)])
    return ends[0], ends[1]


def skew_corrected(case: Case) -> Ends:
    """t with Johnson's correction for skewness."""
    scaled = case.sums / case.sizes
    m3 = ((scaled - scaled.mean(1)[:, None]) ** 3).mean(1)
    variance = scaled.var(1, ddof=1)
    shift = m3 / (6 * np.maximum(variance, 1e-300) * len(case.sizes))
    low, high = student_t(case)
    return low + shift, high + shift


def ours(case: Case) -> Ends:
    names = case.clusters.tolist()
    known: dict[bytes, tuple[float, float]] = {}
    ends = []
    for row in case.values:
        key = np.sort(_signature(row, case)).tobytes()
        if key not in known:
            found = statistics.bounded_mean(row, names, case.low, case.high)
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            known[key] = (found.low, found.high)
        ends.append(known[key])
    low, high = np.array(ends).T
    return low, high


def _signature(row: np.ndarray, case: Case) -> np.ndarray:
    """What an interval depends on: sums, sizes and squares by picture."""
    squares = np.bincount(case.clusters, weights=row**2)
    return np.bincount(case.clusters, weights=row) + 1e3 * case.sizes + 1e6 * squares


# --- scenarios -------------------------------------------------------------------------------------------


def clusters_of(kind: str, n: int) -> np.ndarray:
    """(n,) the picture of every sample."""
    if kind == "1-5":
        sizes = np.random.default_rng(n).integers(1, 6, n)
    else:
        sizes = np.full(n, int(kind))
    return np.repeat(np.arange(n), sizes)[:n]


def probabilities(rng: np.random.Generator, shape: tuple[int, int], p: float, alike: float) -> np.ndarray:
    """Of a yes, by picture: beta distributed with mean p and intraclass correlation `alike`."""
    if alike == 0 or p in (0.0, 1.0):
        return np.full(shape, p)
    return rng.beta(p * (1 - alike) / alike, (1 - p) * (1 - alike) / alike, shape)


def scenarios(ns: list[int], shares: tuple[float, ...]) -> Iterator[tuple[str, np.ndarray, float, float]]:
    for n in ns:
        for kind in SIZES:
            clusters = clusters_of(kind, n)
            if clusters[-1] < 1:
                continue
            for alike in ALIKE if kind != "1" else ALIKE[:1]:
                for p in shares:
                    yield f"n {n}, pictures of {kind}, ICC {alike:g}, {p:g}", clusters, p, alike


def shares(rng: np.random.Generator, ns: list[int], repeats: int) -> Iterator[Case]:
    for name, clusters, p, alike in scenarios(ns, (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)):
        each = probabilities(rng, (repeats, clusters[-1] + 1), p, alike)[:, clusters]
        yield Case((rng.random(each.shape) < each).astype(float), clusters, p, name)


def means_of_shares(rng: np.random.Generator, ns: list[int], repeats: int) -> Iterator[Case]:
    """As Retention: of one to three things of a sample, the share that is still there."""
    for name, clusters, p, alike in scenarios(ns, (0.5, 0.9, 0.98)):
        each = probabilities(rng, (repeats, clusters[-1] + 1), p, alike)[:, clusters]
        things = np.random.default_rng(len(clusters)).integers(1, 4, len(clusters))
        yield Case(rng.binomial(things, each) / things, clusters, p, name)


def differences(rng: np.random.Generator, ns: list[int], repeats: int) -> Iterator[Case]:
    """Paired differences of verdicts: (share of +1, share of -1)."""
    for plus, minus in ((0.75, 0.01), (0.4, 0.1), (0.15, 0.1), (0.1, 0.0), (0.03, 0.01), (0.0, 0.0)):
        for name, clusters, _, alike in scenarios(ns, (plus - minus,)):
            shape = (repeats, clusters[-1] + 1)
            moved = probabilities(rng, shape, plus + minus, alike)[:, clusters]
            up = probabilities(rng, shape, plus / (plus + minus) if plus else 0.0, alike)[:, clusters]
            sign = np.where(rng.random(up.shape) < up, 1.0, -1.0)
            label = f"{name} = {plus:g} - {minus:g}"
            yield Case((rng.random(up.shape) < moved) * sign, clusters, plus - minus, label, -1.0)


def unbounded(rng: np.random.Generator, ns: list[int], repeats: int) -> Iterator[Case]:
    """Normal values, and skewed ones as L1 and LPIPS are: gamma of shape 4."""
    for shape, gamma in (("normal", None), ("gamma 4", 4.0)):
        for name, clusters, truth, alike in scenarios(ns, (1.0,)):
            size = (repeats, clusters[-1] + 1)
            own, picture = (
                rng.normal(1, 0.5, s) if gamma is None else rng.gamma(gamma, 1 / gamma, s)
                for s in ((repeats, len(clusters)), size)
            )
            mixed = 1 + math.sqrt(alike) * (picture[:, clusters] - 1) + math.sqrt(1 - alike) * (own - 1)
            yield Case(mixed, clusters, truth, f"{name}: {shape}", -math.inf, math.inf)


KINDS: dict[str, tuple[str, Callable[..., Iterator[Case]], dict[str, Callable[[Case], Ends]]]] = {
    "shares": ("Shares", shares, {
        "Wilson, t, all agree: pictures are copies": wilson_before,
        "Wilson, t, all agree: design effect 1": wilson_one,
        "Clopper-Pearson at the effective size": korn_graubard,
        "BCa bootstrap": bca,
        "one picture more (ours)": ours,
    }),
    "differences": ("Paired differences of shares", differences, {
        "t": student_t,
        "t, cut at the range": bounded_before,
        "Agresti-Min at the effective size": agresti_min,
        "Bonett-Price at the effective size": bonett_price,
        "BCa bootstrap": bca,
        "one picture more (ours)": ours,
    }),
    "bounded": ("Means of values in a range", means_of_shares, {
        "t": student_t,
        "t, cut at the range": bounded_before,
        "BCa bootstrap": bca,
        "one picture more (ours)": ours,
    }),
    "unbounded": ("Means of other values", unbounded, {
        "t (ours)": student_t,
        "t, corrected for skewness": skew_corrected,
        "BCa bootstrap": bca,
    }),
}  # fmt: skip


@dataclass
class Tally:
    cover: list[tuple[float, str]] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    empty: int = 0
    outside: int = 0


def study(kind: str, ns: list[int], repeats: int, seed: int) -> str:
    """The table of one kind of figure."""
    title, cases, methods = KINDS[kind]
    tallies = {name: Tally() for name in methods}
    for case in cases(np.random.default_rng(seed), ns, repeats):
        for name, method in methods.items():
            low, high = method(case)
            tally = tallies[name]
            inside = (low <= case.truth + 1e-9) & (case.truth - 1e-9 <= high)
            tally.cover.append((float(inside.mean()), case.name))
            tally.widths.append(float((high - low).mean()))
            tally.empty += int((high - low < 1e-12).sum())
            tally.outside += int(((low < case.low - 1e-9) | (high > case.high + 1e-9)).sum())
    rows = []
    for name, tally in tallies.items():
        worst, where = min(tally.cover)
        below = sum(cover < 0.94 - 2 * math.sqrt(0.94 * 0.06 / repeats) for cover, _ in tally.cover)
        rows.append([
            name, f"{100 * worst:.1f}", where, f"{100 * np.mean([c for c, _ in tally.cover]):.1f}",
            f"{below} of {len(tally.cover)}", f"{100 * np.mean(tally.widths):.1f}",
            tally.empty, tally.outside,
        ])  # fmt: skip
    heads = [
        "method", "lowest %", "where", "mean %", "surely below 94", "mean width", "length 0", "out of range",
    ]  # fmt: skip
    return f"### {title}\n\n" + tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def monotone(seed: int, tries: int) -> str:
    """Whether an end ever falls when one sample more agrees."""
    rng = np.random.default_rng(seed)
    falls = 0
    for _ in range(tries):
        n = int(rng.integers(8, 60))
        clusters = clusters_of(SIZES[rng.integers(3)], n)
        each = probabilities(rng, (1, clusters[-1] + 1), float(rng.choice([0.5, 0.8, 0.95])), 0.3)[
            0, clusters
        ]
        values = (rng.random(n) < each).astype(float)
        if values.all():
            values[0] = 0.0
        more = values.copy()
        more[rng.choice(np.flatnonzero(values == 0))] = 1.0
        low, high = ours(Case(np.stack([values, more]), clusters, 0.5, ""))
        falls += bool(low[1] < low[0] - 1e-9 or high[1] < high[0] - 1e-9)
    return f"One agreement more, {tries} random data sets: an end of ours falls in {falls}."


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
    parser.add_argument("--repeats", type=int, help="data sets per scenario (default 400; quick: 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join([*KINDS, "fid"]), help="which tables")
    options = parser.parse_args()
    repeats = options.repeats or (40 if options.quick else 400)
    ns = [8, 24] if options.quick else [8, 16, 24, 48, 100, 240, 500]
    today = datetime.date.today().isoformat()
    print(f"{today}, seed {options.seed}, {repeats} data sets per scenario, n {ns}\n")
    for kind in options.kinds.split(","):
        start = time.perf_counter()
        if kind == "fid":
            print(distances(max(20, repeats // 4), options.seed, options.quick))
        else:
            print(study(kind, ns, repeats, options.seed))
        if kind == "shares":
            print(f"\n{monotone(options.seed, 10 * repeats)}")
        print(f"\n({time.perf_counter() - start:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
