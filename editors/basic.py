"""Editors without a model: for trying things out and for baselines.

`identity` is also a baseline worth printing: whatever it scores on Retention is the ceiling of an editor that
leaves the picture alone, and whatever it scores on Removal is what doing nothing earns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nein.editors.base import EditorError, EditRequest, EditResult, find_fault, fingerprint


class Identity:
    """Returns a copy of each picture."""

    def __init__(self, *, name: str = "identity") -> None:
        self.name = name

    def describe(self) -> dict[str, Any]:
        return {"editor": self.name, "class": type(self).__name__}

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.describe())

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
