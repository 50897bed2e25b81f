"""The Frechet distance against clean-fid, closed forms, and the jackknife against its definition."""

import hashlib

import numpy as np
import pytest

from nein.metrics import MetricError
from nein.metrics.fid import FidInterval, extrapolate, frechet_distance, jackknife_interval, subtract


def features(seed, n, d, shift=0.0, scale=1.0):
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(d, d)) / np.sqrt(d)
    return (rng.normal(size=(n, d)) @ mixing * scale + shift).astype(np.float32)


@pytest.mark.parametrize("n,m,d", [(300, 200, 16), (500, 60, 32), (20, 25, 30)])
def test_the_distance_equals_clean_fids(n, m, d):
    from cleanfid import fid as clean

    a, b = features(1, n, d), features(2, m, d, shift=0.3, scale=1.4)
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    expected = clean.frechet_distance(
        a64.mean(0), np.cov(a64, rowvar=False), b64.mean(0), np.cov(b64, rowvar=False)
    )
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-6, abs=1e-4)
    assert frechet_distance(a64 + 1e4, b64 + 1e4) == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("n", [5, 17, 18, 60])
def test_a_set_is_at_no_distance_from_itself_and_rounding_leaves_none_below_zero_nor_its_interval(n):
    for seed in range(20):
        rows = features(seed, n, 16)
        interval = jackknife_interval(rows, rows, [str(i) for i in range(n)])
        assert 0 <= interval.low <= interval.value
    for same in (rows, np.repeat(features(1, 200, 1), 5, axis=1), rows[:5]):  # of which some are singular
        assert frechet_distance(same, same) == pytest.approx(0, abs=1e-6)


HOLES = features(1, 10, 4)
HOLES[[2, 5], 0] = np.nan


@pytest.mark.parametrize(
    ("edited", "said"),
    [
        (features(1, 1, 4), "at least 2 edited images, not 1"),
        (HOLES, "2 of 10 edited feature rows"),
        (features(1, 10, 5), "widths 5 and 4"),
    ],
)
def test_what_has_no_distance_is_said(edited, said):
    with pytest.raises(MetricError, match=said):
        frechet_distance(edited, features(2, 10, 4))


@pytest.mark.parametrize("n", [300, 24])  # the covariance route and the few-rows route (D = 16)
def test_the_jackknife_equals_leaving_groups_out_by_hand(n):
    a, b = features(1, n, 16), features(2, n, 16, shift=0.3)
    clusters = [f"c{i // 2}" for i in range(n)]
    result = jackknife_interval(a, b, clusters, groups=6)
    ordered = sorted(set(clusters), key=lambda name: hashlib.sha256(name.encode()).digest())
    group = np.array([ordered.index(c) % 6 for c in clusters])
    assert sorted(np.unique(group)) == list(range(6))
    left_out = np.array([frechet_distance(a[group != g], b[group != g]) for g in range(6)])
    error = np.sqrt(5 / 6 * ((left_out - left_out.mean()) ** 2).sum())
    assert result.value == pytest.approx(frechet_distance(a, b))
    assert result.standard_error == pytest.approx(error, rel=1e-5)
    assert result.low == pytest.approx(max(0, result.value - 2.5706 * error), rel=1e-4)  # t(5), 97.5 %
    assert result.high == pytest.approx(result.value + 2.5706 * error, rel=1e-4)
    assert result.left_out == pytest.approx(left_out)


def test_one_source_image_gives_a_value_and_no_interval_and_none_is_refused():
    result = jackknife_interval(features(1, 5, 2), features(2, 5, 2), ["only"] * 5)
    assert result.value > 0
    assert (result.low, result.high, result.standard_error) == (None, None, None)
    with pytest.raises(MetricError, match="One source image per row"):
        jackknife_interval(features(1, 5, 2), features(2, 5, 2), ["a"] * 4)


def test_the_difference_of_two_distances_leaves_the_same_groups_out_of_both():
    first, second = FidInterval.jackknife(3.0, [3.1, 2.9, 3.0]), FidInterval.jackknife(2.0, [2.1, 1.8, 2.1])
    found = subtract(first, second)
    error = np.sqrt(2 / 3 * np.var([0.0 + 1.0, 1.1, 0.9]) * 3)
    assert found.value == pytest.approx(1.0)
    assert found.standard_error == pytest.approx(error)
    assert found.high == pytest.approx(1.0 + 4.30265 * error, rel=1e-5)  # t(2)
    assert subtract(first, first)[:4] == (0.0, 0.0, 0.0, 0.0)
    with pytest.raises(MetricError, match="same groups"):
        subtract(first, FidInterval.jackknife(1.0, [1.0, 1.1]))


def test_the_limit_takes_off_the_bias_of_a_small_set():
    rng = np.random.default_rng(3)
    names = [str(i) for i in range(60)]
    inside, values = 0, []
    for _ in range(30):  # two sets of one distribution: what infinitely many pictures give is 0
        found = jackknife_interval(rng.normal(size=(60, 6)), rng.normal(size=(60, 6)), names)
        made = extrapolate(found)
        assert made.low is not None
        inside += made.low <= 0
        values.append((found.value, made.value))
    plain, corrected = np.mean(values, 0)
    assert plain > 0.3
    assert corrected < plain / 4
    assert inside >= 27
