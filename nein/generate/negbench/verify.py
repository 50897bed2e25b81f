"""What a detector says about the objects of an image, and what that changes.

Source: filter_negative_objects.py of the released code of NegBench @ 2ac009b (OWL-ViT, "A photo of {object}",
0.1). Its rules are protocol "paper", ours "fixed":

    an object is there       paper: where a box has it as the best of those asked about together;
                             fixed: where a box scores high enough for it
    unreadable images        paper: keep their absent objects, unverified; fixed: unusable, counted
    fewer absent than        paper: kept unverified (the script looks at lists of five); fixed: verified
    wanted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.sentences import Protocol
from nein.engine.errors import UserError
from nein.engine.images import ImageError
from nein.loading.isolation import isolated

UNREADABLE = "unreadable image"
NOT_ASKED = "the detector failed"
UNVERIFIED = "not verified, as in the released code"


@dataclass(frozen=True)
class Verifier:
    """A detector and how it is read: `{object}` of the query is the name; wanted: absent objects that an
    image should have (protocol "paper")."""

    detector: Any
    query: str
    threshold: float
    protocol: Protocol = "fixed"
    wanted: int = 0

    def scores(self, images: Sequence[np.ndarray], names: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        """Highest score per name, per image. Raises UserError where "paper" needs labels that the detector
        lacks."""
        labels = [[self.query.format(object=name) for name in row] for row in names]
        detections = self.detector.detect(images, labels, self.threshold)
        return [
            {name: self._score(seen[label]) for name, label in zip(row, texts, strict=True)}
            for row, texts, seen in zip(names, labels, detections, strict=True)
        ]

    def _score(self, detection: Any) -> float:
        if self.protocol == "fixed":
            return float(detection.score)
        if detection.named is None:
            raise UserError(
                "The detector does not say which label a box has, by which --protocol paper goes; take "
                "OWL-ViT or OWLv2 as --detector, or --protocol fixed."
            )
        return float(detection.named)

    def present(self, score: float) -> bool:
        return score >= self.threshold


def verify(
    verifier: Verifier,
    images: Sequence[Concepts],
    picture: Callable[[Concepts], np.ndarray],
    *,
    positives: bool,
) -> list[Concepts]:
    """The images without the absent objects that are there after all and, with `positives`, without the
    present ones that are not found. picture: decodes an image; an ImageError makes it unusable."""
    done: list[Concepts] = []
    pictures, asked = [], []
    for image in images:
        as_released = verifier.protocol == "paper"
        if as_released and not image.problem and len(image.negatives) != verifier.wanted:
            image = image.noting(f"absent objects not as many as wanted, {UNVERIFIED}")
        elif not image.problem:
            try:
                pictures.append(picture(image))
                asked.append(image)
            except ImageError as error:
                why = f"{UNREADABLE}: {str(error).rpartition(': ')[2]}"  # without the path
                image = image.noting(f"{why}, {UNVERIFIED}") if as_released else replace(image, problem=why)
        done.append(image)
    # By paper those asked about together compete, and the present ones would win: they are asked apart.
    questions: list[list[tuple[str, ...]]] = [[image.negatives] for image in asked]
    if positives:
        both = [(image.negatives, image.positives) for image in asked]
        apart = verifier.protocol == "paper"
        questions = [list(names) if apart else [(*names[0], *names[1])] for names in both]

    # All images together or, where that fails, one by one, so that one odd image costs itself only.
    def answered(names: Sequence[str]) -> list[Any]:
        return isolated(
            lambda rows: verifier.scores([pictures[i] for i in rows], [names[i] for i in rows]),
            range(len(pictures)),
            str,
        )

    answers = [answered(names) for names in zip(*questions, strict=True)]
    verified: dict[str, Concepts] = {}
    for image, *rows in zip(asked, *answers, strict=True):
        failure = next((row for row in rows if isinstance(row, str)), None)
        if failure is not None:
            verified[image.id] = replace(image, problem=f"{NOT_ASKED}: {failure}")
        else:
            scores = {name: score for row in rows if isinstance(row, dict) for name, score in row.items()}
            absent = tuple(name for name in image.negatives if not verifier.present(scores[name]))
            shown = tuple(n for n in image.positives if not positives or verifier.present(scores[n]))
            notes = ["absent object detected, dropped"] * (len(image.negatives) - len(absent))
            notes += ["present object not detected, dropped"] * (len(image.positives) - len(shown))
            verified[image.id] = replace(image.noting(*notes), negatives=absent, positives=shown)
    return [verified.get(image.id, image) for image in done]
