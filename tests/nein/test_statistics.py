import math
from dataclasses import asdict

import numpy as np
import pytest
import scipy.stats

from nein import statistics
from nein.statistics import estimates
from nein.statistics.estimates import pairs

T_1, T_2 = 12.706204736432095, 4.302652729696142  # 97.5 % quantiles of t with 1 and 2 degrees of freedom


def ends(found):
    return found.low + 0.0, found.high + 0.0  # numbers, not None


def share(agreeing, n, per_picture=1):
    """The interval of so many ones among zeros, pictures filled one after the other."""
    values = [1.0] * agreeing + [0.0] * (n - agreeing)
    return ends(statistics.bounded_mean(values, [i // per_picture for i in range(n)]))


def test_a_mean_of_one_cluster_or_of_equal_ones_has_no_interval_for_that_is_no_certainty():
    assert statistics.mean([1.0, 2.0], ["a", "a"]) == statistics.Estimate(1.5, None, None, None, 2, 1)
    assert statistics.mean([3.0] * 3, "abc") == statistics.Estimate(3.0, None, None, 0.0, 3, 3)
    assert statistics.mean([], []) is statistics.bounded_mean([], []) is None


@pytest.mark.parametrize(("ones", "n"), [(0, 7), (1, 7), (3, 7), (7, 7), (40, 500), (499, 500)])
def test_a_share_of_independent_samples_has_clopper_and_pearsons_interval(ones, n):
    expected = scipy.stats.binomtest(ones, n).proportion_ci(0.95, method="exact")
    assert share(ones, n) == pytest.approx((expected.low, expected.high), abs=1e-9)
    # Of a number that is not whole: the same quantiles of the beta distribution, 0.4 of 10.
    beta = scipy.stats.beta.ppf([0.025, 0.975], [0.4, 1.4], [10.6, 9.6])
    assert estimates.clopper_pearson(0.04, 10) == pytest.approx(beta)


def test_a_paired_difference_is_bonett_and_prices_by_hand():
    middle, error = estimates.bonett_price(
        0.25, 0.1, 20
    )  # 5 pairs say +1 and 2 say -1; one is added to either
    assert (middle, error) == pytest.approx((6 / 22 - 3 / 22, math.sqrt((9 / 22 - (3 / 22) ** 2) / 22)))


@pytest.mark.parametrize("per_picture", [1, 2, 4])
@pytest.mark.parametrize("n", [16, 20, 24, 48])
def test_an_agreement_more_never_lowers_an_end(n, per_picture):
    """16 of 16 says more than 15 of 16: where all agree the design effect is assumed, not taken as 1 or 0."""
    lows, highs = zip(*(share(k, n, per_picture) for k in range(n + 1)), strict=True)
    assert (list(lows), list(highs)) == (sorted(lows), sorted(highs))
    assert (lows[0], highs[-1]) == (0.0, 1.0)
    assert all(0 <= low < high <= 1 for low, high in zip(lows, highs, strict=True))


def test_values_between_the_ends_say_more_than_yes_and_no_but_not_without_limit():
    """Thirds about 0.5 have a ninth of the variance of coins: Wilson's interval with t, of 9 x 60 samples."""
    thirds = ends(statistics.bounded_mean([1 / 3, 2 / 3] * 30, range(60)))
    t, n = scipy.stats.t.ppf(0.975, 59), 9 * 60
    reach = t / (n + t**2) * math.sqrt(n / 4 + t**2 / 4)
    assert thirds == pytest.approx((0.5 - reach, 0.5 + reach), rel=1e-9)
    same = ends(statistics.bounded_mean([0.5] * 8, range(8)))  # no spread says nothing
    assert same[1] - same[0] > 0.3
    few = ends(statistics.bounded_mean([1 / 3, 2 / 3] * 6, range(12)))
    more = ends(statistics.bounded_mean([1 / 3, 2 / 3] * 6 + [1 / 3], range(13)))
    assert few[1] - few[0] > 1.4 * (more[1] - more[0])


@pytest.mark.parametrize(
    ("chance", "alike", "as_yes_and_no"), [(0.85, 0.0, 0.239), (0.85, 0.5, 0.323), (0.97, 0.0, 0.191)]
)
def test_the_interval_of_means_of_three_verdicts_covers_and_is_no_wider_than_it_needs(
    chance, alike, as_yes_and_no
):
    """14 source images of 3, 4, 4, 5 samples, 400 data sets: standard error of the coverage 1.1 points.
    as_yes_and_no: width of Clopper and Pearson's interval for the same data."""
    rng, source = np.random.default_rng(11), np.repeat(np.arange(14), [3, 4, 4, 5] * 3 + [3, 4])
    a, b = (p * (1 - alike) / max(alike, 1e-9) for p in (chance, 1 - chance))
    held, width = [], []
    for _ in range(400):
        p = rng.beta(a, b, 14)[source] if alike else chance
        found = statistics.bounded_mean(rng.binomial(3, p, len(source)) / 3, source.tolist())
        held.append(found.low <= chance <= found.high)
        width.append(found.high - found.low)
    assert np.mean(held) > 0.91
    assert np.mean(width) < (0.7 if not alike else 0.92) * as_yes_and_no


def test_values_outside_of_the_range_are_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="not within"):
        statistics.bounded_mean([0.5, 1.5], ["a", "b"])


def test_weighted_values_are_a_ratio_of_sums_and_another_range_a_matter_of_units():
    found = statistics.bounded_mean([1.0, 0.0, 0.5], ["a", "b", "c"], weights=[2.0, 1.0, 0.0])
    assert (found.value, found.n, found.clusters) == (pytest.approx(2 / 3), 2, 2)
    assert 0 < ends(found)[0] < 2 / 3 < ends(found)[1] < 1
    for seed in range(50):  # a sum of weights may be an ulp above their sum
        ones = np.ones(40)
        all_right = statistics.bounded_mean(ones, range(40), weights=np.random.default_rng(seed).random(40))
        assert all_right.value <= all_right.high == 1.0
    equal = statistics.bounded_mean([1.0, 0.0, 1.0], ["a", "a", "b"], weights=[7.0] * 3)
    plain = statistics.bounded_mean([1.0, 0.0, 1.0], ["a", "a", "b"])
    assert asdict(equal) == pytest.approx(asdict(plain))
    grades = statistics.bounded_mean([20.0, 25.0, 5.0, 0.0], "aabc", 0.0, 25.0)
    shares = statistics.bounded_mean([0.8, 1.0, 0.2, 0.0], "aabc")
    assert ends(grades) == pytest.approx([25 * end for end in ends(shares)])
    assert grades.standard_error == pytest.approx(25 * shares.standard_error)


def difference(first, second, clusters, span=1.0):
    return statistics.pairs_test(*pairs(first, second, clusters), span).difference


def ratio(*sides):
    return statistics.pairs_ratio(*pairs(*sides))


def test_paired_difference_keeps_its_sign_and_skips_the_unscored():
    first = {"a": 1.0, "b": 1.0, "c": None, "d": 0.0}
    second = {"a": 0.0, "b": 1.0, "c": 1.0, "d": None, "e": 1.0}
    clusters = dict.fromkeys("abcde", "x") | {"b": "y"}
    found = difference(first, second, clusters)
    assert (found.value, found.n) == (0.5, 2)
    # Of any range: residuals 0.5 and -0.5 in two clusters, SE^2 = 2 * (0.25 + 0.25) / 4.
    plain = difference(first, second, clusters, None)
    assert plain.high == pytest.approx(0.5 + T_1 * 0.5, rel=1e-9)
    assert -1 < ends(found)[0] < 0.5 < ends(found)[1] <= 1
    back = difference(second, first, clusters)
    assert ends(back) == pytest.approx((-ends(found)[1], -ends(found)[0]))
    assert statistics.pairs_test(*pairs({"a": None}, {"a": 1.0}, clusters)) is None


def test_a_difference_of_unpaired_shares_has_agresti_and_caffos_interval():
    """7 of 10 and 3 of 8, every sample a picture: (8 / 12 - 4 / 10) -/+ 1.96 sqrt(...)."""
    first = dict(enumerate([1.0] * 7 + [0.0] * 3))
    second = dict(enumerate([1.0] * 3 + [0.0] * 5, 10))
    where = {key: key for key in range(18)}
    assert statistics.difference_of_means(first, {}, where) is None
    assert statistics.difference_of_means({}, first, where) is None
    found = statistics.difference_of_means(first, second, where)
    reach = 1.959964 * math.sqrt(8 / 12 * 4 / 12 / 12 + 0.4 * 0.6 / 10)
    assert ends(found) == pytest.approx((8 / 12 - 0.4 - reach, 8 / 12 - 0.4 + reach), abs=0.01)


def test_a_difference_is_paired_by_id_in_any_order_and_else_not_at_all():
    rng = np.random.default_rng(2)
    first, second = (dict(enumerate(rng.integers(0, 2, 24).astype(float).tolist())) for _ in range(2))
    where = {key: key % 24 // 4 for key in range(48)}
    found = statistics.difference_of_means(first, second, where)
    apart = [first[key] - second[key] for key in first]
    assert found == statistics.bounded_mean(apart, [where[key] for key in first], -1.0)
    shuffled = {key: second[key] for key in rng.permutation(24).tolist()}
    assert statistics.difference_of_means(first, shuffled, where) == found
    unpaired = [
        statistics.difference_of_means(first, {key + 24: value for key, value in side.items()}, where)
        for side in (second, shuffled)
    ]
    assert ends(unpaired[0]) == pytest.approx(ends(unpaired[1]))


def test_ratios_have_an_interval_of_their_own_and_none_to_nothing():
    ones = dict.fromkeys(range(20), 1.0)
    below, where = {**dict.fromkeys(ones, 0.0), 0: 1.0, 1: 1.0}, {i: i for i in ones}
    found = ratio(ones, below, where)
    low, high = ends(found)
    assert 2 < low < found.value == 10.0 < high < 60
    assert ends(ratio(dict.fromkeys(ones, 0.0), below, where))[0] == 0.0
    above, below = [1.0] * 8 + [0.0] * 12, [1.0] * 3 + [0.0] * 5 + [1.0] * 2 + [0.0] * 10
    found = ratio(dict(enumerate(above)), dict(enumerate(below)), where)  # 3 in both, 5 and 2 in one alone
    assert ends(found) == pytest.approx(estimates.bonett_price_ratio(3, 5, 2))
    assert ratio({"a": 1.0}, {"a": 0.0}, {"a": 1}) is None
    assert ratio({"a": 1.0}, {"a": None}, {"a": 1}) is None
