"""Draws a grid of images with titles, column heads and verdicts, as a PNG, PDF or SVG file.

A PNG has images scaled to their cells; a PDF or SVG has text as text and images at full size.
"""

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

from nein.reporting.plots import FILE_KINDS

GREEN, RED, GREY, INK, FAINT = "#1b7f3b", "#b3261e", "#6b7280", "#111827", "#e5e7eb"
PANEL, MARKED = "#f3f4f6", "#fdf0c8"  # behind a message, behind a highlighted row or column
MARGIN, GAP = 24, 14  # pixels: around the grid, between cells
_LETTER, _LINE = 0.62, 1.4  # mean width of a letter, height of a line; in font sizes
#: Text stays text in SVG and PDF. Verdana has the widths of DejaVu, for readers without it.
_STYLE: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "nein", "text.parse_math": False}
_STYLE |= {"text.hinting": "none", "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"]}


@dataclass(frozen=True)
class Badge:
    text: str
    color: str


@dataclass(frozen=True)
class Cell:
    """An image or a message, with badges below it."""

    image: np.ndarray | None  # (H, W, 3) uint8; None: the message
    message: str = ""
    badges: Sequence[Badge] = ()
    color: str = GREY  # of the message


@dataclass(frozen=True)
class Row:
    """A row of the grid, below its title."""

    title: str  # its lines are separated by "\n"
    subtitle: str  # fainter
    cells: Sequence[Cell]  # one per column
    marked: bool = False  # highlighted


def draw(
    columns: Sequence[str],
    rows: Sequence[Row],
    size: int = 192,
    *,
    marked: Collection[int] = (),
    kind: str = "png",  # or "pdf", "svg"
) -> bytes:
    """Draws rows of cells of `size` pixels below `columns`; returns a file. marked: highlighted columns."""
    with matplotlib.rc_context(_STYLE):
        grid = _Grid(len(columns), size, kind)
        grid.draw_heads(columns, marked)
        for row in rows:
            grid.draw_row(row)
        for column in marked:
            grid.highlight(grid.lefts[column] - GAP / 2, MARGIN / 2, size + GAP, grid.top)
        return grid.encode()


