from __future__ import annotations

import time

import numpy as np
import pytest

from metrics import MetricError
from metrics.fid import frechet_distance
from metrics.fid_bootstrap import fid_replicates
from nein.statistics import bootstrap
from nein.statistics.bootstrap import Resampler


def clustered(rng: np.random.Generator, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """(source of every sample, effect of its source)."""
    source = np.repeat(np.arange(clusters), rng.integers(1, 6, clusters))
    return source, rng.normal(size=clusters)[source]


def test_draws_are_whole_clusters_with_replacement() -> None:
    names = ["b", "a", "b", "c"]
    sampler = Resampler.of(names, draws=500, seed=1)
    assert sampler.index == {"a": 0, "b": 1, "c": 2}
    assert (sampler.counts.sum(1) == 3).all()
    assert sampler.counts.mean(0) == pytest.approx([1, 1, 1], abs=0.15)
    direct = [
        sum(w * x for w, x in zip(row, [1.0, 10.0, 100.0, 1000.0], strict=True))
        for row in sampler.weights(names)
    ]
    assert sampler.totals([1.0, 10.0, 100.0, 1000.0], names) == pytest.approx(direct)
    assert (Resampler.of(names[::-1], draws=500, seed=1).counts == sampler.counts).all()


def test_ratio_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        source, effect = clustered(rng, 60)
        p = 1 / (1 + np.exp(-effect))  # the truth of either: mean over the population of images
        above = (rng.uniform(size=len(p)) < p).astype(float)
        below = (rng.uniform(size=len(p)) < (p + 1) / 2).astype(float)
        ids = [f"s{i}" for i in range(len(p))]
        found = bootstrap.ratio(
            dict(zip(ids, above, strict=True)), dict(zip(ids, below, strict=True)),
            dict(zip(ids, source.tolist(), strict=True)),
            Resampler.of(source.tolist(), draws=500),
        )  # fmt: skip
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.5 / 0.75 <= found.high
    assert hits / 400 >= 0.93


def test_a_ratio_to_nothing_is_none() -> None:
    assert bootstrap.ratio({"a": 1.0}, {"a": 0.0}, {"a": 1}) is None
    assert bootstrap.ratio({"a": 1.0}, {"a": None}, {"a": 1}) is None


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


def pictures(
    rng: np.random.Generator, clusters: int, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = np.repeat(np.arange(clusters), 3)
    base = rng.normal(size=(clusters, width))[source]
    return base + 0.4 + 0.5 * rng.normal(size=base.shape), base + 0.3 * rng.normal(size=base.shape), source


def test_fid_replicates_are_those_of_resampled_features() -> None:
    rng = np.random.default_rng(3)
    edited, target, source = pictures(rng, 20, 5)
    once = np.arange(0, 60, 3)
    sampler = Resampler.of(source.tolist(), draws=12)
    found = fid_replicates(edited, target[once], source, source[once], sampler.counts)
    for row, value in zip(sampler.counts.astype(int), found, strict=True):
        rows = np.repeat(np.arange(60), row[source])
        assert value == pytest.approx(
            frechet_distance(edited[rows], target[np.repeat(once, row[source[once]])]), rel=1e-6
        )


def test_the_linear_way_agrees_with_the_exact_one_in_spread_and_is_unshifted() -> None:
    rng = np.random.default_rng(4)
    edited, target, source = pictures(rng, 400, 8)
    counts = Resampler.of(source.tolist(), draws=1500).counts
    exact = fid_replicates(edited, target, source, source, counts, "exact")
    linear = fid_replicates(edited, target, source, source, counts, "linear")
    value = frechet_distance(edited, target)
    assert linear.std() == pytest.approx(exact.std(), rel=0.1)
    assert np.corrcoef(exact, linear)[0, 1] > 0.97
    assert linear.mean() == pytest.approx(value, abs=0.1 * linear.std())
    assert exact.mean() > value  # resampling holds fewer distinct pictures
    with pytest.raises(MetricError, match="more than 8 pictures"):
        fid_replicates(edited[:8], target[:8], source[:8], source[:8], counts, "linear")


def test_fid_intervals_cover_the_truth() -> None:
    # Truth: images N(0, I); edits shift every image by 0.3 and add independent noise of variance 0.25. With
    # as
    # many pictures as images FID's own bias is small beside its spread.
    rng = np.random.default_rng(5)
    width, hits = 3, 0
    truth = width * 0.09 + width * (1 + 1.25 - 2 * np.sqrt(1.25))
    for _ in range(400):
        target = rng.normal(size=(300, width))
        edited = target + 0.3 + 0.5 * rng.normal(size=target.shape)
        names = list(range(300))
        sampler = Resampler.of(names, draws=300, seed=int(rng.integers(1 << 30)))
        draws = fid_replicates(edited, target, sampler.columns(names), sampler.columns(names), sampler.counts)
        found = bootstrap.interval(
            frechet_distance(edited, target), draws, n=300, clusters=300, method="normal"
        )
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= truth <= found.high
    assert hits / 400 >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, True], ids=["a target per sample", "every target once"])
