from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from nein import statistics
from nein.statistics import bounds

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
    assert statistics.bounded_mean([], []) is None


def share(agreeing: int, n: int, per_picture: int = 1) -> statistics.Estimate:
    """The figure of so many ones among zeros, pictures filled one after the other."""
    values = [1.0] * agreeing + [0.0] * (n - agreeing)
    found = statistics.bounded_mean(values, [i // per_picture for i in range(n)])
    assert found is not None
    return found


def ends(found: statistics.Estimate | None) -> tuple[float, float]:
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


@pytest.mark.parametrize(("ones", "n"), [(0, 7), (1, 7), (3, 7), (7, 7), (40, 500), (499, 500)])
def test_a_share_of_independent_samples_has_clopper_and_pearsons_interval(ones: int, n: int) -> None:
    expected = scipy.stats.binomtest(ones, n).proportion_ci(0.95, method="exact")
    assert ends(share(ones, n)) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("per_picture", [1, 2, 4])
@pytest.mark.parametrize("n", [16, 20, 24])
def test_an_agreement_more_never_lowers_an_end_nor_widens_the_way_to_all(n: int, per_picture: int) -> None:
    lows, highs = zip(*(ends(share(k, n, per_picture)) for k in range(n + 1)), strict=True)
    assert list(lows) == sorted(lows)
    assert list(highs) == sorted(highs)
    assert lows[0] == 0.0
    assert highs[-1] == 1.0
    assert all(0 <= low < high <= 1 for low, high in zip(lows, highs, strict=True))


def test_sixteen_of_sixteen_says_more_than_fifteen_and_twentyfour_more_than_twentythree() -> None:
    """The lower ends once were 55.8 % of 16 of 16 and 80.4 % of 15 of 16; 51.7 % of 24 of 24 and 73.9 %."""
    for n in (16, 24):
        for per_picture in (1, 4):
            assert ends(share(n, n, per_picture))[0] > ends(share(n - 1, n, per_picture))[0]
    assert ends(share(16, 16)) == pytest.approx((0.79409, 1.0), abs=1e-5)
    assert ends(share(15, 16)) == pytest.approx((0.69768, 0.99842), abs=1e-5)


def test_wherever_one_value_rises_both_ends_do() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        clusters = np.repeat(np.arange(7), rng.integers(1, 6, 7))
        values = rng.integers(0, 5, len(clusters)) / 4
        higher = values.copy()
        higher[rng.integers(len(values))] = 1.0
        low, high = ends(statistics.bounded_mean(values, clusters.tolist()))
        low_then, high_then = ends(statistics.bounded_mean(higher, clusters.tolist()))
        assert low_then >= low - 1e-9
        assert high_then >= high - 1e-9


def test_copies_within_pictures_say_what_the_originals_say() -> None:
    x = (np.random.default_rng(4).random(60) < 0.3).astype(float)
    once = statistics.bounded_mean(x.tolist(), list(range(60)))
    copied = statistics.bounded_mean(np.repeat(x, 5).tolist(), np.repeat(np.arange(60), 5).tolist())
    # A few per cent of doubt remain about how alike the copies are.
    assert ends(copied) == pytest.approx(ends(once), abs=3e-3)
    # All agree, so that nothing is known of how alike they are: a picture more is worth 1 + 4 * 0.6 samples.
    low = ends(share(500, 500, 5))[0]
    assert (1 + 5 * (1 - low) / (3.4 * low)) ** -100 == pytest.approx(0.025, abs=1e-8)


def one_more(values: np.ndarray, clusters: np.ndarray, span: float) -> float:
    """The design effect of a picture more, by the analysis of variance: see `estimates._one_more`."""
    sizes = np.bincount(clusters)
    usual = (sizes**2).sum() / sizes.sum()
    means = np.bincount(clusters, weights=values) / sizes
    between = (sizes**2 * (means - values.mean()) ** 2).sum() * len(sizes) / (len(sizes) - 1)
    within = len(values) * values.var()
    alike = min(1.0, max(0.0, (between / within - 1) / (usual - 1)))
    prior, dissent = 4 * (usual - 1), within / span**2
    return float(1 + (usual - 1) * (0.6 * prior + alike * dissent) / (prior + dissent))


@pytest.mark.parametrize("lowest", [0.0, -1.0])
def test_intervals_of_the_opposite_are_mirrored(lowest: float) -> None:
    """No for yes of a share, the second run for the first of a difference."""
    rng = np.random.default_rng(8)
    pictures = np.repeat(np.arange(9), rng.integers(1, 6, 9)).tolist()
    for _ in range(5):
        x = rng.choice([lowest, 0.0, 1.0], len(pictures), p=rng.dirichlet(np.ones(3)))
        low, high = ends(statistics.bounded_mean(x, pictures, lowest))
        mirrored = ends(statistics.bounded_mean(1 + lowest - x, pictures, lowest))
        assert mirrored == pytest.approx((1 + lowest - high, 1 + lowest - low), abs=1e-8)


def test_the_design_effect_of_many_data_sets_is_that_of_each() -> None:
    """The coverage study takes them by thousands. Samples of a picture that are copies make it as large as a
    picture, where many pictures dissent; where all samples agree it is what 0.6 makes of it."""
    dissent, pulls = np.array([0.0, 0.25, 0.25]), np.array([0.0, 625.0, 0.0])
    together = bounds.design_effect(500, 5.0, 100, dissent, pulls)
    alone = [float(bounds.design_effect(500, 5.0, 100, *one)) for one in zip(dissent, pulls, strict=True)]
    assert together == pytest.approx(alone, rel=1e-12)
    assert alone[0] == pytest.approx(1 + 4 * 0.6)
    assert 4.75 < alone[1] < 5
    assert 1 < alone[2] < 1.3


def test_one_picture_has_nearly_the_full_range_and_not_a_whisker_of_length_zero() -> None:
    """Markov's inequality: a mean of m or less gives x with probability m / x at most."""
    assert ends(share(3, 3, 3)) == pytest.approx((0.025, 1.0), abs=1e-9)
    assert ends(share(0, 3, 3)) == pytest.approx((0.0, 0.975), abs=1e-9)
    half = statistics.bounded_mean([0.0, 1.0], ["a", "a"])
    assert ends(half) == pytest.approx((0.0125, 0.9875), abs=1e-9)


def test_the_interval_of_any_bounded_mean_is_that_of_random_weights_and_one_picture_more() -> None:
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 6, 9)
    clusters = np.repeat(np.arange(9), sizes)
    values = rng.beta(3, 1, len(clusters))
    low, high = ends(statistics.bounded_mean(values, clusters.tolist()))
    sums, more = np.bincount(clusters, weights=values), one_more(values, clusters, 1.0)
    weights = rng.exponential(size=(400_000, 10))
    below, above = (
        weights @ np.append(sums, end * more) / (weights @ np.append(sizes, more)) for end in (0, 1)
    )
    assert (below <= low).mean() == pytest.approx(0.025, abs=0.0012)  # 5 standard errors of the draws
    assert (above >= high).mean() == pytest.approx(0.025, abs=0.0012)


def test_thousands_of_different_pictures_are_taken_together_without_a_difference() -> None:
    rng = np.random.default_rng(6)
    values, clusters = rng.beta(20, 1, 900), list(range(900))
    terms = bounds.kinds(values, np.ones(900))
    for at in (values.mean(), values.mean() - 0.004, values.mean() - 0.008):
        quick = bounds.probability(terms, (0.0, 1.0), at)
        c = np.append(values - at, -at)
        draws = sum((rng.exponential(size=(20_000, 901)) @ c <= 0).mean() for _ in range(5)) / 5
        assert quick == pytest.approx(draws, abs=0.008)  # 5 standard errors of 100,000 draws
    assert ends(statistics.bounded_mean(values, clusters))[1] < 1


@pytest.mark.parametrize("shapes", [[1, 3], [0.5, 2, 7], [40, 1, 1, 300]])
def test_the_integral_is_the_distribution_of_a_sum_of_gamma_variables(shapes: list[float]) -> None:
    rng = np.random.default_rng(7)
    c = rng.normal(size=len(shapes))
    c[0], c[-1] = -abs(c[0]), abs(c[-1])
    drawn = rng.gamma(shapes, size=(400_000, len(shapes))) @ c
    assert bounds.below_zero(c, shapes) == pytest.approx((drawn <= 0).mean(), abs=0.004)
    assert bounds.below_zero(-c, shapes) == pytest.approx(1 - bounds.below_zero(c, shapes), abs=1e-9)


def test_values_outside_of_the_range_are_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="not within"):
        statistics.bounded_mean([0.5, 1.5], ["a", "b"])


