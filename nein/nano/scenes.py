"""Scenes: what stands where, drawn from a seed, rendered to 64x64 pixels; and the worlds they come from."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from nein.engine.errors import unknown
from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS, PLAIN, SIZE, SKETCH, SUPERSAMPLE, background, layer

#: Disjoint families of scenes. "val" is the evaluation split, called so because NeIn's file is `val.json`.
SPLITS = ("train", "dev", "val")
MIN_SIZE, MAX_SIZE = 15, 23
USUAL_SIZE = 20
MAX_OBJECTS = 4
_MARGIN = 1.0  # free pixels kept around every object


def rng_for(split: str, index: int, purpose: str = "scene") -> random.Random:
    """The random stream of one scene and purpose; splits never meet."""
    digest = hashlib.sha256(f"nein-nano/{split}/{index}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


@dataclass(frozen=True)
class Item:
    """`x`, `y`: top left corner in scene pixels (multiples of 1/4); `size`: scale in pixels."""

    category: str
    colour: str
    size: int
    x: float
    y: float
    flip: bool

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """x0, y0, x1, y1 of the whole layer."""
        look = LOOKS[self.category]
        return self.x, self.y, self.x + round(self.size * look.width), self.y + round(self.size * look.height)

    @property
    def centre(self) -> tuple[float, float]:
        x0, y0, x1, y1 = self.extent
        return (x0 + x1) / 2, (y0 + y1) / 2


@dataclass(frozen=True)
class Scene:
    """A background and up to `MAX_OBJECTS` objects that do not overlap, drawn in order."""

    background: str
    background_seed: int
    items: tuple[Item, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.category for item in self.items))

    def without(self, category: str) -> Scene:
        return replace(self, items=tuple(i for i in self.items if i.category != category))

    def with_item(self, item: Item) -> Scene:
        return replace(self, items=(*self.items, item))


def _near(one: Item, other: Item) -> bool:
    (x0, y0, x1, y1), (a0, b0, a1, b1) = one.extent, other.extent
    return x0 < a1 + _MARGIN and a0 < x1 + _MARGIN and y0 < b1 + _MARGIN and b0 < y1 + _MARGIN


def place(
    rng: random.Random, category: str, others: Collection[Item], attempts: int = 60, usual: bool = False
) -> Item | None:
    """A random object that overlaps none of `others`, None without room. usual: as most people would draw it,
    in the category's first colour and a middle size."""
    look = LOOKS[category]
    colour = look.colours[0] if usual else rng.choice(look.colours)
    flip = not usual and look.mirror and rng.random() < 0.5
    sizes = (USUAL_SIZE, USUAL_SIZE) if usual else (MIN_SIZE, MAX_SIZE)
    for attempt in range(attempts):
        size = rng.randint(*(sizes if attempt < attempts // 2 else (MIN_SIZE, MIN_SIZE + 2)))
        x = rng.randint(0, (SIZE - round(size * look.width)) * SUPERSAMPLE) / SUPERSAMPLE
        room = (SIZE - round(size * look.height)) * SUPERSAMPLE
        # Things that fly are mostly up, things that stand mostly down, but nothing is impossible.
        low, high = (0.0, 0.7) if look.airborne else (0.25, 1.0)
        if rng.random() < 0.2:
            low, high = 0.0, 1.0
        item = Item(
            category, colour, size, x, rng.randint(round(low * room), round(high * room)) / SUPERSAMPLE, flip
        )
        if not any(_near(item, other) for other in others):
            return item
    return None


def sample_scene(rng: random.Random, objects: int, categories: Collection[str] = CATEGORIES) -> Scene:
    """`objects` objects, fewer when there is no room; a category may occur twice."""
    kind = rng.choice(tuple(BACKGROUNDS))
    seed = rng.randrange(200)
    pool = tuple(categories)
    items: list[Item] = []
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
        drawing = layer(item.category, item.colour, item.size, item.flip, style)
        canvas.paste(drawing, (round(item.x * SUPERSAMPLE), round(item.y * SUPERSAMPLE)), drawing)
    return np.asarray(canvas.reduce(SUPERSAMPLE))


def mask(item: Item) -> np.ndarray:
    """(64, 64) bool: pixels of which the object covers at least half."""
    canvas = Image.new("L", (SIZE * SUPERSAMPLE, SIZE * SUPERSAMPLE))
    drawing = layer(item.category, item.colour, item.size, item.flip)
    canvas.paste(drawing.getchannel("A"), (round(item.x * SUPERSAMPLE), round(item.y * SUPERSAMPLE)))
    return np.asarray(canvas.reduce(SUPERSAMPLE)) >= 128


def box(item: Item, style: str = PLAIN) -> tuple[float, float, float, float]:
    """Tight x0, y0, x1, y1 around the visible object, exact to a quarter of a pixel."""
    bounds = layer(item.category, item.colour, item.size, item.flip, style).getchannel("A").getbbox()
    assert bounds is not None, f"{item.category} draws nothing"
    x0, y0, x1, y1 = (bound / SUPERSAMPLE for bound in bounds)
    return item.x + x0, item.y + y0, item.x + x1, item.y + y1


# --- Worlds -------------------------------------------------------------------------------------------------


#: Objects that no sentence of a fine-tuning names. All models know them from affirmative sentences.
HELD_OUT = ("bus", "cup", "laptop", "sheep", "umbrella")
#: Wordings. "taught": what fine-tuning may use. "held-out": sentences it has not seen, whose denying words
#: ("no", "not", "without") it knows from others. "negator": sentences with a denying word it has never seen.
#: "varied": for training on more wordings than the taught ones, none of them held out.
ALL, TAUGHT, UNSEEN, NEGATOR, VARIED = "all", "taught", "held-out", "negator", "varied"


@dataclass(frozen=True)
class World:
    """shown: the objects scenes are drawn from, a repeated one more often; named: those that sentences deny
    or ask about; style: `PLAIN` or `SKETCH`."""

    name: str
    shown: tuple[str, ...] = CATEGORIES
    named: frozenset[str] = frozenset(CATEGORIES)
    wording: str = ALL
    style: str = PLAIN


_OLD = tuple(category for category in CATEGORIES if category not in HELD_OUT)
# About every other thing in a scene is held out: a scene then mostly has one that can be asked about.
_NEW = _OLD + HELD_OUT * 5


def _world(name: str, shown: tuple[str, ...], wording: str, style: str = PLAIN) -> World:
    return World(f"nano:{name}", shown, frozenset(_OLD if shown is _OLD else HELD_OUT), wording, style)


NANO = World("nano")
WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        NANO,
        World("nano:varied", wording=VARIED),
        _world("taught", _OLD, TAUGHT),
        _world("wording", _OLD, UNSEEN),
        _world("negator", _OLD, NEGATOR),
        _world("objects", _NEW, TAUGHT),
        _world("style", _OLD, TAUGHT, SKETCH),
        _world("unlike", _NEW, UNSEEN, SKETCH),
    )
}
#: What a study reports: the taught world first, then each thing held out, then three of them together.
AXES = tuple(name for name, world in WORLDS.items() if world.wording not in (ALL, VARIED))


def is_nano(data: str) -> bool:
    return data == NANO.name or data.startswith(f"{NANO.name}:")


def world(data: str) -> World:
    if data not in WORLDS:
        raise unknown("nano world", data, WORLDS)
    return WORLDS[data]
