"""Drawing a grid of pictures with titles, column heads and verdicts. Knows nothing of runs or metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

GREEN, RED, GREY, INK, FAINT = "#1b7f3b", "#b3261e", "#6b7280", "#111827", "#e5e7eb"
MARGIN, GAP = 24, 14


@dataclass(frozen=True)
class Badge:
    """A short verdict on a coloured ground."""

    text: str
    color: str


@dataclass(frozen=True)
class Cell:
    """One picture, (H, W, 3) uint8, or a message in its place (`color` is its colour); badges go below."""

    picture: np.ndarray | None
    message: str = ""
    badges: Sequence[Badge] = ()
    color: str = GREY


@dataclass(frozen=True)
class Row:
    """A title (one line per "\\n"), a fainter subtitle, and a cell per column."""

    title: str
    subtitle: str
    cells: Sequence[Cell]


def draw(columns: Sequence[str], rows: Sequence[Row], size: int = 192, *, smooth: bool = True) -> Image.Image:
    """The grid as an RGB picture; `size` is the length of the longer side of every cell's picture.

    smooth: pictures are scaled with Lanczos; otherwise pixels stay squares, as masks want it.
    """
    scale = max(size / 192, 0.6)
    pen = _Pen(scale)
    width = 2 * MARGIN + len(columns) * size + (len(columns) - 1) * GAP
    blocks = [_layout(row, size, pen, width - 2 * MARGIN, smooth) for row in rows]
    header = max(name.count("\n") + 1 for name in columns) * pen.line(pen.head)
    height = MARGIN + header + sum(block.height + 2 * GAP for block in blocks) + MARGIN
    canvas = Image.new("RGB", (width, height), "white")
    brush = ImageDraw.Draw(canvas)
    lefts = [MARGIN + index * (size + GAP) for index in range(len(columns))]
    for left, name in zip(lefts, columns, strict=True):
        for number, line in enumerate(name.split("\n")):
            short = pen.shorten(line, pen.head, size)
            brush.text((left, MARGIN + number * pen.line(pen.head)), short, fill=INK, font=pen.head)
    top = MARGIN + header
    for block in blocks:
        brush.line([(MARGIN, top + GAP // 2), (width - MARGIN, top + GAP // 2)], fill=FAINT, width=2)
        top += GAP
        block.paint(canvas, brush, lefts, top, size, pen)
        top += block.height + GAP
    return canvas


class _Pen:
    """Fonts of one grid, and how much room text takes in them."""

    def __init__(self, scale: float) -> None:
        self.head: Any = ImageFont.load_default(round(18 * scale))
        self.body: Any = ImageFont.load_default(round(16 * scale))
        self.small: Any = ImageFont.load_default(round(13 * scale))

    def line(self, font: Any) -> int:
        return round(font.size * 1.4)

    def wrap(self, text: str, font: Any, width: float) -> list[str]:
        """The text in lines no wider than `width`, broken at spaces, longer words shortened."""
        lines: list[str] = []
        for paragraph in text.split("\n"):
            current = ""
            for word in paragraph.split():
                joined = f"{current} {word}".strip()
                if current and font.getlength(joined) > width:
                    lines.append(current)
                    joined = word
                current = self.shorten(joined, font, width)
            lines.append(current)
        return lines

    def shorten(self, text: str, font: Any, width: float) -> str:
        if font.getlength(text) <= width:
            return text
        while text and font.getlength(f"{text}...") > width:
            text = text[:-1]
        return f"{text}..."


@dataclass(frozen=True)
class _Block:
    """A row with its text wrapped and its pictures scaled."""

    title: list[str]
    subtitle: list[str]
    pictures: list[Image.Image | None]
    cells: Sequence[Cell]
    text_height: int
    picture_height: int
    height: int

    def paint(
        self,
        canvas: Image.Image,
        brush: ImageDraw.ImageDraw,
        lefts: Sequence[int],
        top: int,
        size: int,
        pen: _Pen,
    ) -> None:
        y = top
        for lines, font, color in ((self.title, pen.body, INK), (self.subtitle, pen.small, GREY)):
            for line in lines:
                brush.text((MARGIN, y), line, fill=color, font=font)
                y += pen.line(font)
        y = top + self.text_height
        for left, picture, cell in zip(lefts, self.pictures, self.cells, strict=True):
            if picture is not None:
                canvas.paste(picture, (left, y))
            else:
                box = (left, y, left + size - 1, y + self.picture_height - 1)
                brush.rectangle(box, fill="#f3f4f6", outline=GREY)
                room = max(1, (self.picture_height - 16) // pen.line(pen.small))
                for number, line in enumerate(pen.wrap(cell.message, pen.small, size - 16)[:room]):
                    place = (left + 8, y + 8 + number * pen.line(pen.small))
                    brush.text(place, line, fill=cell.color, font=pen.small)
            for number, badge in enumerate(cell.badges):
                below = y + self.picture_height + 4 + number * (pen.line(pen.small) + 4)
                text = pen.shorten(badge.text, pen.small, size - 12)
                right = left + 12 + pen.small.getlength(text)
                brush.rounded_rectangle(
                    (left, below, right, below + pen.line(pen.small)), radius=5, fill=badge.color
                )
                brush.text(
                    (left + 6, below + pen.line(pen.small) // 2),
                    text,
                    fill="white",
                    font=pen.small,
                    anchor="lm",
                )


def _layout(row: Row, size: int, pen: _Pen, width: int, smooth: bool) -> _Block:
    title, subtitle = pen.wrap(row.title, pen.body, width), [pen.shorten(row.subtitle, pen.small, width)]
    pictures = [None if cell.picture is None else fit(cell.picture, size, smooth) for cell in row.cells]
    text_height = len(title) * pen.line(pen.body) + len(subtitle) * pen.line(pen.small) + 6
    picture_height = max((picture.height for picture in pictures if picture), default=size)
    # A message needs some lines even beside very flat pictures.
    if any(picture is None for picture in pictures):
        picture_height = max(picture_height, 5 * pen.line(pen.small))
    badges = max(len(cell.badges) for cell in row.cells) * (pen.line(pen.small) + 4)
    height = text_height + picture_height + badges
    return _Block(title, subtitle, pictures, row.cells, text_height, picture_height, height)


def fit(picture: np.ndarray, size: int, smooth: bool = True) -> Image.Image:
    """The picture scaled so that its longer side is `size`, by Lanczos or, unless `smooth`, by repetition."""
    height, width = picture.shape[:2]
    factor = size / max(height, width)
    target = (max(1, round(width * factor)), max(1, round(height * factor)))
    return Image.fromarray(picture).resize(
        target, Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
    )
