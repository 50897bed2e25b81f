"""`nein check`: tests whether an editor or a judge keeps its contract, on a few drawn images.

nein check EDITOR             a name, a folder, a hub id, plugin of `nein.editors`, or module:attribute
nein check --kind vqa REF     a reference as `--models.vqa` takes it, or module:attribute
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nein.editors import EditorError, EditRequest, EditResult
from nein.engine import images, machine
from nein.judges.config import CheckConfig
from nein.loading.errors import MODEL_ERRORS, first_line, reason
from nein.metrics.base import MetricError
from nein.metrics.judges.base import find_template, parse_yes_no
from nein.nano.data import source_scene
from nein.nano.scenes import render

#: Exceptions that count as a failed check; any other ends the command.
FLAWS = (*MODEL_ERRORS, AssertionError, TypeError, AttributeError, KeyError)
SIZES = ((1, 1), (17, 64), (64, 33), (127, 65))  # (width, height)
INSTRUCTIONS = ("Remove the cat.", "The image doesn't have any dog.", "Add a clock.")
#: Method of `Checks` -> what it shows, in this order.
TITLES = {
    "ask_all": "answers everything, in order",
    "repeat": "answers the same again",
    "ask_singly": "answers the same one at a time",
    "reverse": "answers the same in another order",
    "keep_inputs": "leaves its input alone",
    "try_sizes": "takes images of any size",
    "refuse": "refuses bad input with a reason, and only that",
    "ask_nothing": "takes no input at all",
    "describe": "describes itself",
}


# --- the command -----------------------------------------------------------------------------
def run(options: CheckConfig) -> int:
    """Prints what passed and what failed; returns the exit code, 1 if a check failed. Raises UserError."""
    from nein.models import editor_choice, judges
    from nein.models.cached import Services

    device = machine.Processes().device(options.device)
    settings: dict[str, Any] = {"device": device, "dtype": options.dtype}
    services = Services.create(options, None)  # no cache: every answer is asked anew
    if on_cpu := device == "cpu":
        machine.set_threads()
    if options.kind == "editor":
        [choice] = editor_choice.resolve_editors([options.subject], "nano", options.editor_options)
        try:
            subject = choice.load(batch_size=4, services=lambda: services, **settings)
        except EditorError as error:
            raise EditorError(f"{error}; if it is a judge, say --kind vqa or --kind ovd") from error
    else:
        subject = judges.load(options.kind, options.subject, services=services, **settings)
    failed = 0
    checks = CHECKS[options.kind](subject, options.number)
    for title, passed, detail in checks.run(on_cpu, options.threads):
        failed += not passed
        print(f"{'pass' if passed else 'FAIL'}  {title}{': ' if detail else ''}{detail}", flush=True)
    print(f"{options.subject}: {f'{failed} checks failed' if failed else 'all checks passed'}")
    return 1 if failed else 0


# --- checks of all subjects ------------------------------------------------------------------
class Failed(AssertionError):
    """Raised by a failed check; the message says what the subject did."""


def draw_scene(seed: int, size: tuple[int, int]) -> np.ndarray:
    """A drawn image, cut or repeated to (width, height): (height, width, 3) uint8."""
    tile = np.asarray(render(source_scene("dev", seed)))  # (64, 64, 3) uint8
    rows, columns = np.arange(size[1]) % tile.shape[0], np.arange(size[0]) % tile.shape[1]
    return np.ascontiguousarray(tile[rows][:, columns])


class Checks:
    """Checks of editors and judges alike: methods that return a detail to print, or raise an exception."""

    # What a subclass defines, with a method `refuse`, the check of bad input.
    tolerances: tuple[float, float]  # largest distance of two answers: asked again, and in another batch
    make_input: Callable[..., Any]  # seed and size -> an input, with its `image`
    answer: Callable[..., Any]  # inputs -> the subject's answers
    summarize: Callable[..., str]  # inputs, answers -> a summary; raises Failed for a wrong number or form
    measure: Callable[..., float]  # two answers to one input -> their distance

    def __init__(self, subject: Any, number: int = 6) -> None:
        self.subject = subject
        self.inputs = [self.make_input(seed) for seed in range(number)]
        self.first: list[Any] = []  # the answers to the inputs, once `ask_all` has asked

    def run(self, on_cpu: bool = False, threads: int | None = None) -> Iterator[tuple[str, bool, str]]:
        """Yields (title, whether it passed, detail) per check; an exception is a failure with its reason."""
        others = [method for method in TITLES if method != "ask_all"]
        for methods in (["ask_all"], others):  # the others compare their answers with its answers
            for method, (passed, detail) in machine.map_parallel(self._try, methods, on_cpu, threads):
                yield TITLES[method], passed, detail

    def _try(self, method: str) -> tuple[bool, str]:
        if method != "ask_all" and not self.first:
            return False, "not tried: there was no first answer"
        try:
            return True, getattr(self, method)()
        except FLAWS as error:
            return False, first_line(error) if isinstance(error, Failed) else reason(error)

    def ask_all(self) -> str:
        start = time.perf_counter()
        self.first = self.answer(self.inputs)
        seconds = (time.perf_counter() - start) / len(self.inputs)
        return f"{self.summarize(self.inputs, self.first)}, {seconds:.2f} s each"

    def compare(self, first: Sequence[Any], second: Sequence[Any], tolerance: float) -> str:
        worst = max(self.measure(a, b) for a, b in zip(first, second, strict=True))
        if worst > tolerance:
            raise Failed(f"answers differ by up to {worst:.4g}")
        return f"largest difference {worst:.1g}"

    def repeat(self) -> str:
        return self.compare(self.first, self.answer(self.inputs), self.tolerances[0])

    def ask_singly(self) -> str:
        return self.compare(self.first, [self.answer([item])[0] for item in self.inputs], self.tolerances[1])

    def reverse(self) -> str:
        return self.compare(self.first, self.answer(self.inputs[::-1])[::-1], self.tolerances[1])

    def keep_inputs(self) -> str:
        before = [item.image.copy() for item in self.inputs]
        self.answer(self.inputs)
        if not all((a == b.image).all() for a, b in zip(before, self.inputs, strict=True)):
            raise Failed("an input image was changed")
        return ""

    def try_sizes(self) -> str:
        inputs = [self.make_input(seed, size) for seed, size in enumerate(SIZES)]
        self.summarize(inputs, self.answer(inputs))
        return ", ".join(f"{width}x{height}" for width, height in SIZES)

    def ask_nothing(self) -> str:
        if len(self.answer([])):
            raise Failed("nothing was asked, yet there are answers")
        return ""

    def describe(self) -> str:
        facts = self.subject.describe()
        mark = self.subject.fingerprint
        if json.dumps(facts, sort_keys=True) != json.dumps(self.subject.describe(), sort_keys=True):
            raise Failed("describe() says something else the second time")
        if not isinstance(mark, str) or len(mark) < 8 or mark != self.subject.fingerprint:
            raise Failed(f"the fingerprint must be a fixed string of 8 characters or more, not {mark!r}")
        return f"{len(facts)} facts"


# --- editors, judges, detectors --------------------------------------------------------------
class EditorChecks(Checks):
    tolerances = (0, 1)  # gray levels

    def make_input(self, seed: int, size: tuple[int, int] = (64, 64)) -> EditRequest:
        return EditRequest(f"s{seed}", draw_scene(seed, size), INSTRUCTIONS[seed % 3], 1000 + seed)

    def answer(self, inputs: list[EditRequest]) -> list[EditResult]:
        return self.subject.edit(inputs)

    def summarize(self, inputs: list[EditRequest], answers: list[EditResult]) -> str:
        if [result.id for result in answers] != [request.id for request in inputs]:
            raise Failed(f"asked for {[r.id for r in inputs]}, got {[r.id for r in answers]}")
        for result in answers:
            if result.image is None and not result.error:
                raise Failed(f"{result.id} has neither an image nor an error")
        edited = [result.image for result in answers if result.image is not None]
        if not edited:
            raise Failed(f"every edit failed: {answers[0].error}")
        sizes = {images.check(image).shape[:2] for image in edited}
        return f"{len(edited)} of {len(inputs)} edited, uint8 RGB, heights and widths {sorted(sizes)}"

    def measure(self, first: EditResult, second: EditResult) -> float:
        if first.image is None or second.image is None:
            if first.image is not second.image:
                raise Failed(f"{first.id} failed only one time: {first.error or second.error}")
            return 0
        if first.image.shape != second.image.shape:
            raise Failed(f"{first.id} is {first.image.shape} one time and {second.image.shape} the other")
        return int(np.abs(first.image.astype(int) - second.image.astype(int)).max())

    def refuse(self) -> str:
        first, last = self.inputs[0], self.inputs[-1]
        gray, floats = np.zeros((32, 32), np.uint8), np.zeros((32, 32, 3), np.float32)  # both refused
        bad = [replace(first, image=gray), replace(first, image=floats), replace(first, instruction="")]
        before, *refused, after = self.answer([first, *bad, last])  # good ones are answered among bad ones
        if len(refused) != 3 or any(result.image is not None or not result.error for result in refused):
            raise Failed("a gray image, a float image or an empty instruction was not refused with a reason")
        return self.compare([self.first[0], self.first[-1]], [before, after], self.tolerances[1])


class Question(NamedTuple):
    image: np.ndarray  # (H, W, 3) uint8
    nouns: list[str]  # whose presence is asked


class JudgeChecks(Checks):
    tolerances = (1e-3, 1e-3)  # of soft scores

    def make_input(self, seed: int, size: tuple[int, int] = (64, 64)) -> Question:
        return Question(draw_scene(seed, size), ["cat", "dog", "traffic light"][: 1 + seed % 3])

    def answer(self, inputs: list[Question]) -> list[list[Any]]:
        ask = find_template(self.subject.template).ask_presence
        prompts = [[ask(noun) for noun in question.nouns] for question in inputs]
        return self.subject.ask([question.image for question in inputs], prompts)

    def summarize(self, inputs: list[Question], answers: list[list[Any]]) -> str:
        asked, answered = [len(question.nouns) for question in inputs], [len(row) for row in answers]
        if asked != answered:
            raise Failed(f"{asked} questions, {answered} answers")
        return self.summarize_singly(list(itertools.chain(*answers)))

    def summarize_singly(self, answers: list[Any]) -> str:
        for answer in answers:
            if not isinstance(answer.text, str):
                raise Failed(f"an answer needs a text, not {answer.text!r}")
            if not all(p is None or 0 <= p <= 1.0001 for p in (answer.p_yes, answer.p_no)):
                raise Failed(f"P(yes) and P(no) must lie in [0, 1] or be None, not {answer}")
        clear = sum(parse_yes_no(answer.text) is not None for answer in answers)
        if not clear:
            raise Failed(f"no answer is yes or no, for instance {answers[0].text!r}")
        return f"{clear} of {len(answers)} answers begin with yes or no"

    def measure(self, first: list[Any], second: list[Any]) -> float:
        distances = [0.0]  # of soft scores
        for a, b in zip(first, second, strict=True):
            if getattr(a, "text", None) != getattr(b, "text", None):
                raise Failed(f"{a.text!r} one time and {b.text!r} the other")
            for name in ("score", "p_yes", "p_no"):
                distances.append(abs((getattr(a, name, 0) or 0) - (getattr(b, name, 0) or 0)))
        return max(distances)

    def ask_nothing(self) -> str:
        if any(self.answer([self.inputs[0]._replace(nouns=[])])):
            raise Failed("no question was asked about an image, yet there are answers")
        return super().ask_nothing()

    def refuse(self) -> str:
        try:
            self.answer([Question(np.zeros((8, 8), np.uint8), ["cat"])])
        except (MetricError, ValueError) as error:
            return str(error)
        raise Failed("an image of shape (8, 8) was taken")


class DetectorChecks(JudgeChecks):
    """Checks of judges whose answers are boxes, not texts."""

    def answer(self, inputs: list[Question]) -> list[list[Any]]:
        nouns = [question.nouns for question in inputs]
        detections = self.subject.detect([question.image for question in inputs], nouns)
        return [[boxes[noun] for noun in row] for boxes, row in zip(detections, nouns, strict=True)]

    def summarize_singly(self, answers: list[Any]) -> str:
        for box in answers:
            if not 0 <= box.score <= 1 or box.count < 0 or len(box.box) != 4:
                raise Failed(f"a detection needs a score in [0, 1], a count and a box of four, not {box}")
        return f"{len(answers)} detections"


CHECKS = {"editor": EditorChecks, "vqa": JudgeChecks, "ovd": DetectorChecks}  # by kind of subject
