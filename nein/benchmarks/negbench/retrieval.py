"""Recall at k, both ways, without holding the scores of all captions with all pictures.

Text to image: the share of captions whose picture is among the k best; image to text: of pictures of which a
caption is. Scores are cosines in float64; two that differ by less than `TIE` are equal, and go by `protocol`:
docs/reference/quirks.md.
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
BLOCK_SIZE = 2**20  # scores held at once
ROWS = 4096  # features worked on at once


@dataclass(frozen=True)
class Ranks:
    """Per query, the place of the best of its own gallery entries: (Q,) each."""

    best: np.ndarray  # its score
    better: np.ndarray  # entries that score higher
    tied: np.ndarray  # entries of others that score the same
    relevant: np.ndarray  # own entries with that score, at least 1
    before: np.ndarray  # of the tied ones, those before the first own one in the gallery

    def recall(self, k: int, protocol: str = "fixed") -> np.ndarray:
        """(Q,) float64: the probability that an own entry is among the first k. With r places left for
        relevant + tied entries in random order: 1 - C(tied, r) / C(relevant + tied, r)."""
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
        arrays = (self.best, self.better, self.tied, self.relevant, self.before)
        return Ranks(*(array[queries] for array in arrays))


def alone(scores: np.ndarray, owner: np.ndarray, queries: int) -> Ranks:
    """`Ranks` where all queries see the same scores, (M,) of the entries; owner: (M,) the query of each."""
    best = np.full(queries, -np.inf, dtype=np.float32)
    np.maximum.at(best, owner, scores)
    order = np.argsort(scores, kind="stable")
    lower, upper = (np.searchsorted(scores[order], best, side) for side in ("left", "right"))
    top = np.flatnonzero(scores == best[owner])
    relevant = np.bincount(owner[top], minlength=queries)
    rank = np.empty(len(scores), dtype=np.int64)
    rank[order] = np.arange(len(scores))
    first = np.full(queries, len(scores), dtype=np.int64)
    np.minimum.at(first, owner[top], rank[top])
    return Ranks(best, len(scores) - upper, upper - lower - relevant, relevant, first - lower)


def mean(vectors: np.ndarray, rows: np.ndarray | None = None, features: str = "normalised") -> np.ndarray:
    """(D,) float64: the mean of those rows of (N, D) features, or of all, prepared."""
    rows = np.arange(len(vectors)) if rows is None else rows
    total = np.zeros(vectors.shape[1])
    for start in range(0, len(rows), ROWS):
        total += prepare(vectors[rows[start : start + ROWS]], features).sum(0)
    return total / max(1, len(rows))


def baselines(
    texts: np.ndarray, pictures: np.ndarray, caption_rows: np.ndarray, shown: np.ndarray, targets: np.ndarray
) -> tuple[dict[str, Ranks], dict[str, Ranks]]:
    """As `ranks`, by baseline, with the mean of all pictures, or of all captions, in place of each: by
    linearity the mean of the scores with all of them (Hessel & Lee, EMNLP 2020, arXiv:2010.06572)."""

    def against(vectors: np.ndarray, rows: np.ndarray, other: np.ndarray) -> np.ndarray:  # (len(rows),)
        starts = range(0, len(rows), ROWS)
        return np.concatenate([products(prepare(vectors[rows[s : s + ROWS]]), other) for s in starts])

    heard = against(texts, caption_rows, mean(pictures, shown))
    seen = against(pictures, shown, mean(texts, np.unique(caption_rows)))
    entries, size = np.arange(len(shown)), len(shown)
    by_picture = {TEXT_ONLY: np.zeros_like(seen), PICTURE_ONLY: seen}
    by_caption = {TEXT_ONLY: heard, PICTURE_ONLY: np.zeros_like(heard)}
    return (
        {name: alone(scores, entries, size).taken(targets) for name, scores in by_picture.items()},
        {name: alone(scores, targets, size) for name, scores in by_caption.items()},
    )


def top(
    texts: np.ndarray,
    pictures: np.ndarray,
    caption_rows: np.ndarray,
    shown: np.ndarray,
    count: int,
    seeds: Sequence[int],
) -> np.ndarray:
    """(Q, count) gallery entries, the best first; equal ones in an order drawn by the query's seed."""
    gallery = prepare(pictures[shown])
    found = np.empty((len(caption_rows), min(count, len(gallery))), dtype=np.int64)
    for row, (text, seed) in enumerate(zip(caption_rows, seeds, strict=True)):
        scores = products(gallery, prepare(texts[[text]]))
        drawn = np.random.default_rng(seed).permutation(len(gallery))
        found[row] = drawn[np.argsort(-scores[drawn], kind="stable")][: found.shape[1]]
    return found


def ranks(
    texts: np.ndarray, pictures: np.ndarray, caption_rows: np.ndarray, shown: np.ndarray, targets: np.ndarray
) -> tuple[Ranks, Ranks]:
    """(every caption's picture among the gallery, every gallery entry's captions among all captions).

    texts, pictures  (T, D), (P, D) features as the model gives them; may lie in a file.
    caption_rows     (N,) the row of `texts` of each caption, at least one.
    targets          (N,) the entry of the gallery of each caption.
    shown            (G,) the row of `pictures` of each entry of the gallery; without a caption of its own it
                     is no query (`relevant` 0).
    """
    gallery = prepare(pictures[shown])
    count, size = len(caption_rows), len(gallery)
    step = max(1, BLOCK_SIZE // max(gallery.shape))
    blocks = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    own = np.empty(count)
    for block in blocks:
        own[block] = (prepare(texts[caption_rows[block]]) * gallery[targets[block]]).sum(-1)
    best = np.full(size, -np.inf)
    np.maximum.at(best, targets, own)
    top = np.flatnonzero(own > best[targets] - TIE)
    relevant = np.bincount(targets[top], minlength=size)
    first = np.full(size, count)
    np.minimum.at(first, targets[top], top)
    best[relevant == 0] = np.inf
    of_text = np.zeros((3, count), np.int64)  # better, tied, before
    of_picture = np.zeros((3, size), np.int64)
    for block in blocks:
        scores = prepare(texts[caption_rows[block]]) @ gallery.T  # (captions of the block, G)
        over, rows, entries = _compared(scores, own[block, None])
        foreign, earlier = targets[block][rows] != entries, entries < targets[block][rows]
        of_text[:, block] = over.sum(1), *(np.bincount(rows[w], None, len(over)) for w in (foreign, earlier))
        over, rows, entries = _compared(scores, best)
        foreign = targets[block][rows] != entries
        earlier = foreign & (rows + block.start < first[entries])
        of_picture += over.sum(0), *(np.bincount(entries[w], None, size) for w in (foreign, earlier))
    better, tied, before = of_text
    to_image = Ranks(own, better, tied, np.ones_like(better), before)
    better, tied, before = of_picture
    return to_image, Ranks(best, better, tied, relevant, before)


def _compared(scores: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which scores are above the limit, rows and columns of those that equal it)."""
    over = scores > limit + TIE
    rows, columns = np.divmod(np.flatnonzero((scores > limit - TIE) ^ over), scores.shape[1])
    return over, rows, columns
