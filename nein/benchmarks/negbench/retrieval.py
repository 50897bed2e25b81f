"""Recall at k, both ways, without ever holding the scores of all captions with all pictures.

Text-to-image recall@k is the share of captions whose picture is among the k best; image-to-text recall@k the
share of pictures of which a caption is among the k best.

| quirk | `protocol="paper"` | `protocol="fixed"` |
|---|---|---|
| ties | the first in the file stands first, as `torch.topk` on a GPU has it | random order, in expectation |

The score of a pair is `metrics.dual.base.products` of unit features: worked out in float64, rounded once. Few
pairs need it. A product in float32 is off by at most `_bound`, so it settles every pair whose score differs
by more from the one that is compared with; the pairs within the bound, ties among them, are worked out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrics.base import choose
from metrics.dual.base import prepare, products
from nein.benchmarks.negbench.mcq import PROTOCOLS
from nein.engine import cores

KS = (1, 5)
#: A tile of scores: captions by pictures. A byte counts to 255, so up to 255 rows are added up eight pictures
#: to a word, and 255 words of eight are added along a row.
ROWS, COLUMNS = 240, 2040
#: Pairs worked out in float64 at once.
PAIRS = 4096


@dataclass(frozen=True)
class Ranks:
    """Per query, the place of the best of its own gallery entries. Arrays of length Q.

    best      Its score, float32.
    better    Gallery entries that score strictly higher.
    tied      Entries of others that score the same.
    relevant  Own entries with that score, at least 1.
    before    Of the tied ones, those that stand before the first own one in the gallery.
    """

    best: np.ndarray
    better: np.ndarray
    tied: np.ndarray
    relevant: np.ndarray
    before: np.ndarray

    @property
    def rank(self) -> np.ndarray:
        """1 for the first place; the best place among ties."""
        return self.better + 1

    def recall(self, k: int, protocol: str = "fixed") -> np.ndarray:
        """(Q,) float64: the probability that an own entry is among the first k.

        "fixed": ties in random order. With r places left for relevant + tied entries, 1 - C(tied, r) /
        C(relevant + tied, r). "paper": ties in the order of the gallery, so it is 0 or 1.
        """
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
    """The places of every query's own entries where all queries see the same scores.

    scores  (M,) of the entries.     owner  (M,) the query that each belongs to, 0 <= owner < queries.
    """
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


def top(
    texts: np.ndarray,
    pictures: np.ndarray,
    said: np.ndarray,
    shown: np.ndarray,
    count: int,
    seeds: Sequence[int],
) -> np.ndarray:
    """(Q, count) gallery entries with the highest scores, the best first; of equal ones in an order drawn by
    the query's seed. Arguments as of `ranks`; a small gallery is listed as a whole."""
    gallery = prepare(pictures[shown])
    found = np.empty((len(said), min(count, len(gallery))), dtype=np.int64)
    for row, (text, seed) in enumerate(zip(said, seeds, strict=True)):
        scores = products(gallery, prepare(texts[[text]]))
        drawn = np.random.default_rng(seed).permutation(len(gallery))
        found[row] = drawn[np.argsort(-scores[drawn], kind="stable")][: found.shape[1]]
    return found


def ranks(
    texts: np.ndarray,
    pictures: np.ndarray,
    said: np.ndarray,
    shown: np.ndarray,
    place: np.ndarray,
    *,
    device: str = "cpu",
) -> tuple[Ranks, Ranks]:
    """(every caption's picture among the gallery, every gallery entry's captions among all captions).

    texts     (T, D) features of sentences, as the model gives them; may lie in a file.
    pictures  (P, D) features of pictures.
    said      (N,) the row of `texts` of each caption, at least one.
    shown     (G,) the row of `pictures` of each entry of the gallery.
    place     (N,) the entry of each caption.
    device    Where products in float32 are made. It decides the time, and no value.

    An entry without a caption has `relevant` 0, and is no query. Memory is O(G * D) and a few numbers per
    caption.
    """
    search = _Search(texts, prepare(pictures[shown]), np.asarray(said), np.asarray(place), device)
    own = search.own_scores()
    return search.counted(own)


