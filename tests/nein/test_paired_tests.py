from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from nein import statistics
from nein.reporting import figures as frames
from nein.statistics.estimates import cluster_columns


def paired(rng: np.random.Generator, clusters: int, shift: float) -> tuple[dict, dict, dict]:
    """Two runs of `clusters` source images with one to five samples each, alike within an image."""
    sizes = rng.integers(1, 6, clusters)
    source = np.repeat(np.arange(clusters), sizes)
    own = np.repeat(rng.normal(size=clusters), sizes) + 0.5 * rng.normal(size=len(source))
    ease = rng.normal(size=len(source)) * 3
    first = {f"s{i}": float(ease[i] + own[i] + shift) for i in range(len(source))}
    second = {f"s{i}": float(ease[i]) for i in range(len(source))}
    return first, second, {f"s{i}": int(source[i]) for i in range(len(source))}


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


def outcomes(rng: np.random.Generator, clusters: int, advantage: float) -> tuple[dict, dict, dict]:
    """Yes/no verdicts of two runs on `clusters` pictures with one to five samples each, alike within one."""
    source = np.repeat(np.arange(clusters), rng.integers(1, 6, clusters))
    ease, lean = (rng.normal(size=clusters)[source] for _ in range(2))
    first, second = (
        (ease + sign * (lean + advantage) / 2 + rng.normal(size=len(source)) > 0).astype(float)
        for sign in (1, -1)
    )
    ids = [f"s{i}" for i in range(len(source))]
    return (
        dict(zip(ids, first.tolist(), strict=True)),
        dict(zip(ids, second.tolist(), strict=True)),
        dict(zip(ids, source.tolist(), strict=True)),
    )


@pytest.mark.parametrize(("better", "worse"), [(8, 2), (5, 0), (0, 0), (20, 9)])
def test_the_test_of_independent_pairs_is_mcnemars_exact_test(better: int, worse: int) -> None:
    differences = [1.0] * better + [-1.0] * worse + [0.0] * 30
    first = {str(i): float(d == 1) for i, d in enumerate(differences)}
    second = {str(i): float(d == -1) for i, d in enumerate(differences)}
    found = statistics.paired_test(first, second, {key: key for key in first})
    assert found is not None
    expected = scipy.stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert found.p == pytest.approx(expected, abs=1e-9)


def test_p_is_below_its_level_exactly_where_the_interval_leaves_out_zero() -> None:
    rng = np.random.default_rng(9)
    seen = set()
    for _ in range(60):
        found = statistics.paired_test(*outcomes(rng, 12, rng.uniform(0, 2)))
        assert found is not None
        assert found.p is not None
        assert found.difference.low is not None
        assert found.difference.high is not None
        apart = not found.difference.low <= 0 <= found.difference.high
        assert (found.p < 0.05) == apart
        seen.add(apart)
    assert seen == {True, False}


def test_all_pairs_of_a_picture_count_and_not_one_of_them() -> None:
    """Ten pictures of five pairs: where the pairs of a picture differ alike they say less than where not."""
    ids = [(picture, k) for picture in range(10) for k in range(5)]
    even = {f"{p}-{k}": float(k < 2) for p, k in ids}  # two pairs of every picture differ
    lumped = {f"{p}-{k}": float(p < 4) for p, k in ids}  # all pairs of four pictures
    one_each = {f"{p}": float(p < 4) for p in range(10)}
    clusters = {f"{p}-{k}": p for p, k in ids} | {f"{p}": p for p in range(10)}
    even_p, lumped_p, one_p = (
        test.p
        for first in (even, lumped, one_each)
        if (test := statistics.paired_test(first, dict.fromkeys(first, 0.0), clusters))
    )
    assert even_p is not None
    assert lumped_p is not None
    assert one_p is not None
    assert even_p < 0.05 < lumped_p < one_p
    assert one_p == pytest.approx(2 / 2**4)  # four pictures against none


