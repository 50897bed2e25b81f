"""LPIPS: how different two pictures of one size look to a network."""

from __future__ import annotations

import math
from collections.abc import Sequence

from metrics.base import Score
from metrics.batch import Batch
from metrics.metric import Metric
from nein.loading.isolation import isolated


def lpips(batch: Batch) -> list[Score]:
    """Distance of the edited picture, at its target's size, from the target."""
    targets, pairs = batch.targets(), batch.pairs()
    keys = list(targets)
    place = [keys.index(item.target_key) for item in batch.items]

    def run(chunk: Sequence[int]) -> list[Score]:
        edited = [pairs[index][0] for index in chunk]
        values = batch.models["lpips"].distances(edited, list(targets.values()), [place[i] for i in chunk])
        return [_finite(float(value)) for value in values]

    return [
        Score(None, result) if isinstance(result, str) else result
        for result in isolated(run, range(len(pairs)))
    ]


def _finite(value: float) -> Score:
    return Score(value) if math.isfinite(value) else Score(None, "the distance is not finite")


LPIPS = Metric(
    "lpips", "LPIPS", "raw", "lower", (0.0, math.inf), "mean", ("edited", "target", "lpips"), lpips,
    settings=("align",), source="LPIPS (arXiv:1801.03924), eq. 1",
)  # fmt: skip
