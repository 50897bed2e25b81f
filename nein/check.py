"""The command `nein-check`: does an editor or a judge keep its contract? A plain list of what passes and
fails.

nein-check EDITOR             a name, a folder, a hub id, plugin of `nein.editors`, or module:attribute
nein-check --judge vqa REF    a reference as `--models.vqa` takes it, or module:attribute
"""

from __future__ import annotations

import argparse
import copy
import json
import pkgutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrics.base import MODEL_ERRORS, MetricError
from nein.errors import UserError

FLAWS = (*MODEL_ERRORS, AssertionError, TypeError, AttributeError, KeyError)


@dataclass(frozen=True)
class Outcome:
    """One line of the list. passed: None for something only reported. reason: what was seen."""

    name: str
    passed: bool | None
    reason: str


class Failed(AssertionError):
    """A check that did not hold; the message says what was seen."""


def main(argv: Sequence[str]) -> int:
    """Runs `nein-check argv`; 0 when everything passes, 1 otherwise. Raises UserError."""
    options = _parser().parse_args(list(argv))
    if options.number < 3:
        raise UserError(f"--number is {options.number}; the checks need at least 3 samples.")
    from nein.world import World

    device = World().device(options.device)
    if options.judge:
        subject = build_judge(options.judge, options.subject, device, options.dtype)
        outcomes = check_judge(options.judge, subject, options.number)
    else:
        subject = build_editor(options.subject, device, options.dtype, options.option)
        outcomes = check_editor(subject, options.number)
    failed = 0
    for outcome in outcomes:
        word = {True: "pass", False: "FAIL", None: "info"}[outcome.passed]
        failed += outcome.passed is False
        print(f"{word}  {outcome.name}{': ' if outcome.reason else ''}{outcome.reason}", flush=True)
    print(f"{options.subject}: {'all checks passed' if not failed else f'{failed} checks failed'}")
    return 1 if failed else 0


def build_editor(name: str, device: str, dtype: str, given: Sequence[str]) -> Any:
    """The editor: as `nein-eval --editor` finds it, or what `module:attribute` makes."""
    options = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--option is '{item}'; it must be NAME=VALUE.")
        options[key] = _value(value)
    made = _attribute(name)
    if made is not None:
        return made(**options) if callable(made) else made
    from nein import models
    from nein.config import EvalConfig

    [choice] = models.resolve_editors(EvalConfig(editor=[name], editor_options=options))
    return choice.load(device=device, dtype=dtype, batch_size=4)


def build_judge(kind: str, reference: str, device: str, dtype: str) -> Any:
    """The judge: as `--models.<kind>` finds it, or what `module:attribute` makes."""
    import metrics

    made = None if metrics.special_reference(reference) else _attribute(reference)
    if made is not None:
        return made() if callable(made) else made
    from nein import models

    where, revision = models.resolve(reference)
    return metrics.load_judge(kind, where, revision=revision, device=device, dtype=dtype)


def _attribute(name: str) -> Any:
    """What a dotted `module:attribute` names, or None for another form."""
    module, colon, attribute = name.partition(":")
    if (
        not colon
        or not attribute.isidentifier()
        or not all(part.isidentifier() for part in module.split("."))
    ):
        return None
    if module == "nano":
        return None
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"'{name}' cannot be imported: {error}.") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- editors -------------------------------------------------------------------------------