def by_picture(sums: np.ndarray) -> float:
    """Exact p of the sign-flip test: each picture's sum of differences may as well have the other sign."""
    signs = np.array(list(itertools.product((-1, 1), repeat=len(sums))))
    return float(np.mean(np.abs(signs @ sums) >= abs(sums.sum()) - 1e-9))


def test_four_of_ten_pictures_that_dissent_as_a_whole_prove_nothing() -> None:
    """All five pairs of four pictures differ, in one direction. With pictures flipped p is 0.125; ours is
    half of that, since the picture more counts as 3.4 pairs and not as 5."""
    ids = {f"{p}-{k}": p for p in range(10) for k in range(5)}
    found = statistics.paired_test({i: float(p < 4) for i, p in ids.items()}, dict.fromkeys(ids, 0.0), ids)
    assert found is not None
    assert found.p is not None
    assert by_picture(np.array([5.0] * 4 + [0.0] * 6)) == 0.125
    assert 0.125 / 2 < found.p < 0.125
    assert found.difference.low is not None
    assert found.difference.low < 0 < found.difference.value


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_p_is_seldom_below_that_of_flipped_pictures_and_does_not_reject_what_is_true(apart: float) -> None:
    """Pairs of a picture differ as one, or `apart` of them for themselves; neither run is better. In 2,400
    such data sets p was a third of the reference's at least, and below 0.05 in 2 of 100."""
    rng = np.random.default_rng(5)
    factors, rejected = [], 0
    for _ in range(30):
        pictures = np.repeat(np.arange(8), rng.integers(1, 6, 8))
        alike = rng.choice([1.0, 0.0, -1.0], 8, p=[0.4, 0.2, 0.4])[pictures]
        each = rng.choice([1.0, -1.0], len(pictures))
        x = np.where(rng.random(len(pictures)) < apart, each, alike)
        ids = [str(i) for i in range(len(x))]
        first, second = ({i: float(sign * d > 0) for i, d in zip(ids, x, strict=True)} for sign in (1, -1))
        clusters = dict(zip(ids, pictures.tolist(), strict=True))
        found, back = (
            statistics.paired_test(*sides, clusters) for sides in ((first, second), (second, first))
        )
        assert found is not None
        assert back is not None
        assert found.p is not None
        assert found.p == pytest.approx(back.p, rel=1e-6)
        factors.append(found.p / by_picture(np.bincount(pictures, weights=x)))
        rejected += found.p < 0.05
    assert min(factors) > 1 / 3
    assert np.median(factors) > 0.9
    assert rejected <= 3  # of 30


def test_the_smallest_p_that_pictures_can_give_is_said() -> None:
    """Seven pictures of one pair: 2 / 2^7 = 0.0156 is the least, however large the difference is."""
    ids = [f"s{i}" for i in range(7)]
    found = statistics.paired_test(dict.fromkeys(ids, 1.0), dict.fromkeys(ids, 0.0), {i: i for i in ids})
    assert found is not None
    assert found.p == found.least == pytest.approx(2 / 2**7)
    half = {key: float(i < 4) for i, key in enumerate(ids)}
    less = statistics.paired_test(half, dict.fromkeys(ids, 0.0), {i: i for i in ids})
    assert less is not None
    assert less.least == found.least
    assert less.p == pytest.approx(2 / 2**4)
    unbounded = statistics.paired_test(half, dict.fromkeys(ids, 0.0), {i: i for i in ids}, None)
    assert unbounded is not None
    assert unbounded.least is None


def test_the_t_test_is_the_ordinary_one_without_clusters() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.3, 1, 60), rng.normal(0, 1, 60)
    ids = [f"s{i}" for i in range(60)]
    found = statistics.paired_test(
        dict(zip(ids, a, strict=True)), dict(zip(ids, b, strict=True)), {i: i for i in ids}, None
    )
    assert found is not None
    assert found.p == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, rel=1e-9)


