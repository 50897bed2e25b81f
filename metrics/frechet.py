"""FID as a metric: a sample adds two rows of features, and the distance is one of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from metrics.base import Score
from metrics.batch import Batch
from metrics.metric import Metric

if TYPE_CHECKING:
    from metrics.fid import FidInterval


def rows(batch: Batch) -> list[Score]:
    """The features of edited picture and target; a sample that lacks one of them is unscored."""
    scores = []
    for edited, target in zip(batch.edited_features("fid"), batch.target_features("fid"), strict=True):
        if isinstance(edited, str) or isinstance(target, str):
            scores.append(Score(None, edited if isinstance(edited, str) else str(target)))
        else:
            scores.append(Score(None, features=(edited, target)))
    return scores


def distance(
    edited: np.ndarray, target: np.ndarray, clusters: Sequence[str], target_clusters: Sequence[str]
) -> FidInterval:
    """The Frechet distance of (N, D) from (M, D) float32 rows, with its interval (`metrics.fid`)."""
    from metrics import fid

    return fid.jackknife_interval(edited, target, clusters, target_clusters=target_clusters)


FID = Metric(
    "fid", "FID", "raw", "lower", (0.0, math.inf), "corpus", ("edited", "target", "fid"), rows,
    settings=("align", "protocol"), source="Clean-FID (arXiv:2104.11222)", corpus=distance,
)  # fmt: skip
