from dataclasses import astuple

import numpy as np
import pytest
from scipy.stats import hypergeom

from nein.benchmarks.negbench import retrieval
from nein.benchmarks.negbench.retrieval import Ranks
from nein.metrics.dual import prepare


def features(seed, rows, width=6):
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def ranked(texts, pictures, place):
    """Of captions and pictures of which each has its own feature."""
    everything = np.arange(len(texts)), np.arange(len(pictures))
    return retrieval.rank(texts, pictures, *everything, np.asarray(place))


def plainly(texts, pictures, place):
    """The same from the whole matrix, each pair worked out by itself."""
    matrix = np.array([(text * prepare(pictures)).sum(-1) for text in prepare(texts)])
    owner = place[:, None] == np.arange(len(pictures))
    return _plainly(matrix, owner), _plainly(matrix.T, owner.T)


def _plainly(matrix, own):
    best = np.where(own, matrix, -np.inf).max(1, initial=-np.inf)
    best = np.where(own.any(1), best, np.inf)
    over = matrix > best[:, None] + retrieval.TIE
    same = (matrix > best[:, None] - retrieval.TIE) & ~over
    first = np.where((same & own).any(1), (same & own).argmax(1), 0)
    before = [int((row[:at] & ~mine[:at]).sum()) for row, mine, at in zip(same, own, first, strict=True)]
    return Ranks(best, over.sum(1), (same & ~own).sum(1), (same & own).sum(1), np.array(before))


@pytest.mark.parametrize(
    ("captions", "pictures", "width", "copies", "signal"),
    [
        (700, 300, 64, 0.2, 0.5),  # copies of a caption and of a picture: hundreds of ties
        (300, 2100, 32, 0.3, 0.2),  # more pictures than a tile
        (500, 7, 512, 0.0, 0.05),
        (5, 9, 4, 0.0, 1.0),  # most pictures without a caption
        (260, 50, 512, 1.0, 0.0),  # nothing but ties
    ],
)
def test_every_value_is_that_of_the_whole_matrix(captions, pictures, width, copies, signal):
    rng = np.random.default_rng(captions)
    shown, place = features(1, pictures, width), rng.integers(0, pictures, captions)
    said = (signal * shown[place] + features(2, captions, width)).astype(np.float32)
    said[rng.random(captions) < copies] = said[0]
    shown[rng.random(pictures) < copies] = shown[0]
    for found, plain in zip(ranked(said, shown, place), plainly(said, shown, place), strict=True):
        for one, other in zip(astuple(found)[1:], astuple(plain)[1:], strict=True):
            assert one.tolist() == other.tolist()
        assert found.best == pytest.approx(plain.best, abs=1e-12)
        assert not copies or found.tied.max() > 2


def test_a_baseline_is_the_whole_matrix_with_the_mean_in_place_of_every_picture_or_caption():
    rng = np.random.default_rng(5)
    texts, pictures, place = features(1, 60), features(2, 12), rng.integers(0, 12, 60)
    texts[:20], pictures[:4] = texts[0], pictures[0]  # ties of several own entries
    rows = np.arange(60), np.arange(12)
    heard = np.repeat(prepare(texts) @ prepare(pictures).mean(0)[:, None], 12, 1)
    seen = np.repeat((prepare(pictures) @ prepare(texts).mean(0))[None], 60, 0)
    of_captions, of_pictures = retrieval.rank_baselines(texts, pictures, *rows, place)
    owner = place[:, None] == np.arange(12)
    for name, matrix in ((retrieval.TEXT_ONLY, heard), (retrieval.PICTURE_ONLY, seen)):
        for found, plain in (
            (of_captions[name], _plainly(matrix, owner)),
            (of_pictures[name], _plainly(matrix.T, owner.T)),
        ):
            own = plain.relevant > 0
            for field in ("better", "tied", "relevant", "before"):
                assert getattr(found, field)[own].tolist() == getattr(plain, field)[own].tolist()


