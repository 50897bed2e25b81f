"""Draw affirmative edits of the nano world: source scene, instruction, target scene.

The mixture imitates real instruction editors: told to add, they add, even a second object; told to remove,
they remove; and a mere description ("the image has a dog") makes them add the object that it names.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein.nano import scenes
from nein.nano.data import world_version
from nein.nano.scenes import CATEGORIES, LOOKS, SIZE, Item, Scene, place, render, rng_for, sample_scene
from nein.nano.sentences import TABLES, names
from nein.wording.families import a_or_an, plural

#: Kind of pair -> weight in the mixture.
WEIGHTS = {
    "remove": 24.0,
    "add": 36.0,
    "double": 16.0,  # add a second object of a category
    "keep": 8.0,  # a sentence of "add" about an object that is there: change nothing
    "replace": 8.0,
    "recolour": 4.0,
    "scenery": 3.0,  # change the background
}
#: Editor -> (weights of its training pairs, their style: see `draw_images`).
MIXTURES: dict[str, tuple[dict[str, float], str]] = {
    "ip2p": (WEIGHTS, "generated"),
    "magicbrush": ({**WEIGHTS, "scenery": 0.0}, "clean"),
}
# Templates: {n} the noun, {a} with its article, {p} its plural, {b} another noun with article, {c} a color.
_INSTRUCTIONS = TABLES["instructions"]
ADD: list[str] = _INSTRUCTIONS["add"]
DESCRIBE: list[str] = _INSTRUCTIONS["describe"]  # "the image has {a}": the editor must add it, too
REMOVE: list[str] = _INSTRUCTIONS["remove"]
REPLACE: list[str] = _INSTRUCTIONS["replace"]
RECOLOUR: list[str] = _INSTRUCTIONS["recolour"]
SCENERY: dict[str, list[str]] = _INSTRUCTIONS["scenery"]  # background -> instructions to set it
FILLERS: list[str] = _INSTRUCTIONS["fillers"]  # like "please": words that an editor learns to ignore


@dataclass(frozen=True)
class Pair:
    """One edit of a scene."""

    source: Scene
    target: Scene
    instruction: str
    kind: str  # a key of `WEIGHTS`
    named: str = ""  # category that the instruction names; "": it is about the whole image


def write_instruction(
    rng: random.Random, template: str, category: str, other: str = "", color: str = ""
) -> str:
    """Fill a template; up to two filler words are inserted, with probability 0.15 each."""
    noun = rng.choice(names(category)) if rng.random() < 0.1 else category
    slots = {"a": a_or_an(noun), "n": noun, "p": plural(noun), "b": a_or_an(other), "c": color}
    words = template.format(**slots).split(" ")
    for _ in range(2):
        if rng.random() < 0.15:
            words.insert(rng.randint(0, len(words)), rng.choice(FILLERS))
    text = " ".join(words) + ("." if rng.random() < 0.7 else "")
    return text[0].upper() + text[1:]


def place_with_room(rng: random.Random, category: str, scene: Scene, usual: bool = False) -> Item | None:
    """A new object, at the one of 12 random positions with the largest gap to objects and borders; None in a
    full scene. usual: of its category's usual look and size, at one of 30 positions."""
    if len(scene.items) >= scenes.MAX_OBJECTS:
        return None
    best = None
    largest = -math.inf  # gap of `best`, in pixels
    for _ in range(30 if usual else 12):
        item = place(rng, category, scene.items, usual=usual)
        if item is None:
            continue
        x, y = item.center
        gaps = [math.hypot(x - a, y - b) for a, b in (other.center for other in scene.items)]
        # Twice the distance to a border, as if the object had a mirror image behind it.
        gap = min([*gaps, 2 * x, 2 * y, 2 * (SIZE - x), 2 * (SIZE - y)])
        if gap > largest:
            best, largest = item, gap
    return best