def check_editor(editor: Any, number: int = 6) -> Iterator[Outcome]:
    """Runs every check; a check that raises has failed with that reason. `number`: samples to edit."""
    from editors import EditRequest

    requests = [
        EditRequest(f"s{i}", picture(i), text, 1000 + i)
        for i, text in zip(range(number), _instructions(number), strict=True)
    ]
    results: list[Any] = []

    def contract() -> str:
        start = time.perf_counter()
        results.extend(editor.edit(requests))
        seconds = time.perf_counter() - start
        if [result.id for result in results] != [request.id for request in requests]:
            raise Failed(f"asked for {[r.id for r in requests]}, got {[r.id for r in results]}")
        failed = [result for result in results if result.image is None]
        for result in failed:
            if not result.error:
                raise Failed(f"{result.id} has neither a picture nor an error")
        if len(failed) == len(results):
            raise Failed(f"every edit failed: {failed[0].error}")
        return f"{len(results) - len(failed)} of {len(results)} edited, {seconds / number:.2f} s each"

    def pictures() -> str:
        for result in results:
            if result.image is not None:
                _check_picture(result.image)
        shapes = {r.image.shape[:2] for r in results if r.image is not None}
        return f"uint8 RGB, heights and widths {sorted(shapes)}"

    def repeats() -> str:
        return _equal(results, editor.edit(requests), 0)

    def alone() -> str:
        return _equal(results, [editor.edit([request])[0] for request in requests], 1)

    def order() -> str:
        found = {result.id: result for result in editor.edit(requests[::-1])}
        return _equal(results, [found[request.id] for request in requests], 1)

    def untouched() -> str:
        before = [request.image.copy() for request in requests]
        editor.edit(requests)
        if any((a != request.image).any() for a, request in zip(before, requests, strict=True)):
            raise Failed("the picture of a request was changed")
        return ""

    def sizes() -> str:
        odd = [
            EditRequest(f"o{k}", picture(k, w, h), "Remove the cat.", k) for k, (w, h) in enumerate(_SIZES)
        ]
        for (w, h), result in zip(_SIZES, editor.edit(odd), strict=True):
            if result.image is None and not result.error:
                raise Failed(f"{w}x{h}: neither a picture nor an error")
            if result.image is not None:
                _check_picture(result.image)
        return ", ".join(f"{w}x{h}" for w, h in _SIZES)

    def bad_input() -> str:
        bad = [
            EditRequest("grey", np.zeros((32, 32), np.uint8), "Remove the cat.", 1),
            EditRequest("float", np.zeros((32, 32, 3), np.float32), "Remove the cat.", 1),
            EditRequest("mute", picture(1), "", 1),
        ]
        found = editor.edit([requests[0], *bad, requests[1]])
        if len(found) != 5:
            raise Failed(f"5 requests, {len(found)} results")
        if any(result.image is not None or not result.error for result in found[1:4]):
            raise Failed(
                "a grey picture, a float picture or an empty instruction was not refused with a reason"
            )
        return _equal([results[0], results[1]], [found[0], found[4]], 1)

    def empty() -> str:
        if list(editor.edit([])) != []:
            raise Failed("no requests, yet results")
        return ""

    def described() -> str:
        facts, again = editor.describe(), editor.describe()
        if json.dumps(facts, sort_keys=True) != json.dumps(again, sort_keys=True):
            raise Failed("describe() says something else the second time")
        _check_fingerprint(editor)
        return f"{len(facts)} facts"

    def seeds() -> str:
        other = [
            copy.replace(r, seed=r.seed + 1) if hasattr(copy, "replace") else _reseed(r) for r in requests
        ]
        same = all(
            a.image is not None
            and b.image is not None
            and a.image.shape == b.image.shape
            and (a.image == b.image).all()
            for a, b in zip(results, editor.edit(other), strict=True)
        )
        return "another seed gives the same pictures" if same else "another seed gives other pictures"

    yield from _run(
        [
            ("answers every request, in order", contract),
            ("gives uint8 RGB pictures", pictures),
            ("gives the same pictures again", repeats),
            ("gives the same pictures one at a time (within 1/255)", alone),
            ("gives the same pictures in another order (within 1/255)", order),
            ("leaves its input alone", untouched),
            ("takes pictures of any size", sizes),
            ("refuses bad input with a reason, and only that", bad_input),
            ("takes an empty batch", empty),
            ("describes itself", described),
        ],
        needs=lambda: bool(results),
    )
    if results:
        yield Outcome("seed", None, seeds())
        yield Outcome(
            "speed", None, f"{_rate(lambda: editor.edit(requests), number):.2f} pictures per second"
        )


_SIZES = ((1, 1), (17, 64), (64, 33), (127, 65))


def picture(seed: int, width: int = 64, height: int = 64) -> np.ndarray:
    """A scene of the nano world, cut or repeated to the size asked for; (height, width, 3) uint8."""
    from nein.nano.data import source_scene
    from nein.nano.scenes import render

    scene = np.asarray(render(source_scene("dev", seed)))
    rows, columns = np.arange(height) % scene.shape[0], np.arange(width) % scene.shape[1]
    return np.ascontiguousarray(scene[rows][:, columns])


def _instructions(number: int) -> list[str]:
    lines = ["Remove the cat.", "The image doesn't have any dog.", "No apple in the image.", "Add a clock."]
    return [lines[i % len(lines)] for i in range(number)]


def _reseed(request: Any) -> Any:
    return type(request)(request.id, request.image, request.instruction, request.seed + 1)


def _check_picture(image: Any) -> None:
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise Failed(f"a picture must be uint8 of shape (H, W, 3), not {got}")
    if 0 in image.shape:
        raise Failed(f"a picture has no pixels: {image.shape}")


def _equal(first: Sequence[Any], second: Sequence[Any], tolerance: int) -> str:
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


def _check_fingerprint(subject: Any) -> None:
    mark = subject.fingerprint
    if not isinstance(mark, str) or len(mark) < 8 or mark != subject.fingerprint:
        raise Failed(f"the fingerprint must be a fixed string of 8 characters or more, not {mark!r}")


# --- judges --------------------------------------------------------------------------------


