"""Draws the nano world: scenes of objects on a background, sampled from a seed and rendered to 64x64 pixels.
A `World` says which objects, wordings and style a data set has.

The styles are "plain", which the models are trained on, and "sketch". Everything is drawn `SUPERSAMPLE` times
too large with Pillow and reduced by averaging. `drawings.json` lists the shapes of every category, in order:

    [kind, fill, points x, y, ... from 0 to 1 over the object's own box, {edge, r, width, ends}]

A color is (R, G, B), or a factor that darkens (below 1) or lightens (above 1) the object's own color.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from nein.loading.errors import unknown

SIZE = 64  #: width and height of a scene in pixels
SUPERSAMPLE = 4
#: Disjoint families of scenes. "val" is the evaluation split, called so because NeIn's file is `val.json`.
SPLITS = ("train", "dev", "val")
MIN_SIZE, USUAL_SIZE, MAX_SIZE = 15, 20, 23  # scale of an object in pixels
MAX_OBJECTS = 4
_MARGIN = 1.0  # free pixels kept around every object

# --- Objects and backgrounds, plain -------------------------------------------------------------------------

PLAIN, SKETCH = "plain", "sketch"
Color = tuple[int, int, int]

PALETTE: dict[str, Color] = {
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


@dataclass(frozen=True)
class Look:
    """A row of `drawings.json`. size: (width, height) in object sizes. airborne: it belongs in the air."""

    shapes: list[list[Any]]
    size: tuple[float, float]
    colors: list[str]
    airborne: bool = False
    mirror: bool = True

    def extent(self, size: int) -> tuple[int, int]:
        """(width, height) in scene pixels at a scale in pixels."""
        width, height = self.size
        return round(size * width), round(size * height)


_DRAWINGS = json.loads(Path(__file__).with_name("drawings.json").read_text(encoding="utf-8"))
#: The 30 of the 80 COCO categories that exist in the nano world, under their COCO names.
LOOKS = {name: Look(**row) for name, row in _DRAWINGS.items()}
CATEGORIES: tuple[str, ...] = tuple(LOOKS)


# The caches hold what the images of one scene share; enlarged, a drawing takes 60 KiB and a background 256.
@lru_cache(maxsize=256)
def layer(category: str, color: str, size: int, flip: bool, style: str = PLAIN) -> Image.Image:
    """The object alone, RGBA, `SUPERSAMPLE` times enlarged; size: its scale in scene pixels."""
    if style == SKETCH:
        return _sketch_object(layer(category, color, size, flip))
    look, rgb = LOOKS[category], PALETTE[color]
    width, height = (side * SUPERSAMPLE for side in look.extent(size))  # enlarged pixels
    image = Image.new("RGBA", (width, height))
    draw = ImageDraw.Draw(image)
    for kind, shade, points, *extras in look.shapes:
        options = extras[0] if extras else {}
        # Points from 0 to 1 over the object's box -> (x, y) in enlarged pixels.
        xy = [(x * (width - 1), y * (height - 1)) for x, y in zip(points[::2], points[1::2], strict=True)]
        fill, outline = _shade(rgb, shade), _shade(rgb, options["edge"]) if "edge" in options else None
        stroke = max(1, round(options.get("width", 0.05) * (max(width, height) - 1)))
        start, end = options.get("ends", (0, 360))  # degrees
        if kind == "oval":
            draw.ellipse(xy, fill=fill, outline=outline, width=stroke)
        elif kind == "rect":
            radius = options.get("r", 0.0) * (width - 1)
            draw.rounded_rectangle(xy, radius=radius, fill=fill, outline=outline, width=stroke)
        elif kind == "arc":
            draw.arc(xy, start, end, fill=fill, width=stroke)
        elif kind == "pie":
            draw.pieslice(xy, start, end, fill=fill)
        elif kind == "line":
            draw.line(xy, fill=fill, width=stroke, joint="curve")
        else:
            draw.polygon(xy, fill=fill)
            if outline is not None:
                draw.line([*xy, xy[0]], fill=outline, width=stroke, joint="curve")
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image


def _shade(color: Color, shade: Any) -> Color:
    """Convert a shade of `drawings.json`, (R, G, B) or a factor of the object's `color`, to RGB."""
    if isinstance(shade, list):
        r, g, b = shade
    elif shade <= 1:
        r, g, b = (int(c * shade) for c in color)
    else:
        r, g, b = (int(c + (255 - c) * (shade - 1)) for c in color)
    return r, g, b


