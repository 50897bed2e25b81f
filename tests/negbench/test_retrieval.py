"""Recall without the matrix: equal to sorting the whole of it, fair to ties, blind to scale, small."""

from __future__ import annotations

import numpy as np
import pytest

from metrics.dual.base import prepare
from nein.benchmarks.negbench import retrieval
from tests.negbench.conftest import brute_force


def features(seed: int, rows: int, width: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def naive_recall(matrix: np.ndarray, own: list[list[int]], k: int) -> list[float]:
    """Sort every row of the whole matrix; is one of its own among the first k?"""
    order = np.argsort(-matrix, axis=1, kind="stable")
    return [float(bool(set(row[:k].tolist()) & set(mine))) for row, mine in zip(order, own, strict=True)]


@pytest.mark.parametrize("budget", [1, 7, 50, 10_000])
def test_recall_is_that_of_the_whole_matrix_whatever_the_block_size(budget: int) -> None:
    images, texts = features(0, 40), features(1, 90)
    own = [[i % 40] for i in range(90)]
    matrix = brute_force(texts, images)
    found = retrieval.ranks(prepare(texts), prepare(images), own, budget=budget)
    for k in (1, 5, 39):
        assert found.recall(k).tolist() == naive_recall(matrix, own, k)
    backwards = [[j for j in range(90) if j % 40 == i] for i in range(40)]
    other = retrieval.ranks(prepare(images), prepare(texts), backwards, budget=budget)
    for k in (1, 5, 39):
        assert other.recall(k).tolist() == naive_recall(matrix.T, backwards, k)
    assert 0 < found.recall(1).mean() < found.recall(5).mean() < 1  # not a trivial case


def test_ranks_and_scores_are_those_of_the_matrix() -> None:
    images, texts = features(2, 15), features(3, 15)
    matrix = brute_force(texts, images)
    found = retrieval.ranks(prepare(texts), prepare(images), [[i] for i in range(15)], budget=20)
    assert found.rank.tolist() == [int((row > row[i]).sum()) + 1 for i, row in enumerate(matrix)]
    assert found.best == pytest.approx(np.diag(matrix), abs=1e-6)


def test_a_tie_counts_as_its_chance_under_random_order() -> None:
    rng = np.random.default_rng(5)
    better, tied, own = 1, 4, 2
    scores = np.array([2.0] * better + [1.0] * (tied + own) + [0.0] * 3)
    gallery = scores[:, None]
    mine = [better + tied, better + tied + 1]
    found = retrieval.ranks(np.ones((1, 1)), gallery, [mine])
    for k in (1, 2, 3, 5, 8):
        hits = []
        for _ in range(4000):
            order = sorted(range(len(scores)), key=lambda j: (-scores[j], rng.random()))
            hits.append(bool(set(order[:k]) & set(mine)))
        assert found.recall(k)[0] == pytest.approx(np.mean(hits), abs=0.03)


def test_a_constant_scorer_gets_k_in_n_and_no_more() -> None:
    constant = np.ones((50, 3))
    found = retrieval.ranks(constant, constant, [[i] for i in range(50)], budget=120)
    assert found.recall(1) == pytest.approx(1 / 50)
    assert found.recall(5) == pytest.approx(5 / 50)


def test_scaling_a_feature_changes_nothing() -> None:
    images, texts = features(6, 30), features(7, 30)
    own = [[i] for i in range(30)]
    plain = retrieval.ranks(prepare(texts), prepare(images), own)
    factors = np.random.default_rng(8).uniform(0.01, 100, (30, 1)).astype(np.float32)
    scaled = retrieval.ranks(prepare(texts * factors), prepare(images * factors[::-1]), own)
    assert (plain.rank == scaled.rank).all()
    assert scaled.best == pytest.approx(plain.best, abs=1e-6)
    raw = retrieval.ranks(
        prepare(texts * factors, "unnormalised"), prepare(images * factors[::-1], "unnormalised"), own
    )
    assert (raw.rank != plain.rank).any()  # the named switch is another thing


def test_the_matrix_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    plain = retrieval.similarity

    def counting(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        scores = plain(left, right)
        held.append(scores.size)
        return scores

    monkeypatch.setattr(retrieval, "similarity", counting)
    sizes = {}
    for texts in (200, 2000):
        held.clear()
        retrieval.ranks(features(0, texts), features(1, 300), [[i % 300] for i in range(texts)], budget=3000)
        sizes[texts] = max(held)
        assert sum(held) == texts * 300  # every pair once, though
    assert sizes == {200: 3000, 2000: 3000}


def test_equal_features_tie_wherever_they_stand() -> None:
    # In float32 the last bits of a product depend on where in the matrix it is worked out.
    gallery = np.repeat(features(9, 1, 512), 37, axis=0)
    found = retrieval.ranks(prepare(features(10, 5, 512)), prepare(gallery), [[3]] * 5, budget=50)
    assert found.tied.tolist() == [36] * 5
