"""A grid of pictures with titles, column heads and verdicts: as PNG, with pictures scaled to their cells, or
as PDF or SVG, with letters as letters and pictures as they are."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import text_to_path
from matplotlib.transforms import IdentityTransform
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


#: Puts something onto a canvas of a height in pixels; sharp: pictures as they are.
_Mark = Callable[[Canvas, int, bool], Artist]


def _box(left: float, top: float, width: float, height: float, color: str, edge: str = "none",
         corner: float = 0.0) -> _Mark:  # fmt: skip
    """A filled rectangle with round corners; sizes in pixels from the upper left."""

    def put(canvas: Canvas, whole: int, sharp: bool) -> Artist:
        style = f"round,pad=0,rounding_size={corner}" if corner else "square,pad=0"
        return canvas.add_artist(FancyBboxPatch(
            (left, whole - top - height), width, height, style, facecolor=color, edgecolor=edge,
            linewidth=1 if edge != "none" else 0, transform=IdentityTransform(),
        ))  # fmt: skip

    return put


def _text(left: float, top: float, text: str, font: Font, color: str) -> _Mark:
    return lambda canvas, whole, sharp: canvas.text(
        left, whole - top - font.size, text, color=color, va="baseline", fontproperties=font.properties,
        transform=IdentityTransform(), parse_math=False,
    )  # fmt: skip


def _rule(left: float, right: float, top: float) -> _Mark:
    def put(canvas: Canvas, whole: int, sharp: bool) -> Artist:
        line = Line2D([left, right], [whole - top] * 2, color=FAINT, linewidth=2)
        line.set_transform(IdentityTransform())
        return canvas.add_artist(line)

    return put


def _picture(left: int, top: int, width: int, height: int, picture: np.ndarray, smooth: bool) -> _Mark:
    def put(canvas: Canvas, whole: int, sharp: bool) -> Artist:
        bottom, image = whole - top - height, picture
        if not sharp or (smooth and width > picture.shape[1]):
            image = np.asarray(fit(picture, max(width, height), smooth))
        if not sharp:
            return canvas.figimage(image, left, bottom, origin="upper")
        across, up = canvas.get_size_inches() * canvas.dpi
        axes = canvas.add_axes((left / across, bottom / up, width / across, height / up))
        axes.imshow(image, interpolation="none", aspect="auto")
        axes.set_axis_off()
        return axes

    return put


@dataclass(frozen=True)
class Grid:
    """Sizes in pixels, and what is put where, in order."""

    width: int
    height: int
    marks: Sequence[_Mark]

    def encoded(self, kind: str = "png") -> bytes:
        """The bytes of a file, the same every time; `kind` is one of `KINDS`."""
        buffer = io.BytesIO()
        with _DRAWING, matplotlib.rc_context(_STYLE):
            canvas = Canvas(figsize=(self.width / 72, self.height / 72), dpi=72, facecolor="white")
            for order, mark in enumerate(self.marks):
                mark(canvas, self.height, kind != "png").set_zorder(order)
            if kind == "png":
                agg = FigureCanvasAgg(canvas)
                agg.draw()
                pixels = np.asarray(agg.buffer_rgba())[..., :3]
                Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG", optimize=True)
            else:
                undated = {"Date": None} if kind == "svg" else {"CreationDate": None}
                canvas.savefig(buffer, format=kind, dpi=72, metadata=undated)
        return buffer.getvalue()


def draw(
    columns: Sequence[str], rows: Sequence[Row], size: int = 192, *, smooth: bool = True,
    marked: Collection[int] = (),
) -> Grid:  # fmt: skip
    """size: of the longer side of every picture; smooth: scaled with Lanczos, else pixels stay squares;
    marked: places of the columns on a ground of another colour."""
    scale = max(size / 192, 0.6)
    head, bold = Font(round(16 * scale)), Font(round(16 * scale), bold=True)
    body, small = Font(round(14.5 * scale)), Font(round(12 * scale))
    width = 2 * MARGIN + len(columns) * size + (len(columns) - 1) * GAP
    lefts = [MARGIN + column * (size + GAP) for column in range(len(columns))]
    marks: list[_Mark] = []
    for column, name in enumerate(columns):
        font = bold if column in marked else head
        for number, line in enumerate(name.split("\n")):
            text = font.shorten(line, size)
            marks.append(_text(lefts[column], MARGIN + number * head.line, text, font, INK))
    top = MARGIN + max(name.count("\n") + 1 for name in columns) * head.line
    grounds: list[_Mark] = []
    for row in rows:
        cells, bottom = _row(row, lefts, top + GAP, size, body, small, width - 2 * MARGIN, smooth)
        if row.marked:
            grounds.append(_box(MARGIN / 2, top + GAP / 2, width - MARGIN, bottom - top, MARKED, corner=6))
        marks += [_rule(MARGIN, width - MARGIN, top + GAP // 2), *cells]
        top = bottom + GAP
    height = top + MARGIN
    for column in marked:
        left = lefts[column] - GAP / 2
        grounds.append(_box(left, MARGIN / 2, size + GAP, height - MARGIN, MARKED, corner=6))
    return Grid(width, height, [*grounds, *marks])


def _row(
    row: Row, lefts: Sequence[int], top: int, size: int, body: Font, small: Font, width: int, smooth: bool
) -> tuple[list[_Mark], int]:
    """The row, and where it ends."""
    marks: list[_Mark] = []
    lines = [(line, body, INK) for line in body.wrap(row.title, width)] if row.title else []
    lines += [(small.shorten(row.subtitle, width), small, GREY)] if row.subtitle else []
    for text, font, color in lines:
        marks.append(_text(MARGIN, top, text, font, color))
        top += font.line
    top += 6
    sizes = [None if cell.picture is None else _scaled(cell.picture, size) for cell in row.cells]
    tall = max((scaled[1] for scaled in sizes if scaled), default=size)
    # A message needs some lines even beside very flat pictures.
    tall = max(tall, 5 * small.line) if None in sizes else tall
    for left, scaled, cell in zip(lefts, sizes, row.cells, strict=True):
        if cell.picture is not None and scaled is not None:
            marks.append(_picture(left, top, *scaled, cell.picture, smooth))
        else:
            marks.append(_box(left, top, size, tall, PANEL, edge=GREY))
            room = max(1, (tall - 16) // small.line)
            for number, line in enumerate(small.wrap(cell.message, size - 16)[:room]):
                marks.append(_text(left + 8, top + 8 + number * small.line, line, small, cell.color))
        for number, badge in enumerate(cell.badges):
            below = top + tall + 4 + number * (small.line + 4)
            text = small.shorten(badge.text, size - 12)
            marks.append(_box(left, below, 12 + _width(text, small), small.line, badge.color, corner=5))
            middle = below + (small.line - small.size) / 2 - small.size * 0.1
            marks.append(_text(left + 6, middle, text, small, "#ffffff"))
    return marks, top + tall + max(len(cell.badges) for cell in row.cells) * (small.line + 4)


def _scaled(picture: np.ndarray, size: int) -> tuple[int, int]:
    height, width = picture.shape[:2]
    factor = size / max(height, width)
    return max(1, round(width * factor)), max(1, round(height * factor))


def fit(picture: np.ndarray, size: int, smooth: bool = True) -> Image.Image:
    """Its longer side is `size`; scaled by Lanczos or, unless `smooth`, by repetition."""
    resampling = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
    return Image.fromarray(picture).resize(_scaled(picture, size), resampling)