def check_judge(kind: str, judge: Any, number: int = 6) -> Iterator[Outcome]:
    """The same for a judge of kind "vqa" or "ovd"."""
    images = [picture(i) for i in range(number)]
    nouns = [["cat", "dog", "traffic light"][: 1 + i % 3] for i in range(number)]
    first: list[Any] = []

    def ask(pictures: Sequence[Any], words: Sequence[Sequence[str]]) -> list[list[Any]]:
        if kind == "ovd":
            found = judge.detect(list(pictures), [list(row) for row in words])
            return [[row[word] for word in own] for row, own in zip(found, words, strict=True)]
        from metrics.judges.templates import template

        make = template(judge.template).ask_presence
        return judge.ask(list(pictures), [[make(word) for word in row] for row in words])

    def contract() -> str:
        first.extend(ask(images, nouns))
        if [len(row) for row in first] != [len(row) for row in nouns]:
            raise Failed(f"{[len(r) for r in nouns]} questions, {[len(r) for r in first]} answers")
        for answer in (answer for row in first for answer in row):
            _check_answer(kind, answer)
        return f"{sum(map(len, nouns))} questions about {number} pictures"

    def readable() -> str:
        from metrics.answers import parse_yes_no

        said = [answer.text for row in first for answer in row]
        clear = [text for text in said if parse_yes_no(text) is not None]
        if not clear:
            raise Failed(f"no answer is yes or no, for instance {said[0]!r}")
        return f"{len(clear)} of {len(said)} answers begin with yes or no"

    def repeats() -> str:
        return _same(first, ask(images, nouns))

    def alone() -> str:
        single = [
            [ask([image], [[word]])[0][0] for word in row] for image, row in zip(images, nouns, strict=True)
        ]
        return _same(first, single)

    def order() -> str:
        return _same(first, ask(images[::-1], nouns[::-1])[::-1])

    def untouched() -> str:
        before = [image.copy() for image in images]
        ask(images, nouns)
        if any((a != b).any() for a, b in zip(before, images, strict=True)):
            raise Failed("a picture was changed")
        return ""

    def empty() -> str:
        if ask([], []) != [] or ask(images[:1], [[]]) != [[]]:
            raise Failed("no questions, yet answers")
        return ""

    def sizes() -> str:
        odd = [picture(k, w, h) for k, (w, h) in enumerate(_SIZES[1:])]
        ask(odd, [["cat"]] * len(odd))
        return ", ".join(f"{w}x{h}" for w, h in _SIZES[1:])

    def bad_input() -> str:
        try:
            ask([np.zeros((8, 8), np.uint8)], [["cat"]])
        except (MetricError, ValueError) as error:
            return str(error)
        raise Failed("a picture of shape (8, 8) was taken")

    def described() -> str:
        json.dumps(judge.describe())
        _check_fingerprint(judge)
        return f"{len(judge.describe())} facts"

    checks = [("answers every question, in order", contract)]
    checks += [("says yes or no", readable)] if kind == "vqa" else []
    checks += [
        ("answers the same again", repeats),
        ("answers the same one at a time", alone),
        ("answers the same in another order", order),
        ("leaves its input alone", untouched),
        ("takes no questions at all", empty),
        ("takes pictures of any shape", sizes),
        ("refuses what is no picture", bad_input),
        ("describes itself", described),
    ]
    yield from _run(checks, needs=lambda: bool(first))
    if first:
        rate = _rate(lambda: ask(images, nouns), sum(map(len, nouns)))
        yield Outcome("speed", None, f"{rate:.2f} questions per second")


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


def _same(first: Sequence[Sequence[Any]], second: Sequence[Sequence[Any]]) -> str:
    worst = 0.0
    for a, b in zip((x for row in first for x in row), (x for row in second for x in row), strict=True):
        if getattr(a, "text", None) != getattr(b, "text", None):
            raise Failed(f"{a.text!r} one time and {b.text!r} the other")
        for x, y in ((getattr(a, n, None), getattr(b, n, None)) for n in ("score", "p_yes", "p_no")):
            if x is not None and y is not None:
                worst = max(worst, abs(x - y))
    if worst > 1e-3:
        raise Failed(f"soft scores differ by up to {worst:.4f}")
    return f"soft scores differ by at most {worst:.1e}"


# --- running -------------------------------------------------------------------------------


def _run(checks: Sequence[tuple[str, Callable[[], str]]], needs: Callable[[], bool]) -> Iterator[Outcome]:
    for number, (name, check) in enumerate(checks):
        if number and not needs():
            yield Outcome(name, False, "not tried: there was no first answer")
            continue
        try:
            yield Outcome(name, True, check())
        except FLAWS as error:
            text = (str(error).strip().splitlines() or [""])[0]
            kind = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
            yield Outcome(name, False, f"{kind}{text}")


def _rate(work: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    work()
    return count / max(1e-9, time.perf_counter() - start)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nein-check",
        description="Check that an editor or a judge keeps its contract, from determinism to error handling.",
    )
    add = parser.add_argument
    add(
        "subject",
        metavar="EDITOR",
        help="editor (or, with --judge, judge): a name, folder, hub id or module:attribute",
    )
    add("--judge", choices=("vqa", "ovd"), help="check a judge of this kind instead of an editor")
    add("--number", type=int, default=6, help="samples to try (default: 6)")
    add("--device", default="auto", help="auto, cpu, cuda (default: auto)")
    add(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="number type (default: float32)",
    )
    add(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the editor; repeatable"
    )
    return parser
