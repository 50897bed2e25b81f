"""What the checks of editors and judges share: an outcome, a failure, pictures to try."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nein.loading.isolation import MODEL_ERRORS

FLAWS = (*MODEL_ERRORS, AssertionError, TypeError, AttributeError, KeyError)
SIZES = ((1, 1), (17, 64), (64, 33), (127, 65))  # (width, height)


@dataclass(frozen=True)
class Outcome:
    """One line of the list. passed: None for something only reported. reason: what was seen."""

    name: str
    passed: bool | None
    reason: str


class Failed(AssertionError):
    """A check that did not hold; the message says what was seen."""


def picture(seed: int, width: int = 64, height: int = 64) -> np.ndarray:
    """A scene of the nano world, cut or repeated to the size asked for; (height, width, 3) uint8."""
    from nein.nano.data import source_scene
    from nein.nano.scenes import render

    scene = np.asarray(render(source_scene("dev", seed)))
    rows, columns = np.arange(height) % scene.shape[0], np.arange(width) % scene.shape[1]
    return np.ascontiguousarray(scene[rows][:, columns])


def check_fingerprint(subject: Any) -> None:
    """Raises Failed unless the fingerprint is a fixed string."""
    mark = subject.fingerprint
    if not isinstance(mark, str) or len(mark) < 8 or mark != subject.fingerprint:
        raise Failed(f"the fingerprint must be a fixed string of 8 characters or more, not {mark!r}")


def run(checks: Sequence[tuple[str, Callable[[], str]]], needs: Callable[[], bool]) -> Iterator[Outcome]:
    """Runs the checks in turn, those after the first only while `needs()` holds; a flaw is a failure."""
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


def observed(name: str, look: Callable[[], str]) -> Outcome:
    """Something only reported; a subject that fails at it has failed its checks already."""
    try:
        return Outcome(name, None, look())
    except FLAWS as error:
        return Outcome(name, None, f"not measured ({type(error).__name__})")


def rate(work: Callable[[], Any], count: int) -> float:
    """`count` per second of one call of `work`."""
    start = time.perf_counter()
    work()
    return count / max(1e-9, time.perf_counter() - start)
