"""Recall at k, both ways, without holding the scores of all captions with all pictures.

Text to image: the share of captions whose picture is among the k best; image to text: of pictures of which a
caption is. Scores are cosines in float64; two that differ by less than `TIE` are equal.

| quirk | `protocol="paper"` | `protocol="fixed"` |
|---|---|---|
| ties | the first in the file stands first, as `torch.topk` on a GPU has it | random order, in expectation |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY
from nein.loading.errors import choose
from nein.metrics.dual import prepare, products

PROTOCOLS = ("fixed", "paper")
KS = (1, 5)
TIE = 1e-13  # what the order of additions changes is smaller (width * 2**-53)
SCORES = 2**20  # held at once
ROWS = 4096  # features worked on at once


@dataclass(frozen=True)
class Ranks:
    """Per query, the place of the best of its own gallery entries. Arrays of length Q.

    best      Its score.
    better    Gallery entries that score strictly higher.
    tied      Entries of others that score the same.
    relevant  Own entries with that score, at least 1.
    before    Of the tied ones, those before the first own one in the gallery.
    """

    best: np.ndarray
    better: np.ndarray
    tied: np.ndarray
    relevant: np.ndarray
    before: np.ndarray

    def recall(self, k: int, protocol: str = "fixed") -> np.ndarray:
        """(Q,) float64: the probability that an own entry is among the first k. "fixed": ties in random
        order: with r places left for relevant + tied entries, 1 - C(tied, r) / C(relevant + tied, r).
        "paper": in the gallery's."""
        if choose("protocol", protocol, PROTOCOLS) == "paper":
            return (self.better + self.before < k).astype(np.float64)
        total = self.tied + self.relevant
        places = np.clip(k - self.better, 0, total)
        missed = np.ones(len(self.best))
        for i in range(k):
            share = np.maximum(self.tied - i, 0) / np.maximum(total - i, 1)
            missed = np.where(i < places, missed * share, missed)
        return 1.0 - missed

    def taken(self, queries: np.ndarray) -> Ranks:
        """Of those queries, in that order."""
        arrays = (self.best, self.better, self.tied, self.relevant, self.before)
        return Ranks(*(array[queries] for array in arrays))


def alone(scores: np.ndarray, owner: np.ndarray, queries: int) -> Ranks:
    """The places of every query's own entries where all queries see the same scores: (M,) of the entries;
    owner: (M,) the query that each belongs to, 0 <= owner < queries."""
    best = np.full(queries, -np.inf, dtype=np.float32)
    np.maximum.at(best, owner, scores)
    order = np.argsort(scores, kind="stable")
    lower, upper = (np.searchsorted(scores[order], best, side) for side in ("left", "right"))
    top = np.flatnonzero(scores == best[owner])
    relevant = np.bincount(owner[top], minlength=queries)
    place = np.empty(len(scores), dtype=np.int64)
    place[order] = np.arange(len(scores))
    first = np.full(queries, len(scores), dtype=np.int64)
    np.minimum.at(first, owner[top], place[top])
    return Ranks(best, len(scores) - upper, upper - lower - relevant, relevant, first - lower)


def mean(vectors: np.ndarray, rows: np.ndarray | None = None, features: str = "normalised") -> np.ndarray:
    """(D,) float64, the mean of those rows of (N, D) features, or of all, prepared."""
    rows = np.arange(len(vectors)) if rows is None else rows
    total = np.zeros(vectors.shape[1])
    for start in range(0, len(rows), ROWS):
        total += prepare(vectors[rows[start : start + ROWS]], features).sum(0)
    return total / max(1, len(rows))


