"""Ranks images by captions and captions by images, for recall at k, without the whole matrix of scores; then
the same for baselines, and the first images that a caption finds.

Text to image: the share of captions whose image is among the k best. Image to text: the share of images that
have a caption among the k best. Scores are cosines in float64; two that differ by less than `TIE` are equal,
and `protocol` decides what a tie counts: docs/reference/quirks.md.

Sizes: N captions, G gallery entries, Q queries (N or G), D features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY
from nein.loading.errors import choose
from nein.metrics.dual import prepare, products

Array = np.ndarray
PROTOCOLS = ("fixed", "paper")
KS = (1, 5)
TIE = 1e-13  # above the rounding error of a sum in another order (width * 2**-53)
BLOCK_SIZE = 2**20  # scores in memory at once
ROWS = 4096  # rows of features in memory at once


@dataclass(frozen=True)
class Ranks:
    """The rank of each query's best own gallery entry, as counts: (Q,) arrays."""

    best: Array  # (Q,) float: the score of that entry
    better: Array  # (Q,) int: entries that score higher
    tied: Array  # (Q,) int: entries of other queries with the same score
    relevant: Array  # (Q,) int: own entries with that score; 0: the query has none
    before: Array  # (Q,) int: tied entries that come before the first own one in the gallery

    def recall(self, k: int, protocol: str = "fixed") -> Array:
        """(Q,) float64: the probability that an own entry is among the first k, if ties are in random order:
        1 - C(tied, r) / C(relevant + tied, r), with r places left for tied entries. "paper": file order."""
        if choose("protocol", protocol, PROTOCOLS) == "paper":
            return (self.better + self.before < k).astype(np.float64)
        total = self.tied + self.relevant  # (Q,) entries with the best own score
        free_places = np.clip(k - self.better, 0, total)  # (Q,) the r of the formula
        missed = np.ones(len(self.best))  # (Q,) probability that no own entry is drawn
        for i in range(k):  # the quotient of binomials, factor by factor
            share = np.maximum(self.tied - i, 0) / np.maximum(total - i, 1)
            missed = np.where(i < free_places, missed * share, missed)
        return 1.0 - missed

    def select(self, queries: Array) -> Ranks:
        arrays = (self.best, self.better, self.tied, self.relevant, self.before)
        return Ranks(*(array[queries] for array in arrays))


