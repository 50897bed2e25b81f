"""Draw the nano world: scenes of objects on a background, sampled from a seed and rendered to 64x64 pixels.

In this order: objects and backgrounds in style "plain", on which the models are trained; in style "sketch";
scenes; worlds (objects, wordings and style of a data set). Everything is drawn `SUPERSAMPLE` times too large
with Pillow and reduced by averaging. `drawings.json` has colors, backgrounds and the shapes of each category:

    [kind, fill, points x, y, ... from 0 to 1 over the object's own box, options]
    options  edge: color of the outline; r: radius of corners; width: of lines; ends: degrees of an arc

A color is [R, G, B], or a factor that darkens (below 1) or lightens (above 1) the object's own color.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from nein.loading.errors import unknown

SIZE = 64  # width and height of a scene in pixels
SUPERSAMPLE = 4  # enlarged pixels along one scene pixel; everything is drawn in enlarged pixels
#: Disjoint sets of scenes. "val" is for evaluation, named after NeIn's `val.json`.
SPLITS = ("train", "dev", "val")
MIN_SIZE, USUAL_SIZE, MAX_SIZE = 15, 20, 23  # scale of an object in pixels
MAX_OBJECTS = 4  # in one scene
_MARGIN = 1.0  # free pixels kept around every object

# --- Objects and backgrounds, plain -------------------------------------------------------------------------
PLAIN, SKETCH = "plain", "sketch"  # styles
Color = tuple[int, int, int]  # RGB, each 0 to 255
_DRAWINGS = json.loads(Path(__file__).with_name("drawings.json").read_text(encoding="utf-8"))
PALETTE: dict[str, Color] = _DRAWINGS["palette"]
#: Kind -> lowest and highest horizon (fractions of the height from the top), colors above and below it.
BACKGROUNDS: dict[str, tuple[float, float, Color, Color]] = _DRAWINGS["backgrounds"]


@dataclass(frozen=True)
class Look:
    """What an object of a category looks like: a row of `drawings.json`."""

    shapes: list[list[Any]]  # rows as in the module's docstring
    size: tuple[float, float]  # (width, height) in units of the object's scale
    colors: list[str]  # that it may have, keys of `PALETTE`; the usual one first
    airborne: bool = False  # whether it belongs in the air
    mirror: bool = True  # whether it may be mirrored

    def scaled(self, scale: int) -> tuple[int, int]:
        """(width, height) in scene pixels of an object of this scale."""
        width, height = self.size
        return round(scale * width), round(scale * height)


#: The 30 of the 80 COCO categories that exist in the nano world, under their COCO names.
LOOKS = {name: Look(**row) for name, row in _DRAWINGS["objects"].items()}
CATEGORIES: tuple[str, ...] = tuple(LOOKS)


# The caches hold what the images of a scene share; enlarged, an object takes 60 KiB, a background 256 KiB.
@lru_cache(maxsize=256)
def draw_object(category: str, color: str, scale: int, flip: bool, style: str = PLAIN) -> Image.Image:
    """The object alone, RGBA, in enlarged pixels. scale: in scene pixels; flip: mirror it left to right."""
    if style == SKETCH:
        return _sketch_object(draw_object(category, color, scale, flip))
    look = LOOKS[category]
    width, height = (side * SUPERSAMPLE for side in look.scaled(scale))  # enlarged pixels
    image = Image.new("RGBA", (width, height))
    draw = ImageDraw.Draw(image)
    for kind, shade, points, *extras in look.shapes:
        options = extras[0] if extras else {}  # edge, r, width, ends
        # Points from 0 to 1 over the object's box -> (x, y) in enlarged pixels.
        starts = range(0, len(points), 2)
        xy = [(points[k] * (width - 1), points[k + 1] * (height - 1)) for k in starts]
        fill = _find_rgb(shade, PALETTE[color])
        outline = _find_rgb(options["edge"], PALETTE[color]) if "edge" in options else None
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


def _find_rgb(shade: Any, color: Color) -> Color:
    """Convert a color of `drawings.json`, [R, G, B] or a factor of the object's `color`, to RGB."""
    if isinstance(shade, list):
        r, g, b = shade
    elif shade <= 1:
        r, g, b = (int(c * shade) for c in color)
    else:
        r, g, b = (int(c + (255 - c) * (shade - 1)) for c in color)
    return r, g, b


