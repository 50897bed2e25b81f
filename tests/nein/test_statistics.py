from __future__ import annotations

import math

import numpy as np
import pytest

from nein import statistics

T_1, T_2 = 12.706204736432095, 4.302652729696142  # 97.5 % quantiles of t with 1 and 2 degrees of freedom


def test_mean_of_clusters_by_hand() -> None:
    # m = 3; residual sums: (1 - 3) + (2 - 3) = -3, (3 - 3) = 0, (6 - 3) = 3.
    # SE^2 = 3 / 2 * (9 + 0 + 9) / 4^2 = 27 / 16.
    found = statistics.mean([1.0, 2.0, 3.0, 6.0], ["a", "a", "b", "c"])
    assert found is not None
    assert found.value == 3.0
    assert found.standard_error == pytest.approx(math.sqrt(27 / 16), rel=1e-12)
    assert found.low == pytest.approx(3 - T_2 * math.sqrt(27 / 16), rel=1e-9)
    assert found.high == pytest.approx(3 + T_2 * math.sqrt(27 / 16), rel=1e-9)
    assert (found.n, found.clusters) == (4, 3)


def test_without_clusters_it_is_the_ordinary_standard_error() -> None:
    x = np.random.default_rng(0).normal(size=50)
    found = statistics.mean(x.tolist(), list(range(50)))
    assert found is not None
    assert found.standard_error == pytest.approx(x.std(ddof=1) / math.sqrt(50), rel=1e-12)


def test_copies_within_clusters_add_no_information() -> None:
    x = np.random.default_rng(1).normal(size=40)
    once = statistics.mean(x.tolist(), list(range(40)))
    copied = statistics.mean(np.repeat(x, 5).tolist(), np.repeat(np.arange(40), 5).tolist())
    naive = statistics.mean(np.repeat(x, 5).tolist(), list(range(200)))
    assert once is not None
    assert copied is not None
    assert naive is not None
    assert copied.standard_error == pytest.approx(once.standard_error, rel=1e-12)
    assert naive.standard_error < 0.5 * copied.standard_error


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(400):
        effects = rng.normal(size=30)
        values = np.repeat(effects, 4) + 0.5 * rng.normal(size=120)
        found = statistics.mean(values.tolist(), np.repeat(np.arange(30), 4).tolist())
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0 <= found.high
    assert 0.92 <= hits / 400 <= 0.98  # 95 % with a standard error of 1.1 %


def test_the_standard_error_agrees_with_a_cluster_bootstrap() -> None:
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 6, 80)
    clusters = np.repeat(np.arange(80), sizes)
    values = np.repeat(rng.normal(size=80), sizes) + rng.normal(size=len(clusters))
    groups = [values[clusters == g] for g in range(80)]
    means = [np.concatenate([groups[i] for i in rng.integers(0, 80, 80)]).mean() for _ in range(3000)]
    found = statistics.mean(values.tolist(), clusters.tolist())
    assert found is not None
    assert found.standard_error == pytest.approx(np.std(means), rel=0.08)


def test_one_cluster_has_a_value_and_no_interval() -> None:
    found = statistics.mean([1.0, 2.0], ["a", "a"])
    assert found == statistics.Estimate(1.5, None, None, None, 2, 1)
    assert statistics.mean([], []) is None
    assert statistics.proportion([], []) is None


def test_wilson_without_clustering_by_hand() -> None:
    # 2 of 3, one per cluster: deff = 1; z = t(2) = 4.3027, z^2 = 18.5128, n = 3.
    found = statistics.proportion([1.0, 1.0, 0.0], ["a", "b", "c"])
    z2 = T_2**2
    centre = (2 / 3 + z2 / 6) / (1 + z2 / 3)
    reach = T_2 / (1 + z2 / 3) * math.sqrt((2 / 9) / 3 + z2 / 36)
    assert found is not None
    assert found.low == pytest.approx(centre - reach, rel=1e-9)
    assert found.high == pytest.approx(centre + reach, rel=1e-9)


