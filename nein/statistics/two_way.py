"""Split the four scores of two captions and two images into parts: caption, image and their interaction.

Caption c = 0 affirms the thing, c = 1 denies it; image i = 0 has the thing, i = 1 lacks it. Their scores are

    s[c, i] = mean + (+-) text / 2 + (+-) picture / 2 + (+-) interaction / 2, where

text         mean of the affirming caption - mean of the denying caption,
picture      mean of the image with the thing - mean of the image without it,
interaction  mean of the two true pairs - mean of the two false pairs.

Source: the additive projection of Hessel & Lee (EMNLP 2020, arXiv:2010.06572), on the four scores.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from nein.statistics.estimates import Estimate, bounded_mean, mean

PARTS = TEXT, PICTURE, INTERACTION = "text", "picture", "interaction"
# Weights of the four scores in each part, (3, 2, 2): part, caption, image.
_WEIGHTS = np.array([[[1, 1], [-1, -1]], [[1, -1], [1, -1]], [[1, -1], [-1, 1]]]) / 2


def parts(scores: np.ndarray) -> np.ndarray:
    """Scores (N, 2, 2) [caption, image] -> (N, 3) float64: text, picture and interaction."""
    return np.einsum("nci,pci->np", np.asarray(scores, dtype=np.float64).reshape(-1, 2, 2), _WEIGHTS)


def effects(
    scores: np.ndarray, clusters: Sequence[Hashable], span: float | None = None
) -> dict[str, Estimate | None]:
    """Part -> its mean. scores: (N, 2, 2); span: width of their range, None without one."""
    named = zip(PARTS, parts(scores).T, strict=True)
    if span is None:
        return {name: mean(column, clusters) for name, column in named}
    return {name: bounded_mean(column, clusters, -span, span) for name, column in named}


def shares(scores: np.ndarray, clusters: Sequence[Hashable]) -> dict[str, Estimate | None]:
    """Part -> its share of the sum of squares of all parts; None where all scores are equal."""
    squares = parts(scores) ** 2  # (N, 3)
    return {name: _share(squares[:, index], squares.sum(1), clusters) for index, name in enumerate(PARTS)}


def text_alone(scores: np.ndarray, clusters: Sequence[Hashable]) -> Estimate | None:
    """sum text^2 / sum (text^2 + interaction^2): 1.0 if the gap between captions is the same for both images,
    0.0 if it flips with the image; None without a gap."""
    text, _, interaction = parts(scores).T ** 2
    return _share(text, text + interaction, clusters)


def same_caption(scores: np.ndarray, clusters: Sequence[Hashable]) -> Estimate | None:
    """Share of pairs in which both images have the same best caption; equal scores choose each by half."""
    x = np.asarray(scores, dtype=np.float64).reshape(-1, 2, 2)
    affirms = (1 + np.sign(x[:, 0] - x[:, 1])) / 2  # (N, image): 1 for the affirming caption, 0.5 for a tie
    return bounded_mean(affirms.prod(1) + (1 - affirms).prod(1), clusters)


def _share(part: np.ndarray, total: np.ndarray, clusters: Sequence[Hashable]) -> Estimate | None:
    """sum part / sum total, as a mean weighted by `total`, (N,) each."""
    values = np.divide(part, total, out=np.zeros_like(part), where=total > 0)
    return bounded_mean(np.minimum(values, 1.0), clusters, weights=total)
