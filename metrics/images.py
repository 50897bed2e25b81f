"""Metrics of pictures: L1, L2, CLIP-I, CLIP-T, DINO, LPIPS, FID, and obedience where the truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nein.loading.errors import isolate
from nein.metrics.base import MetricError, Score, check_image
from nein.metrics.metric import Batch, Feature, Metric

# --- pixels ----------------------------------------------------------------------------------------------


def l1(image: np.ndarray, target: np.ndarray) -> float:
    """Mean absolute difference of (H, W, 3) uint8, 0 to 1 (MagicBrush, image_eval.py); summed in integers."""
    return float(_difference(image, target).sum() / (255 * image.size))


def l2(image: np.ndarray, target: np.ndarray) -> float:
    """Mean *squared* difference of (H, W, 3) uint8, 0 to 1, no root: l2 of MagicBrush, image_eval.py."""
    squared = np.square(_difference(image, target), dtype=np.uint16)  # at most 255 * 255
    return float(squared.sum(dtype=np.int64) / (255 * 255 * image.size))


def each_pair(function: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[Batch], list[Score]]:
    """`Metric.score` of a function of an edited picture, at its target's size, and the target."""
    return lambda batch: [Score(function(edited, target)) for edited, target in batch.pairs]


def _difference(image: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Absolute, (H, W, 3) uint8."""
    check_image(image)
    check_image(target)
    if image.shape != target.shape:
        raise MetricError(f"Pictures of one size are compared, not {image.shape} and {target.shape}.")
    return np.maximum(image, target) - np.minimum(image, target)


# --- features --------------------------------------------------------------------------------------------


def like_target(kind: str, batch: Batch) -> list[Score]:
    """Cosine of the features of edited image and target by the encoder of that kind."""
    return cosines(batch.edited_features(kind), batch.target_features(kind))


def clip_t(batch: Batch) -> list[Score]:
    """Cosine of the CLIP features of edited picture and caption; unscored without a caption."""
    return cosines(batch.edited_features("clip"), batch.caption_features("clip"))


def cosines(first: Iterable[Feature], second: Iterable[Feature]) -> list[Score]:
    """Float64 arithmetic, one pair at a time: a value does not depend on the other samples."""
    scores: list[Score] = []
    for a, b in zip(first, second, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            scores.append(Score(None, a if isinstance(a, str) else str(b)))
        elif not (np.any(a) and np.any(b)):
            scores.append(Score(None, "a feature vector is zero"))
        else:
            x, y = (np.asarray(row, dtype=np.float64) for row in (a, b))
            value = float(x @ y / np.sqrt((x @ x) * (y @ y)))
            assert abs(value) <= 1 + 1e-9, value  # rounding can leave [-1, 1] by an ulp, no more
            scores.append(Score(min(1.0, max(-1.0, value))))
    return scores


def lpips(batch: Batch) -> list[Score]:
    """Perceptual distance to the target, 0 or above."""
    distances = batch.models["lpips"].distances
    scores = []
    for value in isolate(lambda pairs: distances(*zip(*pairs, strict=True)), batch.pairs):
        why = value if isinstance(value, str) else "the distance is not finite" * (not math.isfinite(value))
        scores.append(Score(None, why) if why else Score(float(value)))
    return scores


def rows(batch: Batch) -> list[Score]:
    """Inception features of edit and target, (2048,) each, of which `distance` makes the figure of a run."""
    scores = []
    for a, b in zip(batch.edited_features("fid"), batch.target_features("fid"), strict=True):
        if isinstance(a, str) or isinstance(b, str):
            scores.append(Score(None, a if isinstance(a, str) else str(b)))
        else:
            scores.append(Score(None, features=(a, b)))
    return scores


def distance(
    edited: np.ndarray, target: np.ndarray, clusters: Sequence[str], target_clusters: Sequence[str]
) -> Any:
    """FID of (N, 2048) and (M, 2048) features, with an interval."""
    from nein.metrics import fid

    return fid.jackknife_interval(edited, target, clusters, target_clusters=target_clusters)


# --- known truth -----------------------------------------------------------------------------------------


#: Squared colour difference per pixel (three channels in [0, 1]) below which a thing does not stand out.
FLOOR = 0.015
#: A thing is intact from here on.
INTACT = 0.7
#: A thing is gone up to here; between the two it is neither.
GONE = 1 - INTACT


def there(
    edited: np.ndarray, sample: np.ndarray, without: np.ndarray, where: np.ndarray | None = None
) -> float:
    """How far a thing of `sample` still stands in `edited`: 1 whole, 0 gone; also below 0. All pictures are
    (H, W, 3) uint8; where: the pixels that count, by default those in which `sample` and `without` differ."""
    if not edited.shape == sample.shape == without.shape:
        sizes = ", ".join(str(picture.shape[:2]) for picture in (edited, sample, without))
        raise MetricError(f"Pictures of one size are compared; these are {sizes}.")
    if where is None:
        where = (sample != without).any(-1)
    after, whole, bare = (picture.astype(np.float32) / 255 for picture in (edited, sample, without))
    gap = ((bare - whole) ** 2).sum(-1)[where].sum()
    error = ((after - whole) ** 2).sum(-1)[where].sum()
    return float(1 - error / (gap + FLOOR * where.sum()))


def obeyed(batch: Batch) -> list[Score]:
    """1 where all that must stay is intact and all that must go is gone; the detail has every thing."""
    scores = []
    for item in batch.items:
        things: Any = item.things
        edited, sample = np.asarray(item.edited), np.asarray(item.sample)
        pairs = [(thing, there(edited, sample, thing.without)) for thing in things]
        right = all(value >= INTACT if thing.stays else value <= GONE for thing, value in pairs)
        seen = [{"name": obj.name, "stays": obj.stays, "there": round(value, 3)} for obj, value in pairs]
        scores.append(Score(float(right), detail={"things": seen}))
    return scores


_MAGICBRUSH = "MagicBrush (arXiv:2306.10012), image_eval.py"
_TABLE = f"{_MAGICBRUSH}; NeIn (CVPRW 2025), Table 3"
_REST = (0.0, math.inf)
#: In the order of the paper's Table 3.
METRICS = (
    Metric(
        "l1", "L1", "per cent", "lower", (0.0, 1.0), "mean", ("edited", "target"), each_pair(l1),
        ("align",), _TABLE,
    ),
    Metric(
        "l2", "L2", "per cent", "lower", (0.0, 1.0), "mean", ("edited", "target"), each_pair(l2),
        ("align",), _TABLE,
    ),
    Metric(
        "clip_i", "CLIP-I", "per cent", "higher", (-1.0, 1.0), "mean", ("edited", "target", "clip"),
        partial(like_target, "clip"), ("align",), _TABLE,
    ),
    Metric(
        "dino", "DINO", "per cent", "higher", (-1.0, 1.0), "mean", ("edited", "target", "dino"),
        partial(like_target, "dino"), ("align",), _TABLE,
    ),
    Metric(
        "fid", "FID", "raw", "lower", _REST, "corpus", ("edited", "target", "fid"), rows,
        settings=("align", "protocol"), source="Clean-FID (arXiv:2104.11222)", corpus=distance,
    ),
    Metric(
        "lpips", "LPIPS", "raw", "lower", _REST, "mean", ("edited", "target", "lpips"), lpips,
        settings=("align",), source="LPIPS (arXiv:1801.03924), eq. 1",
    ),
)  # fmt: skip
#: Not in that table. A caption describes the target: where that is gone, so is what an edit is measured by.
FURTHER = (
    Metric(
        "clip_t", "CLIP-T", "per cent", "higher", (-1.0, 1.0), "mean", ("edited", "target", "clip"), clip_t,
        source=_MAGICBRUSH,
    ),
    Metric(
        "obeyed", "Obeyed (known truth)", "per cent", "higher", (0.0, 1.0), "proportion",
        ("edited", "sample", "things"), obeyed, source="this project: pictures of each thing's absence",
    ),
)  # fmt: skip
