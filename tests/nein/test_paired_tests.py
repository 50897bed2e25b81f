import itertools
import math

import numpy as np
import pytest
import scipy.stats

from nein import statistics
from nein.reporting import figures as frames
from nein.statistics import estimates
from nein.statistics.estimates import pairs


def compared(first, second, clusters=None, span=1.0):
    return statistics.pairs_test(*pairs(first, second, clusters or {key: key for key in first}), span)


def paired(rng, clusters, shift):
    sizes = rng.integers(1, 6, clusters)
    source = np.repeat(np.arange(clusters), sizes)
    own = np.repeat(rng.normal(size=clusters), sizes) + 0.5 * rng.normal(size=len(source))
    ease = rng.normal(size=len(source)) * 3
    return tuple(dict(enumerate(values.tolist())) for values in (ease + own + shift, ease, source))


def test_holm_by_hand_and_in_any_order():
    p = [0.01, 0.04, 0.03, 0.005]
    assert statistics.holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm(p[::-1]) == pytest.approx([0.02, 0.06, 0.06, 0.03])
    assert (statistics.holm([0.6, 0.7]), statistics.holm([])) == ([1.0, 1.0], [])


@pytest.mark.parametrize(("better", "worse"), [(8, 2), (5, 0), (0, 0), (1, 0), (20, 9)])
def test_the_test_of_independent_pairs_is_mcnemars_exact_test(better, worse):
    differences = [1.0] * better + [-1.0] * worse + [0.0] * 30
    found = compared(*({i: float(d == one) for i, d in enumerate(differences)} for one in (1, -1)))
    expected = scipy.stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert found.p == pytest.approx(expected, abs=1e-9 if better + worse <= 14 else 0.006)


def by_picture(sums):
    """Exact p of the sign-flip test: each picture's sum of differences may as well have the other sign."""
    signs = np.array(list(itertools.product((-1, 1), repeat=len(sums))))
    return float(np.mean(np.abs(signs @ sums) >= abs(sums.sum()) - 1e-9))


@pytest.mark.parametrize("pictures", [4, 9, 14, 17])
@pytest.mark.parametrize("lean", [0.0, 0.2])
def test_p_is_that_of_pictures_that_change_sides(pictures, lean):
    """Three to five pairs a picture; either run is the first. Of 17 not all patterns are tried."""
    rng = np.random.default_rng(pictures)
    source = np.repeat(np.arange(pictures), rng.integers(3, 6, pictures))
    chance = rng.beta(1, 1, pictures)[source]
    one, other = ((rng.random(len(source)) < each).astype(float) for each in (chance, chance - lean))
    found, back = (statistics.pairs_test(*sides, source.tolist()) for sides in ((one, other), (other, one)))
    assert found.p == pytest.approx(back.p)
    exact = by_picture(np.bincount(source, weights=one - other))
    assert found.p == pytest.approx(exact, rel=1e-9 if pictures < 15 else 0.05)


def test_the_smallest_p_that_pictures_can_give_is_said():
    ones, none = dict.fromkeys(range(7), 1.0), dict.fromkeys(range(7), 0.0)
    found = compared(ones, none)
    assert found.p == found.least == pytest.approx(2 / 2**7)  # seven pictures of one pair
    half = {i: float(i < 4) for i in range(7)}
    less = compared(half, none)
    assert (less.p, less.least) == (pytest.approx(2 / 2**4), found.least)
    assert compared(half, none, span=None).least is None


def test_the_t_test_is_the_ordinary_one_without_clusters():
    a, b = np.random.default_rng(1).normal([[0.3], [0.0]], 1, (2, 60))
    found = compared(dict(enumerate(a)), dict(enumerate(b)), span=None)
    assert found.p == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, rel=1e-9)


def test_the_power_line_tells_how_many_source_images_are_needed():
    rng = np.random.default_rng(4)
    found = compared(*paired(rng, 400, 0.4), None)
    error = found.difference.standard_error
    assert found.detectable == pytest.approx(2.801585 * error * math.sqrt(400 / (400 - 1.920729)), rel=1e-5)
    expected = 400 * (2.801585 * error / found.difference.value) ** 2 + 1.920729
    assert found.needed == math.ceil(expected)


def test_the_detectable_difference_of_few_pictures_is_that_of_the_test_that_is_printed():
    """Of six unlike sums two in 64 patterns are as far out as any, the next four: the size is 2 / 64."""
    found = compared(dict(enumerate([1.0, 0.9, 0.8, -0.7, 0.6, 0.5])), dict.fromkeys(range(6), 0.0))
    level, power = scipy.stats.norm.isf([1 / 64, 0.2])
    error = found.difference.standard_error * math.sqrt(6 / (6 - level**2 / 2))
    assert found.detectable == pytest.approx(error * (level + power))


def test_equal_runs_are_never_significant_and_constant_differences_only_with_enough_clusters():
    same = dict.fromkeys(range(6), 0.5)
    for span in (1.0, None):
        found = compared(same, same, span=span)
        assert (found.p, found.needed) == (1.0, None)
    two = compared(dict.fromkeys("ab", 1.0), dict.fromkeys("ab", 0.0))
    assert two.p == pytest.approx(0.5)  # four patterns of signs, two of them as far out
    assert compared({"a": 1.0}, {"b": 1.0}) is None


def test_a_difference_that_is_the_order_of_additions_alone_needs_no_number_of_pictures():
    found = compared({"a": 0.1, "b": 0.2, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.3})
    assert 0 < abs(found.difference.value) < 1e-15  # equal means; 1e32 pictures would tell them apart
    assert found.needed is None
    written = frames.frame([frames.figure(found.difference, unit="%", metric="l1", needed=found.needed)])
    assert written["needed"].isna().all()


@pytest.mark.parametrize("pictures", [6, 9, 14])
def test_the_size_of_the_exact_test_is_the_largest_p_below_five_per_cent(pictures):
    sums = np.random.default_rng(pictures).integers(-3, 4, pictures).astype(float)
    sums[sums == 0] = 1
    signs = np.array(list(itertools.product((-1, 1), repeat=pictures)))
    heights = np.sort(np.abs(signs @ sums))
    shares = {float(np.mean(heights >= height - 1e-9)) for height in np.unique(heights)}
    difference = estimates.bounded_mean(sums, list(range(pictures)), -9.0, 9.0)
    # A cluster whose differences cancel out changes nothing.
    p, level = estimates._permutation_test(difference, np.append(sums, 1e-15))
    assert p == pytest.approx(by_picture(sums))
    assert level == pytest.approx(max((share for share in shares if share < 0.05), default=0.05))


@pytest.mark.parametrize(("pictures", "by_t"), [(15, False), (40, True), (64, True), (65, True)])
def test_p_below_what_draws_can_tell_is_that_of_the_t_test(pictures, by_t):
    values = np.random.default_rng(0).normal(1.0 if by_t else 0.3, 0.5, pictures)
    first, second = (dict(enumerate(side.tolist())) for side in (values, np.zeros(pictures)))
    found = compared(first, second, span=9.0)
    t = max(scipy.stats.ttest_1samp(values, 0).pvalue, 2.0 ** (1 - pictures))
    assert (found.p == pytest.approx(t, abs=0)) == by_t
    assert found.p == pytest.approx(t if by_t else by_picture(values), rel=1e-6 if by_t else 0.1, abs=0)