def draw_kind(rng: random.Random, weights: Mapping[str, float]) -> str:
    """A random kind of pair, by the weights of a mixture."""
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def sample_pair(rng: random.Random, kind: str, usual: bool = False) -> Pair:
    """Draw a pair of a kind (a key of `WEIGHTS`). usual: see `place_with_room`."""
    while True:  # until the scene allows an edit of this kind; the order of random numbers decides the data
        source = sample_scene(rng, rng.choice((1, 2, 2, 3, 3, 4)), CATEGORIES)
        category = rng.choice(source.categories)
        absent = [name for name in CATEGORIES if name not in source.categories]
        other = color = ""
        if kind == "add":
            category = rng.choice(absent)
            item = place_with_room(rng, category, source, usual)
            if item is None:
                continue
            target = source.add(item)
            template = rng.choice(ADD if rng.random() < 0.75 else DESCRIBE)
        elif kind == "keep":
            target, template = source, rng.choice(ADD if rng.random() < 0.35 else DESCRIBE)
        elif kind == "double":
            template = rng.choice(ADD if rng.random() < 0.35 else DESCRIBE)
            item = place_with_room(rng, category, source, usual)
            if item is None:
                continue
            target = source.add(item)
        elif kind == "remove":
            target, template = source.remove(category), rng.choice(REMOVE)
        elif kind == "scenery":
            background = rng.choice([name for name in scenes.BACKGROUNDS if name != source.background])
            target = replace(source, background=background, background_seed=rng.randrange(200))
            return Pair(source, target, rng.choice(SCENERY[background]), kind)
        else:  # replace, recolour
            same = [item for item in source.items if item.category == category]
            if len(same) > 1:  # the instruction would name several objects
                continue
            old = same[0]
            if kind == "replace":
                other = rng.choice(absent)
                new, templates = _replace_item(rng, old, other), REPLACE
            else:
                colors = [name for name in LOOKS[category].colors if name != old.color]
                if not colors:
                    continue
                color = rng.choice(colors)
                new, templates = replace(old, color=color), RECOLOUR
            target = replace(source, items=tuple(new if item is old else item for item in source.items))
            template = rng.choice(templates)
        instruction = write_instruction(rng, template, category, other=other, color=color)
        return Pair(source, target, instruction, kind, category)


def _replace_item(rng: random.Random, old: Item, category: str) -> Item:
    """An object of `category` with the center of `old`, moved inside the image."""
    look = LOOKS[category]
    width, height = look.scaled(old.size)
    cx, cy = old.center
    x = min(max(0.0, cx - width / 2), SIZE - width)
    y = min(max(0.0, cy - height / 2), SIZE - height)
    flip = look.mirror and rng.random() < 0.5
    x, y = (round(side * scenes.SUPERSAMPLE) / scenes.SUPERSAMPLE for side in (x, y))
    return Item(category, rng.choice(look.colors), old.size, x, y, flip)


def move(rng: random.Random, item: Item, quarters: int) -> Item:
    """Copy of an object, moved within the image by up to `quarters` quarters of a pixel per axis."""
    x0, y0, x1, y1 = item.extent
    x = min(max(0.0, item.x + rng.randint(-quarters, quarters) / 4), SIZE - (x1 - x0))
    y = min(max(0.0, item.y + rng.randint(-quarters, quarters) / 4), SIZE - (y1 - y0))
    return replace(item, x=x, y=y)


def draw_images(pair: Pair, rng: random.Random, style: str) -> tuple[np.ndarray, np.ndarray]:
    """Source and target, each (64, 64, 3) uint8 RGB. style: "clean", or "generated": in half of the pairs
    every object of the target moves by up to one pixel, as in pairs from a generator."""
    target = pair.target
    if style == "generated" and rng.random() < 0.5:
        target = replace(target, items=tuple(move(rng, item, 4) for item in target.items))
    return render(pair.source), render(target)


@dataclass(frozen=True, slots=True)
class DrawnPair:
    """An edit whose images are drawn when they are read."""

    name: str
    edit: Pair
    version: str  # of the world, with recipe and style
    style: str  # see `draw_images`
    state: Any  # of the random generator, before the images are drawn

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Source and target, each (64, 64, 3) uint8 RGB."""
        rng = random.Random()
        rng.setstate(self.state)
        return draw_images(self.edit, rng, self.style)

    def key(self) -> str:
        """String that changes with the world and the scenes (see `train.features`)."""
        text = repr((self.edit.source, self.edit.target))
        return f"{self.version}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def draw_pairs(
    count: int, base: str, hold_out: tuple[str, ...] = ()
) -> tuple[list[DrawnPair], dict[str, Any]]:
    """`count` pairs and their description for the manifest. hold_out: objects that no instruction names."""
    name = base.removeprefix("nano:")
    recipe = name if name in MIXTURES else "ip2p"  # a key of `MIXTURES`
    weights, style = MIXTURES[recipe]
    version = f"{world_version()}/{recipe}/{style}"
    nouns = [noun for category in hold_out for noun in names(category)]
    nouns += [plural(noun) for noun in nouns]
    forbidden = re.compile(rf"\b(?:{'|'.join(map(re.escape, nouns))})\b", re.IGNORECASE)
    pairs = []
    for index in range(count):
        rng = rng_for("train", index, f"affirmative/{recipe}")
        edit = sample_pair(rng, draw_kind(rng, weights))
        while nouns and forbidden.search(edit.instruction):
            edit = sample_pair(rng, draw_kind(rng, weights))
        pairs.append(DrawnPair(f"affirmative_{index + 1:06d}", edit, version, style, rng.getstate()))
    return pairs, {"pairs": count, "kinds": dict(weights), "style": style, "recipe": recipe}