def test_fid_intervals_cover_the_truth_with_several_pictures_per_source(once: bool) -> None:
    # Truth: a source image is N(0, I), the same for its three targets; a target adds N(0, 0.25 I) of its own
    # (none where every target counts once), an edit shifts it by 0.3 and adds N(0, 0.25 I), most of it the
    # same for the three edits of a source image.
    rng = np.random.default_rng(8)
    width, sources, each = 3, 150, 3
    own = 0.0 if once else 0.25
    edit, plain = 1 + own + 0.25, 1 + own
    truth = width * 0.09 + width * (edit + plain - 2 * np.sqrt(edit * plain))
    source = np.repeat(np.arange(sources), each)
    kept = np.arange(0, len(source), each) if once else np.arange(len(source))
    hits = naive = 0
    for _ in range(400):
        target = rng.normal(size=(sources, width))[source]
        target = target + np.sqrt(own) * rng.normal(size=target.shape)
        alike, apart = rng.normal(size=(sources, width))[source], rng.normal(size=target.shape)
        edited = target + 0.3 + np.sqrt(0.2) * alike + np.sqrt(0.05) * apart
        value, seed = frechet_distance(edited, target[kept]), int(rng.integers(1 << 30))
        hits += covers(truth, value, edited, target[kept], source, source[kept], seed)
        alone = np.arange(len(source))
        naive += not once and covers(truth, value, edited, target, alone, alone, seed)
    assert hits / 400 >= 0.93
    if not once:  # pictures of one source image are no independent ones
        assert naive / 400 < 0.9


def covers(
    truth: float,
    value: float,
    edited: np.ndarray,
    target: np.ndarray,
    names: np.ndarray,
    target_names: np.ndarray,
    seed: int,
) -> bool:
    sampler = Resampler.of(names.tolist(), draws=300, seed=seed)
    columns = [sampler.columns(own.tolist()) for own in (names, target_names)]
    draws = fid_replicates(edited, target, *columns, sampler.counts)
    clusters = len(sampler.index)
    found = bootstrap.interval(value, draws, n=len(edited), clusters=clusters, method="normal")
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


def test_thousands_of_resamples_take_seconds() -> None:
    rng = np.random.default_rng(6)
    source = np.repeat(np.arange(5000), 5)
    values = rng.uniform(size=len(source))
    start = time.perf_counter()
    sampler = Resampler.of(source.tolist(), draws=2000)
    sums_of, counts_of = (sampler.totals(x, source.tolist()) for x in (values, np.ones(len(values))))
    means = sums_of / counts_of
    assert time.perf_counter() - start < 30  # a second or two on an idle core
    sums = np.bincount(source, weights=values)
    assert means.std() == pytest.approx(sums.std() / 5 / np.sqrt(5000), rel=0.1)


def test_replicates_that_seldom_exist_give_no_interval() -> None:
    draws = np.array([1.0, np.nan, np.nan, 2.0])
    assert bootstrap.interval(1.5, draws, n=4, clusters=4).low is None
    assert bootstrap.interval(1.5, np.ones(4), n=4, clusters=1).low is None
