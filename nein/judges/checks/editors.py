"""What an editor must keep to: the contract of `editors.base.Editor`."""

from __future__ import annotations

import dataclasses
import json
import time
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


def check_editor(editor: Any, number: int = 6) -> Iterator[Outcome]:
    """Runs every check; a check that raises has failed with that reason. `number`: samples to edit."""
    from nein.editors import EditRequest

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
        by_id = {result.id: result for result in editor.edit(requests[::-1])}
        return _equal(results, [by_id[request.id] for request in requests], 1)

    def untouched() -> str:
        before = [request.image.copy() for request in requests]
        editor.edit(requests)
        if any((a != request.image).any() for a, request in zip(before, requests, strict=True)):
            raise Failed("the picture of a request was changed")
        return ""

    def sizes() -> str:
        odd = [EditRequest(f"o{k}", picture(k, w, h), "Remove the cat.", k) for k, (w, h) in enumerate(SIZES)]
        for (w, h), result in zip(SIZES, editor.edit(odd), strict=True):
            if result.image is None and not result.error:
                raise Failed(f"{w}x{h}: neither a picture nor an error")
            if result.image is not None:
                _check_picture(result.image)
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
        return _equal([results[0], results[1]], [answers[0], answers[4]], 1)

    def empty() -> str:
        if list(editor.edit([])) != []:
            raise Failed("no requests, yet results")
        return ""

    def described() -> str:
        facts, again = editor.describe(), editor.describe()
        if json.dumps(facts, sort_keys=True) != json.dumps(again, sort_keys=True):
            raise Failed("describe() says something else the second time")
        check_fingerprint(editor)
        return f"{len(facts)} facts"

    def seeds() -> str:
        other = editor.edit([dataclasses.replace(request, seed=request.seed + 1) for request in requests])
        pairs = [(a.image, b.image) for a, b in zip(results, other, strict=True)]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        same = all(a.shape == b.shape and (a == b).all() for a, b in both)
        return f"another seed gives {'the same' if same else 'other'} pictures"

    yield from run(
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
        yield observed("seed", seeds)
        yield observed(
            "speed", lambda: f"{rate(lambda: editor.edit(requests), number):.2f} pictures per second"
        )


def _instructions(number: int) -> list[str]:
    lines = ["Remove the cat.", "The image doesn't have any dog.", "No apple in the image.", "Add a clock."]
    return [lines[i % len(lines)] for i in range(number)]


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