def test_the_false_positive_rate_is_at_its_level_with_clusters() -> None:
    rng = np.random.default_rng(3)
    hits = {"values": 0, "shares": 0, "naive": 0}
    for _ in range(300):
        first, second, clusters = paired(rng, 40, 0.0)
        values = statistics.paired_test(first, second, clusters, None)
        shares = statistics.paired_test(*outcomes(rng, 40, 0.0))
        assert values is not None
        assert shares is not None
        hits["values"] += (values.p or 1.0) < 0.05
        hits["shares"] += (shares.p or 1.0) < 0.05
        hits["naive"] += scipy.stats.ttest_rel(list(first.values()), list(second.values())).pvalue < 0.05
    assert 0.015 <= hits["values"] / 300 <= 0.09  # 5 % with a standard error of 1.3 %
    assert hits["shares"] / 300 <= 0.07
    assert hits["naive"] / 300 > 0.1  # what ignoring the clusters would do


def test_the_power_line_tells_how_many_source_images_are_needed() -> None:
    rng = np.random.default_rng(4)
    first, second, clusters = paired(rng, 400, 0.4)
    found = statistics.paired_test(first, second, clusters, None)
    assert found is not None
    assert found.needed is not None
    error = found.difference.standard_error
    assert error is not None
    assert found.detectable == pytest.approx((1.959964 + 0.841621) * error, rel=1e-5)
    expected = 400 * (2.801585 * error / found.difference.value) ** 2
    assert found.needed == math.ceil(expected)
    hits = 0
    for _ in range(300):
        test = statistics.paired_test(*paired(rng, found.needed, 0.4), None)
        assert test is not None
        hits += (test.p or 1.0) < 0.05
    assert 0.68 <= hits / 300 <= 0.9  # 80 % is promised


def test_equal_runs_are_never_significant_and_constant_differences_only_with_enough_clusters() -> None:
    ids = [f"s{i}" for i in range(6)]
    same = dict.fromkeys(ids, 0.5)
    for span in (1.0, None):
        found = statistics.paired_test(same, same, {i: i for i in ids}, span)
        assert found is not None
        assert (found.p, found.needed) == (1.0, None)
    two = statistics.paired_test(
        dict.fromkeys(ids[:2], 1.0), dict.fromkeys(ids[:2], 0.0), {i: i for i in ids}
    )
    assert two is not None
    assert two.p == pytest.approx(0.5)  # four patterns of signs, two of them as far out
    assert statistics.paired_test({"a": 1.0}, {"b": 1.0}, {}) is None


def test_a_difference_that_is_the_order_of_additions_alone_needs_no_number_of_pictures() -> None:
    first, second = {"a": 0.1, "b": 0.2, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.3}
    found = statistics.paired_test(first, second, {i: i for i in first})
    assert found is not None
    assert 0 < abs(found.difference.value) < 1e-15  # equal means; 1e32 pictures would tell them apart
    assert found.needed is None
    written = frames.frame([frames.figure(found.difference, unit="%", metric="l1", needed=found.needed)])
    assert written["needed"].isna().all()


def test_clusters_of_some_values_are_theirs_alone() -> None:
    rng = np.random.default_rng(5)
    names = [f"picture {k}" for k in rng.integers(0, 30, 90)]
    columns, chosen = cluster_columns(names), rng.random(90) < 0.3
    alone = cluster_columns([name for name, enters in zip(names, chosen, strict=True) if enters])
    for part in (columns.of(chosen), columns.of(np.flatnonzero(chosen))):
        assert part.count == alone.count == part.member.max() + 1
        same = [[one == other for one in part.member] for other in part.member]
        assert same == [[one == other for one in alone.member] for other in alone.member]
    values = rng.random(int(chosen.sum()))
    found, expected = (statistics.bounded_mean(values, part) for part in (columns.of(chosen), alone))
    assert found is not None
    assert expected is not None
    assert found.as_dict() == pytest.approx(expected.as_dict())
