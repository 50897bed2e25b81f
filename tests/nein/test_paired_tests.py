import math

import numpy as np
import pytest
import scipy.stats

from nein import statistics
from nein.reporting import figures as frames
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


@pytest.mark.parametrize("pictures", [6, 12, 13, 40])
@pytest.mark.parametrize("verdicts", [1, 3])
def test_p_is_below_five_per_cent_where_the_interval_excludes_zero(pictures, verdicts):
    """Three to five pairs a picture, whose values are means of verdicts; either run is the first."""
    rng = np.random.default_rng(pictures)
    seen = set()
    for lean in np.linspace(0.0, 0.5, 40):
        source = np.repeat(np.arange(pictures), rng.integers(3, 6, pictures))
        chance = rng.beta(2, 2, pictures)[source]
        sides = [rng.binomial(verdicts, p) / verdicts for p in (chance, chance * (1 - lean))]
        found, back = (statistics.pairs_test(*order, source.tolist()) for order in (sides, sides[::-1]))
        assert found.p == pytest.approx(back.p)
        excluded = found.difference.low > 0 or found.difference.high < 0
        assert (found.p < 0.05) == excluded
        seen.add(excluded)
    assert seen == {True, False}


def test_with_fewer_pictures_than_a_sign_test_needs_there_is_no_p():
    for count in (5, 6, 9):
        found = compared(dict.fromkeys(range(count), 1.0), dict.fromkeys(range(count), 0.0))
        assert found.least == 2 / 2**count
        assert found.p == (found.least if count > 5 else None)  # Bonett and Price's would be smaller
    half = {i: float(i < 4) for i in range(7)}
    assert compared(half, dict.fromkeys(range(7), 0.0), span=None).least is None


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


def test_equal_runs_are_never_significant_and_constant_differences_only_with_enough_clusters():
    same = dict.fromkeys(range(6), 0.5)
    for span in (1.0, None):
        found = compared(same, same, span=span)
        assert (found.p, found.needed) == (1.0, None)
    assert compared(dict.fromkeys("ab", 1.0), dict.fromkeys("ab", 0.0)).p is None
    assert compared({"a": 1.0}, {"b": 1.0}) is None


def test_a_difference_that_is_the_order_of_additions_alone_needs_no_number_of_pictures():
    found = compared({"a": 0.1, "b": 0.2, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.3})
    assert 0 < abs(found.difference.value) < 1e-15  # equal means; 1e32 pictures would tell them apart
    assert found.needed is None
    written = frames.frame([frames.figure(found.difference, unit="%", metric="l1", needed=found.needed)])
    assert written["needed"].isna().all()
