"""Editors without a model: for trying things out, and what doing nothing earns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from nein.editors.base import Editor, EditorError, EditRequest, EditResult, find_fault


class Identity(Editor):
    """Returns a copy of each picture."""

    def __init__(self, *, name: str = "identity") -> None:
        self.name = name

    def describe(self) -> dict[str, Any]:
        return {"editor": self.name, "class": type(self).__name__}

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        faults = [find_fault(request) for request in requests]
        return [
            EditResult(request.id, None if fault else self._paint(request), fault)
            for request, fault in zip(requests, faults, strict=True)
        ]

    def _paint(self, request: EditRequest) -> np.ndarray:
        return request.image.copy()


class Solid(Identity):
    """Returns one colour at the size of the picture.

    color  "#rrggbb"; mid-grey by default.
    """

    def __init__(self, *, name: str = "solid", color: str = "#808080") -> None:
        super().__init__(name=name)
        if not re.fullmatch("#[0-9a-fA-F]{6}", str(color)):
            raise EditorError(f"color is {color!r}; expected '#rrggbb'")
        self.color = [*bytes.fromhex(color[1:])]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "color": self.color}

    def _paint(self, request: EditRequest) -> np.ndarray:
        return np.full_like(request.image, self.color)
