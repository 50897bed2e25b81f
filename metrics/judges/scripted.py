"""Judges that say what they are told, for tests and rehearsals. Nothing chooses them by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from metrics.base import MetricError, choose
from metrics.judges.base import Answer, Detection, check_batch
from metrics.loading import fingerprint


class ScriptedJudge:
    """A VQA judge whose answer is `rule(image, prompt)`.

    name: goes into the fingerprint; give different rules different names. `asked` counts the prompts
    answered.
    """

    template = "plain"

    def __init__(self, rule: Callable[[np.ndarray, str], str], name: str = "rule") -> None:
        self.rule = rule
        self.name = name
        self.asked = 0
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Says that no model is behind the answers."""
        return {"kind": "vqa", "class": "scripted", "name": self.name, "template": self.template}

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """`rule` applied to every prompt; errors of the rule pass through."""
        check_batch(images, questions, "questions")
        self.asked += sum(map(len, questions))
        return [
            [_answer(self.rule(image, prompt)) for prompt in row]
            for image, row in zip(images, questions, strict=True)
        ]


class ScriptedDetector:
    """A detector whose score is `rule(image, label)`, in [0, 1]; the box is the whole picture."""

    def __init__(self, rule: Callable[[np.ndarray, str], float], name: str = "rule") -> None:
        self.rule = rule
        self.name = name
        self.asked = 0
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Says that no model is behind the scores."""
        return {"kind": "ovd", "class": "scripted", "name": self.name}

    def detect(
        self, images: Sequence[np.ndarray], labels: Sequence[Sequence[str]], threshold: float = 0.1
    ) -> list[dict[str, Detection]]:
        """`rule` applied to every label; errors of the rule pass through."""
        check_batch(images, labels, "labels")
        self.asked += sum(map(len, labels))
        result: list[dict[str, Detection]] = []
        for image, row in zip(images, labels, strict=True):
            height, width = image.shape[:2]
            scores = {label: float(self.rule(image, label)) for label in dict.fromkeys(row)}
            box = (0.0, 0.0, float(width), float(height))
            result.append({label: Detection(s, int(s > threshold), box) for label, s in scores.items()})
        return result


class ScriptedMatcher:
    """A matcher whose value is `rule(image, text)`."""

    def __init__(self, rule: Callable[[np.ndarray, str], float], name: str = "rule") -> None:
        self.rule = rule
        self.name = name
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Says that no model is behind the values."""
        return {"kind": "itm", "class": "scripted", "name": self.name}

    def match(
        self,
        images: Sequence[np.ndarray],
        texts: Sequence[Sequence[str]],
        head: Literal["itc", "itm"] = "itm",
    ) -> list[np.ndarray]:
        """`rule` applied to every text."""
        check_batch(images, texts, "texts")
        return [
            np.array([self.rule(image, text) for text in row], dtype=np.float64)
            for image, row in zip(images, texts, strict=True)
        ]


def _answer(text: str) -> Answer:
    return Answer(text.strip(), len(text.split()))


def load(
    path_or_id: str, *, kind: str, revision: str | None, device: str, dtype: str, **options: Any
) -> ScriptedJudge | ScriptedDetector | ScriptedMatcher:
    """ "scripted:TEXT" always answers TEXT (vqa); "scripted:NUMBER" always gives that score (ovd, itm)."""
    choose("kind of scripted judge", kind, ("vqa", "ovd", "itm"))
    value = path_or_id.removeprefix("scripted:")
    if kind == "vqa":
        return ScriptedJudge(lambda _image, _prompt: value, name=f"always {value}")
    try:
        score = float(value)
    except ValueError as error:
        raise MetricError(f"'{path_or_id}': a scripted {kind} judge needs a number from 0 to 1.") from error
    if not 0 <= score <= 1:
        raise MetricError(f"'{path_or_id}': the score must be from 0 to 1.")
    cls = ScriptedDetector if kind == "ovd" else ScriptedMatcher
    return cls(lambda _image, _label: score, name=f"always {score}")