@lru_cache(maxsize=16)
def draw_background(kind: str, seed: int, style: str = PLAIN) -> Image.Image:
    """A background, RGB, in enlarged pixels. The images depend on the order of the calls of `rng`."""
    if style == SKETCH:
        return _sketch_background(draw_background(kind, seed))
    rng = random.Random(seed)
    side = SIZE * SUPERSAMPLE  # in enlarged pixels
    image = Image.new("RGB", (side, side))
    draw = ImageDraw.Draw(image)

    def jitter(color: Color, amount: int = 14) -> Color:
        """The color, lighter or darker by up to `amount`, and each channel by up to 5."""
        delta = rng.randint(-amount, amount)
        r, g, b = (max(0, min(255, c + delta + rng.randint(-5, 5))) for c in color)
        return r, g, b

    # Two areas divided by the horizon.
    low, high, above, below = BACKGROUNDS[kind]
    if kind == "room":
        upper = jitter(rng.choice([above, (215, 225, 230), (228, 208, 212)]))
        horizon = rng.uniform(low, high)
    else:
        horizon = rng.uniform(low, high)
        upper = jitter(above, 8 if kind == "night" else 14)
    lower = jitter(below, {"snow": 6, "night": 8}.get(kind, 14))
    y = round(horizon * side)
    draw.rectangle([0, 0, side, y], fill=upper)
    draw.rectangle([0, y, side, side], fill=lower)
    # Details of the kind; lengths are fractions of the side.
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
        oval = [hill, y - side * 0.08, hill + side * 0.55, y + side * 0.14]
        draw.ellipse(oval, fill=jitter((205, 150, 88), 6))
    elif kind == "night":
        for _ in range(7):
            across, down, radius = rng.uniform(0, side), rng.uniform(0, y * 0.9), side / 110
            star = [across - radius, down - radius, across + radius, down + radius]
            draw.ellipse(star, fill=(225, 225, 200))
    return image


# --- Sketches: made from the plain drawings, without random numbers -----------------------------------------
_INK = np.array([38, 34, 60], np.float32)  # RGB
_PAPER = np.array([250, 246, 232], np.float32)  # RGB
_WIDTH, _HEIGHT = 0.86, 0.96  # of a sketched object, relative to the plain one
_WAVE, _PERIOD = 1.4, 26.0  # amplitude and length of the waves of a contour, in enlarged pixels
_HATCH, _STROKE = 12, 7  # distance and thickness of the lines that fill an object, in enlarged pixels
_RIM = 2  # thickness of the line along an object's rim, in enlarged pixels
_EDGE = 200  # a line divides areas whose colors differ by more (sum over channels)


