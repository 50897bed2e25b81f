"""Drawn edit pairs of the nano world: source scene, affirmative instruction, target scene.

The mixture imitates real instruction editors: told to add, they add, even a second object; told to remove,
they remove; and a mere description ("the image has a dog") makes them add what it names.
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
from nein.nano.sentences import names, plural
from nein.wording.families import indefinite

#: Kind of pair -> weight in the mixture.
DRAW = {
    "remove": 24.0,
    "add": 36.0,
    "double": 16.0,
    "keep": 8.0,
    "replace": 8.0,
    "recolour": 4.0,
    "scenery": 3.0,
}
#: Editor -> (mixture of its training pairs, their style: see `draw_images`).
MIXTURES: dict[str, tuple[dict[str, float], str]] = {
    "ip2p": (DRAW, "generated"),
    "magicbrush": ({**DRAW, "scenery": 0.0}, "clean"),
}


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(" | "))


#: Templates: {n} the noun, {a} with its article, {p} its plural, {b} another noun with article, {c} a color.
ADD = _split(
    "add {a} | add {a} to the image | add {a} to the scene | put {a} in the image | put {a} there | "
    "insert {a} | place {a} in the scene | draw {a} | let there be {a} | include {a} | "
    "give the scene {a} | make {a} appear | i want {a} in the image | add one more {n} | add the {n}"
)
DESCRIBE = _split(
    "the image has {a} | the image has any {n} | the image contains {a} | there is {a} in the image | "
    "there is {a} | a scene with {a} | an image with {a} | {a} is part of the scene | {a} in the image | "
    "{a} can be seen in the image | the image shows {a} | a picture of {a} | {a} is in the image | "
    "the image includes {a} | the {n} is in the scene | {n} in the image | a single {n} | {n} | "
    "the image should have {a} | the image can have {a} | the image does have {a} | "
    "{a} is present in the image | the presence of {a} in the image | {a} is here | "
    "{n} is part of the image | the scene has some {p}"
)
REMOVE = _split(
    "remove the {n} | remove {a} | remove the {n} from the image | delete the {n} | take away the {n} | "
    "take the {n} away | erase the {n} | get rid of the {n} | cut out the {n} | make the {n} disappear | "
    "wipe the {n} out | clear the {n} away | remove {n} | drop the {n}"
)
REPLACE = _split(
    "replace the {n} with {b} | turn the {n} into {b} | change the {n} to {b} | swap the {n} for {b} | "
    "exchange the {n} for {b} | make the {n} {b}"
)
RECOLOUR = _split(
    "make the {n} {c} | turn the {n} {c} | change the colour of the {n} to {c} | paint the {n} {c}"
)
SCENERY = {
    "meadow": ("put the scene in a meadow", "change the background to a green field"),
    "beach": ("put the scene on a beach", "change the background to a beach"),
    "street": ("put the scene on a street", "change the background to a road"),
    "room": ("put the scene in a room", "change the background to a room"),
    "kitchen": ("put the scene in a kitchen", "change the background to a kitchen"),
    "snow": ("make it snowy", "change the background to a snowy mountain"),
    "desert": ("put the scene in a desert", "change the background to a desert"),
    "night": ("make it night", "change the background to a starry night"),
}
#: Filler words; they teach an editor to ignore words without a meaning for the edit.
FILLERS = _split("please | now | just | really | also | again | then | somewhere | here | simply | quickly")


@dataclass(frozen=True)
class Pair:
    """One drawn edit. named: category that the instruction names, "" for one about the whole image."""

    source: Scene
    target: Scene
    instruction: str
    kind: str
    named: str = ""


def write_instruction(rng: random.Random, form: str, category: str, other: str = "", colour: str = "") -> str:
    """Fill a template; up to two filler words are inserted, with probability 0.15 each."""
    noun = rng.choice(names(category)) if rng.random() < 0.1 else category
    slots = {"a": indefinite(noun), "n": noun, "p": plural(noun), "b": indefinite(other), "c": colour}
    words = form.format(**slots).split(" ")
    for _ in range(2):
        if rng.random() < 0.15:
            words.insert(rng.randint(0, len(words)), rng.choice(FILLERS))
    text = " ".join(words) + ("." if rng.random() < 0.7 else "")
    return text[0].upper() + text[1:]


def place_with_room(rng: random.Random, category: str, scene: Scene, usual: bool = False) -> Item | None:
    """Place a new object: of 12 random positions the one with the largest gap to other objects and borders.
    None if the scene is full.

    usual  The object has its category's usual look and size, and 30 positions are tried.
    """
    if len(scene.items) >= scenes.MAX_OBJECTS:
        return None
    best, most = None, -math.inf
    for _ in range(30 if usual else 12):
        item = place(rng, category, scene.items, usual=usual)
        if item is None:
            continue
        x, y = item.center
        gaps = [math.hypot(x - a, y - b) for a, b in (other.center for other in scene.items)]
        # Twice the distance to a border, as if the object had a mirror image behind it.
        clearance = min([*gaps, 2 * x, 2 * y, 2 * (SIZE - x), 2 * (SIZE - y)])
        if clearance > most:
            best, most = item, clearance
    return best


def draw_kind(rng: random.Random, weights: Mapping[str, float]) -> str:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def sample_pair(rng: random.Random, kind: str, usual: bool = False) -> Pair:
    """Draw a pair of a kind (a key of `DRAW`). usual: see `place_with_room`."""
    while True:  # until the scene allows an edit of this kind
        source = sample_scene(rng, rng.choice((1, 2, 2, 3, 3, 4)), CATEGORIES)
        category = rng.choice(source.categories)
        absent = [c for c in CATEGORIES if c not in source.categories]
        target, form, other, colour = source, "", "", ""
        if kind in ("add", "double", "keep"):
            if kind == "add":
                category = rng.choice(absent)
            else:
                form = rng.choice(ADD if rng.random() < 0.35 else DESCRIBE)
            if kind != "keep":
                item = place_with_room(rng, category, source, usual)
                if item is None:
                    continue
                target = source.add(item)
            if kind == "add":
                form = rng.choice(ADD if rng.random() < 0.75 else DESCRIBE)
        elif kind == "remove":
            target, form = source.remove(category), rng.choice(REMOVE)
        elif kind == "scenery":
            background = rng.choice([name for name in scenes.BACKGROUNDS if name != source.background])
            target = replace(source, background=background, background_seed=rng.randrange(200))
            return Pair(source, target, rng.choice(SCENERY[background]), kind)
        else:
            old, *duplicates = (item for item in source.items if item.category == category)
            if duplicates:  # the instruction would name several objects
                continue
            if kind == "replace":
                other = rng.choice(absent)
                new, forms = _refit(rng, old, other), REPLACE
            else:
                others = [c for c in LOOKS[category].colors if c != old.color]
                if not others:
                    continue
                colour = rng.choice(others)
                new, forms = replace(old, color=colour), RECOLOUR
            target = replace(source, items=tuple(new if item is old else item for item in source.items))
            form = rng.choice(forms)
        return Pair(source, target, write_instruction(rng, form, category, other, colour), kind, category)


def _refit(rng: random.Random, old: Item, category: str) -> Item:
    """An object of `category` with the center of `old`, moved inside the image."""
    look = LOOKS[category]
    width, height = look.extent(old.size)
    cx, cy = old.center
    x = min(max(0.0, cx - width / 2), SIZE - width)
    y = min(max(0.0, cy - height / 2), SIZE - height)
    flip = look.mirror and rng.random() < 0.5
    x, y = (round(side * scenes.SUPERSAMPLE) / scenes.SUPERSAMPLE for side in (x, y))
    return Item(category, rng.choice(look.colors), old.size, x, y, flip)


def move(rng: random.Random, item: Item, most: int) -> Item:
    """Copy of an object, moved by at most `most` quarters of a pixel per axis, within the image."""
    x0, y0, x1, y1 = item.extent
    x = min(max(0.0, item.x + rng.randint(-most, most) / 4), SIZE - (x1 - x0))
    y = min(max(0.0, item.y + rng.randint(-most, most) / 4), SIZE - (y1 - y0))
    return replace(item, x=x, y=y)


def draw_images(pair: Pair, rng: random.Random, style: str) -> tuple[np.ndarray, np.ndarray]:
    """Source and target, each (64, 64, 3) uint8 RGB. style: "clean"; "generated": in half of the pairs every
    object moves by up to one pixel, as in pairs from a generator."""
    target = pair.target
    if style == "generated" and rng.random() < 0.5:
        target = replace(target, items=tuple(move(rng, item, 4) for item in target.items))
    return render(pair.source), render(target)


@dataclass(frozen=True, slots=True)
class DrawnPair:
    """Pair of drawn images. world: version of the world, with recipe and style; state: of its generator."""

    name: str
    edit: Pair
    world: str
    style: str
    state: Any

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        rng = random.Random()
        rng.setstate(self.state)
        return draw_images(self.edit, rng, self.style)

    def key(self) -> str:
        text = repr((self.edit.source, self.edit.target))
        return f"{self.world}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def draw_pairs(
    count: int, base: str, hold_out: tuple[str, ...] = ()
) -> tuple[list[DrawnPair], dict[str, Any]]:
    """Draw `count` affirmative pairs, in the mixture and style of the base editor's own recipe; returns them
    with their description for the manifest.

    hold_out  Objects that no instruction may name, by any synonym.
    """
    name = base.removeprefix("nano:")
    recipe = name if name in MIXTURES else "ip2p"
    weights, style = MIXTURES[recipe]
    nouns = [word for noun in hold_out for form in names(noun) for word in (form, plural(form))]
    forbidden = re.compile(rf"\b(?:{'|'.join(map(re.escape, nouns))})\b", re.IGNORECASE)
    pairs = []
    for index in range(count):
        rng = rng_for("train", index, f"affirmative/{recipe}")
        edit = sample_pair(rng, draw_kind(rng, weights))
        while nouns and forbidden.search(edit.instruction):
            edit = sample_pair(rng, draw_kind(rng, weights))
        world = f"{world_version()}/{recipe}/{style}"
        pairs.append(DrawnPair(f"affirmative_{index + 1:06d}", edit, world, style, rng.getstate()))
    return pairs, {"pairs": count, "kinds": dict(weights), "style": style, "recipe": recipe}
