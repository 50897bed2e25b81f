"""Metrics that compare images by pixels (L1, L2), by features (CLIP-I, CLIP-T, DINO, LPIPS, FID), or by known
objects (Obeyed). At the end: their tables, in the paper's order."""

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
    """Mean absolute difference of two images (H, W, 3) uint8, 0 to 1 (MagicBrush, image_eval.py)."""
    return float(_subtract(image, target).sum() / (255 * image.size))  # summed as integers


def l2(image: np.ndarray, target: np.ndarray) -> float:
    """Mean squared difference of two images, 0 to 1; no root is taken (l2 of MagicBrush, image_eval.py)."""
    squared = np.square(_subtract(image, target), dtype=np.uint16)  # (H, W, 3), at most 255 * 255
    return float(squared.sum(dtype=np.int64) / (255 * 255 * image.size))


def score_pairs(function: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[Batch], list[Score]]:
    """Make a `Metric.score` from a function of (edited image at its target's size, target)."""
    return lambda batch: [Score(function(edited, target)) for edited, target in batch.pairs]


def _subtract(image: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Absolute difference of two images, (H, W, 3) uint8."""
    check_image(image)
    check_image(target)
    if image.shape != target.shape:
        raise MetricError(f"Both images must have one size, not {image.shape} and {target.shape}.")
    return np.maximum(image, target) - np.minimum(image, target)


# --- features --------------------------------------------------------------------------------------------
def compare_features(kind: str, batch: Batch) -> list[Score]:
    """CLIP-I, DINO: cosine between features of edited image and target, by the encoder `kind`."""
    return compute_cosines(batch.edited_features(kind), batch.target_features(kind))


def clip_t(batch: Batch) -> list[Score]:
    """CLIP-T: cosine between CLIP features of edited image and caption; unscored without a caption."""
    return compute_cosines(batch.edited_features("clip"), batch.caption_features("clip"))


def compute_cosines(first: Iterable[Feature], second: Iterable[Feature]) -> list[Score]:
    """Compute the cosine of every pair in float64, one at a time, so that other samples cannot change it."""
    scores: list[Score] = []
    for a, b in zip(first, second, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            scores.append(Score(None, a if isinstance(a, str) else str(b)))
        elif not (np.any(a) and np.any(b)):
            scores.append(Score(None, "a feature vector is zero"))
        else:
            x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)  # (D,) each
            value = float(x @ y / np.sqrt((x @ x) * (y @ y)))
            assert abs(value) <= 1 + 1e-9, value  # rounding leaves [-1, 1] by the last bit at most
            scores.append(Score(min(1.0, max(-1.0, value))))
    return scores


def lpips(batch: Batch) -> list[Score]:
    """LPIPS: perceptual distance between edited image and target, >= 0."""

    def measure(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        return batch.models["lpips"].distances([a for a, _ in pairs], [b for _, b in pairs])

    scores = []
    for result in isolate(measure, batch.pairs):  # a distance, or why there is none
        if not isinstance(result, str) and not math.isfinite(result):
            result = "the distance is not finite"
        scores.append(Score(None, result) if isinstance(result, str) else Score(float(result)))
    return scores


def collect_features(batch: Batch) -> list[Score]:
    """FID per sample: no value, but features of edited image and target, (2048,), for `compute_fid`."""
    scores = []
    for a, b in zip(batch.edited_features("fid"), batch.target_features("fid"), strict=True):
        if isinstance(a, str) or isinstance(b, str):
            scores.append(Score(None, a if isinstance(a, str) else str(b)))
        else:
            scores.append(Score(None, features=(a, b)))
    return scores


def compute_fid(
    edited: np.ndarray, target: np.ndarray, clusters: Sequence[str], target_clusters: Sequence[str]
) -> Any:
    """Compute FID with its interval, from features (N, 2048) and (M, 2048)."""
    from nein.metrics import fid

    return fid.jackknife_interval(edited, target, clusters, target_clusters=target_clusters)


# --- known objects ---------------------------------------------------------------------------------------
#: Squared color difference per pixel (three channels in [0, 1]) below which an object does not stand out.
_MIN_CONTRAST = 0.015
INTACT = 0.7  # least presence of an intact object
GONE = 1 - INTACT  # largest presence of a removed object; in between it is neither


def measure_presence(edited: np.ndarray, sample: np.ndarray, without: np.ndarray) -> float:
    """Measure how much of an object of `sample` is in `edited`: 1 intact, 0 gone, may be negative. Compares
    the squared error of the edit with that of `without`, the sample without the object, on the pixels that
    removal changes. Images are (H, W, 3) uint8."""
    if not edited.shape == sample.shape == without.shape:
        sizes = ", ".join(str(image.shape[:2]) for image in (edited, sample, without))
        raise MetricError(f"All images must have one size; these have {sizes}.")
    mask = (sample != without).any(-1)  # (H, W)
    after, before, removed = (image.astype(np.float32) / 255 for image in (edited, sample, without))
    removal = ((removed - before) ** 2).sum(-1)[mask].sum()  # (H, W, 3) => (H, W) => pixels of the mask
    error = ((after - before) ** 2).sum(-1)[mask].sum()
    return float(1 - error / (removal + _MIN_CONTRAST * mask.sum()))


def score_obeyed(batch: Batch) -> list[Score]:
    """Obeyed: 1 if every object that must stay is intact and every other one gone, else 0."""
    scores = []
    for item in batch.items:
        edited, sample = np.asarray(item.edited), np.asarray(item.sample)  # (H, W, 3) uint8
        details, obeyed = [], True
        things: Any = item.things  # never a text: the metric needs them
        for thing in things:
            presence = measure_presence(edited, sample, thing.without)
            obeyed &= (presence >= INTACT) if thing.stays else (presence <= GONE)
            details.append({"name": thing.name, "stays": thing.stays, "there": round(presence, 3)})
        scores.append(Score(float(obeyed), detail={"things": details}))
    return scores


# --- tables of metrics -----------------------------------------------------------------------------------
_MAGICBRUSH = "MagicBrush (arXiv:2306.10012), image_eval.py"
_TABLE = f"{_MAGICBRUSH}; NeIn (CVPRW 2025), Table 3"
_UNBOUNDED = (0.0, math.inf)
METRICS = (  # in the order of the paper's Table 3
    Metric(
        "l1", "L1", "per cent", "lower", range=(0.0, 1.0), kind="mean", needs=("edited", "target"),
        score=score_pairs(l1), settings=("align",), source=_TABLE),
    Metric(
        "l2", "L2", "per cent", "lower", range=(0.0, 1.0), kind="mean", needs=("edited", "target"),
        score=score_pairs(l2), settings=("align",), source=_TABLE),
    Metric(
        "clip_i", "CLIP-I", "per cent", "higher", range=(-1.0, 1.0), kind="mean",
        needs=("edited", "target", "clip"), score=partial(compare_features, "clip"), settings=("align",),
        source=_TABLE),
    Metric(
        "dino", "DINO", "per cent", "higher", range=(-1.0, 1.0), kind="mean",
        needs=("edited", "target", "dino"), score=partial(compare_features, "dino"), settings=("align",),
        source=_TABLE),
    Metric(
        "fid", "FID", "raw", "lower", range=_UNBOUNDED, kind="corpus", needs=("edited", "target", "fid"),
        score=collect_features, settings=("align", "protocol"), source="Clean-FID (arXiv:2104.11222)",
        corpus=compute_fid),
    Metric(
        "lpips", "LPIPS", "raw", "lower", range=_UNBOUNDED, kind="mean", needs=("edited", "target", "lpips"),
        score=lpips, settings=("align",), source="LPIPS (arXiv:1801.03924), eq. 1"),
)  # fmt: skip
OTHER_METRICS = (  # not in that table
    Metric(
        "clip_t", "CLIP-T", "per cent", "higher", range=(-1.0, 1.0), kind="mean",
        needs=("edited", "target", "clip"), score=clip_t, source=_MAGICBRUSH),
    Metric(
        "obeyed", "Obeyed (known truth)", "per cent", "higher", range=(0.0, 1.0), kind="proportion",
        needs=("edited", "sample", "things"), score=score_obeyed,
        source="this project: drawn images without each object"),
)  # fmt: skip