#: Kind -> lowest and highest horizon (shares of the height), colors above and below it.
BACKGROUNDS: dict[str, tuple[float, float, Color, Color]] = {
    "meadow": (0.38, 0.6, (150, 200, 240), (100, 175, 80)),
    "beach": (0.28, 0.42, (175, 215, 240), (235, 215, 160)),
    "street": (0.42, 0.58, (200, 195, 190), (112, 114, 120)),
    "room": (0.5, 0.66, (235, 222, 200), (170, 125, 85)),
    "kitchen": (0.5, 0.64, (210, 230, 228), (185, 180, 172)),
    "snow": (0.42, 0.58, (180, 192, 205), (238, 242, 248)),
    "desert": (0.42, 0.58, (245, 205, 165), (215, 160, 95)),
    "night": (0.48, 0.62, (58, 66, 110), (62, 92, 78)),
}


@lru_cache(maxsize=16)
def background(kind: str, seed: int, style: str = PLAIN) -> Image.Image:
    """RGB, enlarged `SUPERSAMPLE` times."""
    if style == SKETCH:
        return _sketch_background(background(kind, seed))
    rng, side = random.Random(seed), SIZE * SUPERSAMPLE
    image = Image.new("RGB", (side, side))
    draw = ImageDraw.Draw(image)

    def jitter(color: Color, amount: int = 14) -> Color:
        delta = rng.randint(-amount, amount)
        r, g, b = (max(0, min(255, c + delta + rng.randint(-5, 5))) for c in color)
        return r, g, b

    # The order of the draws from `rng` decides the pixels.
    low, high, above, below = BACKGROUNDS[kind]
    if kind == "room":
        top = jitter(rng.choice([above, (215, 225, 230), (228, 208, 212)]))
        horizon = rng.uniform(low, high)
    else:
        horizon = rng.uniform(low, high)
        top = jitter(above, 8 if kind == "night" else 14)
    bottom = jitter(below, {"snow": 6, "night": 8}.get(kind, 14))
    y = round(horizon * side)
    draw.rectangle([0, 0, side, y], fill=top)
    draw.rectangle([0, y, side, side], fill=bottom)
    if kind == "beach":
        shore = y + round(rng.uniform(0.12, 0.2) * side)
        draw.rectangle([0, y, side, shore], fill=jitter((70, 150, 200)))
    elif kind == "street":
        draw.rectangle([0, y, side, y + side // 20], fill=jitter((175, 172, 165)))
        lane, dash = round((horizon + rng.uniform(0.2, 0.3)) * side), side // 6
        for x in range(rng.randrange(dash), side, 2 * dash):
            draw.rectangle([x, lane, x + dash, lane + side // 32], fill=(225, 225, 215))
    elif kind == "room":
        draw.rectangle([0, y - side // 32, side, y], fill=(245, 243, 238))
    elif kind == "kitchen":
        for x in range(0, side, side // 8):
            draw.line([x, 0, x, y], fill=(188, 208, 206), width=side // 96)
        for row in range(0, y, side // 8):
            draw.line([0, row, side, row], fill=(188, 208, 206), width=side // 96)
    elif kind == "snow":
        peak, reach = rng.uniform(0.2, 0.8) * side, side * 0.35
        draw.polygon([(peak - reach, y), (peak, y - side * 0.2), (peak + reach, y)], fill=(150, 165, 185))
    elif kind == "desert":
        hill = rng.uniform(0.0, 0.6) * side
        box = [hill, y - side * 0.08, hill + side * 0.55, y + side * 0.14]
        draw.ellipse(box, fill=jitter((205, 150, 88), 6))
    elif kind == "night":
        for _ in range(7):
            across, down, radius = rng.uniform(0, side), rng.uniform(0, y * 0.9), side / 110
            star = [across - radius, down - radius, across + radius, down + radius]
            draw.ellipse(star, fill=(225, 225, 200))
    return image


# --- Sketches: made from the plain drawings, without random numbers -----------------------------------------

_INK = np.array([38, 34, 60], np.float32)  # RGB
_PAPER = np.array([250, 246, 232], np.float32)  # RGB
_NARROWER, _LOWER = 0.86, 0.96  # width and height of a sketched object, relative to the plain one
_WAVE, _PERIOD = 1.4, 26.0  # amplitude and length of the waves of a contour, in enlarged pixels
_HATCH, _STROKE = 12, 7  # distance and thickness of the lines that fill an object, in enlarged pixels
_LINE = 3  # thickness of contours in enlarged pixels, odd
_EDGE = 200  # a line divides areas whose colors differ by more (sum over channels)


def _sketch_object(drawing: Image.Image) -> Image.Image:
    """RGBA image of the same size, whose object stands on the same ground."""
    width, height = drawing.size
    smaller = (max(1, round(width * _NARROWER)), max(1, round(height * _LOWER)))
    small = drawing.resize(smaller, Image.Resampling.BOX)
    canvas = Image.new("RGBA", drawing.size)
    canvas.paste(small, ((width - small.width) // 2, height - small.height))
    # Every row is moved sideways along a sine; what leaves on one side is cut off.
    plain, pixels = np.asarray(canvas), np.zeros((height, width, 4), np.uint8)  # both (H, W, 4) RGBA
    for row in range(height):
        shift = round(_WAVE * float(np.sin(2 * np.pi * row / _PERIOD)))
        strip = plain[row, max(0, -shift) : width - max(0, shift)]
        pixels[row, max(0, shift) : width + min(0, shift)] = strip
    covered = pixels[..., 3] >= 128  # (H, W) bool
    # Lines run inside the object, along its rim and between colors.
    inner = Image.fromarray(covered).convert("L").filter(ImageFilter.MinFilter(_LINE + 2))
    rgb, line = pixels[..., :3].astype(np.int32), np.asarray(inner) == 0  # (H, W, 3), (H, W) bool
    line[:, 1:] |= np.abs(rgb[:, 1:] - rgb[:, :-1]).sum(-1) > _EDGE  # against the left neighbor
    line[1:] |= np.abs(rgb[1:] - rgb[:-1]).sum(-1) > _EDGE  # against the upper neighbor
    colors = rgb.astype(np.float32)
    stroke, cold = _strokes(colors, falling=False), _colder(colors)  # (H, W, 1), (H, W, 3)
    colors = stroke * cold + (1 - stroke) * (cold + 0.45 * (_PAPER - cold))  # lighter stripes between
    colors[covered & line] = _INK
    return Image.fromarray(np.dstack([_round_colors(colors), np.where(covered, 255, 0).astype(np.uint8)]))


def _sketch_background(image: Image.Image) -> Image.Image:
    colors = np.asarray(image).astype(np.float32)  # (H, W, 3)
    hatched = 0.65 * _colder(colors) + 0.35 * _PAPER - 20 * _strokes(colors, falling=True)
    return Image.fromarray(_round_colors(hatched))


def _strokes(colors: np.ndarray, *, falling: bool) -> np.ndarray:
    """(H, W, 1) float32: 1 on slanting lines, 0 between them."""
    rows, columns = np.indices(colors.shape[:2])  # each (H, W)
    position = columns + (rows if falling else -rows)
    return ((position % _HATCH) < _STROKE).astype(np.float32)[..., None]


def _colder(colors: np.ndarray) -> np.ndarray:
    return colors * np.array([0.92, 0.96, 1.0], np.float32) + np.array([4, 6, 14], np.float32)


def _round_colors(colors: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(colors), 0, 255).astype(np.uint8)


# --- Scenes -------------------------------------------------------------------------------------------------


def rng_for(split: str, index: int, purpose: str = "scene") -> random.Random:
    """The random stream of one scene and purpose; no two splits share one."""
    digest = hashlib.sha256(f"nein-nano/{split}/{index}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


@dataclass(frozen=True)
class Item:
    """An object. x, y: top left corner in scene pixels (multiples of 1/4); size: scale in scene pixels."""

    category: str
    color: str
    size: int
    x: float
    y: float
    flip: bool

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """x0, y0, x1, y1 of the whole layer."""
        width, height = LOOKS[self.category].extent(self.size)
        return self.x, self.y, self.x + width, self.y + height

    @property
    def center(self) -> tuple[float, float]:
        x0, y0, x1, y1 = self.extent
        return (x0 + x1) / 2, (y0 + y1) / 2

    @property
    def corner(self) -> tuple[int, int]:
        """x, y of the layer in enlarged pixels."""
        return round(self.x * SUPERSAMPLE), round(self.y * SUPERSAMPLE)

    def layer(self, style: str = PLAIN) -> Image.Image:
        return layer(self.category, self.color, self.size, self.flip, style)

    def overlaps(self, other: Item, margin: float = 0.0) -> bool:
        """Whether fewer than `margin` pixels are between both layers."""
        (x0, y0, x1, y1), (a0, b0, a1, b1) = self.extent, other.extent
        return x0 < a1 + margin and a0 < x1 + margin and y0 < b1 + margin and b0 < y1 + margin


@dataclass(frozen=True)
class Scene:
    """A background and up to `MAX_OBJECTS` objects that do not overlap, drawn in order."""

    background: str
    background_seed: int
    items: tuple[Item, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.category for item in self.items))

    def remove(self, category: str) -> Scene:
        return replace(self, items=tuple(i for i in self.items if i.category != category))

    def add(self, item: Item) -> Scene:
        return replace(self, items=(*self.items, item))


def place(rng: random.Random, category: str, others: Collection[Item], usual: bool = False) -> Item | None:
    """A random object that overlaps none of `others`; None without room. usual: first color, middle size."""
    look = LOOKS[category]
    color = look.colors[0] if usual else rng.choice(look.colors)
    flip = not usual and look.mirror and rng.random() < 0.5
    sizes = (USUAL_SIZE, USUAL_SIZE) if usual else (MIN_SIZE, MAX_SIZE)
    for attempt in range(60):  # small ones only after half of the attempts
        size = rng.randint(*(sizes if attempt < 30 else (MIN_SIZE, MIN_SIZE + 2)))
        right, bottom = ((SIZE - side) * SUPERSAMPLE for side in look.extent(size))  # maxima, enlarged pixels
        x = rng.randint(0, right)
        # Objects that fly are mostly up and the others mostly down, but any height may occur.
        low, high = (0.0, 0.7) if look.airborne else (0.25, 1.0)  # fractions of `bottom`, from the top
        if rng.random() < 0.2:
            low, high = 0.0, 1.0
        y = rng.randint(round(low * bottom), round(high * bottom))
        item = Item(category, color, size, x / SUPERSAMPLE, y / SUPERSAMPLE, flip)
        if not any(item.overlaps(other, _MARGIN) for other in others):
            return item
    return None


def sample_scene(rng: random.Random, objects: int, categories: Collection[str] = CATEGORIES) -> Scene:
    """`objects` objects, fewer when there is no room; a category may occur twice."""
    kind, seed = rng.choice(tuple(BACKGROUNDS)), rng.randrange(200)
    pool, items = tuple(categories), list[Item]()
    for _ in range(objects):
        category = items[-1].category if items and rng.random() < 0.12 else rng.choice(pool)
        item = place(rng, category, items)
        if item is not None:
            items.append(item)
    return Scene(kind, seed, tuple(items))


def render(scene: Scene, style: str = PLAIN) -> np.ndarray:
    """The scene as (64, 64, 3) uint8 RGB, in `PLAIN` or `SKETCH`."""
    canvas = background(scene.background, scene.background_seed, style).copy()
    for item in scene.items:
        drawing = item.layer(style)
        canvas.paste(drawing, item.corner, drawing)
    return np.asarray(canvas.reduce(SUPERSAMPLE))


def box(item: Item, style: str = PLAIN) -> tuple[float, float, float, float]:
    """Tight x0, y0, x1, y1 around the visible object, exact to a quarter of a pixel."""
    bounds: Any = item.layer(style).getchannel("A").getbbox()  # in enlarged pixels of the layer
    x0, y0, x1, y1 = (bound / SUPERSAMPLE for bound in bounds)
    return item.x + x0, item.y + y0, item.x + x1, item.y + y1


# --- Worlds -------------------------------------------------------------------------------------------------

#: Objects that no sentence of fine-tuning names. All models know them from affirmative sentences.
HELD_OUT = ("bus", "cup", "laptop", "sheep", "umbrella")
#: Wordings. "taught": what fine-tuning may use. "held-out": sentences it has not seen, whose denying words
#: ("no", "not", "without") it knows from others. "negator": sentences with a denying word it has never seen.
#: "varied": for training on more wordings than the taught ones, none of them held out.
ALL, TAUGHT, UNSEEN, NEGATOR, VARIED = "all", "taught", "held-out", "negator", "varied"


@dataclass(frozen=True)
class World:
    """What a nano data set draws from. pool: objects of its scenes, a repeated one more often. named: objects
    that sentences deny or ask for."""

    name: str
    pool: tuple[str, ...] = CATEGORIES
    named: frozenset[str] = frozenset(CATEGORIES)
    wording: str = ALL
    style: str = PLAIN


_OBJECTS = tuple(category for category in CATEGORIES if category not in HELD_OUT)
_OLD_OBJECTS = _OBJECTS, frozenset(_OBJECTS)  # (pool, named)
# About every other object in a scene is held out: a scene then mostly has one that can be asked about.
_NEW_OBJECTS = _OBJECTS + HELD_OUT * 5, frozenset(HELD_OUT)
NANO = World("nano")
_WORLDS = (
    NANO,
    World("nano:varied", wording=VARIED),
    World("nano:taught", *_OLD_OBJECTS, TAUGHT),
    World("nano:wording", *_OLD_OBJECTS, UNSEEN),
    World("nano:negator", *_OLD_OBJECTS, NEGATOR),
    World("nano:objects", *_NEW_OBJECTS, TAUGHT),
    World("nano:style", *_OLD_OBJECTS, TAUGHT, SKETCH),
    World("nano:unlike", *_NEW_OBJECTS, UNSEEN, SKETCH),
)
WORLDS: dict[str, World] = {world.name: world for world in _WORLDS}
#: What a study reports: the taught world first, then each thing held out, then three of them together.
AXES = tuple(name for name, world in WORLDS.items() if world.wording not in (ALL, VARIED))


def is_nano(data: str) -> bool:
    return data == NANO.name or data.startswith(f"{NANO.name}:")


def world(data: str) -> World:
    if data not in WORLDS:
        raise unknown("nano world", data, WORLDS)
    return WORLDS[data]
