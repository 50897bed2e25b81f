"""Known truth: whether every thing of a picture that must go is gone, and every other still there.

No judge is asked. The data give, for every thing of the unedited picture F, the same picture W without it.
Over the pixels in which the two differ, with colours in [0, 1],

    there = 1 - sum |E - F|^2 / (sum |F - W|^2 + FLOOR per pixel)

of the edited picture E is 1 where the thing stands as it was, 0 where E shows what is behind it, and below 0
where it shows something else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metrics.base import MetricError, Score
from metrics.batch import Batch
from metrics.metric import Metric

#: Squared colour difference per pixel (three channels in [0, 1]) below which a thing does not stand out.
FLOOR = 0.015
#: A thing is intact from here on.
INTACT = 0.7
#: A thing is gone up to here; between the two it is neither.
GONE = 1 - INTACT


def there(
    edited: np.ndarray, sample: np.ndarray, without: np.ndarray, where: np.ndarray | None = None
) -> float:
    """How far a thing of `sample` still stands in `edited`: 1 whole, 0 gone; also below 0.

    All pictures are (H, W, 3) uint8 of one size. where: (H, W) bool, the pixels that count; by default those
    in which `sample` and `without` differ.
    """
    if not edited.shape == sample.shape == without.shape:
        sizes = ", ".join(str(picture.shape[:2]) for picture in (edited, sample, without))
        raise MetricError(f"Pictures of one size are compared; these are {sizes}.")
    if where is None:
        where = (sample != without).any(-1)
    shown, whole, bare = (picture.astype(np.float32) / 255 for picture in (edited, sample, without))
    gap = ((bare - whole) ** 2).sum(-1)[where].sum()
    error = ((shown - whole) ** 2).sum(-1)[where].sum()
    return float(1 - error / (gap + FLOOR * where.sum()))


def obeyed(batch: Batch) -> list[Score]:
    """1 where all that must stay is intact and all that must go is gone; the detail has every thing."""
    return [_obeyed(item.edited, item.sample, item.things) for item in batch.items]


def _obeyed(edited: Any, sample: Any, things: Any) -> Score:
    """Of an item that lacks nothing: two pictures, and a sequence of `Thing`."""
    values = [there(edited, sample, thing.without) for thing in things]
    pairs = list(zip(things, values, strict=True))
    right = all(value >= INTACT if thing.stays else value <= GONE for thing, value in pairs)
    seen = [{"name": one.name, "stays": one.stays, "there": round(value, 3)} for one, value in pairs]
    return Score(float(right), detail={"things": seen})


OBEYED = Metric(
    "obeyed", "Obeyed (known truth)", "per cent", "higher", (0.0, 1.0), "proportion",
    ("edited", "sample", "things"), obeyed, source="this project: pictures of each thing's absence",
)  # fmt: skip