def baselines(
    texts: np.ndarray, pictures: np.ndarray, said: np.ndarray, shown: np.ndarray, place: np.ndarray
) -> tuple[dict[str, Ranks], dict[str, Ranks]]:
    """As `ranks`, by baseline, with the mean of all pictures, or of all captions, in place of each: by
    linearity the mean of the scores with all of them (Hessel & Lee, EMNLP 2020, arXiv:2010.06572)."""

    def against(vectors: np.ndarray, rows: np.ndarray, other: np.ndarray) -> np.ndarray:
        """(len(rows),) float32 products of those rows with another prepared feature."""
        starts = range(0, len(rows), ROWS)
        return np.concatenate([products(prepare(vectors[rows[s : s + ROWS]]), other) for s in starts])

    heard = against(texts, said, mean(pictures, shown))
    seen = against(pictures, shown, mean(texts, np.unique(said)))
    entries, size = np.arange(len(shown)), len(shown)
    of_captions = {
        TEXT_ONLY: alone(np.zeros_like(seen), entries, size).taken(place),
        PICTURE_ONLY: alone(seen, entries, size).taken(place),
    }
    of_gallery = {
        TEXT_ONLY: alone(heard, place, size), PICTURE_ONLY: alone(np.zeros_like(heard), place, size),
    }  # fmt: skip
    return of_captions, of_gallery


def top(
    texts: np.ndarray,
    pictures: np.ndarray,
    said: np.ndarray,
    shown: np.ndarray,
    count: int,
    seeds: Sequence[int],
) -> np.ndarray:
    """(Q, count) gallery entries with the highest scores, the best first; equal ones in an order drawn by the
    query's seed. Arguments as of `ranks`; a small gallery is listed as a whole."""
    gallery = prepare(pictures[shown])
    found = np.empty((len(said), min(count, len(gallery))), dtype=np.int64)
    for row, (text, seed) in enumerate(zip(said, seeds, strict=True)):
        scores = products(gallery, prepare(texts[[text]]))
        drawn = np.random.default_rng(seed).permutation(len(gallery))
        found[row] = drawn[np.argsort(-scores[drawn], kind="stable")][: found.shape[1]]
    return found


def ranks(
    texts: np.ndarray, pictures: np.ndarray, said: np.ndarray, shown: np.ndarray, place: np.ndarray
) -> tuple[Ranks, Ranks]:
    """(every caption's picture among the gallery, every gallery entry's captions among all captions).

    texts, pictures  (T, D), (P, D) features as the model gives them; may lie in a file.
    said, place      (N,) the row of `texts` of each caption, at least one, and its entry of the gallery.
    shown            (G,) the row of `pictures` of each entry of the gallery.

    An entry without a caption has `relevant` 0, and is no query. Memory: O(G * D) and a few numbers per
    caption.
    """
    gallery = prepare(pictures[shown])
    count, size = len(said), len(gallery)
    step = max(1, SCORES // max(gallery.shape))
    blocks = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    own = np.empty(count)
    for block in blocks:
        own[block] = (prepare(texts[said[block]]) * gallery[place[block]]).sum(-1)
    best = np.full(size, -np.inf)
    np.maximum.at(best, place, own)
    top = np.flatnonzero(own > best[place] - TIE)
    relevant = np.bincount(place[top], minlength=size)
    first = np.full(size, count)
    np.minimum.at(first, place[top], top)
    best[relevant == 0] = np.inf
    of_text = np.zeros((3, count), np.int64)  # better, tied, before
    of_picture = np.zeros((3, size), np.int64)
    for block in blocks:
        scores = prepare(texts[said[block]]) @ gallery.T  # (captions of the block, G)
        over, rows, entries = _compared(scores, own[block, None])
        foreign = place[block][rows] != entries
        earlier = entries < place[block][rows]
        of_text[:, block] = over.sum(1), _count(rows, foreign, len(over)), _count(rows, earlier, len(over))
        over, rows, entries = _compared(scores, best)
        foreign = place[block][rows] != entries
        earlier = foreign & (rows + block.start < first[entries])
        of_picture += over.sum(0), _count(entries, foreign, size), _count(entries, earlier, size)
    better, tied, before = of_text
    to_image = Ranks(own, better, tied, np.ones_like(better), before)
    better, tied, before = of_picture
    return to_image, Ranks(best, better, tied, relevant, before)


def _compared(scores: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which scores are above the limit, rows and columns of those that equal it)."""
    over = scores > limit + TIE
    rows, columns = np.divmod(np.flatnonzero((scores > limit - TIE) ^ over), scores.shape[1])
    return over, rows, columns


def _count(query: np.ndarray, which: np.ndarray, queries: int) -> np.ndarray:
    """How many of the pairs `which` each query has."""
    return np.bincount(query[which], minlength=queries)
