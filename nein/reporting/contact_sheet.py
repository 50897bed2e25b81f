"""A grid of images with titles, column heads and verdicts: as PNG, with images scaled to their cells, or as
PDF or SVG, with text as text and images at full size."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

GREEN, RED, GREY, INK, FAINT = "#1b7f3b", "#b3261e", "#6b7280", "#111827", "#e5e7eb"
PANEL, MARKED = "#f3f4f6", "#fdf0c8"
MARGIN, GAP = 24, 14
#: Letters stay letters, found and copied from the file; Verdana is as wide where DejaVu is not installed.
_STYLE: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "nein"} | {
    "text.parse_math": False,
    "text.hinting": "none",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
}
_UNDATED = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}


@dataclass(frozen=True)
class Badge:
    text: str
    color: str


@dataclass(frozen=True)
class Cell:
    """An image, (H, W, 3) uint8, or a message in a `color`; badges go below."""

    picture: np.ndarray | None
    message: str = ""
    badges: Sequence[Badge] = ()
    color: str = GREY


@dataclass(frozen=True)
class Row:
    """A title (several lines with "\\n"), a fainter subtitle, and a cell per column; marked: highlighted."""

    title: str
    subtitle: str
    cells: Sequence[Cell]
    marked: bool = False


def draw(
    columns: Sequence[str],
    rows: Sequence[Row],
    size: int = 192,
    *,
    marked: Collection[int] = (),
    kind: str = "png",
) -> bytes:
    """Rows of cells of `size` pixels below column heads, encode as `kind` ("png", "pdf", "svg"). marked:
    highlighted columns."""
    with matplotlib.rc_context(_STYLE):
        sheet = _Sheet(len(columns), size, kind)
        sheet.draw_heads(columns, marked)
        for row in rows:
            sheet.draw_row(row)
        for column in marked:
            sheet.mark(sheet.lefts[column] - GAP / 2, MARGIN / 2, size + GAP, sheet.top)
        return sheet.encode()


class _Sheet:
    """A canvas that is filled from top to bottom; positions are pixels from the upper left."""

    def __init__(self, columns: int, size: int, kind: str) -> None:
        self.size, self.kind = size, kind
        self.inner = columns * size + (columns - 1) * GAP
        self.lefts, self.top = [MARGIN + column * (size + GAP) for column in range(columns)], MARGIN
        scale = max(size / 192, 0.6)
        self.head, self.body, self.small = (round(letters * scale) for letters in (16, 14.5, 12))
        self.canvas = Figure(dpi=72, facecolor="white")
        self.axes = self.canvas.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def draw_heads(self, names: Sequence[str], marked: Collection[int]) -> None:
        for column, name in enumerate(names):
            weight = "bold" if column in marked else "normal"
            lines = [_shorten(line, self.head, self.size) for line in name.split("\n")]
            self.text(self.lefts[column], MARGIN, lines, self.head, fontweight=weight)
        self.top += max(name.count("\n") + 1 for name in names) * _line(self.head)

    def draw_row(self, row: Row) -> None:
        start, line = self.top, _line(self.small)
        self.box(MARGIN, start + GAP // 2 - 1, self.inner, 2, facecolor=FAINT)
        lines = _wrap(row.title, self.body, self.inner)
        title = self.text(MARGIN, start + GAP, lines, self.body)
        lines = [_shorten(row.subtitle, self.small, self.inner)] if row.subtitle else []
        subtitle = self.text(MARGIN, start + GAP + title, lines, self.small, color=GREY)
        top = start + GAP + title + subtitle + 6
        pictures = [cell.picture for cell in row.cells if cell.picture is not None]
        tall = max((_fit_size(picture, self.size)[1] for picture in pictures), default=self.size)
        if len(pictures) < len(row.cells):
            tall = max(tall, 5 * line)  # a message needs some lines even next to very flat images
        for left, cell in zip(self.lefts, row.cells, strict=True):
            if cell.picture is not None:
                self.picture(left, top, cell.picture)
            else:
                self.box(left, top, self.size, tall, facecolor=PANEL, edgecolor=GREY)
                lines = _wrap(cell.message, self.small, self.size - 16)[: max(1, (tall - 16) // line)]
                self.text(left + 8, top + 8, lines, self.small, color=cell.color)
            for number, badge in enumerate(cell.badges):
                ground = {"boxstyle": "round,pad=0.2,rounding_size=0.4", "fc": badge.color, "ec": "none"}
                below, text = (
                    top + tall + 4 + number * (line + 4),
                    _shorten(badge.text, self.small, self.size - 12),
                )
                self.text(left + 6, below + 1, [text], self.small, color="#ffffff", bbox=ground)
        self.top = top + tall + max(len(cell.badges) for cell in row.cells) * (line + 4) + GAP
        if row.marked:
            self.mark(MARGIN / 2, start + GAP / 2, self.inner + MARGIN, self.top - GAP - start)

    def text(self, left: float, top: float, lines: Sequence[str], letters: int, **look: Any) -> int:
        """Draws lines of text of `letters` pixels; returns their height."""
        for number, line in enumerate(lines):
            below = top + letters + number * _line(letters)
            self.axes.text(left, below, line, **{"fontsize": letters, "color": INK, **look})
        return len(lines) * _line(letters)

    def box(self, left: float, top: float, width: float, height: float, **look: Any) -> None:
        look = {"boxstyle": "square,pad=0", "edgecolor": "none", "linewidth": 1, **look}
        self.axes.add_patch(FancyBboxPatch((left, top), width, height, **look))

    def mark(self, left: float, top: float, width: float, height: float) -> None:
        look = {"boxstyle": "round,pad=0,rounding_size=6", "facecolor": MARKED, "zorder": -1}
        self.box(left, top, width, height, **look)

    def picture(self, left: int, top: int, pixels: np.ndarray) -> None:
        width, height = _fit_size(pixels, self.size)
        if self.kind == "png" or width > pixels.shape[1]:
            pixels = np.asarray(fit(pixels, self.size))
        ends = left, left + width, top + height, top
        self.axes.imshow(pixels, extent=ends, interpolation="none", aspect="auto")

    def encode(self) -> bytes:
        width, height = self.inner + 2 * MARGIN, self.top + MARGIN
        self.canvas.set_size_inches(width / 72, height / 72)
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format=self.kind, dpi=72, metadata={_UNDATED[self.kind]: None})
        return buffer.getvalue()


def _line(letters: int) -> int:
    return round(letters * 1.4)


def _wrap(text: str, letters: int, width: float) -> list[str]:
    """Lines of at most `width` pixels, by the mean width of a letter."""
    paragraphs = text.split("\n") if text else []
    return [
        line for part in paragraphs for line in textwrap.wrap(part, max(4, int(width / (0.62 * letters))))
    ]


def _shorten(text: str, letters: int, width: float) -> str:
    count = max(4, int(width / (0.62 * letters)))
    return text if len(text) <= count else f"{text[: count - 3]}..."


def _fit_size(picture: np.ndarray, size: int) -> tuple[int, int]:
    height, width = picture.shape[:2]
    factor = size / max(height, width)
    return max(1, round(width * factor)), max(1, round(height * factor))


def fit(picture: np.ndarray, size: int) -> Image.Image:
    """The image, scaled to a longer side of `size`."""
    return Image.fromarray(picture).resize(_fit_size(picture, size), Image.Resampling.LANCZOS)