class _Grid:
    """A canvas that is filled from top to bottom; positions are pixels from the upper left."""

    def __init__(self, columns: int, size: int, kind: str) -> None:
        self.size, self.kind = size, kind
        self.inner = columns * size + (columns - 1) * GAP  # width without margins
        self.lefts = [MARGIN + column * (size + GAP) for column in range(columns)]
        self.top = MARGIN  # where the next row begins
        # Font sizes are for cells of 192 pixels; at 72 dpi, a point is a pixel.
        scale = max(size / 192, 0.6)
        self.head, self.body, self.small = round(16 * scale), round(14.5 * scale), round(12 * scale)
        self.canvas = Figure(dpi=72, facecolor="white")
        self.axes = self.canvas.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def draw_heads(self, names: Sequence[str], marked: Collection[int]) -> None:
        for column, name in enumerate(names):
            weight = "bold" if column in marked else "normal"
            lines = [_shorten(line, self.head, self.size) for line in name.split("\n")]
            self.draw_text(self.lefts[column], MARGIN, lines, self.head, fontweight=weight)
        self.top += max(name.count("\n") + 1 for name in names) * _line_height(self.head)

    def draw_row(self, row: Row) -> None:
        start, line_height = self.top, _line_height(self.small)
        # A line above the row, its title and its subtitle.
        self.draw_box(MARGIN, start + GAP // 2 - 1, self.inner, 2, facecolor=FAINT)
        lines = _wrap(row.title, self.body, self.inner)
        top = start + GAP + self.draw_text(MARGIN, start + GAP, lines, self.body)
        lines = [_shorten(row.subtitle, self.small, self.inner)] if row.subtitle else []
        top += self.draw_text(MARGIN, top, lines, self.small, color=GREY) + 6
        # Cells: an image or a message, then badges below it.
        images = [cell.image for cell in row.cells if cell.image is not None]
        height = max((_fit_size(image, self.size)[1] for image in images), default=self.size)
        if len(images) < len(row.cells):
            height = max(height, 5 * line_height)  # a message needs some lines even next to very flat images
        for x, cell in zip(self.lefts, row.cells, strict=True):
            if cell.image is not None:
                self.draw_image(x, top, cell.image)
            else:
                self.draw_box(x, top, self.size, height, facecolor=PANEL, edgecolor=GREY)
                lines = _wrap(cell.message, self.small, self.size - 16)
                lines = lines[: max(1, (height - 16) // line_height)]
                self.draw_text(x + 8, top + 8, lines, self.small, color=cell.color)
            for number, badge in enumerate(cell.badges):
                background = {"boxstyle": "round,pad=0.2,rounding_size=0.4", "fc": badge.color, "ec": "none"}
                y = top + height + 5 + number * (line_height + 4)
                text = _shorten(badge.text, self.small, self.size - 12)
                self.draw_text(x + 6, y, [text], self.small, color="#ffffff", bbox=background)
        self.top = top + height + max(len(cell.badges) for cell in row.cells) * (line_height + 4) + GAP
        if row.marked:
            self.highlight(MARGIN / 2, start + GAP / 2, self.inner + MARGIN, self.top - GAP - start)

    def draw_text(self, x: float, y: float, lines: Sequence[str], points: int, **style: Any) -> int:
        """Draws lines of text of font size `points` downward from y; returns their height in pixels."""
        for number, line in enumerate(lines):
            baseline = y + points + number * _line_height(points)
            self.axes.text(x, baseline, line, **{"fontsize": points, "color": INK, **style})
        return len(lines) * _line_height(points)

    def draw_box(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        style = {"boxstyle": "square,pad=0", "edgecolor": "none", "linewidth": 1, **style}
        self.axes.add_patch(FancyBboxPatch((x, y), width, height, **style))

    def highlight(self, x: float, y: float, width: float, height: float) -> None:
        style = {"boxstyle": "round,pad=0,rounding_size=6", "facecolor": MARKED, "zorder": -1}
        self.draw_box(x, y, width, height, **style)

    def draw_image(self, x: int, y: int, image: np.ndarray) -> None:
        width, height = _fit_size(image, self.size)
        if self.kind == "png" or width > image.shape[1]:
            image = np.asarray(fit(image, self.size))  # (height, width, 3)
        self.axes.imshow(image, extent=(x, x + width, y + height, y), interpolation="none", aspect="auto")

    def encode(self) -> bytes:
        width, height = self.inner + 2 * MARGIN, self.top + MARGIN
        self.canvas.set_size_inches(width / 72, height / 72)
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format=self.kind, dpi=72, metadata={FILE_KINDS[self.kind]: None})
        return buffer.getvalue()


def _line_height(points: int) -> int:
    return round(points * _LINE)


def _count_letters(points: int, width: float) -> int:
    """Letters of font size `points` that fit into `width` pixels; at least 4."""
    return max(4, int(width / (_LETTER * points)))


def _wrap(text: str, points: int, width: float) -> list[str]:
    count = _count_letters(points, width)
    return [line for paragraph in text.split("\n") for line in textwrap.wrap(paragraph, count)]


def _shorten(text: str, points: int, width: float) -> str:
    """The text in one line of `width` pixels, its end replaced by "..." if it does not fit."""
    count = _count_letters(points, width)
    return text if len(text) <= count else f"{text[: count - 3]}..."


def _fit_size(image: np.ndarray, size: int) -> tuple[int, int]:
    """(width, height) of an image, (H, W, 3), once its longer side is `size` pixels."""
    height, width = image.shape[:2]
    factor = size / max(height, width)
    return max(1, round(width * factor)), max(1, round(height * factor))


def fit(image: np.ndarray, size: int) -> Image.Image:
    """The image, scaled to a longer side of `size` pixels."""
    return Image.fromarray(image).resize(_fit_size(image, size), Image.Resampling.LANCZOS)
