"""How pictures of the nano world are drawn: "plain", as all its models have learned it, and "sketch".

A sketch is made from the plain drawing by rule, with no random number: narrower, with wavy contours and a
dark line around what has one colour, filled with hatching, in paler and colder colours. A thing keeps the
name of its colour, the place it stands in and the box it may fill.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

PLAIN, SKETCH = "plain", "sketch"
STYLES = (PLAIN, SKETCH)

INK = np.array([38, 34, 60], np.float32)
PAPER = np.array([250, 246, 232], np.float32)
WIDTH, HEIGHT = 0.86, 0.96  #: of a sketched thing, as shares of the plain drawing's
WAVE, PERIOD = 1.4, 26.0  #: of a contour: amplitude and length in enlarged pixels
HATCH, STROKE = 12, 7  #: distance and thickness of the lines that fill a thing, in enlarged pixels
LINE = 3  #: thickness of contours in enlarged pixels, odd
#: Colour difference (sum over channels) from which two neighbouring areas are kept apart by a line.
EDGE = 200


def sketched_thing(drawing: Image.Image) -> Image.Image:
    """The sketch of a thing's layer, RGBA of the same size, standing on the same ground."""
    width, height = drawing.size
    small = drawing.resize(
        (max(1, round(width * WIDTH)), max(1, round(height * HEIGHT))), Image.Resampling.BOX
    )
    canvas = Image.new("RGBA", drawing.size, (0, 0, 0, 0))
    canvas.paste(small, ((width - small.width) // 2, height - small.height))
    # Every row is moved sideways along a sine; what leaves on one side is cut off.
    plain, pixels = np.asarray(canvas), np.zeros((height, width, 4), np.uint8)
    for row in range(height):
        shift = round(WAVE * float(np.sin(2 * np.pi * row / PERIOD)))
        pixels[row, max(0, shift) : width + min(0, shift)] = plain[
            row, max(0, -shift) : width - max(0, shift)
        ]
    covered = pixels[..., 3] >= 128
    # Inside the thing, next to its rim or to another colour, is a line.
    inner = np.asarray(Image.fromarray(covered).convert("L").filter(ImageFilter.MinFilter(LINE + 2))) > 0
    flat, line = pixels[..., :3].astype(np.int32), ~inner
    line[:, 1:] |= np.abs(flat[:, 1:] - flat[:, :-1]).sum(-1) > EDGE
    line[1:] |= np.abs(flat[1:] - flat[:-1]).sum(-1) > EDGE
    colours = flat.astype(np.float32)
    stroke, cold = _strokes(colours, falling=False), _colder(colours)
    colours = stroke * cold + (1 - stroke) * (cold + 0.45 * (PAPER - cold))  # lighter stripes between
    colours[covered & line] = INK
    return Image.fromarray(np.dstack([_rounded(colours), np.where(covered, 255, 0).astype(np.uint8)]))


def sketched_background(picture: Image.Image) -> Image.Image:
    """The sketch of a background, RGB of the same size."""
    colours = np.asarray(picture).astype(np.float32)
    return Image.fromarray(
        _rounded(0.65 * _colder(colours) + 0.35 * PAPER - 20 * _strokes(colours, falling=True))
    )


def _strokes(colours: np.ndarray, *, falling: bool) -> np.ndarray:
    """(H, W, 1) float32: 1 on slanting lines, 0 between them."""
    rows, columns = np.indices(colours.shape[:2])
    place = columns + (rows if falling else -rows)
    return ((place % HATCH) < STROKE).astype(np.float32)[..., None]


def _colder(colours: np.ndarray) -> np.ndarray:
    return colours * np.array([0.92, 0.96, 1.0], np.float32) + np.array([4, 6, 14], np.float32)


def _rounded(colours: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(colours), 0, 255).astype(np.uint8)