def rank(
    texts: Array, pictures: Array, caption_rows: Array, gallery_rows: Array, targets: Array
) -> tuple[Ranks, Ranks]:
    """Ranks of (every caption's image in the gallery, every gallery entry's captions among all captions).

    texts, pictures  (T, D), (P, D) features as the model gives them; may lie in a file.
    caption_rows     (N,) each caption's row of `texts`, at least one.
    gallery_rows     (G,) each gallery entry's row of `pictures`; an entry without a caption is no query
                     (`relevant` 0).
    targets          (N,) each caption's gallery entry."""
    gallery = prepare(pictures[gallery_rows])  # (G, D) float64
    count, size = len(caption_rows), len(gallery)
    step = max(1, BLOCK_SIZE // max(gallery.shape))
    blocks = [slice(start, min(start + step, count)) for start in range(0, count, step)]

    # Each query's best own score.
    own_scores = np.empty(count)  # (N,) each caption's score with its own image
    for block in blocks:
        own_scores[block] = (prepare(texts[caption_rows[block]]) * gallery[targets[block]]).sum(-1)
    best = np.full(size, -np.inf)  # (G,) each image's best score with an own caption
    np.maximum.at(best, targets, own_scores)
    best_rows = np.flatnonzero(own_scores > best[targets] - TIE)  # captions that tie with their image's best
    relevant = np.bincount(targets[best_rows], minlength=size)
    first = np.full(size, count)  # (G,) the earliest of them in the file
    np.minimum.at(first, targets[best_rows], best_rows)
    best[relevant == 0] = np.inf  # nothing is above or equal

    # Counts of entries that compare with it: better; tied, of others; tied, of others, earlier in the file.
    caption_counts = np.zeros((3, count), np.int64)
    image_counts = np.zeros((3, size), np.int64)
    for block in blocks:
        scores = prepare(texts[caption_rows[block]]) @ gallery.T  # (captions of the block, G)
        is_above, rows, entries = _compare_scores(scores, own_scores[block, None])
        own = targets[block][rows]  # of each tie: the caption's own entry
        caption_counts[0, block] = is_above.sum(1)
        caption_counts[1, block] = np.bincount(rows[entries != own], minlength=len(is_above))
        caption_counts[2, block] = np.bincount(rows[entries < own], minlength=len(is_above))
        is_above, rows, entries = _compare_scores(scores, best)
        is_foreign = targets[block][rows] != entries
        is_earlier = is_foreign & (rows + block.start < first[entries])
        image_counts[0] += is_above.sum(0)
        image_counts[1] += np.bincount(entries[is_foreign], minlength=size)
        image_counts[2] += np.bincount(entries[is_earlier], minlength=size)
    better, tied, before = caption_counts
    to_image = Ranks(own_scores, better, tied, np.ones_like(better), before)
    better, tied, before = image_counts
    return to_image, Ranks(best, better, tied, relevant, before)


def _compare_scores(scores: Array, limit: Array) -> tuple[Array, Array, Array]:
    """(mask of the scores above the limit, rows and columns of the scores equal to it), within `TIE`."""
    is_above = scores > limit + TIE  # (captions of the block, G)
    rows, columns = np.divmod(np.flatnonzero((scores > limit - TIE) ^ is_above), scores.shape[1])
    return is_above, rows, columns


# --- baselines --------------------------------------------------------------------------------------
def rank_baselines(
    texts: Array, pictures: Array, caption_rows: Array, gallery_rows: Array, targets: Array
) -> tuple[dict[str, Ranks], dict[str, Ranks]]:
    """(baseline -> ranks of captions, baseline -> ranks of images); arguments as of `rank`.

    "text only" replaces each image, "picture only" each caption, by the mean of all. By linearity this is the
    mean score over all of them (Hessel & Lee, EMNLP 2020, arXiv:2010.06572)."""
    text_scores = _score_all(texts, caption_rows, mean_feature(pictures, gallery_rows))  # (N,)
    image_scores = _score_all(pictures, gallery_rows, mean_feature(texts, np.unique(caption_rows)))  # (G,)
    # A caption with the mean image scores the same with every gallery entry: zeros say so.
    entry_scores = {TEXT_ONLY: np.zeros_like(image_scores), PICTURE_ONLY: image_scores}
    caption_scores = {TEXT_ONLY: text_scores, PICTURE_ONLY: np.zeros_like(text_scores)}
    to_image, to_text = dict[str, Ranks](), dict[str, Ranks]()
    size = len(gallery_rows)
    for baseline in (TEXT_ONLY, PICTURE_ONLY):
        entry_ranks = rank_shared_scores(entry_scores[baseline], np.arange(size), size)
        to_image[baseline] = entry_ranks.select(targets)  # a caption's rank is that of its image
        to_text[baseline] = rank_shared_scores(caption_scores[baseline], targets, size)
    return to_image, to_text


def _score_all(vectors: Array, rows: Array, feature: Array) -> Array:
    """(len(rows),) float64: the scores of these rows of the (N, D) features with one feature, (D,)."""
    starts = range(0, len(rows), ROWS)
    return np.concatenate([products(prepare(vectors[rows[s : s + ROWS]]), feature) for s in starts])


def mean_feature(vectors: Array, rows: Array | None = None, features: str = "normalised") -> Array:
    """(D,) float64: the mean of these rows of the (N, D) features, each prepared; None: of all rows."""
    rows = np.arange(len(vectors)) if rows is None else rows
    total = np.zeros(vectors.shape[1])
    for start in range(0, len(rows), ROWS):
        total += prepare(vectors[rows[start : start + ROWS]], features).sum(0)
    return total / max(1, len(rows))


def rank_shared_scores(scores: Array, owner: Array, queries: int) -> Ranks:
    """Ranks of `queries` that all share the scores (M,) of M entries; owner: (M,) the query of each entry."""
    best = np.full(queries, -np.inf, dtype=np.float32)  # (Q,)
    np.maximum.at(best, owner, scores)
    order = np.argsort(scores, kind="stable")  # (M,) entries by score, equal ones in gallery order
    lower = np.searchsorted(scores[order], best, "left")  # (Q,) entries below the best own score
    upper = np.searchsorted(scores[order], best, "right")  # (Q,) entries up to it
    best_entries = np.flatnonzero(scores == best[owner])
    relevant = np.bincount(owner[best_entries], minlength=queries)
    position = np.empty(len(scores), dtype=np.int64)  # (M,) inverse of `order`
    position[order] = np.arange(len(scores))
    first = np.full(queries, len(scores), dtype=np.int64)  # (Q,) position of the first best own entry
    np.minimum.at(first, owner[best_entries], position[best_entries])
    return Ranks(best, len(scores) - upper, upper - lower - relevant, relevant, first - lower)


# --- first images -----------------------------------------------------------------------------------
def find_top(
    texts: Array, pictures: Array, caption_rows: Array, gallery_rows: Array, count: int, seeds: Sequence[int]
) -> Array:
    """(N, count) int64 gallery entries per caption, the best first; ties in an order drawn by its seed."""
    gallery = prepare(pictures[gallery_rows])  # (G, D)
    entries = np.empty((len(caption_rows), min(count, len(gallery))), dtype=np.int64)
    for row, (text, seed) in enumerate(zip(caption_rows, seeds, strict=True)):
        scores = products(gallery, prepare(texts[[text]]))  # (G,)
        shuffled = np.random.default_rng(seed).permutation(len(gallery))
        entries[row] = shuffled[np.argsort(-scores[shuffled], kind="stable")][: entries.shape[1]]
    return entries
