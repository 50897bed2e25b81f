"""How each category and each background of the nano world looks.

Everything is drawn `SUPERSAMPLE` times too large with Pillow and reduced by averaging, so that edges are
anti-aliased. A category is one function on a `Pen`, whose coordinates run from 0 to 1 over the object's own
box.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw

from nein.nano.styles import PLAIN, SKETCH, sketched_background, sketched_thing

SIZE = 64  #: width and height of a scene in pixels
SUPERSAMPLE = 4

Colour = tuple[int, int, int]
Point = tuple[float, float]

PALETTE: dict[str, Colour] = {
    "red": (205, 38, 38),
    "orange": (240, 135, 25),
    "yellow": (245, 205, 45),
    "green": (45, 150, 65),
    "blue": (45, 95, 205),
    "purple": (135, 60, 165),
    "pink": (240, 125, 170),
    "brown": (135, 85, 45),
    "black": (45, 45, 50),
    "grey": (135, 138, 145),
    "white": (240, 240, 238),
    "tan": (205, 165, 110),
}


def shade(colour: Colour, factor: float) -> Colour:
    """`colour` darkened (factor < 1) or lightened towards white (factor > 1)."""
    if factor <= 1:
        r, g, b = (int(c * factor) for c in colour)
    else:
        r, g, b = (int(c + (255 - c) * (factor - 1)) for c in colour)
    return r, g, b


class Pen:
    """Draws in unit coordinates on a square layer of `side` supersampled pixels."""

    def __init__(self, draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
        self.draw, self.w, self.h = draw, width - 1, height - 1

    def _xy(self, points: Sequence[Point]) -> list[Point]:
        return [(x * self.w, y * self.h) for x, y in points]

    def _width(self, fraction: float) -> int:
        return max(1, round(fraction * max(self.w, self.h)))

    def poly(self, points: Sequence[Point], fill: Colour, edge: Colour | None = None) -> None:
        self.draw.polygon(self._xy(points), fill=fill)
        if edge is not None:
            self.line([*points, points[0]], edge, 0.05)

    def oval(
        self, x0: float, y0: float, x1: float, y1: float, fill: Colour, edge: Colour | None = None
    ) -> None:
        self.draw.ellipse(self._xy([(x0, y0), (x1, y1)]), fill=fill, outline=edge, width=self._width(0.05))

    def rect(
        self,
        x0: float,
        y0: float,
        x1: float,
        y1: float,
        fill: Colour,
        edge: Colour | None = None,
        r: float = 0.0,
    ) -> None:
        self.draw.rounded_rectangle(
            self._xy([(x0, y0), (x1, y1)]),
            radius=r * self.w,
            fill=fill,
            outline=edge,
            width=self._width(0.05),
        )

    def line(self, points: Sequence[Point], fill: Colour, width: float) -> None:
        self.draw.line(self._xy(points), fill=fill, width=self._width(width), joint="curve")

    def arc(
        self, x0: float, y0: float, x1: float, y1: float, start: float, end: float, fill: Colour, width: float
    ) -> None:
        self.draw.arc(self._xy([(x0, y0), (x1, y1)]), start, end, fill=fill, width=self._width(width))

    def pie(self, x0: float, y0: float, x1: float, y1: float, start: float, end: float, fill: Colour) -> None:
        self.draw.pieslice(self._xy([(x0, y0), (x1, y1)]), start, end, fill=fill)


BLACK, WHITE, GREY = (30, 30, 34), (246, 246, 244), (140, 142, 148)


def _airplane(p: Pen, c: Colour) -> None:
    d = shade(c, 0.6)
    p.poly([(0.38, 0.5), (0.62, 0.5), (0.42, 1.0), (0.26, 1.0)], d)
    p.poly([(0.0, 0.05), (0.16, 0.05), (0.28, 0.42), (0.08, 0.45)], d)
    p.oval(0.03, 0.32, 1.0, 0.66, c, d)
    p.poly([(0.42, 0.36), (0.6, 0.36), (0.48, 0.08), (0.36, 0.08)], shade(c, 0.75))
    for x in (0.5, 0.62, 0.74):
        p.rect(x, 0.42, x + 0.06, 0.5, (90, 160, 215))


def _apple(p: Pen, c: Colour) -> None:
    p.oval(0.02, 0.24, 0.62, 1.0, c)
    p.oval(0.38, 0.24, 0.98, 1.0, c)
    p.oval(0.16, 0.38, 0.34, 0.58, shade(c, 1.5))
    p.line([(0.5, 0.34), (0.54, 0.02)], (95, 60, 30), 0.08)
    p.poly([(0.56, 0.2), (0.72, 0.0), (0.96, 0.08), (0.8, 0.24)], (60, 155, 60))


def _banana(p: Pen, c: Colour) -> None:
    p.arc(-0.05, -0.75, 1.05, 0.95, 18, 162, shade(c, 0.72), 0.3)
    p.arc(-0.03, -0.73, 1.03, 0.9, 20, 160, c, 0.22)
    p.rect(0.86, 0.0, 0.97, 0.26, (110, 80, 30))


def _bench(p: Pen, c: Colour) -> None:
    d = shade(c, 0.6)
    for x in (0.08, 0.82):
        p.rect(x, 0.05, x + 0.1, 1.0, d)
    for y in (0.06, 0.26):
        p.rect(0.0, y, 1.0, y + 0.15, c)
    p.rect(0.0, 0.56, 1.0, 0.74, c, d)


def _bicycle(p: Pen, c: Colour) -> None:
    for x in (0.0, 0.56):
        p.arc(x, 0.42, x + 0.44, 1.0, 0, 360, BLACK, 0.07)
    p.line([(0.22, 0.71), (0.4, 0.28), (0.72, 0.28), (0.5, 0.71), (0.22, 0.71)], c, 0.08)
    p.line([(0.5, 0.71), (0.36, 0.14)], c, 0.08)
    p.line([(0.78, 0.71), (0.7, 0.1), (0.84, 0.04)], c, 0.08)
    p.line([(0.26, 0.14), (0.46, 0.14)], BLACK, 0.1)


def _bird(p: Pen, c: Colour) -> None:
    d = shade(c, 0.6)
    p.poly([(0.0, 0.5), (0.3, 0.55), (0.24, 0.82)], d)
    p.oval(0.12, 0.36, 0.76, 0.86, c)
    p.oval(0.56, 0.08, 0.9, 0.5, c)
    p.poly([(0.86, 0.22), (1.0, 0.32), (0.86, 0.38)], (245, 165, 30))
    p.oval(0.7, 0.18, 0.79, 0.28, BLACK)
    p.poly([(0.26, 0.46), (0.6, 0.5), (0.34, 0.8)], d)
    for x in (0.42, 0.54):
        p.line([(x, 0.84), (x, 1.0)], (225, 140, 30), 0.05)


def _boat(p: Pen, c: Colour) -> None:
    p.poly([(0.0, 0.68), (1.0, 0.68), (0.82, 1.0), (0.18, 1.0)], c, shade(c, 0.6))
    p.line([(0.5, 0.7), (0.5, 0.0)], (90, 60, 35), 0.06)
    p.poly([(0.54, 0.04), (0.54, 0.6), (0.96, 0.6)], WHITE)
    p.poly([(0.45, 0.16), (0.45, 0.6), (0.12, 0.6)], (225, 225, 222))


def _book(p: Pen, c: Colour) -> None:
    p.poly([(0.0, 0.12), (0.5, 0.24), (1.0, 0.12), (1.0, 0.9), (0.5, 1.0), (0.0, 0.9)], c)
    p.poly([(0.07, 0.05), (0.5, 0.17), (0.5, 0.9), (0.07, 0.8)], WHITE)
    p.poly([(0.93, 0.05), (0.5, 0.17), (0.5, 0.9), (0.93, 0.8)], (228, 226, 220))
    for y in (0.28, 0.44, 0.6):
        p.line([(0.15, y - 0.04), (0.43, y + 0.03)], GREY, 0.04)
        p.line([(0.57, y + 0.03), (0.85, y - 0.04)], GREY, 0.04)
    p.line([(0.5, 0.18), (0.5, 0.94)], shade(c, 0.6), 0.05)


def _bottle(p: Pen, c: Colour) -> None:
    d = shade(c, 0.55)
    p.rect(0.34, 0.0, 0.66, 0.12, d)
    p.rect(0.37, 0.1, 0.63, 0.36, c)
    p.rect(0.1, 0.28, 0.9, 1.0, c, d, r=0.2)
    p.rect(0.1, 0.5, 0.9, 0.8, WHITE)


def _bus(p: Pen, c: Colour) -> None:
    p.rect(0.0, 0.05, 1.0, 0.86, c, shade(c, 0.6), r=0.06)
    for x in (0.06, 0.29, 0.52, 0.75):
        p.rect(x, 0.16, x + 0.18, 0.46, (190, 225, 245))
    p.rect(0.0, 0.6, 1.0, 0.68, shade(c, 0.6))
    for x in (0.12, 0.66):
        p.oval(x, 0.68, x + 0.22, 1.0, BLACK)
        p.oval(x + 0.07, 0.79, x + 0.15, 0.9, GREY)


def _cake(p: Pen, c: Colour) -> None:
    p.rect(0.04, 0.42, 0.96, 1.0, (235, 205, 150), r=0.06)
    p.rect(0.04, 0.68, 0.96, 0.78, c)
    p.rect(0.0, 0.34, 1.0, 0.54, c, r=0.08)
    for x in (0.08, 0.36, 0.64):
        p.oval(x, 0.44, x + 0.2, 0.66, c)
    p.rect(0.45, 0.12, 0.55, 0.36, WHITE)
    p.oval(0.43, 0.0, 0.57, 0.16, (250, 180, 40))


def _car(p: Pen, c: Colour) -> None:
    p.poly([(0.16, 0.48), (0.3, 0.1), (0.7, 0.1), (0.86, 0.48)], c)
    p.poly([(0.26, 0.45), (0.35, 0.19), (0.48, 0.19), (0.48, 0.45)], (190, 225, 245))
    p.poly([(0.76, 0.45), (0.66, 0.19), (0.53, 0.19), (0.53, 0.45)], (190, 225, 245))
    p.rect(0.0, 0.42, 1.0, 0.8, c, r=0.12)
    p.rect(0.9, 0.5, 1.0, 0.6, (255, 240, 150))
    for x in (0.13, 0.62):
        p.oval(x, 0.58, x + 0.25, 1.0, BLACK)
        p.oval(x + 0.08, 0.72, x + 0.17, 0.87, GREY)


def _cat(p: Pen, c: Colour) -> None:
    d = shade(c, 0.55)
    p.arc(0.55, 0.45, 1.02, 1.1, 200, 420, c, 0.1)
    p.poly([(0.14, 0.5), (0.62, 0.5), (0.78, 1.0), (0.06, 1.0)], c)
    p.poly([(0.08, 0.3), (0.1, 0.0), (0.34, 0.16)], c, d)
    p.poly([(0.68, 0.3), (0.66, 0.0), (0.42, 0.16)], c, d)
    p.oval(0.06, 0.12, 0.7, 0.62, c)
    for x in (0.2, 0.46):
        p.oval(x, 0.28, x + 0.11, 0.42, (110, 190, 70))
        p.oval(x + 0.04, 0.29, x + 0.08, 0.41, BLACK)
    p.poly([(0.33, 0.44), (0.43, 0.44), (0.38, 0.51)], (235, 130, 140))
    p.line([(0.22, 0.72), (0.22, 1.0)], d, 0.04)
    p.line([(0.42, 0.72), (0.42, 1.0)], d, 0.04)


def _chair(p: Pen, c: Colour) -> None:
    d = shade(c, 0.6)
    p.rect(0.04, 0.0, 0.24, 1.0, c, d)
    p.rect(0.04, 0.5, 0.96, 0.68, c, d)
    p.rect(0.78, 0.62, 0.96, 1.0, c, d)
    p.rect(0.24, 0.06, 0.34, 0.5, d)


def _clock(p: Pen, c: Colour) -> None:
    p.oval(0.0, 0.0, 1.0, 1.0, c)
    p.oval(0.12, 0.12, 0.88, 0.88, WHITE)
    for x, y in ((0.5, 0.2), (0.5, 0.8), (0.2, 0.5), (0.8, 0.5)):
        p.oval(x - 0.04, y - 0.04, x + 0.04, y + 0.04, BLACK)
    p.line([(0.5, 0.5), (0.5, 0.24)], BLACK, 0.07)
    p.line([(0.5, 0.5), (0.7, 0.6)], BLACK, 0.07)


def _cup(p: Pen, c: Colour) -> None:
    d = shade(c, 0.6)
    p.arc(0.55, 0.26, 1.0, 0.76, 260, 460, d, 0.1)
    p.poly([(0.04, 0.12), (0.76, 0.12), (0.66, 1.0), (0.14, 1.0)], c)
    p.oval(0.04, 0.02, 0.76, 0.24, d)
    p.oval(0.12, 0.05, 0.68, 0.2, (95, 60, 35))
    p.rect(0.1, 0.5, 0.7, 0.62, shade(c, 1.6))


def _dog(p: Pen, c: Colour) -> None:
    d = shade(c, 0.55)
    p.line([(0.08, 0.5), (0.0, 0.22)], c, 0.1)
    p.rect(0.06, 0.42, 0.72, 0.76, c, r=0.12)
    for x in (0.08, 0.24, 0.48, 0.62):
        p.rect(x, 0.66, x + 0.1, 1.0, c if x in (0.08, 0.62) else d)
    p.rect(0.54, 0.12, 0.86, 0.56, c, r=0.12)
    p.rect(0.76, 0.3, 1.0, 0.5, c, r=0.06)
    p.oval(0.9, 0.28, 1.0, 0.4, BLACK)
    p.oval(0.5, 0.1, 0.66, 0.5, d)
    p.oval(0.74, 0.2, 0.82, 0.3, BLACK)


def _donut(p: Pen, c: Colour) -> None:
    p.oval(0.0, 0.04, 1.0, 1.0, (205, 150, 85))
    p.oval(0.04, 0.0, 0.96, 0.9, c)
    p.oval(0.34, 0.32, 0.66, 0.62, (120, 80, 45))
    sprinkles = ((0.2, 0.3), (0.45, 0.14), (0.74, 0.26), (0.82, 0.56), (0.2, 0.62), (0.52, 0.74))
    for i, (x, y) in enumerate(sprinkles):
        p.line([(x, y), (x + 0.08, y + 0.05)], (WHITE, (255, 225, 60), (80, 190, 230))[i % 3], 0.06)


def _hydrant(p: Pen, c: Colour) -> None:
    d = shade(c, 0.6)
    p.rect(0.06, 0.86, 0.94, 1.0, d)
    p.rect(0.22, 0.28, 0.78, 0.9, c)
    p.pie(0.2, 0.02, 0.8, 0.56, 180, 360, c)
    p.rect(0.42, 0.0, 0.58, 0.1, d)
    p.rect(0.14, 0.26, 0.86, 0.36, d)
    p.rect(0.0, 0.46, 1.0, 0.62, c, d)
    p.oval(0.36, 0.42, 0.64, 0.66, WHITE, d)


def _kite(p: Pen, c: Colour) -> None:
    p.line([(0.5, 0.62), (0.4, 0.76), (0.58, 0.86), (0.46, 1.0)], (80, 80, 90), 0.04)
    p.poly([(0.5, 0.0), (0.95, 0.3), (0.5, 0.7), (0.05, 0.3)], c)
    p.poly([(0.5, 0.0), (0.95, 0.3), (0.5, 0.3)], shade(c, 1.55))
    p.poly([(0.5, 0.7), (0.05, 0.3), (0.5, 0.3)], shade(c, 1.55))
    for x, y in ((0.42, 0.76), (0.56, 0.87)):
        p.poly([(x - 0.13, y - 0.05), (x + 0.13, y + 0.05), (x + 0.13, y - 0.05), (x - 0.13, y + 0.05)], c)


def _laptop(p: Pen, c: Colour) -> None:
    p.rect(0.14, 0.0, 0.86, 0.64, c, r=0.04)
    p.rect(0.2, 0.07, 0.8, 0.56, (105, 200, 235))
    p.rect(0.27, 0.16, 0.55, 0.22, WHITE)
    p.rect(0.27, 0.3, 0.7, 0.36, WHITE)
    p.poly([(0.12, 0.66), (0.88, 0.66), (1.0, 1.0), (0.0, 1.0)], shade(c, 1.3), shade(c, 0.6))
    for y in (0.74, 0.84):
        p.line([(0.18, y), (0.82, y)], BLACK, 0.05)


def _person(p: Pen, c: Colour) -> None:
    skin = (230, 180, 140)
    p.oval(0.3, 0.0, 0.7, 0.24, (80, 50, 30))
    p.oval(0.33, 0.05, 0.67, 0.27, skin)
    p.rect(0.22, 0.26, 0.78, 0.62, c, r=0.1)
    p.line([(0.2, 0.32), (0.04, 0.6)], c, 0.09)
    p.line([(0.8, 0.32), (0.96, 0.6)], c, 0.09)
    p.rect(0.26, 0.6, 0.48, 1.0, (50, 60, 105))
    p.rect(0.52, 0.6, 0.74, 1.0, (50, 60, 105))


def _pizza(p: Pen, c: Colour) -> None:
    p.poly([(0.04, 0.16), (0.96, 0.16), (0.5, 1.0)], c)
    p.rect(0.0, 0.02, 1.0, 0.22, (185, 120, 60), r=0.1)
    for x, y in ((0.2, 0.3), (0.56, 0.28), (0.4, 0.56)):
        p.oval(x, y, x + 0.22, y + 0.2, (195, 45, 35))
    p.oval(0.4, 0.3, 0.48, 0.38, (70, 130, 50))


def _plant(p: Pen, c: Colour) -> None:
    for x0, x1 in ((0.1, 0.4), (0.9, 0.6), (0.5, 0.5)):
        p.line([(x1, 0.6), (x0, 0.22)], (40, 110, 50), 0.06)
    for x, y in ((0.0, 0.16), (0.3, 0.0), (0.62, 0.16), (0.14, 0.34), (0.5, 0.34)):
        p.oval(x, y, x + 0.38, y + 0.3, (55, 160, 70), (35, 115, 50))
    p.poly([(0.16, 0.62), (0.84, 0.62), (0.72, 1.0), (0.28, 1.0)], c)
    p.rect(0.12, 0.58, 0.88, 0.7, shade(c, 0.7))


def _sheep(p: Pen, c: Colour) -> None:
    for x in (0.24, 0.38, 0.58, 0.7):
        p.rect(x, 0.66, x + 0.08, 1.0, BLACK)
    for x, y in ((0.1, 0.26), (0.3, 0.14), (0.5, 0.16), (0.12, 0.44), (0.34, 0.46), (0.54, 0.42)):
        p.oval(x, y, x + 0.34, y + 0.38, c, shade(c, 0.82))
    p.oval(0.18, 0.26, 0.8, 0.74, c)
    p.oval(0.7, 0.22, 1.0, 0.62, (60, 55, 58))
    p.oval(0.68, 0.12, 0.92, 0.34, c)
    p.oval(0.86, 0.34, 0.93, 0.43, WHITE)


def _stop_sign(p: Pen, c: Colour) -> None:
    p.rect(0.44, 0.6, 0.56, 1.0, (115, 115, 120))
    octagon = [
        (0.3, 0.0),
        (0.7, 0.0),
        (1.0, 0.2),
        (1.0, 0.48),
        (0.7, 0.68),
        (0.3, 0.68),
        (0.0, 0.48),
        (0.0, 0.2),
    ]
    p.poly(octagon, c, WHITE)
    p.rect(0.16, 0.27, 0.84, 0.42, WHITE)


def _teddy(p: Pen, c: Colour) -> None:
    light = shade(c, 1.5)
    for x in (0.08, 0.62):
        p.oval(x, 0.0, x + 0.3, 0.26, c)
        p.oval(x + 0.08, 0.06, x + 0.22, 0.2, light)
    for x in (0.0, 0.7):
        p.oval(x, 0.46, x + 0.3, 0.76, c)
    for x in (0.08, 0.56):
        p.oval(x, 0.72, x + 0.36, 1.0, c)
        p.oval(x + 0.1, 0.79, x + 0.26, 0.95, light)
    p.oval(0.16, 0.42, 0.84, 0.96, c)
    p.oval(0.3, 0.52, 0.7, 0.86, light)
    p.oval(0.12, 0.06, 0.88, 0.52, c)
    p.oval(0.34, 0.26, 0.66, 0.48, light)
    for x in (0.28, 0.62):
        p.oval(x, 0.18, x + 0.1, 0.28, BLACK)
    p.oval(0.44, 0.28, 0.56, 0.37, BLACK)


def _traffic_light(p: Pen, c: Colour) -> None:
    p.rect(0.4, 0.74, 0.6, 1.0, (90, 90, 95))
    p.rect(0.08, 0.0, 0.92, 0.8, c, r=0.12)
    for y, lamp in ((0.05, (230, 45, 40)), (0.3, (250, 195, 40)), (0.55, (50, 190, 80))):
        p.oval(0.24, y, 0.76, y + 0.21, lamp)


def _tv(p: Pen, c: Colour) -> None:
    p.rect(0.0, 0.0, 1.0, 0.8, c, r=0.05)
    p.rect(0.07, 0.08, 0.93, 0.7, (75, 150, 190))
    p.poly([(0.1, 0.68), (0.36, 0.3), (0.56, 0.68)], (70, 160, 90))
    p.oval(0.66, 0.16, 0.82, 0.34, (250, 225, 110))
    p.rect(0.44, 0.78, 0.56, 0.92, c)
    p.rect(0.22, 0.9, 0.78, 1.0, c)


def _umbrella(p: Pen, c: Colour) -> None:
    p.line([(0.5, 0.3), (0.5, 0.9)], (80, 60, 45), 0.06)
    p.arc(0.5, 0.78, 0.72, 1.0, 0, 180, (80, 60, 45), 0.06)
    p.pie(0.0, 0.04, 1.0, 1.02, 180, 360, c)
    for x in (0.0, 0.34, 0.67):
        p.pie(x, 0.46, x + 0.33, 0.62, 180, 360, shade(c, 0.6))
    p.line([(0.5, 0.04), (0.34, 0.5)], shade(c, 0.7), 0.04)
    p.line([(0.5, 0.04), (0.66, 0.5)], shade(c, 0.7), 0.04)


@dataclass(frozen=True)
class Look:
    """How a category is drawn: function, width and height relative to the object's size, possible colours,
    whether it belongs in the air, and whether mirroring makes sense."""

    draw: Callable[[Pen, Colour], None]
    width: float
    height: float
    colours: tuple[str, ...]
    airborne: bool = False
    mirror: bool = True


#: The 30 of the 80 COCO categories that exist in the nano world, under their COCO names.
LOOKS: dict[str, Look] = {
    "airplane": Look(_airplane, 1.0, 0.62, ("white", "grey", "red", "blue"), airborne=True),
    "apple": Look(_apple, 0.8, 0.82, ("red", "green", "yellow"), mirror=False),
    "banana": Look(_banana, 0.95, 0.5, ("yellow",)),
    "bench": Look(_bench, 1.0, 0.7, ("brown", "green", "grey"), mirror=False),
    "bicycle": Look(_bicycle, 1.0, 0.72, ("red", "blue", "green", "purple")),
    "bird": Look(_bird, 0.9, 0.72, ("blue", "red", "yellow", "white"), airborne=True),
    "boat": Look(_boat, 0.95, 0.95, ("brown", "red", "blue"), mirror=True),
    "book": Look(_book, 0.95, 0.72, ("red", "blue", "green", "purple"), mirror=False),
    "bottle": Look(_bottle, 0.42, 1.0, ("green", "blue", "brown"), mirror=False),
    "bus": Look(_bus, 1.1, 0.72, ("yellow", "red", "blue", "green")),
    "cake": Look(_cake, 0.85, 0.85, ("pink", "white", "brown"), mirror=False),
    "car": Look(_car, 1.05, 0.6, ("red", "blue", "green", "grey", "yellow")),
    "cat": Look(_cat, 0.85, 0.92, ("orange", "grey", "black", "white")),
    "chair": Look(_chair, 0.68, 0.95, ("brown", "red", "green", "grey")),
    "clock": Look(_clock, 0.82, 0.82, ("black", "brown", "red", "blue"), mirror=False),
    "cup": Look(_cup, 0.8, 0.8, ("blue", "red", "green", "purple")),
    "dog": Look(_dog, 1.0, 0.85, ("brown", "tan", "black", "white")),
    "donut": Look(_donut, 0.85, 0.78, ("pink", "purple", "brown"), mirror=False),
    "fire hydrant": Look(_hydrant, 0.66, 0.95, ("red", "yellow"), mirror=False),
    "kite": Look(_kite, 0.8, 1.1, ("red", "blue", "green", "purple"), airborne=True),
    "laptop": Look(_laptop, 0.95, 0.8, ("grey", "black"), mirror=False),
    "person": Look(_person, 0.55, 1.2, ("red", "blue", "green", "yellow", "purple"), mirror=False),
    "pizza": Look(_pizza, 0.82, 0.82, ("yellow", "orange"), mirror=False),
    "potted plant": Look(_plant, 0.8, 1.0, ("brown", "orange", "blue"), mirror=False),
    "sheep": Look(_sheep, 1.0, 0.8, ("white", "tan")),
    "stop sign": Look(_stop_sign, 0.75, 1.1, ("red",), mirror=False),
    "teddy bear": Look(_teddy, 0.88, 1.0, ("brown", "tan", "pink"), mirror=False),
    "traffic light": Look(_traffic_light, 0.45, 1.1, ("black", "yellow"), mirror=False),
    "tv": Look(_tv, 1.0, 0.82, ("black", "grey"), mirror=False),
    "umbrella": Look(_umbrella, 0.95, 0.95, ("red", "blue", "purple", "green", "pink")),
}

CATEGORIES: tuple[str, ...] = tuple(LOOKS)


# The caches hold what the pictures of one scene share; enlarged, a drawing takes 60 KiB and a background 256.
@lru_cache(maxsize=256)
def layer(category: str, colour: str, size: int, flip: bool, style: str = PLAIN) -> Image.Image:
    """The object alone, RGBA, `SUPERSAMPLE` times enlarged, cropped to what is visible.

    `size` is in scene pixels; the layer is about `size * look.width` by `size * look.height` pixels times
    `SUPERSAMPLE`.
    """
    if style == SKETCH:
        return sketched_thing(layer(category, colour, size, flip))
    look = LOOKS[category]
    width = round(size * look.width) * SUPERSAMPLE
    height = round(size * look.height) * SUPERSAMPLE
    image = Image.new("RGBA", (width, height), (0, 0, 0, 0))
    look.draw(Pen(ImageDraw.Draw(image), width, height), PALETTE[colour])
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


# ------------------------------------------------------------------------------------------------------------
# Backgrounds: each kind draws on the enlarged canvas with its own random stream.


def _jitter(rng: random.Random, colour: Colour, amount: int = 14) -> Colour:
    delta = rng.randint(-amount, amount)
    r, g, b = (max(0, min(255, c + delta + rng.randint(-5, 5))) for c in colour)
    return r, g, b


def _split(draw: ImageDraw.ImageDraw, side: int, horizon: float, top: Colour, bottom: Colour) -> int:
    y = round(horizon * side)
    draw.rectangle([0, 0, side, y], fill=top)
    draw.rectangle([0, y, side, side], fill=bottom)
    return y


def _meadow(draw: ImageDraw.ImageDraw, side: int, rng: random.Random) -> None:
    _split(draw, side, rng.uniform(0.38, 0.6), _jitter(rng, (150, 200, 240)), _jitter(rng, (100, 175, 80)))


def _beach(draw: ImageDraw.ImageDraw, side: int, rng: random.Random) -> None:
    horizon = rng.uniform(0.28, 0.42)
    y = _split(draw, side, horizon, _jitter(rng, (175, 215, 240)), _jitter(rng, (235, 215, 160)))
    shore = y + round(rng.uniform(0.12, 0.2) * side)
    draw.rectangle([0, y, side, shore], fill=_jitter(rng, (70, 150, 200)))


def _street(draw: ImageDraw.ImageDraw, side: int, rng: random.Random) -> None:
    horizon = rng.uniform(0.42, 0.58)
    y = _split(draw, side, horizon, _jitter(rng, (200, 195, 190)), _jitter(rng, (112, 114, 120)))
    draw.rectangle([0, y, side, y + side // 20], fill=_jitter(rng, (175, 172, 165)))
    lane = round((horizon + rng.uniform(0.2, 0.3)) * side)
    dash = side // 6
    for x in range(rng.randrange(dash), side, 2 * dash):
        draw.rectangle([x, lane, x + dash, lane + side // 32], fill=(225, 225, 215))


def _room(draw: ImageDraw.ImageDraw, side: int, rng: random.Random) -> None:
    wall = _jitter(rng, rng.choice([(235, 222, 200), (215, 225, 230), (228, 208, 212)]))
    y = _split(draw, side, rng.uniform(0.5, 0.66), wall, _jitter(rng, (170, 125, 85)))
    draw.rectangle([0, y - side // 32, side, y], fill=(245, 243, 238))


def _kitchen(draw: ImageDraw.ImageDraw, side: int, rng: random.Random) -> None:
    y = _split(
        draw, side, rng.uniform(0.5, 0.64), _jitter(rng, (210, 230, 228)), _jitter(rng, (185, 180, 172))
    )
    step = side // 8
    for x in range(0, side, step):
        draw.line([x, 0, x, y], fill=(188, 208, 206), width=side // 96)
    for row in range(0, y, step):
        draw.line([0, row, side, row], fill=(188, 208, 206), width=side // 96)


def _snow(draw: ImageDraw.ImageDraw, side: int, rng: random.Random) -> None:
    horizon = rng.uniform(0.42, 0.58)
    y = _split(draw, side, horizon, _jitter(rng, (180, 192, 205)), _jitter(rng, (238, 242, 248), 6))
    peak = rng.uniform(0.2, 0.8) * side
    draw.polygon(
        [(peak - side * 0.35, y), (peak, y - side * 0.2), (peak + side * 0.35, y)], fill=(150, 165, 185)
    )


def _desert(draw: ImageDraw.ImageDraw, side: int, rng: random.Random) -> None:
    y = _split(
        draw, side, rng.uniform(0.42, 0.58), _jitter(rng, (245, 205, 165)), _jitter(rng, (215, 160, 95))
    )
    hill = rng.uniform(0.0, 0.6) * side
    draw.ellipse(
        [hill, y - side * 0.08, hill + side * 0.55, y + side * 0.14], fill=_jitter(rng, (205, 150, 88), 6)
    )


def _night(draw: ImageDraw.ImageDraw, side: int, rng: random.Random) -> None:
    horizon = rng.uniform(0.48, 0.62)
    y = _split(draw, side, horizon, _jitter(rng, (58, 66, 110), 8), _jitter(rng, (62, 92, 78), 8))
    for _ in range(7):
        x, row, r = rng.uniform(0, side), rng.uniform(0, y * 0.9), side / 110
        draw.ellipse([x - r, row - r, x + r, row + r], fill=(225, 225, 200))


BACKGROUNDS: dict[str, Callable[[ImageDraw.ImageDraw, int, random.Random], None]] = {
    "meadow": _meadow,
    "beach": _beach,
    "street": _street,
    "room": _room,
    "kitchen": _kitchen,
    "snow": _snow,
    "desert": _desert,
    "night": _night,
}


@lru_cache(maxsize=16)
def background(kind: str, seed: int, style: str = PLAIN) -> Image.Image:
    """A background without objects, RGB, enlarged `SUPERSAMPLE` times. Same arguments, same pixels."""
    if style == SKETCH:
        return sketched_background(background(kind, seed))
    side = SIZE * SUPERSAMPLE
    image = Image.new("RGB", (side, side))
    BACKGROUNDS[kind](ImageDraw.Draw(image), side, random.Random(seed))
    return image
