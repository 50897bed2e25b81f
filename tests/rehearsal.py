"""Judges that say what they are told, by reference: `--models.vqa tests.rehearsal:no`; and an editor that
fails, by entry point (`tests/plugins`): `--editor flaky`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nein.editors import EditRequest, EditResult
from nein.editors.basic import Identity
from nein.metrics.base import fingerprint, parse_yes_no
from nein.metrics.judges.base import Answer, Detection, check_batch

Rule = Callable[[np.ndarray, str], Any]
Images = Sequence[np.ndarray]
Texts = Sequence[Sequence[str]]


class Scripted:
    """What says `rule(image, text)`; errors of the rule pass through.

    name   Goes into the fingerprint; give different rules different names.
    asked  Counts the texts answered.
    """

    kind = ""

    def __init__(self, rule: Rule, name: str = "rule") -> None:
        self.rule, self.name, self.asked = rule, name, 0
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Says that no model is behind the answers."""
        return {"kind": self.kind, "class": "scripted", "name": self.name}

    def _each(self, images: Images, texts: Texts, what: str) -> list[list[Any]]:
        check_batch(images, texts, what)
        self.asked += sum(map(len, texts))
        return [[self.rule(image, text) for text in row] for image, row in zip(images, texts, strict=True)]


class ScriptedJudge(Scripted):
    kind, template = "vqa", "plain"

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "template": self.template}

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        found = self._each(images, questions, "questions")
        return [[Answer(text.strip(), len(text.split())) for text in row] for row in found]


class ScriptedDetector(Scripted):
    """Scores in [0, 1]; the box is the whole picture."""

    kind = "ovd"

    def detect(self, images: Images, labels: Texts, threshold: float = 0.1) -> list[dict[str, Detection]]:
        boxes = [(0.0, 0.0, float(image.shape[1]), float(image.shape[0])) for image in images]
        return [
            {
                label: Detection(float(s), int(s > threshold), box)
                for label, s in zip(row, scores, strict=True)
            }
            for row, scores, box in zip(labels, self._each(images, labels, "labels"), boxes, strict=True)
        ]


class ScriptedMatcher(Scripted):
    kind = "itm"

    def match(self, images: Images, texts: Texts, head: str = "itm") -> list[np.ndarray]:
        return [np.array(row, dtype=np.float64) for row in self._each(images, texts, "texts")]


class Weakened:
    """Turns a share of another judge's verdicts round: `miss` of what it sees, `invent` of what it does not.

    Which ones depends on the picture and the question alone (SHA-256), so the same question gets the same
    answer however often and in whatever company it is asked.
    """

    def __init__(self, judge: Any, miss: float, invent: float) -> None:
        self.judge, self.miss, self.invent = judge, miss, invent
        self.fingerprint = fingerprint(self.describe())

    @property
    def template(self) -> str:
        return self.judge.template

    def describe(self) -> dict[str, Any]:
        return {**self.judge.describe(), "weakened": {"miss": self.miss, "invent": self.invent}}

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """The judge's answers, some of them turned round; an answer that is neither yes nor no stays."""
        found = self.judge.ask(images, questions)
        return [
            [self._answer(image, question, answer) for question, answer in zip(row, answers, strict=True)]
            for image, row, answers in zip(images, questions, found, strict=True)
        ]

    def detect(self, images: Images, labels: Texts, threshold: float = 0.1) -> list[dict[str, Detection]]:
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


class Flaky(Identity):
    """Returns a copy of each picture, except for the samples it fails on.

    fail_ids     These ids get an error result.
    fail_every   So does every sample whose seed is divisible by this number; 0 switches the rule off.
    crash_after  Raise RuntimeError out of `edit` once this many samples were tried; None: never.
    """

    def __init__(
        self,
        *,
        name: str = "flaky",
        fail_ids: Iterable[str] = (),
        fail_every: int = 3,
        crash_after: int | None = None,
        **machine: Any,
    ) -> None:
        super().__init__(name=name)
        self.fail_ids, self.fail_every, self.crash_after = frozenset(fail_ids), fail_every, crash_after
        self._attempted = 0

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "fail_ids": sorted(self.fail_ids), "fail_every": self.fail_every}

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        return [self._edit_one(request) for request in requests]

    def _edit_one(self, request: EditRequest) -> EditResult:
        if self.crash_after is not None and self._attempted >= self.crash_after:
            raise RuntimeError(f"editor 'flaky' stops after {self.crash_after} samples, as it was told to")
        self._attempted += 1
        if request.id in self.fail_ids:
            return EditResult(request.id, None, f"editor 'flaky' was told to fail on sample {request.id!r}")
        if self.fail_every and request.seed % self.fail_every == 0:
            reason = f"editor 'flaky' fails on seeds divisible by {self.fail_every}"
            return EditResult(request.id, None, reason)
        return super().edit([request])[0]


# --- by reference --------------------------------------------------------------------------------


def scripted(rule: Rule, name: str) -> Callable[..., Any]:
    """What `module:attribute` names: makes the scripted judge of the kind asked for."""

    def load(*, kind: str, device: str, dtype: str, **options: Any) -> Any:
        return {"vqa": ScriptedJudge, "ovd": ScriptedDetector, "itm": ScriptedMatcher}[kind](rule, name)

    return load


def always(value: str | float) -> Callable[..., Any]:
    """A judge that always says the same."""
    return scripted(lambda _image, _text: value, f"always {value}")


def _varied(picture: np.ndarray, prompt: str) -> str:
    """An answer that depends on picture and question: mostly yes, sometimes no, sometimes neither."""
    number = hashlib.sha256(picture.tobytes() + prompt.encode()).digest()[0]
    return ("Yes", "Yes", "Yes", "yes.", "Yes", "No", "No.", "It depends")[number % 8]


def _fit(picture: np.ndarray, text: str) -> float:
    """How well a sentence fits, by picture and sentence: 0 to 1."""
    return hashlib.sha256(picture.tobytes() + text.encode()).digest()[0] / 255


no, yes, lower_case_no, b = always("No"), always("Yes"), always("no"), always("B")
score_005, score_009, score_01 = always(0.05), always(0.09), always(0.1)
score_025, score_05 = always(0.25), always(0.5)
varied, fits = scripted(_varied, "varied"), scripted(_fit, "fits")