@dataclass(frozen=True)
class _Own:
    """Scores to compare with, float32: `text` (N,) of each caption with its picture; `picture` (G,) the best
    of an entry's captions, inf where it has none, `first` the first caption with it, `count` how many."""

    text: np.ndarray
    picture: np.ndarray
    first: np.ndarray
    count: np.ndarray


class _Search:
    """Captions in blocks of `ROWS` against the whole gallery, as many blocks at once as there are cores."""

    def __init__(
        self, texts: np.ndarray, gallery: np.ndarray, said: np.ndarray, place: np.ndarray, device: str
    ) -> None:
        import torch

        self.texts, self.gallery, self.said, self.place = texts, gallery, said, place
        self.device = torch.device(device)
        width = -(-len(gallery) // 8) * 8  # whole words of eight
        padded = np.zeros((width, gallery.shape[1]), dtype=np.float32)
        padded[: len(gallery)] = gallery
        self.columns = torch.from_numpy(padded).to(self.device)
        self.workers = cores.count() if self.device.type == "cpu" else 1

    def own_scores(self) -> _Own:
        text = np.empty(len(self.said), dtype=np.float32)

        def work(worker: int, block: slice, features: np.ndarray) -> None:
            text[block] = products(features, self.gallery[self.place[block]])

        self._each(work)
        size = len(self.gallery)
        picture = np.full(size, -np.inf, dtype=np.float32)
        np.maximum.at(picture, self.place, text)
        top = np.flatnonzero(text == picture[self.place])
        first = np.full(size, len(text), dtype=np.int64)
        np.minimum.at(first, self.place[top], top)
        count = np.bincount(self.place[top], minlength=size)
        return _Own(text, np.where(count, picture, np.float32(np.inf)), first, count)

    def counted(self, own: _Own) -> tuple[Ranks, Ranks]:
        of_text = np.zeros((3, len(self.said)), dtype=np.int64)  # better, tied, before
        of_picture = np.zeros((self.workers, 3, len(self.gallery)), dtype=np.int64)

        def work(worker: int, block: slice, features: np.ndarray) -> None:
            self._count(block, features, own, of_text[:, block], of_picture[worker])

        self._each(work)
        better, tied, before = of_text
        to_image = Ranks(own.text, better, tied, np.ones_like(better), before)
        better, tied, before = of_picture.sum(0)
        return to_image, Ranks(own.picture, better, tied, own.count, before)

    def _each(self, work: Callable[[int, slice, np.ndarray], None]) -> None:
        """`work` of (worker, captions, their prepared features) for every block; a worker is a thread."""
        import torch

        def share(worker: int) -> None:
            for start in range(worker * ROWS, len(self.said), self.workers * ROWS):
                block = slice(start, min(start + ROWS, len(self.said)))
                work(worker, block, prepare(self.texts[self.said[block]]))

        before = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                list(pool.map(share, range(self.workers)))
        finally:
            torch.set_num_threads(before)

    def _count(
        self, block: slice, features: np.ndarray, own: _Own, of_text: np.ndarray, of_picture: np.ndarray
    ) -> None:
        """Adds better, tied and before of a block's captions to `of_text` (3, rows), and what they are to the
        pictures to `of_picture` (3, G)."""
        import torch

        bound = _bound(features.shape[1])
        rows = torch.from_numpy(features.astype(np.float32)).to(self.device)
        low, high = self._limits(own.text[block, None], bound)
        for left in range(0, len(self.gallery), COLUMNS):
            right = min(left + COLUMNS, len(self.gallery))
            scores = _scores(rows, self.columns[left : left + COLUMNS])
            scores[:, right - left :] = -torch.inf  # what fills the last word
            best = np.full(scores.shape[1], np.inf, dtype=np.float32)
            best[: right - left] = own.picture[left:right]
            over_rows, near_rows = _above(scores, low, high)
            over_columns, near_columns = _above(scores, *self._limits(best[None, :], bound))
            of_text[0] += _bytes(over_rows.sum(1)).reshape(-1, 8).sum(1)
            of_picture[0, left:right] += _bytes(over_columns.sum(0))[: right - left]
            for near in _Near.of(near_rows, near_columns).parts(PAIRS):
                self._settle(near, block.start, left, features, own, of_text, of_picture)

    def _limits(self, scores: np.ndarray, bound: float) -> tuple[Any, Any]:
        """What a product in float32 has to be above to be possibly better, and to be surely better."""
        import torch

        exact = scores.astype(np.float64)
        low, high = (
            torch.from_numpy((exact + side * bound).astype(np.float32)).to(self.device) for side in (-1, 1)
        )
        return low, high

    def _settle(
        self,
        near: _Near,
        start: int,
        left: int,
        features: np.ndarray,
        own: _Own,
        of_text: np.ndarray,
        of_picture: np.ndarray,
    ) -> None:
        """Counts the pairs that float32 cannot tell apart from the score they are compared with."""
        text, entry = near.rows + start, near.columns + left
        exact = products(features[near.rows], self.gallery[entry])
        foreign = self.place[text] != entry
        limit = own.text[text]
        same = foreign & (exact == limit)
        _tally(of_text, near.rows, near.in_rows, exact > limit, same, entry < self.place[text])
        limit = own.picture[entry]
        same = foreign & (exact == limit)
        _tally(of_picture, entry, near.in_columns, exact > limit, same, text < own.first[entry])


def _tally(
    counts: np.ndarray,
    at: np.ndarray,
    which: np.ndarray,
    better: np.ndarray,
    tied: np.ndarray,
    earlier: np.ndarray,
) -> None:
    """Adds to better, tied and before, (3, Q), what the pairs `which` of the queries `at` are."""
    for row, pairs in zip(counts, (which & better, which & tied, which & tied & earlier), strict=True):
        np.add.at(row, at[pairs], 1)


@dataclass(frozen=True)
class _Near:
    """Pairs of a tile within the bound of what their caption (`in_rows`) or picture (`in_columns`) is
    compared with; arrays of one length."""

    rows: np.ndarray
    columns: np.ndarray
    in_rows: np.ndarray
    in_columns: np.ndarray

    @classmethod
    def of(cls, rows: Any, columns: Any) -> _Near:
        """From the two masks, eight pairs to a word, (R, C / 8) int64."""
        row, word = (rows | columns).nonzero(as_tuple=True)
        masks = [_bytes(mask[row, word]).reshape(-1, 8).astype(bool) for mask in (rows, columns)]
        at, byte = np.nonzero(masks[0] | masks[1])
        row, word = row.cpu().numpy(), word.cpu().numpy()
        return cls(row[at], word[at] * 8 + byte, masks[0][at, byte], masks[1][at, byte])

    def parts(self, size: int) -> Iterator[_Near]:
        for start in range(0, len(self.rows), size):
            part = slice(start, start + size)
            yield _Near(self.rows[part], self.columns[part], self.in_rows[part], self.in_columns[part])


def _bound(width: int) -> float:
    """How far the product of two unit vectors in float32 is at most from `products` of them.

    With u = 2**-24: 2 u for rounding the vectors, width * u for the additions in whatever order, u for
    rounding the exact product, u for rounding the limits; the rest is for the squares of u. Higham, Accuracy
    and Stability of Numerical Algorithms, section 3.1.
    """
    return (width + 8) * 2.0**-24


def _scores(rows: Any, columns: Any) -> Any:
    """(R, D) and (C, D) float32 -> (R, C), worked out in float32."""
    import torch

    from metrics.loading import exact

    if rows.device.type == "cpu" and torch.backends.mkldnn.is_available():
        # oneDNN's product: where the processor is not Intel's, twice as fast as the one behind `@`.
        return torch.ops.mkldnn._linear_pointwise(rows, columns, None, "none", [], "")
    with exact():
        return rows @ columns.T


def _above(scores: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """(surely above, possibly but not surely above), each (R, C / 8) int64 with a byte of 0 or 1 per pair."""
    import torch

    if scores.device.type == "cpu":  # NumPy compares several times faster here
        surely, possibly = (
            torch.from_numpy(np.greater(scores.numpy(), limit.numpy())) for limit in (high, low)
        )
    else:
        surely, possibly = scores > high, scores > low
    surely, possibly = surely.view(torch.int64), possibly.view(torch.int64)
    return surely, surely ^ possibly


def _bytes(words: Any) -> np.ndarray:
    """The bytes of int64 numbers, which are counts side by side."""
    return words.cpu().contiguous().numpy().view(np.uint8).astype(np.int64)
