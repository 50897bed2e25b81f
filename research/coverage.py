"""How often do 95 % intervals hold the truth? Those of `nein.statistics` beside Wilson's and the bootstrap's.

    python -m research.coverage [--repeats 400] [--n 8,24,150] [--kinds shares,fid] [--seed 0]

Data sets are drawn again and again from a known truth: n samples in pictures of a few samples each, which are
alike by an intraclass correlation. For every figure and method: the lowest coverage over all scenarios
and where it is, the mean coverage, the mean width. Results: research/notes/coverage.md.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tabulate import tabulate

from nein import statistics
from nein.metrics import fid
from nein.statistics import calibration

Ends = tuple[float, float]
Z = 1.959964
DRAWS = 999  # of the bootstrap
NS = (8, 12, 24, 48, 150)
SIZES = ("1", "4", "1-5", "10")  # samples of a picture
ALIKE = (0.0, 0.4, 0.8, 1.0)  # intraclass correlations
SHARES = (0.03, 0.2, 0.5, 0.8, 0.95, 1.0)
#: Shares of pairs in which only the first says yes, in which only the second does.
PAIRS = ((0.9, 0.0), (0.5, 0.3), (0.4, 0.1), (0.2, 0.2), (0.1, 0.0), (0.03, 0.01), (0.0, 0.0))

#: Share of yes, sensitivity and specificity of the judge: good ones, a weak one, and one that guesses.
JUDGES = ((0.3, 0.99, 0.99), (0.05, 0.95, 0.97), (0.3, 0.95, 0.97), (0.3, 0.65, 0.65), (0.3, 0.5, 0.5))


# --- data sets
@dataclass(frozen=True)
class Data:
    """One data set. first, second: (n,) values; of a mean only `first`. clusters: (n,) pictures."""

    first: np.ndarray
    clusters: np.ndarray
    truth: float
    second: np.ndarray | None = None

    @property
    def values(self) -> np.ndarray:
        """(n,) what the figure is the mean of."""
        return self.first if self.second is None else self.first - self.second

    @property
    def drawn_again(self) -> np.ndarray:
        """(draws, pictures) how often the bootstrap draws each picture."""
        count = int(self.clusters[-1]) + 1
        return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), DRAWS)


@dataclass(frozen=True)
class Scenario:
    n: int
    size: str
    alike: float
    truth: Any

    @property
    def clusters(self) -> np.ndarray:
        least, most = (int(end) for end in (self.size.split("-") * 2)[:2])
        sizes = np.random.default_rng(self.n).integers(least, most + 1, self.n)
        return np.repeat(np.arange(self.n), sizes)[: self.n]

    def __str__(self) -> str:
        return f"n {self.n}, {self.size} a picture, ICC {self.alike:g}, truth {self.truth}"


def chances(rng: np.random.Generator, case: Scenario, p: float) -> np.ndarray:
    """(n,) chances of a yes with mean p, the same for all samples of a picture: beta distributed."""
    clusters, alike = case.clusters, case.alike
    count = int(clusters[-1]) + 1
    if alike == 0 or p in (0.0, 1.0):
        return np.full(len(clusters), p)
    if alike == 1:
        return (rng.random(count) < p).astype(float)[clusters]
    return rng.beta(p * (1 - alike) / alike, (1 - p) * (1 - alike) / alike, count)[clusters]


def shares(rng: np.random.Generator, case: Scenario) -> Data:
    yes = rng.random(case.n) < chances(rng, case, case.truth)
    return Data(yes.astype(float), case.clusters, case.truth)


def bounded(rng: np.random.Generator, case: Scenario) -> Data:
    """Means of three verdicts each, as Retention is of a few bystanders."""
    return Data(rng.binomial(3, chances(rng, case, case.truth)) / 3, case.clusters, case.truth)


def pairs(rng: np.random.Generator, case: Scenario) -> tuple[np.ndarray, np.ndarray]:
    """Two verdicts on every sample, which differ by the shares of `case.truth` and else are half yes."""
    only_first, only_second = case.truth
    moved = rng.random(case.n) < chances(rng, case, only_first + only_second)
    split = only_first / (only_first + only_second) if only_first + only_second else 0.0
    up, both = rng.random(case.n) < split, rng.random(case.n) < 0.5
    return np.where(moved, up, both).astype(float), np.where(moved, ~up, both).astype(float)


def differences(rng: np.random.Generator, case: Scenario) -> Data:
    first, second = pairs(rng, case)
    return Data(first, case.clusters, case.truth[0] - case.truth[1], second)


def ratios(rng: np.random.Generator, case: Scenario) -> Data:
    first, second = pairs(rng, case)
    rest = (1 - sum(case.truth)) / 2
    return Data(first, case.clusters, (case.truth[0] + rest) / (case.truth[1] + rest), second)


def labelled(rng: np.random.Generator, case: Scenario) -> Data:
    """A judge's verdicts on four times n samples, of which n, drawn at random, have people's labels too."""
    share, sensitivity, specificity = case.truth
    case = replace(case, n=4 * case.n)
    yes = rng.random(case.n) < chances(rng, case, share)
    judged = rng.random(case.n) < np.where(yes, sensitivity, 1 - specificity)
    known = np.where(rng.permutation(case.n) < case.n // 4, yes, np.nan)
    return Data(judged.astype(float), case.clusters, share, known)


def unbounded(rng: np.random.Generator, case: Scenario) -> Data:
    """Sums of a picture's part and a sample's own, both of the named distribution, with mean 1."""
    clusters = case.clusters

    def draw(count: int) -> np.ndarray:
        if case.truth == "normal":
            return rng.normal(size=count)
        shape = float(str(case.truth).removeprefix("gamma-"))
        return (rng.gamma(shape, size=count) - shape) / math.sqrt(shape)

    shared, own = draw(int(clusters[-1]) + 1)[clusters], draw(case.n)
    return Data(1 + math.sqrt(case.alike) * shared + math.sqrt(1 - case.alike) * own, clusters, 1.0)


# --- methods
def ends(found: statistics.Estimate | None) -> Ends:
    """Of an estimate; where it has no interval it holds everything."""
    if found is None or found.low is None or found.high is None:
        return -math.inf, math.inf
    return found.low, found.high


def ours_bounded(data: Data) -> Ends:
    low = 0.0 if data.second is None else -1.0
    return ends(statistics.bounded_mean(data.values, data.clusters.tolist(), low, 1.0))


def ours_mean(data: Data) -> Ends:
    return ends(statistics.mean(data.first, data.clusters.tolist()))


def ours_labelled(data: Data) -> Ends:
    """Prediction-powered: labels on a part, verdicts on all."""
    assert data.second is not None
    columns = (data.first, data.second, data.clusters)
    judged, people, where = ({str(k): v for k, v in enumerate(x.tolist())} for x in columns)
    labels = {key: label for key, label in people.items() if not math.isnan(label)}
    found = calibration.prediction_powered(judged, labels, where)
    return (-math.inf, math.inf) if found.low is None or found.high is None else (found.low, found.high)


def labels_alone(data: Data) -> Ends:
    assert data.second is not None
    known = ~np.isnan(data.second)
    return ends(statistics.bounded_mean(data.second[known], data.clusters[known].tolist()))


def ours_ratio(data: Data) -> Ends:
    assert data.second is not None
    return ends(statistics.pairs_ratio(data.first, data.second, data.clusters.tolist()))


def wilson(data: Data) -> Ends:
    """Wilson's interval at the effective size that the clusters' spread gives."""
    found = statistics.mean(data.first, data.clusters.tolist())
    assert found is not None
    p, error = found.value, found.standard_error
    m = min(found.n, max(1.0, p * (1 - p) / error**2)) if error else found.clusters
    centre, reach = p + Z * Z / (2 * m), Z * math.sqrt(p * (1 - p) / m + Z * Z / (4 * m * m))
    return (centre - reach) / (1 + Z * Z / m), (centre + reach) / (1 + Z * Z / m)


def bootstrap(data: Data) -> Ends:
    """Percentiles over pictures drawn with replacement."""
    weights, sums = data.drawn_again, np.bincount(data.clusters, data.values)
    return _percentiles(weights @ sums / (weights @ np.bincount(data.clusters)))


def bootstrap_ratio(data: Data) -> Ends:
    weights = data.drawn_again
    tops, bottoms = (weights @ np.bincount(data.clusters, side) for side in (data.first, data.second))
    with np.errstate(divide="ignore", invalid="ignore"):
        return _percentiles(np.nan_to_num(tops / bottoms, nan=np.inf, posinf=np.inf))


def _percentiles(values: np.ndarray) -> Ends:
    low, high = np.sort(values)[[math.floor(0.025 * DRAWS), math.ceil(0.975 * DRAWS) - 1]]
    return float(low), float(high)


# --- study
@dataclass(frozen=True)
class Kind:
    title: str
    draw: Callable[[np.random.Generator, Scenario], Data]
    truths: Sequence[Any]
    methods: Mapping[str, Callable[[Data], Ends]]


SINGLE = {"ours": ours_bounded, "Wilson, effective size": wilson, "bootstrap": bootstrap}
KINDS = {
    "shares": Kind("Shares", shares, SHARES, SINGLE),
    "bounded": Kind("Means of values in a range", bounded, SHARES[:-1], SINGLE),
    "differences": Kind(
        "Paired differences of shares", differences, PAIRS, {"ours": ours_bounded, "bootstrap": bootstrap}
    ),
    "ratios": Kind(
        "Ratios of paired shares", ratios, PAIRS[1:], {"ours": ours_ratio, "bootstrap": bootstrap_ratio}
    ),
    "labelled": Kind(
        "Labels on a quarter, a judge on all", labelled, JUDGES,
        {"ours": ours_labelled, "labels alone": labels_alone},
    ),
    "unbounded": Kind(
        "Means of other values", unbounded, ("normal", "gamma-4", "gamma-1"),
        {"ours": ours_mean, "bootstrap": bootstrap},
    ),
}  # fmt: skip


def scenarios(kind: Kind, ns: Sequence[int]) -> Iterator[Scenario]:
    for n, size, alike, truth in itertools.product(ns, SIZES, ALIKE, kind.truths):
        case = Scenario(n, size, alike, truth)
        if (size != "1" or alike == 0) and case.clusters[-1] >= 3:
            yield case


def study(name: str, ns: Sequence[int], repeats: int, seed: int) -> str:
    """The table of one kind of figure. Data sets for which a figure is not defined (x / 0) are left out."""
    kind = KINDS[name]
    rows: dict[str, list[tuple[float, str, float]]] = {method: [] for method in kind.methods}
    for case in scenarios(kind, ns):
        digest = hashlib.sha256(f"{seed} {name} {case}".encode()).digest()
        rng = np.random.default_rng(list(digest[:8]))
        drawn = [kind.draw(rng, case) for _ in range(repeats)]
        if name == "ratios":
            drawn = [data for data in drawn if data.second is not None and data.second.any()]
        for method, work in kind.methods.items():
            found = np.array([work(data) for data in drawn])  # repeats, (low, high)
            truth = np.array([data.truth for data in drawn])
            held = (found[:, 0] <= truth + 1e-9) & (truth - 1e-9 <= found[:, 1])
            width = found[:, 1] - found[:, 0]
            finite = float(width[np.isfinite(width)].mean()) if np.isfinite(width).any() else math.inf
            rows[method].append((100 * held.mean(), str(case), finite))
    lines = []
    for method, cases in rows.items():
        (lowest, where, _), (covers, _, widths) = min(cases), zip(*cases, strict=True)
        lines.append([method, f"{lowest:.1f}", where, f"{np.mean(covers):.1f}", f"{np.mean(widths):.3f}"])
    heads = ["method", "lowest %", "where", "mean %", "mean width"]
    return f"### {kind.title}\n\n" + tabulate(lines, heads, tablefmt="pipe", disable_numparse=True)


def distances(ns: Sequence[int], repeats: int, seed: int) -> str:
    """FID: does its interval hold what N pictures give on average, does the limit's hold the limit?"""
    rng, rows, width = np.random.default_rng(seed), [], 8
    limit = fid.frechet_distance(*_pictures(rng, 60_000, width, 1))
    for n, size in itertools.product((n for n in ns if n >= 24), (1, 3)):
        pictures = [str(i // size) for i in range(n)]
        found = [fid.jackknife_interval(*_pictures(rng, n, width, size), pictures) for _ in range(repeats)]
        usual = np.mean([one.value for one in found])
        low, high = np.array([(one.low, one.high) for one in found], float).T  # each (repeats,)
        held = np.mean((low <= usual) & (usual <= high))
        low, high = np.array([(one.low, one.high) for one in map(fid.extrapolate, found)], float).T
        far = np.mean((low <= limit) & (limit <= high))
        rows.append([n, size, f"{usual:.3f}", f"{limit:.3f}", f"{100 * held:.0f}", f"{100 * far:.0f}"])
    heads = ["pictures", "per source", "FID of N", "limit", "holds FID of N %", "limit's holds the limit %"]
    return "### FID\n\n" + tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def _pictures(rng: np.random.Generator, n: int, width: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of n edits and targets, `size` per source image; three in ten are not edited at all."""
    mixing = np.random.default_rng(9).normal(size=(width, width)) / math.sqrt(width)
    target, lean = (np.repeat(rng.normal(size=(n // size, width)), size, 0) for _ in range(2))
    edited = 0.8 * target + 0.4 * rng.normal(size=target.shape) + 0.2 * lean + 0.3 / math.sqrt(width)
    edited = np.where(rng.random((len(target), 1)) < 0.3, target, edited)
    return edited @ mixing, target @ mixing


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=400, help="data sets per scenario")
    parser.add_argument("--n", default=",".join(map(str, NS)), help="numbers of samples")
    parser.add_argument("--kinds", default=",".join([*KINDS, "fid"]), help="which tables")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    ns = [int(n) for n in options.n.split(",")]
    error = 100 * math.sqrt(0.95 * 0.05 / options.repeats)
    print(f"{datetime.date.today()}, seed {options.seed}, n {ns}, {options.repeats} data sets per scenario")
    print(f"(standard error of a coverage: {error:.1f} points)\n")
    for name in options.kinds.split(","):
        start = time.perf_counter()
        if name == "fid":
            print(distances(ns, max(5, options.repeats // 10), options.seed))
        else:
            print(study(name, ns, options.repeats, options.seed))
        print(f"\n({time.perf_counter() - start:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
