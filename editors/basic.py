"""Editors without a model: for trying things out, for baselines and for rehearsing failures.

`identity` is also a baseline worth printing: whatever it scores on Retention is the ceiling of an editor that
leaves the picture alone, and whatever it scores on Removal is what doing nothing earns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from editors.base import EditorError, EditRequest, EditResult, digest, find_fault


class Identity:
    """Returns a copy of each picture."""

    def __init__(self, *, name: str = "identity") -> None:
        self.name = name

    def describe(self) -> dict[str, Any]:
        return {"editor": self.name, "class": type(self).__name__}

    @property
    def fingerprint(self) -> str:
        return digest({key: value for key, value in self.describe().items() if key != "editor"})

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        return [self._edit_one(request) for request in requests]

    def _edit_one(self, request: EditRequest) -> EditResult:
        fault = find_fault(request)
        if fault is not None:
            return EditResult(request.id, None, fault)
        return EditResult(request.id, self._paint(request))

    def _paint(self, request: EditRequest) -> np.ndarray:
        return request.image.copy()


class Solid(Identity):
    """Returns one colour at the size of the picture.

    color  "#rrggbb" or three integers 0..255 (RGB); mid-grey by default.
    """

    def __init__(self, *, name: str = "solid", color: str | Sequence[int] = "#808080") -> None:
        super().__init__(name=name)
        self.color = parse_color(color)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "color": list(self.color)}

    def _paint(self, request: EditRequest) -> np.ndarray:
        return np.full_like(request.image, self.color)


class Flaky(Identity):
    """Returns a copy of each picture, except for the samples it fails on.

    fail_ids     These ids get an error result.
    fail_every   So does every sample whose seed is divisible by this number; 0 switches the rule off. The
                 default of 3 makes a third of the samples fail.
    crash_after  Raise RuntimeError out of `edit` once this many samples were attempted, as a killed process
                 would end; None (default) never.
    """

    def __init__(
        self,
        *,
        name: str = "flaky",
        fail_ids: Iterable[str] = (),
        fail_every: int = 3,
        crash_after: int | None = None,
    ) -> None:
        super().__init__(name=name)
        if fail_every < 0:
            raise EditorError(f"fail_every is {fail_every}; expected 0 (off) or a positive integer")
        self.fail_ids = frozenset(fail_ids)
        self.fail_every = fail_every
        self.crash_after = crash_after
        self._attempted = 0

    def describe(self) -> dict[str, Any]:
        # crash_after is left out: it decides when the process ends, not what a sample looks like.
        return {**super().describe(), "fail_ids": sorted(self.fail_ids), "fail_every": self.fail_every}

    def _edit_one(self, request: EditRequest) -> EditResult:
        if self.crash_after is not None and self._attempted >= self.crash_after:
            raise RuntimeError(f"editor 'flaky' stops after {self.crash_after} samples, as it was told to")
        self._attempted += 1
        result = super()._edit_one(request)
        if result.image is None:
            return result
        if request.id in self.fail_ids:
            return EditResult(request.id, None, f"editor 'flaky' was told to fail on sample {request.id!r}")
        if self.fail_every and request.seed % self.fail_every == 0:
            reason = f"editor 'flaky' fails on seeds divisible by {self.fail_every}"
            return EditResult(request.id, None, reason)
        return result


def parse_color(color: str | Sequence[int]) -> tuple[int, int, int]:
    """(r, g, b) from "#rrggbb" or from three integers 0..255; EditorError for anything else."""
    problem = EditorError(f"color is {color!r}; expected '#rrggbb' or three integers from 0 to 255")
    if isinstance(color, str):
        text = color.removeprefix("#")
        if len(text) != 6 or not set(text.lower()) <= set("0123456789abcdef"):
            raise problem
        color = list(bytes.fromhex(text))
    if (
        not isinstance(color, list | tuple)
        or len(color) != 3
        or not all(isinstance(c, int) and 0 <= c <= 255 for c in color)
    ):
        raise problem
    return color[0], color[1], color[2]
