"""What a detector says about the objects of an image, and what that changes.

Source: released code of NegBench @ 2ac009b (OWL-ViT, "A photo of {object}", 0.1). There an image that cannot
be opened counts as one without the object; here it is unusable, which is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metrics.base import isolated
from nein.datasets.negbench.concepts import Concepts
from nein.engine.images import ImageError

UNREADABLE = "unreadable image"
NOT_ASKED = "the detector failed"


@dataclass(frozen=True)
class Verifier:
    """A detector and the rule by which it is read.

    query      Its `{object}` is the name.
    threshold  An object is there at this score and above.
    """

    detector: Any
    query: str
    threshold: float

    def scores(self, images: Sequence[np.ndarray], names: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        """Highest score per name, per image."""
        labels = [[self.query.format(object=name) for name in row] for row in names]
        detections = self.detector.detect(images, labels, self.threshold)
        return [
            {name: float(seen[label].score) for name, label in zip(row, texts, strict=True)}
            for row, texts, seen in zip(names, labels, detections, strict=True)
        ]

    def present(self, score: float) -> bool:
        return score >= self.threshold


def verify(
    verifier: Verifier,
    images: Sequence[Concepts],
    picture: Callable[[Concepts], np.ndarray],
    *,
    positives: bool,
) -> list[Concepts]:
    """The images without the absent objects that are there after all, and, with `positives`, without the
    present ones that are not found. Order and length stay.

    picture  Decodes an image; an ImageError makes it unusable.
    """
    done: list[Concepts] = []
    pictures, asked = [], []
    for image in images:
        if not image.problem:
            try:
                pictures.append(picture(image))
                asked.append(image)
            except ImageError as error:
                image = replace(image, problem=f"{UNREADABLE}: {_brief(error)}")
        done.append(image)
    names = [[*image.negatives, *(image.positives if positives else ())] for image in asked]
    verified: dict[str, Concepts] = {}
    for image, scores in zip(asked, _each(verifier, pictures, names), strict=True):
        if isinstance(scores, str):
            verified[image.id] = replace(image, problem=f"{NOT_ASKED}: {scores}")
        else:
            verified[image.id] = _judged(verifier, image, scores, positives)
    return [verified.get(image.id, image) for image in done]


def _judged(verifier: Verifier, image: Concepts, scores: Mapping[str, float], positives: bool) -> Concepts:
    absent = tuple(name for name in image.negatives if not verifier.present(scores[name]))
    shown = image.positives
    if positives:
        shown = tuple(name for name in image.positives if verifier.present(scores[name]))
    notes = ["absent object detected, dropped"] * (len(image.negatives) - len(absent))
    notes += ["present object not detected, dropped"] * (len(image.positives) - len(shown))
    return replace(image.noting(*notes), negatives=absent, positives=shown)


def _each(
    verifier: Verifier, pictures: Sequence[np.ndarray], names: Sequence[Sequence[str]]
) -> list[dict[str, float] | str]:
    """All together, or, when that fails, one by one, so that one odd image costs itself only."""
    return isolated(
        lambda rows: verifier.scores([pictures[i] for i in rows], [names[i] for i in rows]),
        range(len(pictures)),
        str,
    )


def _brief(error: ImageError) -> str:
    """The reason without the path."""
    return str(error).rpartition(": ")[2]