def test_scores_closer_than_float32_can_tell_are_told_apart():
    rng = np.random.default_rng(0)
    text = rng.standard_normal((1, 512)).astype(np.float32)
    pictures = (text + 1e-3 * rng.standard_normal((400, 512))).astype(np.float32)
    texts = np.repeat(text, 400, axis=0)
    found, plain = ranked(texts, pictures, np.arange(400)), plainly(texts, pictures, np.arange(400))
    assert found[0].better.tolist() == plain[0].better.tolist()
    rough = (prepare(pictures).astype(np.float32) @ prepare(text).astype(np.float32).T)[:, 0]
    assert [int((rough > x).sum()) for x in rough] != plain[0].better.tolist()


def test_a_tie_counts_as_its_chance_under_random_order():
    better, tied, own = 1, 4, 2
    found = Ranks(*(np.array([x]) for x in (1.0, better, tied, own, tied)))
    for k in (1, 2, 3, 5, 8):
        places = min(max(k - better, 0), tied + own)
        assert found.recall(k)[0] == pytest.approx(hypergeom.sf(0, tied + own, own, places))


def test_released_ties_go_to_the_first_of_the_file():
    # Five captions say the same of five pictures; the pictures are all alike to them.
    same, pictures = np.ones((5, 3), np.float32), np.ones((5, 3), np.float32)
    for found in ranked(same, pictures, np.arange(5)):
        assert found.recall(1, "fixed").tolist() == pytest.approx([0.2] * 5)
        assert found.recall(1, "paper").tolist() == [1, 0, 0, 0, 0]
        assert found.recall(3, "paper").tolist() == [1, 1, 1, 0, 0]
        assert found.recall(3, "fixed").tolist() == pytest.approx([0.6] * 5)
    # A picture whose second caption is the first of the best in the file.
    found = ranked(same, pictures[:3], [2, 0, 0, 1, 1])[1]
    assert found.before.tolist() == [1, 3, 0]
    assert found.recall(1, "paper").tolist() == [0, 0, 1]


def test_the_size_of_a_block_decides_no_value(monkeypatch):
    texts, pictures, place = features(3, 600, 40), features(4, 100, 40), np.arange(600) % 100
    texts[::7] = texts[0]
    whole = ranked(texts, pictures, place)
    monkeypatch.setattr(retrieval, "BLOCK_SIZE", 1700)
    for one, other in zip(ranked(texts, pictures, place), whole, strict=True):
        assert [x.tolist() for x in astuple(one)] == [x.tolist() for x in astuple(other)]


def test_the_mean_is_of_the_prepared_rows_whatever_the_block(monkeypatch):
    vectors, rows = features(3, 23), np.array([4, 4, 0, 22, 9, 13, 7])
    monkeypatch.setattr(retrieval, "ROWS", 3)
    for chosen in (None, rows):
        some = vectors if chosen is None else vectors[chosen]
        expected = (some / np.linalg.norm(some, axis=1, keepdims=True)).mean(0)
        assert retrieval.mean_feature(vectors, chosen) == pytest.approx(expected, abs=1e-6)
    assert not retrieval.mean_feature(vectors, rows[:0]).any()
    assert np.linalg.norm(retrieval.mean_feature(vectors, rows[:1])) == pytest.approx(1, abs=1e-6)


def test_the_first_of_the_gallery_are_the_best_and_equal_ones_are_drawn_by_seed():
    pictures = np.array([[0.0, 1], [1, 0], [1, 1], [1, 0]])
    text, every = np.array([[1.0, 0]]), np.arange(4)
    found = [retrieval.find_top(text, pictures, [0], every, 3, [seed])[0].tolist() for seed in range(20)]
    assert {tuple(row) for row in found} == {(1, 3, 2), (3, 1, 2)}
    assert retrieval.find_top(text, pictures, [0], every, 9, [0]).shape == (1, 4)
