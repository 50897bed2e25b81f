"""Ranks images by captions and captions by images, for recall at k, without the whole matrix of scores; then
the same for baselines, and the first images that a caption finds.

Text to image: the share of captions whose image is among the k best. Image to text: the share of images that
have a caption among the k best. `protocol` decides what a tie counts (docs/reference/quirks.md). Scores of
`rank` are float64 and tie if closer than `TIE`; all others are float32, from `products`, and tie if equal.

Own entries of a query: a caption's image, or an image's captions.
Sizes: N captions, G gallery entries, Q queries (N or G), D features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY
from nein.loading.errors import choose
from nein.metrics.dual import prepare, products

Array = np.ndarray
PROTOCOLS = ("fixed", "paper")  # what ties count (`Ranks.recall`)
KS = (1, 5)  # of recall at k
TIE = 1e-13  # above the rounding error of a sum in another order (width * 2**-53)
BLOCK_SIZE = 2**20  # scores in memory at once
ROWS = 4096  # rows of features in memory at once


# --- ranks ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ranks:
    """The rank of each query's best own entry, as counts: (Q,) arrays, int except `best`."""

    best: Array  # float: the score of that entry
    better: Array  # entries that score higher
    tied: Array  # entries of other queries with the same score
    relevant: Array  # own entries with that score; 0: the query has no own entry
    before: Array  # tied entries that come before the first own one in the file

    def recall(self, k: int, protocol: str = "fixed") -> Array:
        """(Q,) float64: the probability that an own entry is among the first k. "fixed": with ties in random
        order; "paper": with ties in the order of the file, so 0 or 1."""
        if choose("protocol", protocol, PROTOCOLS) == "paper":
            return (self.better + self.before < k).astype(np.float64)
        total = self.tied + self.relevant  # (Q,) entries with the best own score
        free_places = np.clip(k - self.better, 0, total)  # (Q,) of the first k, those left for that score
        # Probability that no own entry gets one: C(tied, free_places) / C(total, free_places), by factors.
        missed = np.ones(len(self.best))  # (Q,)
        for i in range(k):
            share = np.maximum(self.tied - i, 0) / np.maximum(total - i, 1)
            missed = np.where(i < free_places, missed * share, missed)
        return 1.0 - missed

    def select(self, queries: Array) -> Ranks:
        """The ranks of these queries (indices), in this order."""
        arrays = (self.best, self.better, self.tied, self.relevant, self.before)
        return Ranks(*(array[queries] for array in arrays))


