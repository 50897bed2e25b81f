"""What a judge must keep to: the protocols of `metrics.judges.base`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nein.judges.checks.base import (
    SIZES,
    Failed,
    Outcome,
    check_fingerprint,
    observed,
    picture,
    rate,
    run,
)
from nein.metrics.base import MetricError


def ask_about(
    kind: str, judge: Any, pictures: Sequence[np.ndarray], words: Sequence[Sequence[str]]
) -> list[list[Any]]:
    """What a judge says about whether each word is in each picture: its `Answer`s or `Detection`s, in the
    shape of `words`."""
    if kind == "ovd":
        seen = judge.detect(list(pictures), [list(row) for row in words])
        return [[boxes[word] for word in row] for boxes, row in zip(seen, words, strict=True)]
    from nein.metrics.judges.base import template

    make = template(judge.template).ask_presence
    return judge.ask(list(pictures), [[make(word) for word in row] for row in words])


def check_judge(kind: str, judge: Any, number: int = 6) -> Iterator[Outcome]:
    """The same for a judge of kind "vqa" or "ovd"."""
    images = [picture(i) for i in range(number)]
    nouns = [["cat", "dog", "traffic light"][: 1 + i % 3] for i in range(number)]
    first: list[Any] = []

    ask = functools.partial(ask_about, kind, judge)

    def contract() -> str:
        first.extend(ask(images, nouns))
        if [len(row) for row in first] != [len(row) for row in nouns]:
            raise Failed(f"{[len(r) for r in nouns]} questions, {[len(r) for r in first]} answers")
        for answer in (answer for row in first for answer in row):
            _check_answer(kind, answer)
        return f"{sum(map(len, nouns))} questions about {number} pictures"

    def readable() -> str:
        from nein.metrics.base import parse_yes_no

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
        odd = [picture(k, w, h) for k, (w, h) in enumerate(SIZES[1:])]
        ask(odd, [["cat"]] * len(odd))
        return ", ".join(f"{w}x{h}" for w, h in SIZES[1:])

    def bad_input() -> str:
        try:
            ask([np.zeros((8, 8), np.uint8)], [["cat"]])
        except (MetricError, ValueError) as error:
            return str(error)
        raise Failed("a picture of shape (8, 8) was taken")

    def described() -> str:
        json.dumps(judge.describe())
        check_fingerprint(judge)
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
    yield from run(checks, needs=lambda: bool(first))
    if first:
        count = sum(map(len, nouns))
        yield observed("speed", lambda: f"{rate(lambda: ask(images, nouns), count):.2f} questions per second")


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
