"""What a text encoder separates, in numbers: object and negation, and whether negated captions collapse.

All figures are over unit features of the sentences of one pair of objects X and Y. The one-object sentences
form a full design: object (X, Y) x polarity (affirmed, denied) x 24 templates.

object, negation           Share of the variance between the two objects, or polarities (eta squared);
                           unstructured features give 1 / 95.
object_held_out,           Accuracy of telling the object (the polarity) of a template that took no part in
negation_held_out          forming the two centroids. Chance is 1/2.
collapse_affirmed,         Mean cosine over all pairs of the group's 48 sentences.
collapse_denied
twin_negation, twin_object Mean cosine of a sentence and its denial; of one template about X and about Y.
denied_object_held_out     As object_held_out, over denied sentences alone.
hybrid_held_out            Telling "X but not Y" from "Y but not X", by centroids of other templates.
neither_held_out           Telling "X and Y" from "neither X nor Y", likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nein.benchmarks.negbench.analysis.templates import AFFIRMED, DENIED, HYBRID, NEITHER, TWO, Sentence
from nein.metrics.dual.base import normalise

#: Name -> (title, what a structureless encoder gives or None).
MEASURES: dict[str, tuple[str, float | None]] = {
    "object": ("variance between objects", 1 / 95),
    "negation": ("variance between polarities", 1 / 95),
    "object_held_out": ("object told apart", 0.5),
    "negation_held_out": ("polarity told apart", 0.5),
    "collapse_affirmed": ("mean cosine, affirmed", None),
    "collapse_denied": ("mean cosine, negated", None),
    "twin_negation": ("cosine to own negation", None),
    "twin_object": ("cosine to other object", None),
    "denied_object_held_out": ("object told apart, negated", 0.5),
    "hybrid_held_out": ("'X not Y' from 'Y not X'", 0.5),
    "neither_held_out": ("'X and Y' from 'neither'", 0.5),
}


def measure(features: np.ndarray, sentences: Sequence[Sentence]) -> dict[str, float]:
    """Every measure of `MEASURES` for the sentences of one pair; features (N, D), finite, of any length."""
    x = normalise(features)
    by = _arrays(x, sentences)
    design = np.stack([by[AFFIRMED], by[DENIED]], axis=1)  # (object, polarity, template, D)
    both = np.concatenate([by[TWO].mean(0)[None], by[NEITHER][:, : by[TWO].shape[1]].mean(0)[None]])
    return {
        "object": _between(design, 0),
        "negation": _between(design, 1),
        "object_held_out": _held_out(design.reshape(2, -1, *design.shape[2:])),
        "negation_held_out": _held_out(design.swapaxes(0, 1).reshape(2, -1, *design.shape[2:])),
        "collapse_affirmed": _mean_cosine(by[AFFIRMED]),
        "collapse_denied": _mean_cosine(by[DENIED]),
        "twin_negation": float((by[AFFIRMED] * by[DENIED]).sum(-1).mean()),
        "twin_object": float((by[AFFIRMED][0] * by[AFFIRMED][1]).sum(-1).mean()),
        "denied_object_held_out": _held_out(by[DENIED][:, None]),
        "hybrid_held_out": _held_out(by[HYBRID][:, None]),
        "neither_held_out": _held_out(both[:, None]),
    }


def components(features: np.ndarray, count: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of unit features: (N, count) coordinates and (count,) shares of the variance;
    signs such that a component's largest coordinate by size is positive."""
    x = normalise(features)
    x = x - x.mean(0)
    left, values, _ = np.linalg.svd(x, full_matrices=False)
    coordinates = left[:, :count] * values[:count]
    largest = coordinates[np.abs(coordinates).argmax(0), np.arange(coordinates.shape[1])]
    total = float((values**2).sum())
    shares = values[:count] ** 2 / total if total > 0 else np.zeros(count)
    return coordinates * np.where(largest < 0, -1.0, 1.0), shares


def _arrays(x: np.ndarray, sentences: Sequence[Sentence]) -> Mapping[str, np.ndarray]:
    """Group -> (2, templates, D): the pair's first object as {A}, then its second."""
    place = {(s.group, s.first, s.template): row for s, row in zip(sentences, x, strict=True)}
    arrays = {}
    for group in dict.fromkeys(s.group for s in sentences):
        count = 1 + max(s.template for s in sentences if s.group == group)
        arrays[group] = np.stack(
            [np.stack([place[group, first, k] for k in range(count)]) for first in (True, False)]
        )
    return arrays


def _between(design: np.ndarray, axis: int) -> float:
    """Eta squared of a factor: sum of squares between its levels over the total sum of squares."""
    dimensions = design.shape[-1]
    points = design.reshape(-1, dimensions)
    centre = points.mean(0)
    total = float(((points - centre) ** 2).sum())
    if total == 0:
        return 0.0
    levels = np.moveaxis(design, axis, 0).reshape(design.shape[axis], -1, dimensions)
    return float(levels.shape[1] * ((levels.mean(1) - centre) ** 2).sum() / total)


def _held_out(classes: np.ndarray) -> float:
    """Nearest-centroid accuracy, a template at a time left out. (2, variants, templates, D); a tie: one
    half."""
    _, variants, count, _ = classes.shape
    totals = classes.sum((1, 2))
    right = 0.0
    for k in range(count):
        left = classes[:, :, k]
        centroids = (totals - left.sum(1)) / (variants * (count - 1))
        distances = ((left[:, :, None] - centroids[None, None]) ** 2).sum(-1)  # (class, variant, centroid)
        for truth in (0, 1):
            gap = distances[truth, :, 1 - truth] - distances[truth, :, truth]
            right += float((gap > 1e-12).sum() + 0.5 * (np.abs(gap) <= 1e-12).sum())
    return right / (2 * variants * count)


def _mean_cosine(group: np.ndarray) -> float:
    """Mean cosine over all pairs of different sentences; (2, templates, D) unit rows."""
    points = group.reshape(-1, group.shape[-1])
    n = len(points)
    total = points.sum(0)
    return float((total @ total - (points**2).sum()) / (n * (n - 1)))
