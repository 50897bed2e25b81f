"""The command `nein check`: does an editor or a judge keep its contract? A plain list, passed or failed.

nein check EDITOR             a name, a folder, a hub id, plugin of `nein.editors`, or module:attribute
nein check --kind vqa REF     a reference as `--models.vqa` takes it, or module:attribute
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nein.engine import images
from nein.judges.config import CheckConfig
from nein.loading.errors import MODEL_ERRORS
from nein.metrics.base import MetricError, parse_yes_no
from nein.nano.data import source_scene
from nein.nano.scenes import render

FLAWS = (*MODEL_ERRORS, AssertionError, TypeError, AttributeError, KeyError)
SIZES = ((1, 1), (17, 64), (64, 33), (127, 65))  # (width, height)
INSTRUCTIONS = (
    "Remove the cat.", "The image doesn't have any dog.", "No apple in the image.", "Add a clock.",
)  # fmt: skip
Check = tuple[str, Callable[[], str]]


class Outcome(NamedTuple):
    """One line of the list. passed: None for something only reported. reason: what was seen."""

    name: str
    passed: bool | None
    reason: str


class Failed(AssertionError):
    """A check that did not hold; the message says what was seen."""


def run(options: CheckConfig) -> int:
    """Prints what passed and what failed; 0 when everything passes, 1 otherwise. Raises UserError."""
    from nein.engine.processes import Processes
    from nein.models import editor_choice, judges
    from nein.models.cached import Services

    how: dict[str, Any] = {"device": Processes().device(options.device), "dtype": options.dtype}
    services = Services.of(options, None)
    if options.kind != "editor":
        subject = judges.load(options.kind, options.subject, services=services, **how)
        outcomes = check_judge(options.kind, subject, options.number)
    else:
        [choice] = editor_choice.resolve_editors([options.subject], "nano", options.editor_options)
        subject = choice.load(batch_size=4, services=lambda: services, **how)
        outcomes = check_editor(subject, options.number)
    failed = 0
    for name, passed, reason in outcomes:
        word = {True: "pass", False: "FAIL", None: "info"}[passed]
        failed += passed is False
        print(f"{word}  {name}{': ' if reason else ''}{reason}", flush=True)
    print(f"{options.subject}: {f'{failed} checks failed' if failed else 'all checks passed'}")
    return 1 if failed else 0


def picture(seed: int, width: int = 64, height: int = 64) -> np.ndarray:
    """A scene of the nano world, cut or repeated to that size; (height, width, 3) uint8."""
    scene = np.asarray(render(source_scene("dev", seed)))
    rows, columns = np.arange(height) % scene.shape[0], np.arange(width) % scene.shape[1]
    return np.ascontiguousarray(scene[rows][:, columns])


def check_editor(editor: Any, number: int = 6) -> Iterator[Outcome]:
    """Runs every check; a check that raises has failed with that reason. `number`: samples to edit."""
    from nein.editors import EditRequest

    requests = [
        EditRequest(f"s{i}", picture(i), INSTRUCTIONS[i % len(INSTRUCTIONS)], 1000 + i) for i in range(number)
    ]
    results: list[Any] = []

    def contract() -> str:
        start = time.perf_counter()
        results.extend(editor.edit(requests))
        seconds = time.perf_counter() - start
        if [result.id for result in results] != [request.id for request in requests]:
            raise Failed(f"asked for {[r.id for r in requests]}, got {[r.id for r in results]}")
        failed = [result for result in results if result.image is None]
        if nothing := [result.id for result in failed if not result.error]:
            raise Failed(f"{nothing[0]} has neither a picture nor an error")
        if len(failed) == len(results):
            raise Failed(f"every edit failed: {failed[0].error}")
        return f"{len(results) - len(failed)} of {len(results)} edited, {seconds / number:.2f} s each"

    def pictures() -> str:
        shapes = {images.check(result.image).shape[:2] for result in results if result.image is not None}
        return f"uint8 RGB, heights and widths {sorted(shapes)}"

    def sizes() -> str:
        odd = [EditRequest(f"o{k}", picture(k, w, h), "Remove the cat.", k) for k, (w, h) in enumerate(SIZES)]
        for (w, h), result in zip(SIZES, editor.edit(odd), strict=True):
            if result.image is not None:
                images.check(result.image)
            elif not result.error:
                raise Failed(f"{w}x{h}: neither a picture nor an error")
        return ", ".join(f"{w}x{h}" for w, h in SIZES)

    def bad_input() -> str:
        bad = [
            EditRequest("grey", np.zeros((32, 32), np.uint8), "Remove the cat.", 1),
            EditRequest("float", np.zeros((32, 32, 3), np.float32), "Remove the cat.", 1),
            EditRequest("mute", picture(1), "", 1),
        ]
        answers = editor.edit([requests[0], *bad, requests[1]])
        if len(answers) != 5:
            raise Failed(f"5 requests, {len(answers)} results")
        if any(result.image is not None or not result.error for result in answers[1:4]):
            raise Failed(
                "a grey picture, a float picture or an empty instruction was not refused with a reason"
            )
        return _same_edits(results[:2], [answers[0], answers[4]], 1)

    def seeds() -> str:
        other = editor.edit([dataclasses.replace(request, seed=request.seed + 1) for request in requests])
        pairs = [(a.image, b.image) for a, b in zip(results, other, strict=True)]
        same = all(np.array_equal(a, b) for a, b in pairs if a is not None and b is not None)
        return f"another seed gives {'the same' if same else 'other'} pictures"

    again, untouched = "gives the same pictures", "leaves its input alone"
    yield from _run(
        [
            ("answers every request, in order", contract),
            ("gives uint8 RGB pictures", pictures),
            (f"{again} again", lambda: _same_edits(results, editor.edit(requests), 0)),
            (f"{again} one at a time (within 1/255)",
             lambda: _same_edits(results, [editor.edit([request])[0] for request in requests], 1)),
            (f"{again} in another order (within 1/255)",
             lambda: _same_edits(results, editor.edit(requests[::-1])[::-1], 1)),
            (untouched, lambda: _untouched([item.image for item in requests], lambda: editor.edit(requests))),
            ("takes pictures of any size", sizes),
            ("refuses bad input with a reason, and only that", bad_input),
            ("takes an empty batch", lambda: _nothing(editor.edit([]))),
            ("describes itself", lambda: _described(editor)),
        ],
        results,
    )  # fmt: skip
    if results:
        yield _observed("seed", seeds)
        yield _speed(lambda: editor.edit(requests), number, "pictures")


def check_judge(kind: str, judge: Any, number: int = 6) -> Iterator[Outcome]:
    """The same for a judge of kind "vqa" or "ovd"."""
    from nein.metrics.judges.base import template

    pictures = [picture(i) for i in range(number)]
    nouns = [["cat", "dog", "traffic light"][: 1 + i % 3] for i in range(number)]
    count = sum(map(len, nouns))
    first: list[Any] = []

    def ask(images: Sequence[np.ndarray], words: Sequence[Sequence[str]]) -> list[list[Any]]:
        """Its `Answer`s or `Detection`s, in the shape of `words`."""
        if kind == "ovd":
            seen = judge.detect(list(images), [list(row) for row in words])
            return [[boxes[word] for word in row] for boxes, row in zip(seen, words, strict=True)]
        make = template(judge.template).ask_presence
        return judge.ask(list(images), [[make(word) for word in row] for row in words])

    def contract() -> str:
        first.extend(ask(pictures, nouns))
        if [len(row) for row in first] != [len(row) for row in nouns]:
            raise Failed(f"{[len(r) for r in nouns]} questions, {[len(r) for r in first]} answers")
        for answer in itertools.chain(*first):
            _check_answer(kind, answer)
        return f"{count} questions about {number} pictures"

    def readable() -> str:
        texts = [answer.text for answer in itertools.chain(*first)]
        clear = sum(parse_yes_no(text) is not None for text in texts)
        if not clear:
            raise Failed(f"no answer is yes or no, for instance {texts[0]!r}")
        return f"{clear} of {len(texts)} answers begin with yes or no"

    def alone() -> str:
        pairs = zip(pictures, nouns, strict=True)
        return _same_answers(first, [[ask([image], [[word]])[0][0] for word in row] for image, row in pairs])

    def sizes() -> str:
        odd = [picture(k, w, h) for k, (w, h) in enumerate(SIZES[1:])]
        ask(odd, [["cat"]] * len(odd))
        return ", ".join(f"{w}x{h}" for w, h in SIZES[1:])

    def bad_input() -> str:
        try:
            ask([np.zeros((8, 8), np.uint8)], [["cat"]])
        except (MetricError, ValueError) as error:
            return str(error)
        raise Failed("a picture of shape (8, 8) was taken")

    yield from _run(
        [
            ("answers every question, in order", contract),
            *([("says yes or no", readable)] if kind == "vqa" else []),
            ("answers the same again", lambda: _same_answers(first, ask(pictures, nouns))),
            ("answers the same one at a time", alone),
            ("answers the same in another order",
             lambda: _same_answers(first, ask(pictures[::-1], nouns[::-1])[::-1])),
            ("leaves its input alone", lambda: _untouched(pictures, lambda: ask(pictures, nouns))),
            ("takes no questions at all", lambda: _nothing(ask([], []), *ask(pictures[:1], [[]]))),
            ("takes pictures of any shape", sizes),
            ("refuses what is no picture", bad_input),
            ("describes itself", lambda: _described(judge)),
        ],
        first,
    )  # fmt: skip
    if first:
        yield _speed(lambda: ask(pictures, nouns), count, "questions")


def _untouched(pictures: Sequence[np.ndarray], work: Callable[[], Any]) -> str:
    before = [image.copy() for image in pictures]
    work()
    if any((a != b).any() for a, b in zip(before, pictures, strict=True)):
        raise Failed("a picture was changed")
    return ""


def _described(subject: Any) -> str:
    facts = subject.describe()
    if json.dumps(facts, sort_keys=True) != json.dumps(subject.describe(), sort_keys=True):
        raise Failed("describe() says something else the second time")
    mark = subject.fingerprint
    if not isinstance(mark, str) or len(mark) < 8 or mark != subject.fingerprint:
        raise Failed(f"the fingerprint must be a fixed string of 8 characters or more, not {mark!r}")
    return f"{len(facts)} facts"


def _nothing(*answers: Sequence[Any]) -> str:
    if any(map(len, answers)):
        raise Failed("nothing was asked, yet there are results")
    return ""


def _run(checks: Sequence[Check], first: Sequence[Any]) -> Iterator[Outcome]:
    """Runs the checks in turn, those after the first only where it left answers in `first`."""
    for number, (name, check) in enumerate(checks):
        if number and not first:
            yield Outcome(name, False, "not tried: there was no first answer")
            continue
        try:
            yield Outcome(name, True, check())
        except FLAWS as error:
            text = (str(error).strip().splitlines() or [""])[0]
            kind = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
            yield Outcome(name, False, f"{kind}{text}")


def _observed(name: str, look: Callable[[], str]) -> Outcome:
    """Something only reported; a subject that fails at it has failed its checks already."""
    try:
        return Outcome(name, None, look())
    except FLAWS as error:
        return Outcome(name, None, f"not measured ({type(error).__name__})")


def _speed(work: Callable[[], Any], count: int, unit: str) -> Outcome:
    def look() -> str:
        start = time.perf_counter()
        work()
        return f"{count / max(1e-9, time.perf_counter() - start):.2f} {unit} per second"

    return _observed("speed", look)


def _same_edits(first: Sequence[Any], second: Sequence[Any], tolerance: int) -> str:
    """Raises Failed unless pictures agree within `tolerance` grey levels and failures are the same."""
    worst = 0
    for a, b in zip(first, second, strict=True):
        if (a.image is None) != (b.image is None):
            raise Failed(f"{a.id} failed only one time: {a.error or b.error}")
        if a.image is None:
            continue
        if a.image.shape != b.image.shape:
            raise Failed(f"{a.id} is {a.image.shape} one time and {b.image.shape} the other")
        worst = max(worst, int(np.abs(a.image.astype(int) - b.image.astype(int)).max()))
    if worst > tolerance:
        raise Failed(f"pictures differ by up to {worst} grey levels")
    return f"largest difference {worst}"


def _check_answer(kind: str, answer: Any) -> None:
    if kind == "ovd":
        if not 0 <= answer.score <= 1 or answer.count < 0 or len(answer.box) != 4:
            raise Failed(f"a detection needs a score in [0, 1], a count and a box of four, not {answer}")
        return
    if not isinstance(answer.text, str):
        raise Failed(f"an answer needs a text, not {answer.text!r}")
    for p in (answer.p_yes, answer.p_no):
        if p is not None and not 0 <= p <= 1.0001:
            raise Failed(f"P(yes) and P(no) must lie in [0, 1] or be None, not {p}")


def _same_answers(first: Sequence[Sequence[Any]], second: Sequence[Sequence[Any]]) -> str:
    worst = 0.0
    for a, b in zip(itertools.chain(*first), itertools.chain(*second), strict=True):
        if getattr(a, "text", None) != getattr(b, "text", None):
            raise Failed(f"{a.text!r} one time and {b.text!r} the other")
        for x, y in ((getattr(a, n, None), getattr(b, n, None)) for n in ("score", "p_yes", "p_no")):
            if x is not None and y is not None:
                worst = max(worst, abs(x - y))
    if worst > 1e-3:
        raise Failed(f"soft scores differ by up to {worst:.4f}")
    return f"soft scores differ by at most {worst:.1e}"
