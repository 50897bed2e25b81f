"""Judges that say what they are told (`tests.rehearsal:no`), and an editor that fails (`--editor flaky`)."""

import hashlib

import numpy as np

from nein.editors import EditResult
from nein.editors.base import Identity
from nein.loading.service import NoAnswer
from nein.metrics.base import fingerprint
from nein.metrics.chat import Chat, Completion
from nein.metrics.judges.base import Answer, Detection, check_batch


class Scripted:
    """What says `rule(image, text)`; other rules need other names. asked: counts the texts answered."""

    kind = ""

    def __init__(self, rule, name="rule"):
        self.rule, self.name, self.asked = rule, name, 0
        self.fingerprint = fingerprint(self.describe())

    def describe(self):
        return {"kind": self.kind, "class": "scripted", "name": self.name}

    def _each(self, images, texts, what):
        check_batch(images, texts, what)
        self.asked += sum(map(len, texts))
        return [[self.rule(image, text) for text in row] for image, row in zip(images, texts, strict=True)]


class ScriptedJudge(Scripted):
    kind, template = "vqa", "plain"

    def describe(self):
        return {**super().describe(), "template": self.template}

    def ask(self, images, questions):
        found = self._each(images, questions, "questions")
        return [[Answer(text.strip(), len(text.split())) for text in row] for row in found]


class ScriptedDetector(Scripted):
    kind = "ovd"

    def detect(self, images, labels, threshold=0.1):
        boxes = [(0.0, 0.0, float(image.shape[1]), float(image.shape[0])) for image in images]
        return [
            {name: Detection(float(s), int(s > threshold), box) for name, s in zip(row, scores, strict=True)}
            for row, scores, box in zip(labels, self._each(images, labels, "labels"), boxes, strict=True)
        ]


class ScriptedMatcher(Scripted):
    kind = "itm"

    def match(self, images, texts, head="itm"):
        return [np.array(row, dtype=np.float64) for row in self._each(images, texts, "texts")]


class ScriptedChat(Chat):
    """Says `rule(message)`, or why there is no answer. asked: counts the messages."""

    def __init__(self, rule):
        self.rule, self.asked = rule, 0

    def describe(self):
        return {"model": "scripted"}

    def stream(self, messages, sampling):
        for index, message in enumerate(messages):
            self.asked += 1
            try:
                yield index, Completion(self.rule(message))
            except NoAnswer as error:
                yield index, Completion(error=error)


class Flaky(Identity):
    """Copies pictures; fails on `fail_ids` and every `fail_every`-th seed, crashes after `crash_after`."""

    def __init__(self, *, name="flaky", fail_ids=(), fail_every=3, crash_after=None, **machine):
        super().__init__(name=name)
        self.fail_ids, self.fail_every, self.crash_after = frozenset(fail_ids), fail_every, crash_after
        self._attempted = 0

    def describe(self):
        return {**super().describe(), "fail_ids": sorted(self.fail_ids), "fail_every": self.fail_every}

    def edit(self, requests):
        return [self._edit_one(request) for request in requests]

    def _edit_one(self, request):
        if self.crash_after is not None and self._attempted >= self.crash_after:
            raise RuntimeError(f"editor 'flaky' stops after {self.crash_after} samples, as it was told to")
        self._attempted += 1
        if request.id in self.fail_ids:
            return EditResult(request.id, None, f"editor 'flaky' was told to fail on sample {request.id!r}")
        if self.fail_every and request.seed % self.fail_every == 0:
            reason = f"editor 'flaky' fails on seeds divisible by {self.fail_every}"
            return EditResult(request.id, None, reason)
        return super().edit([request])[0]


def scripted(rule, name):
    """What `module:attribute` names: makes the scripted judge of the kind asked for."""

    def load(*, kind, device, dtype, **options):
        return {"vqa": ScriptedJudge, "ovd": ScriptedDetector, "itm": ScriptedMatcher}[kind](rule, name)

    return load


def always(value):
    return scripted(lambda _image, _text: value, f"always {value}")


def _varied(picture, prompt):
    """An answer that depends on picture and question: mostly yes, sometimes no, sometimes neither."""
    number = hashlib.sha256(picture.tobytes() + prompt.encode()).digest()[0]
    return ("Yes", "Yes", "Yes", "yes.", "Yes", "No", "No.", "It depends")[number % 8]


def _fit(picture, text):
    """How well a sentence fits, by picture and sentence: 0 to 1."""
    return hashlib.sha256(picture.tobytes() + text.encode()).digest()[0] / 255


no, yes, lower_case_no, b = always("No"), always("Yes"), always("no"), always("B")
score_005, score_009, score_01 = always(0.05), always(0.09), always(0.1)
score_025, score_05 = always(0.25), always(0.5)
varied, fits = scripted(_varied, "varied"), scripted(_fit, "fits")


def paint(prompt, seed):
    """An image that depends on prompt and seed, of an editor that is a function."""
    return np.full((8, 8, 3), hashlib.sha256(f"{prompt}{seed}".encode()).digest()[0], np.uint8)
