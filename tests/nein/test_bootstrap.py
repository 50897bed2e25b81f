from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from nein import statistics
from nein.statistics import bootstrap
from tests.helpers.memory import Peak


def clustered(rng: np.random.Generator, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """(source of every sample, effect of its source)."""
    source = np.repeat(np.arange(clusters), rng.integers(1, 6, clusters))
    return source, rng.normal(size=clusters)[source]


def test_draws_take_as_much_memory_whatever_the_number_of_clusters(peak: Peak) -> None:
    def of(count: int) -> int:
        table = np.random.default_rng(0).random((count, 2))
        return peak(lambda: bootstrap.statistic(lambda sums: sums[:, 0], table, range(count), (0, 0), (1, 1)))

    assert (of(6000) - of(1000)) / 5000 < 500  # bytes a cluster; all draws are 32,000


def test_ratio_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        source, effect = clustered(rng, 60)
        p = 1 / (1 + np.exp(-effect))  # the truth of either: mean over the population of images
        above = (rng.uniform(size=len(p)) < p).astype(float)
        below = (rng.uniform(size=len(p)) < (p + 1) / 2).astype(float)
        ids = [f"s{i}" for i in range(len(p))]
        found = statistics.ratio(
            dict(zip(ids, above, strict=True)), dict(zip(ids, below, strict=True)),
            dict(zip(ids, source.tolist(), strict=True)),
        )  # fmt: skip
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.5 / 0.75 <= found.high
    assert hits / 400 >= 0.93


def test_roc_auc_is_the_share_of_pairs_in_order_ties_half() -> None:
    rng = np.random.default_rng(1)
    scores, truth = rng.integers(0, 6, 80) / 5, rng.uniform(size=80) < 0.4
    weights = rng.integers(0, 4, (3, 80)).astype(float)
    for row, found in zip(weights, bootstrap.roc_auc(scores, truth, weights), strict=True):
        above = total = 0.0
        for i in np.flatnonzero(truth):
            for j in np.flatnonzero(~truth):
                pair = row[i] * row[j]
                above += pair * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
                total += pair
        assert found == pytest.approx(above / total)
    assert bootstrap.roc_auc([0.1, 0.9], [False, True])[0] == 1.0
    assert np.isnan(bootstrap.roc_auc([0.1, 0.9], [True, True])[0])


def test_roc_auc_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(2)
    big_source, big_effect = clustered(rng, 40000)
    big_truth = rng.uniform(size=len(big_source)) < 0.5
    truth_value = bootstrap.roc_auc(big_effect + big_truth + rng.normal(size=len(big_source)), big_truth)[0]
    hits = 0
    for _ in range(400):
        source, effect = clustered(rng, 60)
        present = rng.uniform(size=len(source)) < 0.5
        scores = effect + present + rng.normal(size=len(source))
        found = bootstrap.roc_auc_interval(scores.tolist(), present.tolist(), source.tolist(), draws=400)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= truth_value <= found.high
    assert hits / 400 >= 0.93


def test_perfect_separation_is_no_certainty() -> None:
    found = bootstrap.roc_auc_interval([0.9, 0.8, 0.7, 0.1, 0.2], [True] * 3 + [False] * 2, list("abcde"))
    assert found is not None
    assert found.value == found.high == 1.0
    assert found.low is not None
    assert 0 < found.low < 0.6  # five pictures say little


def test_a_statistic_of_sums_is_that_of_reweighted_clusters_and_one_more() -> None:
    """A share once more: the beta distribution says what the draws should."""
    values = np.array([1.0] * 18 + [0.0] * 2)
    table = np.stack([values, np.ones(20)], 1)
    found = bootstrap.statistic(
        lambda sums: sums[:, 0] / sums[:, 1], table, list(range(20)), (0, 1), (1, 1), 40000
    )
    assert found is not None
    exact = scipy.stats.binomtest(18, 20).proportion_ci(0.95, method="exact")
    assert found.low == pytest.approx(exact.low, abs=0.006)
    assert found.high == pytest.approx(exact.high, abs=0.002)


def test_what_an_interval_was_made_of_is_not_kept(peak: Peak) -> None:
    def of(seed: int, count: int) -> int:
        values = np.random.default_rng(seed).random((count, 400))
        return peak(lambda: [statistics.bounded_mean(one, range(400)) for one in values])

    assert of(1, 20) - of(2, 2) < 100_000  # bytes; the terms of 18 intervals are 980,000