def rank(
    texts: Array, pictures: Array, caption_rows: Array, gallery_rows: Array, targets: Array
) -> tuple[Ranks, Ranks]:
    """Ranks of (every caption's image in the gallery, every image's captions among all captions).

    texts, pictures  (T, D), (P, D) features as the model gives them; may lie in a file.
    caption_rows     (N,) each caption's row of `texts`, at least one.
    gallery_rows     (G,) each gallery entry's row of `pictures`; entries without captions are no queries.
    targets          (N,) each caption's gallery entry."""
    gallery = prepare(pictures[gallery_rows])  # (G, D) float64
    count, size = len(caption_rows), len(gallery)
    step = max(1, BLOCK_SIZE // max(gallery.shape))  # captions: (step, G) scores, (step, D) features
    blocks = [slice(start, min(start + step, count)) for start in range(0, count, step)]

    # Each query's best own score.
    own_scores = np.empty(count)  # (N,) each caption's score with its own image
    for block in blocks:
        own_scores[block] = (prepare(texts[caption_rows[block]]) * gallery[targets[block]]).sum(-1)
    best = np.full(size, -np.inf)  # (G,) each image's best score with an own caption
    np.maximum.at(best, targets, own_scores)
    best_captions = np.flatnonzero(own_scores > best[targets] - TIE)  # that tie with their image's best
    relevant = np.bincount(targets[best_captions], minlength=size)  # (G,)
    first = np.full(size, count)  # (G,) the earliest of them in the file
    np.minimum.at(first, targets[best_captions], best_captions)
    best[relevant == 0] = np.inf  # an image without captions: no score is above or equal

    # Compare all scores with it. Rows of the counts: better, tied, before (see `Ranks`).
    caption_counts = np.zeros((3, count), np.int64)
    image_counts = np.zeros((3, size), np.int64)
    for block in blocks:
        scores = prepare(texts[caption_rows[block]]) @ gallery.T  # (captions of the block, G)
        # Of each caption, over the images: all of its scores are in this block.
        is_above, rows, entries = _compare_scores(scores, own_scores[block, None])
        own = targets[block][rows]  # of each tie: the entry of its caption
        caption_counts[0, block] = is_above.sum(1)
        caption_counts[1, block] = np.bincount(rows[entries != own], minlength=len(scores))
        caption_counts[2, block] = np.bincount(rows[entries < own], minlength=len(scores))
        # Of each image, over the captions: the sum over all blocks.
        is_above, rows, entries = _compare_scores(scores, best[None])
        is_foreign = targets[block][rows] != entries  # of each tie: the caption is of another image
        is_earlier = is_foreign & (rows + block.start < first[entries])
        image_counts[0] += is_above.sum(0)
        image_counts[1] += np.bincount(entries[is_foreign], minlength=size)
        image_counts[2] += np.bincount(entries[is_earlier], minlength=size)
    better, tied, before = caption_counts
    to_image = Ranks(own_scores, better, tied, np.ones_like(better), before)
    better, tied, before = image_counts
    return to_image, Ranks(best, better, tied, relevant, before)


def _compare_scores(scores: Array, limits: Array) -> tuple[Array, Array, Array]:
    """(mask of scores above their limit, rows and columns of ties with it); limits: (block, 1) or (1, G)."""
    is_above = scores > limits + TIE  # (captions of the block, G)
    ties = np.flatnonzero((scores > limits - TIE) & ~is_above)  # np.nonzero of a matrix is slower
    return is_above, *np.divmod(ties, scores.shape[1])


# --- baselines --------------------------------------------------------------------------------------
def rank_baselines(
    texts: Array, pictures: Array, caption_rows: Array, gallery_rows: Array, targets: Array
) -> tuple[dict[str, Ranks], dict[str, Ranks]]:
    """(baseline -> ranks of captions, baseline -> ranks of images); arguments as of `rank`.

    "text only" replaces each image, "picture only" each caption, by the mean of all. A score is linear in
    both, so this is the mean score over all (Hessel & Lee, EMNLP 2020, arXiv:2010.06572)."""
    text_scores = _score_all(texts, caption_rows, mean_feature(pictures, gallery_rows))  # (N,)
    image_scores = _score_all(pictures, gallery_rows, mean_feature(texts, np.unique(caption_rows)))  # (G,)
    size = len(gallery_rows)
    to_image, to_text = dict[str, Ranks](), dict[str, Ranks]()
    # Where all images (or all captions) are the mean, all entries tie; the value does not matter, so 0.
    entry_scores = {TEXT_ONLY: np.zeros_like(image_scores), PICTURE_ONLY: image_scores}
    caption_scores = {TEXT_ONLY: text_scores, PICTURE_ONLY: np.zeros_like(text_scores)}
    for baseline in (TEXT_ONLY, PICTURE_ONLY):
        entry_ranks = rank_shared_scores(entry_scores[baseline], np.arange(size), size)
        to_image[baseline] = entry_ranks.select(targets)  # a caption's rank is that of its image
        to_text[baseline] = rank_shared_scores(caption_scores[baseline], targets, size)
    return to_image, to_text


def _score_all(vectors: Array, rows: Array, feature: Array) -> Array:
    """(len(rows),) float32: the scores of these rows of the (N, D) features with one feature, (D,)."""
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
    # The dtype of the scores, as an equal score is looked for: those of `products` are float32.
    best = np.full(queries, -np.inf, dtype=scores.dtype)  # (Q,) the best own score
    np.maximum.at(best, owner, scores)
    best_entries = np.flatnonzero(scores == best[owner])  # own entries with that score
    relevant = np.bincount(owner[best_entries], minlength=queries)  # (Q,)
    order = np.argsort(scores, kind="stable")  # (M,) entries from low to high, equal ones in file order
    lower = np.searchsorted(scores[order], best, "left")  # (Q,) how many entries score less
    upper = np.searchsorted(scores[order], best, "right")  # (Q,) how many score less or the same
    position = np.argsort(order)  # (M,) each entry's place in `order`
    first = np.full(queries, len(scores))  # (Q,) place of the first of `best_entries`
    np.minimum.at(first, owner[best_entries], position[best_entries])
    tied = upper - lower - relevant
    return Ranks(best, better=len(scores) - upper, tied=tied, relevant=relevant, before=first - lower)


# --- first images -----------------------------------------------------------------------------------
def find_top(
    texts: Array, pictures: Array, caption_rows: Array, gallery_rows: Array, count: int, seeds: Sequence[int]
) -> Array:
    """(N, count) int64 gallery entries per caption, the best first; ties in an order drawn by its seed."""
    gallery = prepare(pictures[gallery_rows])  # (G, D)
    entries = np.empty((len(caption_rows), min(count, len(gallery))), dtype=np.int64)  # count: at most G
    for row, (text, seed) in enumerate(zip(caption_rows, seeds, strict=True)):
        scores = products(gallery, prepare(texts[[text]]))  # (G,)
        shuffled = np.random.default_rng(seed).permutation(len(gallery))
        entries[row] = shuffled[np.argsort(-scores[shuffled], kind="stable")][: entries.shape[1]]
    return entries