def test_weighted_values_are_a_ratio_of_sums() -> None:
    found = statistics.bounded_mean([1.0, 0.0, 0.5], ["a", "b", "c"], weights=[2.0, 1.0, 0.0])
    assert found is not None
    assert (found.value, found.n, found.clusters) == (pytest.approx(2 / 3), 2, 2)
    assert 0 < ends(found)[0] < 2 / 3 < ends(found)[1] < 1


def test_a_mean_whose_clusters_agree_has_no_interval_for_that_is_no_certainty() -> None:
    found = statistics.mean([3.0, 3.0, 3.0], ["a", "b", "c"])
    assert found == statistics.Estimate(3.0, None, None, 0.0, 3, 3)


def test_paired_difference_keeps_its_sign_and_skips_the_unscored() -> None:
    first = {"a": 1.0, "b": 1.0, "c": None, "d": 0.0}
    second = {"a": 0.0, "b": 1.0, "c": 1.0, "d": None, "e": 1.0}
    clusters = dict.fromkeys("abcde", "x") | {"b": "y"}
    found = statistics.paired_difference(first, second, clusters)
    assert found is not None
    assert (found.value, found.n) == (0.5, 2)
    # Of any range: residuals 0.5 and -0.5 in two clusters, SE^2 = 2 * (0.25 + 0.25) / 4.
    plain = statistics.paired_difference(first, second, clusters, None)
    assert plain is not None
    assert plain.high == pytest.approx(0.5 + T_1 * 0.5, rel=1e-9)
    # Of shares: kept in [-1, 1], and never at the value itself.
    assert -1 < ends(found)[0] < 0.5 < ends(found)[1] <= 1
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
    found = statistics.paired_difference(first, second, {i: i for i in ids}, None)
    assert found is not None
    assert found.value == pytest.approx(1.0, abs=0.05)
    assert found.standard_error < 0.02


def test_ratios_have_an_interval_of_their_own_and_none_to_nothing() -> None:
    ids = [f"s{i}" for i in range(20)]
    above = dict.fromkeys(ids, 1.0)
    below = {**dict.fromkeys(ids, 0.0), "s0": 1.0, "s1": 1.0}
    found = statistics.ratio(above, below, {i: i for i in ids})
    assert found is not None
    assert found.value == 10.0
    # At the upper end U: P(Gamma(18) + (1 - U) Gamma(2) + E >= 0) = 0.025, E the picture more; Gamma(18) + E
    # is Gamma(19), and 1 / (U - 1) the quantile of a ratio of gamma variables.
    quantile = scipy.stats.f.ppf(0.025, 4, 38) * 4 / 38
    assert ends(found)[1] == pytest.approx(1 + 1 / quantile, rel=1e-6)
    assert statistics.ratio({"a": 1.0}, {"a": 0.0}, {"a": 1}) is None
    assert statistics.ratio({"a": 1.0}, {"a": None}, {"a": 1}) is None
