"""A judge made worse on purpose, at known rates: for rehearsing calibration and correction.

Reference: `weakened:MISS,INVENT:REFERENCE`. Nothing chooses it by itself, and it says what it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.answers import parse_yes_no
from metrics.base import MetricError
from metrics.judges.base import Answer, Detection
from metrics.loading import fingerprint


class Weakened:
    """Turns a share of another judge's verdicts round: `miss` of what it sees, `invent` of what it does not.

    Which ones depends on the picture and the question alone (SHA-256), so the same question gets the same
    answer however often and in whatever company it is asked.
    """

    def __init__(self, judge: Any, miss: float, invent: float) -> None:
        if not (0 <= miss <= 1 and 0 <= invent <= 1):
            raise MetricError(f"A judge is weakened by shares from 0 to 1, not {miss} and {invent}.")
        self.judge = judge
        self.miss = miss
        self.invent = invent
        self.fingerprint = fingerprint(self.describe())

    @property
    def template(self) -> str:
        """Of the judge behind it."""
        return self.judge.template

    def describe(self) -> dict[str, Any]:
        """The judge's own description, and how it was weakened."""
        return {**self.judge.describe(), "weakened": {"miss": self.miss, "invent": self.invent}}

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """The judge's answers, some of them turned round; an answer that is neither yes nor no stays."""
        found = self.judge.ask(images, questions)
        return [
            [self._answer(image, question, answer) for question, answer in zip(row, answers, strict=True)]
            for image, row, answers in zip(images, questions, found, strict=True)
        ]

    def detect(
        self, images: Sequence[np.ndarray], labels: Sequence[Sequence[str]], threshold: float = 0.1
    ) -> list[dict[str, Detection]]:
        """The judge's detections, some of them moved to the other side of the threshold."""
        found = self.judge.detect(images, labels, threshold)
        return [
            {label: self._detection(image, label, one, threshold) for label, one in row.items()}
            for image, row in zip(images, found, strict=True)
        ]

    def _answer(self, image: np.ndarray, question: str, answer: Answer) -> Answer:
        seen = parse_yes_no(answer.text)
        if seen is None or not self._flips(image, question, seen):
            return answer
        return Answer("No" if seen else "Yes", 1, answer.p_no, answer.p_yes)

    def _detection(self, image: np.ndarray, label: str, found: Detection, threshold: float) -> Detection:
        seen = found.score > threshold
        if not self._flips(image, label, seen):
            return found
        return Detection(threshold / 2 if seen else (1 + threshold) / 2, int(not seen), found.box)

    def _flips(self, image: np.ndarray, question: str, seen: bool) -> bool:
        digest = hashlib.sha256(np.ascontiguousarray(image).tobytes() + question.encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < (self.miss if seen else self.invent)


def load(
    path_or_id: str, *, kind: str, revision: str | None, device: str, dtype: str, **options: Any
) -> Weakened:
    """Load the judge behind `weakened:MISS,INVENT:REFERENCE` and weaken it."""
    import metrics

    rates, colon, reference = path_or_id.removeprefix("weakened:").partition(":")
    try:
        miss, invent = (float(part) for part in rates.split(","))
    except ValueError:
        colon = ""
    if not colon or not reference:
        raise MetricError(
            f"'{path_or_id}': expected weakened:MISS,INVENT:REFERENCE, for example weakened:0.2,0.1:..."
        )
    judge = metrics.load_judge(kind, reference, revision=revision, device=device, dtype=dtype, **options)
    return Weakened(judge, miss, invent)
