"""CLIP-I, CLIP-T and DINO: the cosine between what a network makes of two things."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from metrics.base import Score
from metrics.batch import Batch, Feature
from metrics.metric import Metric

_MAGICBRUSH = "MagicBrush (arXiv:2306.10012), image_eval.py"
_TABLE_3 = "NeIn (CVPRW 2025), Table 3"


def clip_i(batch: Batch) -> list[Score]:
    """Cosine of the CLIP features of edited picture and target."""
    return cosines(batch.edited_features("clip"), batch.target_features("clip"))


def dino(batch: Batch) -> list[Score]:
    """Cosine of the DINO features of edited picture and target."""
    return cosines(batch.edited_features("dino"), batch.target_features("dino"))


def clip_t(batch: Batch) -> list[Score]:
    """Cosine of the CLIP features of edited picture and caption; unscored without a caption."""
    return cosines(batch.edited_features("clip"), batch.caption_features("clip"))


CLIP_I = Metric(
    "clip_i", "CLIP-I", "per cent", "higher", (-1.0, 1.0), "mean", ("edited", "target", "clip"), clip_i,
    settings=("align",), source=f"{_MAGICBRUSH}; {_TABLE_3}",
)  # fmt: skip
DINO = Metric(
    "dino", "DINO", "per cent", "higher", (-1.0, 1.0), "mean", ("edited", "target", "dino"), dino,
    settings=("align",), source=f"{_MAGICBRUSH}; {_TABLE_3}",
)  # fmt: skip
# A caption describes the target: where that is gone, so is what the edit is measured against.
CLIP_T = Metric(
    "clip_t", "CLIP-T", "per cent", "higher", (-1.0, 1.0), "mean", ("edited", "target", "clip"), clip_t,
    source=_MAGICBRUSH,
)  # fmt: skip


def cosines(first: Iterable[Feature], second: Iterable[Feature]) -> list[Score]:
    """Cosine of every pair, float64 arithmetic on float32 features; a sentence in place of features becomes
    the reason.

    One pair at a time: a value then does not depend on the other samples to the last bit.
    """
    scores: list[Score] = []
    for a, b in zip(first, second, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            scores.append(Score(None, a if isinstance(a, str) else str(b)))
        elif not (np.any(a) and np.any(b)):
            scores.append(Score(None, "a feature vector is zero"))
        else:
            x, y = (np.asarray(row, dtype=np.float64) for row in (a, b))
            value = float(x @ y / np.sqrt((x @ x) * (y @ y)))
            # Rounding can leave [-1, 1] by an ulp, on identical pictures above all. More would be a mistake.
            assert abs(value) <= 1 + 1e-9, value
            scores.append(Score(min(1.0, max(-1.0, value))))
    return scores
