"""One picture per sample with everything an editor showed on the way to its result."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import editors
from nein.engine import atomic

CELL = 144


def write_sheet(path: Path, instruction: str, result: editors.EditResult) -> None:
    """Draws the maps of `result` side by side, with its note and error; nothing when it has none."""
    if not result.maps:
        return
    # It loads matplotlib, which most runs never need.
    from nein.reporting.contact_sheet import RED, Cell, Row, draw

    cells = [Cell(_rgb(picture)) for picture in result.maps.values()]
    columns = list(result.maps)
    if result.image is None:
        columns.append("no picture")
        cells.append(Cell(None, result.error or "", color=RED))
    sheet = draw(columns, [Row(f"{result.id}: {instruction}", result.note, cells)], size=CELL, smooth=False)
    atomic.write_bytes(path, sheet.encoded())


def _rgb(picture: np.ndarray) -> np.ndarray:
    return np.repeat(picture[..., None], 3, axis=2) if picture.ndim == 2 else picture
