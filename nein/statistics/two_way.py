"""Four scores of two captions and two pictures, split into parts: what the caption, the picture and both
together decide.

Of scores s[c, i], c = 0 the caption that affirms and 1 the one that denies, i = 0 the picture with the thing
and 1 the one without it, the two-way decomposition without a rest is

    s[c, i] = mean + (+-) text / 2 + (+-) picture / 2 + (+-) interaction / 2,

"text" the mean of the affirming less the mean of the denying caption, "picture" the mean with less the mean
without the thing, and "interaction" the mean of the two pairs that are true less that of the two that are
false. Source: the additive projection of Hessel & Lee (EMNLP 2020, arXiv:2010.06572), on the four scores.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from nein.statistics.estimates import Estimate, bounded_mean, mean

PARTS = TEXT, PICTURE, INTERACTION = "text", "picture", "interaction"
_SIGNS = np.array([[[1, 1], [-1, -1]], [[1, -1], [1, -1]], [[1, -1], [-1, 1]]]) / 2


def parts(scores: np.ndarray) -> np.ndarray:
    """(N, 2, 2) scores [caption, picture] -> (N, 3) float64: text, picture and interaction."""
    return np.einsum("nci,pci->np", np.asarray(scores, dtype=np.float64).reshape(-1, 2, 2), _SIGNS)


def effects(
    scores: np.ndarray, clusters: Sequence[Hashable], span: float | None = None
) -> dict[str, Estimate | None]:
    """Part -> its mean over the pairs. span: length of the range of the scores; None for none."""
    named = zip(PARTS, parts(scores).T, strict=True)
    if span is None:
        return {name: mean(column, clusters) for name, column in named}
    return {name: bounded_mean(column, clusters, -span, span) for name, column in named}


def shares(scores: np.ndarray, clusters: Sequence[Hashable]) -> dict[str, Estimate | None]:
    """Part -> its share of the sum of squares; they add up to 1. None where all scores are equal."""
    squares = parts(scores) ** 2
    return {name: _share(squares[:, index], squares.sum(1), clusters) for index, name in enumerate(PARTS)}


def text_alone(scores: np.ndarray, clusters: Sequence[Hashable]) -> Estimate | None:
    """text^2 / (text^2 + interaction^2), summed over all pairs: 1.0 where the gap of the captions is the same
    whatever is seen, 0.0 where it turns round with the picture; None where there is no gap."""
    text, _, interaction = parts(scores).T ** 2
    return _share(text, text + interaction, clusters)


def same_caption(scores: np.ndarray, clusters: Sequence[Hashable]) -> Estimate | None:
    """The share of pairs in which both pictures choose the same caption; equal scores choose either."""
    x = np.asarray(scores, dtype=np.float64).reshape(-1, 2, 2)
    affirms = (1 + np.sign(x[:, 0] - x[:, 1])) / 2
    return bounded_mean(affirms.prod(1) + (1 - affirms).prod(1), clusters)


def _share(part: np.ndarray, whole: np.ndarray, clusters: Sequence[Hashable]) -> Estimate | None:
    values = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return bounded_mean(np.minimum(values, 1.0), clusters, weights=whole)