def test_zero_of_five_hundred_has_room_above_and_none_below() -> None:
    independent = statistics.proportion([0.0] * 500, list(range(500)))
    clustered = statistics.proportion([0.0] * 500, [i // 5 for i in range(500)])
    mirrored = statistics.proportion([1.0] * 500, [i // 5 for i in range(500)])
    assert independent is not None
    assert clustered is not None
    assert mirrored is not None
    assert independent.low == clustered.low == 0.0
    z = 1.9647  # t quantile at 499 degrees of freedom
    assert independent.high == pytest.approx(z**2 / (500 + z**2), rel=1e-3)
    assert clustered.high == pytest.approx(1.9842**2 / (100 + 1.9842**2), rel=1e-3)  # as 100 pictures
    assert mirrored.high == 1.0
    assert mirrored.low == pytest.approx(1 - clustered.high, rel=1e-9)


def test_a_proportion_of_copies_is_as_wide_as_that_of_the_originals() -> None:
    x = (np.random.default_rng(4).random(60) < 0.3).astype(float)
    once = statistics.proportion(x.tolist(), list(range(60)))
    copied = statistics.proportion(np.repeat(x, 5).tolist(), np.repeat(np.arange(60), 5).tolist())
    assert once is not None
    assert copied is not None
    assert copied.low is not None
    assert copied.high is not None
    assert copied.low == pytest.approx(once.low, abs=2e-3)
    assert copied.high == pytest.approx(once.high, abs=2e-3)


def test_negative_correlation_does_not_shrink_a_proportion_below_independence() -> None:
    values, clusters = [0.0, 1.0] * 50, [i // 2 for i in range(100)]
    clustered = statistics.proportion(values, clusters)
    assert clustered is not None
    assert clustered.standard_error == 0.0
    assert clustered.high - clustered.low > 0.15  # not the zero width that the standard error suggests


def test_a_proportion_of_other_values_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="0 or 1"):
        statistics.proportion([0.5, 1.0, 0.0], ["a", "b", "c"])


def test_paired_difference_keeps_its_sign_and_skips_the_unscored() -> None:
    first = {"a": 1.0, "b": 1.0, "c": None, "d": 0.0}
    second = {"a": 0.0, "b": 1.0, "c": 1.0, "d": None, "e": 1.0}
    clusters = dict.fromkeys("abcde", "x") | {"b": "y"}
    found = statistics.paired_difference(first, second, clusters)
    assert found is not None
    assert (found.value, found.n) == (0.5, 2)
    # residuals 0.5 and -0.5 in two clusters: SE^2 = 2 * (0.25 + 0.25) / 4.
    assert found.high == pytest.approx(0.5 + T_1 * 0.5, rel=1e-9)
    back = statistics.paired_difference(second, first, clusters)
    assert back is not None
    assert back.value == -0.5
    assert statistics.paired_difference({"a": None}, {"a": 1.0}, clusters) is None


def test_pairing_is_narrower_than_two_separate_means() -> None:
    rng = np.random.default_rng(5)
    difficulty = rng.normal(size=100)
    ids = [str(i) for i in range(100)]
    first = dict(zip(ids, (difficulty + 1 + 0.1 * rng.normal(size=100)).tolist(), strict=True))
    second = dict(zip(ids, difficulty.tolist(), strict=True))
    found = statistics.paired_difference(first, second, {i: i for i in ids})
    assert found is not None
    assert found.value == pytest.approx(1.0, abs=0.05)
    assert found.standard_error < 0.02


def test_bounds_never_turn_an_interval_round() -> None:
    found = statistics.bounded(statistics.Estimate(0.5, -3.0, -1.0, 0.4, 9, 9), 0.0, math.inf)
    assert (found.low, found.high) == (0.0, 0.0)
    found = statistics.bounded(statistics.Estimate(0.5, 0.2, 1.4, 0.4, 9, 9), 0.0, 1.0)
    assert (found.low, found.high) == (0.2, 1.0)
