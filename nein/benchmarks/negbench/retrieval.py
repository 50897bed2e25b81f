"""Recall at k, both ways, without ever holding the matrix of all texts by all pictures.

Text-to-image recall@k is the share of captions whose picture is among the k best; image-to-text recall@k the
share of pictures of which a caption is among the k best. Ties are broken at random in expectation: a caption
whose picture ties with t others for the last r places counts r / (t + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metrics.dual.base import similarity

KS = (1, 5)
#: Scores held at once; a block of queries is as large as fits, at least one.
BUDGET = 4_000_000


@dataclass(frozen=True)
class Ranks:
    """Per query, the place of the best of its own gallery entries. Arrays of length Q.

    best      Its score, float32.
    better    Gallery entries that score strictly higher.
    tied      Entries of others that score the same.
    relevant  Own entries with that score, at least 1.
    """

    best: np.ndarray
    better: np.ndarray
    tied: np.ndarray
    relevant: np.ndarray

    @property
    def rank(self) -> np.ndarray:
        """1 for the first place; the best place among ties."""
        return self.better + 1

    def recall(self, k: int) -> np.ndarray:
        """(Q,) float64: the probability that an own entry is among the first k, ties in random order.

        With r places left for relevant + tied entries, 1 - C(tied, r) / C(relevant + tied, r).
        """
        total = self.tied + self.relevant
        places = np.clip(k - self.better, 0, total)
        missed = np.ones(len(self.best))
        for i in range(k):
            share = np.maximum(self.tied - i, 0) / np.maximum(total - i, 1)
            missed = np.where(i < places, missed * share, missed)
        return 1.0 - missed


def ranks(
    queries: np.ndarray, gallery: np.ndarray, relevant: Sequence[Sequence[int]], *, budget: int = BUDGET
) -> Ranks:
    """Ranks of every query's own entries among the whole gallery.

    queries   (Q, D) and gallery (G, D), as `metrics.dual.base.prepare` makes them.
    relevant  Per query, the indices of its own entries in the gallery, at least one.
    budget    Scores computed at once, so that memory is O(budget + G) whatever Q is.
    """
    count = len(queries)
    best = np.empty(count, dtype=np.float32)
    better, tied, mine = (np.empty(count, dtype=np.int64) for _ in range(3))
    step = max(1, budget // max(1, len(gallery)))
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        scores = similarity(queries[part], gallery)
        lengths = np.array([len(entries) for entries in relevant[part]])
        assert lengths.all(), "every query needs an entry of its own"
        columns = np.concatenate([np.asarray(entries, dtype=np.int64) for entries in relevant[part]])
        rows = np.repeat(np.arange(len(lengths)), lengths)
        values = scores[rows, columns]
        top = np.maximum.reduceat(values, np.concatenate([[0], np.cumsum(lengths)[:-1]]))
        best[part] = top
        better[part] = (scores > top[:, None]).sum(1)
        mine[part] = np.bincount(rows, weights=values == top[rows], minlength=len(lengths)).astype(np.int64)
        tied[part] = (scores == top[:, None]).sum(1) - mine[part]
    return Ranks(best, better, tied, mine)