def _sketch_object(drawing: Image.Image) -> Image.Image:
    """Sketch of an object: an RGBA image of the same size with a smaller object, which stands as low."""
    width, height = drawing.size
    small_size = (max(1, round(width * _WIDTH)), max(1, round(height * _HEIGHT)))
    small = drawing.resize(small_size, Image.Resampling.BOX)
    canvas = Image.new("RGBA", drawing.size)
    canvas.paste(small, ((width - small.width) // 2, height - small.height))
    # Wavy contours: every row is moved sideways along a sine, and cut off at the border.
    straight = np.asarray(canvas)  # (H, W, 4) uint8 RGBA
    pixels = np.zeros_like(straight)  # likewise, with waves
    for row in range(height):
        shift = round(_WAVE * float(np.sin(2 * np.pi * row / _PERIOD)))
        strip = straight[row, max(0, -shift) : width - max(0, shift)]
        pixels[row, max(0, shift) : width + min(0, shift)] = strip
    covered = pixels[..., 3] >= 128  # (H, W) bool
    # Lines inside the object, along its rim and between colors.
    inner = Image.fromarray(covered).convert("L").filter(ImageFilter.MinFilter(2 * _RIM + 1))
    line = np.asarray(inner) == 0  # (H, W) bool
    rgb = pixels[..., :3].astype(np.int32)  # (H, W, 3); differences may be negative
    line[:, 1:] |= np.abs(rgb[:, 1:] - rgb[:, :-1]).sum(-1) > _EDGE  # against the left neighbor
    line[1:] |= np.abs(rgb[1:] - rgb[:-1]).sum(-1) > _EDGE  # against the upper neighbor
    # Strokes in colder colors; between them lighter stripes, mixed with 45 % paper.
    cold = _make_colder(rgb.astype(np.float32))  # (H, W, 3)
    stroke = _draw_strokes(cold, falling=False)  # (H, W, 1)
    colors = stroke * cold + (1 - stroke) * (cold + 0.45 * (_PAPER - cold))
    colors[covered & line] = _INK
    alpha = np.where(covered, 255, 0).astype(np.uint8)  # (H, W)
    return Image.fromarray(np.dstack([_round_colors(colors), alpha]))


def _sketch_background(image: Image.Image) -> Image.Image:
    """Sketch of a background: colder, paler, hatched."""
    colors = np.asarray(image).astype(np.float32)  # (H, W, 3)
    hatched = 0.65 * _make_colder(colors) + 0.35 * _PAPER - 20 * _draw_strokes(colors, falling=True)
    return Image.fromarray(_round_colors(hatched))


def _draw_strokes(colors: np.ndarray, *, falling: bool) -> np.ndarray:
    """Slanting lines over an image of this size, (H, W, 1) float32: 1 on the lines, 0 between them."""
    rows, columns = np.indices(colors.shape[:2])  # each (H, W)
    position = columns + (rows if falling else -rows)
    return ((position % _HATCH) < _STROKE).astype(np.float32)[..., None]


def _make_colder(colors: np.ndarray) -> np.ndarray:  # (H, W, 3) float32: less red, more blue
    return colors * np.array([0.92, 0.96, 1.0], np.float32) + np.array([4, 6, 14], np.float32)


def _round_colors(colors: np.ndarray) -> np.ndarray:  # (H, W, 3) float32 -> uint8
    return np.clip(np.rint(colors), 0, 255).astype(np.uint8)


# --- Scenes -------------------------------------------------------------------------------------------------
def rng_for(split: str, index: int, purpose: str = "scene") -> random.Random:
    """The random generator for one purpose in scene `index` of a split; no two splits share one."""
    digest = hashlib.sha256(f"nein-nano/{split}/{index}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


@dataclass(frozen=True)
class Item:
    """An object in a scene."""

    category: str
    color: str
    size: int  # scale in scene pixels
    x: float  # left border in scene pixels, a multiple of 1/4
    y: float  # upper border, likewise
    flip: bool  # whether it is mirrored left to right

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """x0, y0, x1, y1 of its whole drawing, transparent margins included, in scene pixels."""
        width, height = LOOKS[self.category].scaled(self.size)
        return self.x, self.y, self.x + width, self.y + height

    @property
    def center(self) -> tuple[float, float]:
        """x, y in scene pixels."""
        x0, y0, x1, y1 = self.extent
        return (x0 + x1) / 2, (y0 + y1) / 2

    @property
    def corner(self) -> tuple[int, int]:
        """Left and upper border in enlarged pixels."""
        return round(self.x * SUPERSAMPLE), round(self.y * SUPERSAMPLE)

    def draw(self, style: str = PLAIN) -> Image.Image:
        return draw_object(self.category, self.color, self.size, self.flip, style)

    def overlaps(self, other: Item, margin: float = 0.0) -> bool:
        """Whether fewer than `margin` pixels are between both drawings."""
        (x0, y0, x1, y1), (a0, b0, a1, b1) = self.extent, other.extent
        return x0 < a1 + margin and a0 < x1 + margin and y0 < b1 + margin and b0 < y1 + margin


@dataclass(frozen=True)
class Scene:
    """A background and up to `MAX_OBJECTS` objects that do not overlap, drawn in order."""

    background: str  # a key of `BACKGROUNDS`
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
    """A random object that overlaps none of `others`; None without room. usual: in usual look and size."""
    look = LOOKS[category]
    color = look.colors[0] if usual else rng.choice(look.colors)
    flip = not usual and look.mirror and rng.random() < 0.5
    smallest, largest = (USUAL_SIZE, USUAL_SIZE) if usual else (MIN_SIZE, MAX_SIZE)
    for attempt in range(60):
        if attempt == 30:  # from here on only small objects
            smallest, largest = MIN_SIZE, MIN_SIZE + 2
        size = rng.randint(smallest, largest)
        right, bottom = ((SIZE - side) * SUPERSAMPLE for side in look.scaled(size))  # limits, enlarged pixels
        x = rng.randint(0, right)
        # Airborne objects are mostly high and the others mostly low, but any height may occur.
        low, high = (0.0, 0.7) if look.airborne else (0.25, 1.0)  # fractions of `bottom`, from the top
        if rng.random() < 0.2:
            low, high = 0.0, 1.0
        y = rng.randint(round(low * bottom), round(high * bottom))
        item = Item(category, color, size, x / SUPERSAMPLE, y / SUPERSAMPLE, flip)
        if not any(item.overlaps(other, _MARGIN) for other in others):
            return item
    return None


def sample_scene(rng: random.Random, count: int, categories: Sequence[str] = CATEGORIES) -> Scene:
    """A scene of `count` objects, or fewer if there is no room; a category may occur twice."""
    background, seed = rng.choice(tuple(BACKGROUNDS)), rng.randrange(200)
    items: list[Item] = []
    for _ in range(count):
        category = items[-1].category if items and rng.random() < 0.12 else rng.choice(categories)
        item = place(rng, category, items)
        if item is not None:
            items.append(item)
    return Scene(background, seed, tuple(items))


def render(scene: Scene, style: str = PLAIN) -> np.ndarray:
    """The scene as (64, 64, 3) uint8 RGB, in `PLAIN` or `SKETCH`."""
    canvas = draw_background(scene.background, scene.background_seed, style).copy()
    for item in scene.items:
        drawing = item.draw(style)
        canvas.paste(drawing, item.corner, drawing)
    return np.asarray(canvas.reduce(SUPERSAMPLE))


def box(item: Item, style: str = PLAIN) -> tuple[float, float, float, float]:
    """Tight x0, y0, x1, y1 around the visible object in scene pixels, exact to a quarter of a pixel."""
    bounds: Any = item.draw(style).getchannel("A").getbbox()  # within the drawing, in enlarged pixels
    x0, y0, x1, y1 = (bound / SUPERSAMPLE for bound in bounds)
    return item.x + x0, item.y + y0, item.x + x1, item.y + y1


# --- Worlds -------------------------------------------------------------------------------------------------
#: Objects that no sentence of fine-tuning names; all models know them from affirmative sentences.
HELD_OUT = ("bus", "cup", "laptop", "sheep", "umbrella")
# Wordings: sets of patterns of negative sentences (`data.NEGATIVES`, `sentences.ASKED`).
ALL = "all"
TAUGHT = "taught"  # patterns that fine-tuning may use
UNSEEN = "held-out"  # patterns that it may not; it has their denying words: "no", "not", "without"
NEGATOR = "negator"  # patterns with a denying word that fine-tuning does not have
VARIED = "varied"  # for training: more patterns than the taught ones, none held out


@dataclass(frozen=True)
class World:
    """The objects, wordings and style of a nano data set."""

    name: str
    pool: tuple[str, ...] = CATEGORIES  # objects of its scenes; a repeated one is more frequent
    named: frozenset[str] = frozenset(CATEGORIES)  # objects that sentences deny or ask for
    wording: str = ALL  # see above
    style: str = PLAIN


_OBJECTS = tuple(category for category in CATEGORIES if category not in HELD_OUT)
NANO = World("nano")
_OLD = World("nano:taught", pool=_OBJECTS, named=frozenset(_OBJECTS), wording=TAUGHT)
# About half of the objects in a scene are held out, so that most scenes have one that can be asked about.
_NEW_POOL = _OBJECTS + HELD_OUT * 5
_NEW = World("nano:objects", pool=_NEW_POOL, named=frozenset(HELD_OUT), wording=TAUGHT)
_WORLDS = (
    NANO,
    World("nano:varied", wording=VARIED),
    _OLD,
    replace(_OLD, name="nano:wording", wording=UNSEEN),
    replace(_OLD, name="nano:negator", wording=NEGATOR),
    _NEW,
    replace(_OLD, name="nano:style", style=SKETCH),
    replace(_NEW, name="nano:unlike", wording=UNSEEN, style=SKETCH),
)
WORLDS: dict[str, World] = {world.name: world for world in _WORLDS}
#: Names of the worlds that a study reports: the taught one, each aspect held out, three of them together.
AXES = tuple(world.name for world in _WORLDS if world.wording not in (ALL, VARIED))


def is_nano(data: str) -> bool:
    """Whether --data names a nano world: "nano" or "nano:..."."""
    return data == NANO.name or data.startswith(f"{NANO.name}:")


def find_world(name: str) -> World:
    """The world of a name. Raises UserError."""
    if name not in WORLDS:
        raise unknown("nano world", name, WORLDS)
    return WORLDS[name]
