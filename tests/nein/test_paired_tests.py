from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from nein import statistics
from nein.statistics import estimates


def paired(rng: np.random.Generator, clusters: int, shift: float) -> tuple[dict, dict, dict]:
    """Two runs of `clusters` source images with one to five samples each, alike within an image."""
    sizes = rng.integers(1, 6, clusters)
    source = np.repeat(np.arange(clusters), sizes)
    own = np.repeat(rng.normal(size=clusters), sizes) + 0.5 * rng.normal(size=len(source))
    ease = rng.normal(size=len(source)) * 3
    first = {f"s{i}": float(ease[i] + own[i] + shift) for i in range(len(source))}
    second = {f"s{i}": float(ease[i]) for i in range(len(source))}
    return first, second, {f"s{i}": int(source[i]) for i in range(len(source))}


def test_the_exact_interval_is_scipys() -> None:
    for ones, n in ((0, 7), (1, 7), (3, 7), (7, 7), (40, 500)):
        expected = scipy.stats.binomtest(ones, n).proportion_ci(0.95, method="exact")
        assert statistics.exact_interval(ones, n) == pytest.approx((expected.low, expected.high), abs=1e-10)
    with pytest.raises(ValueError, match="no proportion"):
        statistics.exact_interval(3, 2)


def test_holm_by_hand_and_in_any_order() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert statistics.holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm(p[::-1]) == pytest.approx([0.02, 0.06, 0.06, 0.03])
    assert statistics.holm([0.6, 0.7]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_holm_keeps_the_chance_of_any_false_claim_at_its_level() -> None:
    rng = np.random.default_rng(0)
    wrong = sum(min(statistics.holm(rng.uniform(size=12).tolist())) < 0.05 for _ in range(2000))
    assert 0.035 <= wrong / 2000 <= 0.065


def test_the_flip_test_counts_every_pattern_of_few_clusters() -> None:
    sums = np.array([1.0, 2.0, -0.5, 3.0])
    totals = [
        abs(sum(s * x for s, x in zip(signs, sums, strict=True)))
        for signs in itertools.product((1, -1), repeat=4)
    ]
    assert estimates._flip_test(sums, 10, 0) == sum(t >= 5.5 - 1e-9 for t in totals) / 16


def test_the_t_test_is_the_ordinary_one_without_clusters() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.3, 1, 60), rng.normal(0, 1, 60)
    ids = [f"s{i}" for i in range(60)]
    found = statistics.paired_test(
        dict(zip(ids, a, strict=True)), dict(zip(ids, b, strict=True)), {i: i for i in ids}
    )
    assert found is not None
    assert found.p_t == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, rel=1e-9)
    permuted = scipy.stats.permutation_test(
        (a - b,), np.sum, permutation_type="samples", n_resamples=9999, rng=2
    )
    assert found.p_flip == pytest.approx(permuted.pvalue, abs=0.01)
    assert found.p == found.p_t
    few = statistics.paired_test(
        dict(zip(ids[:8], a, strict=False)), dict(zip(ids[:8], b, strict=False)), {i: i for i in ids}
    )
    assert few is not None
    assert few.p_t is not None
    assert few.p == max(few.p_t, few.p_flip)


def test_the_false_positive_rate_is_at_its_level_with_clusters() -> None:
    rng = np.random.default_rng(3)
    hits = {"p_t": 0, "p_flip": 0, "p": 0, "naive": 0}
    for _ in range(400):
        first, second, clusters = paired(rng, 40, 0.0)
        found = statistics.paired_test(first, second, clusters, flips=999)
        assert found is not None
        for name in ("p_t", "p_flip", "p"):
            hits[name] += getattr(found, name) < 0.05
        hits["naive"] += scipy.stats.ttest_rel(list(first.values()), list(second.values())).pvalue < 0.05
    for name in ("p_t", "p_flip", "p"):
        assert 0.02 <= hits[name] / 400 <= 0.08, name  # 5 % with a standard error of 1.1 %
    assert hits["naive"] / 400 > 0.1  # what ignoring the clusters would do


def test_the_power_line_tells_how_many_source_images_are_needed() -> None:
    rng = np.random.default_rng(4)
    first, second, clusters = paired(rng, 400, 0.4)
    found = statistics.paired_test(first, second, clusters)
    assert found is not None
    assert found.needed is not None
    error = found.difference.standard_error
    assert error is not None
    assert found.detectable == pytest.approx((1.959964 + 0.841621) * error, rel=1e-5)
    expected = 400 * (2.801585 * error / found.difference.value) ** 2
    assert found.needed == math.ceil(expected)
    hits = 0
    for _ in range(300):
        test = statistics.paired_test(*paired(rng, found.needed, 0.4), flips=499)
        assert test is not None
        hits += (test.p_t or 1.0) < 0.05
    assert 0.68 <= hits / 300 <= 0.9  # 80 % is promised


def test_equal_runs_are_never_significant_and_constant_differences_only_with_enough_clusters() -> None:
    ids = [f"s{i}" for i in range(6)]
    same = dict.fromkeys(ids, 0.5)
    found = statistics.paired_test(same, same, {i: i for i in ids})
    assert found is not None
    assert (found.p, found.needed) == (1.0, None)
    two = statistics.paired_test(
        dict.fromkeys(ids[:2], 1.0), dict.fromkeys(ids[:2], 0.0), {i: i for i in ids}
    )
    assert two is not None
    assert two.p == 0.5  # four patterns of signs, two of them as far out
    assert statistics.paired_test({"a": 1.0}, {"b": 1.0}, {}) is None


def test_a_bounded_interval_stays_in_its_range_and_is_never_empty() -> None:
    degenerate = statistics.mean([1.0] * 6, [1, 1, 2, 2, 3, 3])
    assert degenerate is not None
    found = statistics.bounded(degenerate, -1.0, 1.0)
    assert found.high == 1.0
    assert found.low is not None
    assert found.low < 0.0  # three source images say little
    wide = statistics.mean([1.0, 0.0, 1.0], [1, 2, 3])
    assert wide is not None
    clipped = statistics.bounded(wide, 0.0, 1.0)
    assert (clipped.low, clipped.high) == (0.0, 1.0)
    one = statistics.mean([0.3], ["a"])
    assert one is not None
    assert statistics.bounded(one, 0.0, 1.0) == one
