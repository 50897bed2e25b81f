"""A grid of pictures with titles, column heads and verdicts: as PNG, with pictures scaled to their cells, or
as PDF or SVG, with letters as letters and pictures as they are."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import text_to_path
from PIL import Image

#: Matplotlib's settings and its fonts are shared by all threads, and sheets are drawn in several.
_DRAWING = threading.RLock()
GREEN, RED, GREY, INK, FAINT = "#1b7f3b", "#b3261e", "#6b7280", "#111827", "#e5e7eb"
PANEL, MARKED = "#f3f4f6", "#fdf0c8"
MARGIN, GAP = 24, 14
#: What a grid can be written as.
KINDS = ("png", "pdf", "svg")
#: Letters stay letters, found and copied from the file; Verdana is as wide where DejaVu is not installed.
_STYLE: Any = {
    "svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "nein", "text.parse_math": False,
    "text.hinting": "none", "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
}  # fmt: skip


@dataclass(frozen=True)
class Badge:
    """A short verdict on a coloured ground."""

    text: str
    color: str


@dataclass(frozen=True)
class Cell:
    """A picture, (H, W, 3) uint8, or a message of a `color`; badges go below."""

    picture: np.ndarray | None
    message: str = ""
    badges: Sequence[Badge] = ()
    color: str = GREY


@dataclass(frozen=True)
class Row:
    """A title (one line per "\\n"), a fainter subtitle, and a cell per column; marked: on another ground."""

    title: str
    subtitle: str
    cells: Sequence[Cell]
    marked: bool = False


@dataclass(frozen=True)
class Font:
    """Letters of `size` pixels."""

    size: int
    bold: bool = False

    @property
    def properties(self) -> FontProperties:
        weight = "bold" if self.bold else "normal"
        return FontProperties(_STYLE["font.sans-serif"][:1], size=self.size, weight=weight)

    @property
    def line(self) -> int:
        return round(self.size * 1.4)

    def wrap(self, text: str, width: float) -> list[str]:
        """The text in lines no wider than `width`, broken at spaces, longer words shortened."""
        lines: list[str] = []
        for paragraph in text.split("\n"):
            current = ""
            for word in paragraph.split():
                joined = f"{current} {word}".strip()
                if current and _width(joined, self) > width:
                    lines.append(current)
                    joined = word
                current = self.shorten(joined, width)
            lines.append(current)
        return lines

    def shorten(self, text: str, width: float) -> str:
        """The text, or as many of its first letters as leave room for three dots."""
        if _width(text, self) <= width:
            return text
        few, many = 0, len(text)
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (middle, many) if _width(f"{text[:middle]}...", self) <= width else (few, middle)
        return f"{text[:few]}..."


@functools.lru_cache(maxsize=4096)
def _width(text: str, font: Font) -> float:
    """Of one line, in pixels."""
    with _DRAWING:
        return float(text_to_path.get_text_width_height_descent(text, font.properties, ismath=False)[0])


class _Sheet:
    """A canvas; places and sizes are pixels from the upper left, and later things lie above earlier ones."""

    def __init__(self, sharp: bool) -> None:
        self.canvas, self.sharp, self.order = Canvas(dpi=72, facecolor="white"), sharp, 1
        self.axes = self.canvas.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def text(self, left: float, top: float, text: str, font: Font, color: str) -> None:
        self.order += 1
        look: Any = {"color": color, "fontproperties": font.properties, "zorder": self.order}
        self.axes.text(left, top + font.size, text, **look)

    def box(
        self, left: float, top: float, width: float, height: float, color: str, *,
        edge: str = "none", corner: float = 0.0, below: bool = False,
    ) -> None:  # fmt: skip
        """A filled rectangle; below: all else."""
        self.order += 1
        style = f"round,pad=0,rounding_size={corner}" if corner else "square,pad=0"
        look: Any = {
            "boxstyle": style,
            "facecolor": color,
            "edgecolor": edge,
            "linewidth": int(edge != "none"),
        }
        look |= {"linewidth": int(edge != "none"), "zorder": 0 if below else self.order}
        self.axes.add_patch(FancyBboxPatch((left, top), width, height, **look))

    def picture(self, left: int, top: int, width: int, height: int, pixels: np.ndarray, smooth: bool) -> None:
        self.order += 1
        if not self.sharp or (smooth and width > pixels.shape[1]):
            pixels = np.asarray(fit(pixels, max(width, height), smooth))
        ends = left, left + width, top + height, top
        self.axes.imshow(pixels, extent=ends, interpolation="none", aspect="auto", zorder=self.order)

    def encoded(self, width: float, height: float, kind: str) -> bytes:
        self.canvas.set_size_inches(width / 72, height / 72)
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        buffer = io.BytesIO()
        if kind == "png":
            agg = FigureCanvasAgg(self.canvas)
            agg.draw()
            shown = np.asarray(agg.buffer_rgba())[..., :3]
            Image.fromarray(np.ascontiguousarray(shown)).save(buffer, format="PNG", optimize=True)
        else:
            undated = {"Date": None} if kind == "svg" else {"CreationDate": None}
            self.canvas.savefig(buffer, format=kind, dpi=72, metadata=undated)
        return buffer.getvalue()


def draw(
    columns: Sequence[str], rows: Sequence[Row], size: int = 192, *, smooth: bool = True,
    marked: Collection[int] = (), kind: str = "png",
) -> bytes:  # fmt: skip
    """The bytes of a file, the same every time. size: of the longer side of a picture; smooth: scaled with
    Lanczos, else pixels stay squares; marked: places of the columns on a ground of another color; kind: of
    `KINDS`."""
    with _DRAWING, matplotlib.rc_context(_STYLE):
        return _draw(columns, rows, size, smooth, marked, kind)


def _draw(
    columns: Sequence[str], rows: Sequence[Row], size: int, smooth: bool, marked: Collection[int], kind: str
) -> bytes:
    sheet, scale = _Sheet(kind != "png"), max(size / 192, 0.6)
    head, bold = Font(round(16 * scale)), Font(round(16 * scale), bold=True)
    body, small = Font(round(14.5 * scale)), Font(round(12 * scale))
    inner = len(columns) * size + (len(columns) - 1) * GAP
    width, lefts = inner + 2 * MARGIN, [MARGIN + column * (size + GAP) for column in range(len(columns))]
    for column, name in enumerate(columns):
        font = bold if column in marked else head
        for number, line in enumerate(name.split("\n")):
            sheet.text(lefts[column], MARGIN + number * head.line, font.shorten(line, size), font, INK)
    top = MARGIN + max(name.count("\n") + 1 for name in columns) * head.line
    for row in rows:
        sheet.box(MARGIN, top + GAP // 2 - 1, inner, 2, FAINT)
        start, top = top, top + GAP
        lines = [(line, body, INK) for line in body.wrap(row.title, inner)] if row.title else []
        lines += [(small.shorten(row.subtitle, inner), small, GREY)] if row.subtitle else []
        for text, font, color in lines:
            sheet.text(MARGIN, top, text, font, color)
            top += font.line
        top += 6
        sizes = [None if cell.picture is None else _scaled(cell.picture, size) for cell in row.cells]
        tall = max((scaled[1] for scaled in sizes if scaled), default=size)
        # A message needs some lines even beside very flat pictures.
        tall = max(tall, 5 * small.line) if None in sizes else tall
        for left, scaled, cell in zip(lefts, sizes, row.cells, strict=True):
            if cell.picture is not None and scaled is not None:
                sheet.picture(left, top, *scaled, cell.picture, smooth)
            else:
                sheet.box(left, top, size, tall, PANEL, edge=GREY)
                room = max(1, (tall - 16) // small.line)
                for number, line in enumerate(small.wrap(cell.message, size - 16)[:room]):
                    sheet.text(left + 8, top + 8 + number * small.line, line, small, cell.color)
            for number, badge in enumerate(cell.badges):
                below = top + tall + 4 + number * (small.line + 4)
                text = small.shorten(badge.text, size - 12)
                sheet.box(left, below, 12 + _width(text, small), small.line, badge.color, corner=5)
                middle = below + (small.line - small.size) / 2 - small.size * 0.1
                sheet.text(left + 6, middle, text, small, "#ffffff")
        top += tall + max(len(cell.badges) for cell in row.cells) * (small.line + 4) + GAP
        if row.marked:
            ground = MARGIN / 2, start + GAP / 2, width - MARGIN, top - GAP - start
            sheet.box(*ground, MARKED, corner=6, below=True)
    for column in marked:
        ground = lefts[column] - GAP / 2, MARGIN / 2, size + GAP, top
        sheet.box(*ground, MARKED, corner=6, below=True)
    return sheet.encoded(width, top + MARGIN, kind)


def _scaled(picture: np.ndarray, size: int) -> tuple[int, int]:
    height, width = picture.shape[:2]
    factor = size / max(height, width)
    return max(1, round(width * factor)), max(1, round(height * factor))


def fit(picture: np.ndarray, size: int, smooth: bool = True) -> Image.Image:
    """Its longer side is `size`; scaled by Lanczos or, unless `smooth`, by repetition."""
    resampling = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
    return Image.fromarray(picture).resize(_scaled(picture, size), resampling)
