"""Edit pairs of the miniature world: source scene, affirmative instruction, target scene.

The mixture follows what real instruction editors do with affirmative text: they add when told to add, also
when the thing is there already; they remove when told to remove; and a sentence that merely describes a
picture ("the image has a dog") is taken as a wish to see that.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein.nano import scenes
from nein.nano.data import world_version
from nein.nano.scenes import CATEGORIES, LOOKS, SIZE, Item, Scene, place, render, rng_for, sample_scene
from nein.nano.sentences import names, plural
from nein.wording.families import indefinite

KINDS = ("remove", "add", "double", "keep", "replace", "recolour", "scenery")
EDITS = dict(zip(KINDS, (30.0, 26.0, 16.0, 11.0, 8.0, 4.0, 5.0), strict=True))
#: After the base, which knows what is meant: more of what is hard, which is to draw.
DRAW = {**EDITS, "add": 36.0, "remove": 24.0, "keep": 8.0, "scenery": 3.0}
CLEAN = {**DRAW, "scenery": 0.0}
#: Editor -> the kinds of pairs that it learned from, and their style (see `pair_images`).
MIXTURES: dict[str, tuple[dict[str, float], str]] = {
    "base": (EDITS, "generated"),
    "ip2p": (DRAW, "generated"),
    "magicbrush": (CLEAN, "clean"),
    "hqedit": ({**DRAW, "scenery": 12.0}, "rerendered"),
    "instructdiffusion": ({**CLEAN, "mark": 20.0, "restore": 8.0}, "clean"),
}


def _forms(text: str) -> tuple[str, ...]:
    return tuple(text.split(" | "))


ADD = _forms(
    "add {a} | add {a} to the image | add {a} to the scene | put {a} in the image | put {a} there | "
    "insert {a} | place {a} in the scene | draw {a} | let there be {a} | include {a} | "
    "give the scene {a} | make {a} appear | i want {a} in the image | add one more {n} | add the {n}"
)
DESCRIBE = _forms(
    "the image has {a} | the image has any {n} | the image contains {a} | there is {a} in the image | "
    "there is {a} | a scene with {a} | an image with {a} | {a} is part of the scene | {a} in the image | "
    "{a} can be seen in the image | the image shows {a} | a picture of {a} | {a} is in the image | "
    "the image includes {a} | the {n} is in the scene | {n} in the image | a single {n} | {n} | "
    "the image should have {a} | the image can have {a} | the image does have {a} | "
    "{a} is present in the image | the presence of {a} in the image | {a} is here | "
    "{n} is part of the image | the scene has some {p}"
)
REMOVE = _forms(
    "remove the {n} | remove {a} | remove the {n} from the image | delete the {n} | take away the {n} | "
    "take the {n} away | erase the {n} | get rid of the {n} | cut out the {n} | make the {n} disappear | "
    "wipe the {n} out | clear the {n} away | remove {n} | drop the {n}"
)
REPLACE = _forms(
    "replace the {n} with {b} | turn the {n} into {b} | change the {n} to {b} | swap the {n} for {b} | "
    "exchange the {n} for {b} | make the {n} {b}"
)
RECOLOUR = _forms(
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
MARK = ("mark the {n} in red", "segment the {n}", "colour the pixels of the {n} red", "highlight the {n}")
RESTORE = ("clean up the image", "sharpen the image", "restore the image", "take the noise away")
#: Words people strew in; they teach an editor to read past what it has no use for.
FILLERS = _forms("please | now | just | really | also | again | then | somewhere | here | simply | quickly")


@dataclass(frozen=True)
class Pair:
    """One training example. `named` is the category that the instruction is about ("" where it is about the
    whole picture); `effect` names a picture operation beside the scenes: "", "mark:<category>", "restore"."""

    source: Scene
    target: Scene
    instruction: str
    kind: str
    named: str = ""
    effect: str = ""


def filled(rng: random.Random, form: str, category: str, other: str = "", colour: str = "") -> str:
    """The sentence of a form about a category, with a strewn-in word now and then."""
    noun = rng.choice(names(category)) if rng.random() < 0.1 else category
    text = form.format(
        a=indefinite(noun), n=noun, p=plural(noun), b=indefinite(other) if other else "", c=colour
    )
    words = text.split(" ")
    for _ in range(2):
        if rng.random() < 0.15:
            words.insert(rng.randint(0, len(words)), rng.choice(FILLERS))
    text = " ".join(words)
    if rng.random() < 0.7:
        text += "."
    return text[0].upper() + text[1:]


def roomiest(rng: random.Random, category: str, scene: Scene, usual: bool = False) -> Item | None:
    """A new object where there is most room: of some random places, the one farthest from what is there. None
    when the scene is full.

    usual  It has its category's usual look and size, and more places are tried: less is left to chance.
    """
    if len(scene.items) >= scenes.MAX_OBJECTS:
        return None
    offers = [place(rng, category, scene.items, usual=usual) for _ in range(30 if usual else 12)]
    offered = [item for item in offers if item is not None]

    def clearance(item: Item) -> float:
        x, y = item.centre
        gaps = [math.hypot(x - a, y - b) for a, b in (other.centre for other in scene.items)]
        edges = [2 * x, 2 * y, 2 * (SIZE - x), 2 * (SIZE - y)]
        return min(gaps + edges)

    return max(offered, key=clearance, default=None)


def sample_pair(rng: random.Random, weights: dict[str, float], usual: bool = False) -> Pair:
    """One pair, its kind drawn by `weights` (keys: add, double, keep, remove, replace, recolour, scenery,
    mark, restore). With `usual`, what is added has its category's usual look (see `roomiest`)."""
    kind = rng.choices(tuple(weights), tuple(weights.values()))[0]
    while True:
        source = sample_scene(rng, rng.choice((1, 2, 2, 3, 3, 4)), CATEGORIES)
        present = source.categories
        category = rng.choice(present)
        if kind in ("add", "double", "keep"):
            target = source
            if kind == "add":
                category = rng.choice([c for c in CATEGORIES if c not in present])
            else:
                form = rng.choice(ADD) if rng.random() < 0.35 else rng.choice(DESCRIBE)
            if kind != "keep":
                item = roomiest(rng, category, source, usual)
                if item is None:
                    continue
                target = source.with_item(item)
            if kind == "add":
                form = rng.choice(ADD) if rng.random() < 0.75 else rng.choice(DESCRIBE)
            return Pair(source, target, filled(rng, form, category), kind, category)
        if kind == "remove":
            text = filled(rng, rng.choice(REMOVE), category)
            return Pair(source, source.without(category), text, kind, category)
        if kind in ("replace", "recolour"):
            old, *more = (i for i in source.items if i.category == category)
            if more:
                continue
        if kind == "replace":
            other = rng.choice([c for c in CATEGORIES if c not in present])
            new = _refit(rng, old, other)
            items = tuple(new if i is old else i for i in source.items)
            text = filled(rng, rng.choice(REPLACE), category, other=other)
            return Pair(source, replace(source, items=items), text, kind, category)
        if kind == "recolour":
            others = [c for c in LOOKS[category].colours if c != old.colour]
            if not others:
                continue
            colour = rng.choice(others)
            items = tuple(replace(i, colour=colour) if i is old else i for i in source.items)
            text = filled(rng, rng.choice(RECOLOUR), category, colour=colour)
            return Pair(source, replace(source, items=items), text, kind, category)
        if kind == "scenery":
            place_name = rng.choice([b for b in scenes.BACKGROUNDS if b != source.background])
            target = replace(source, background=place_name, background_seed=rng.randrange(200))
            return Pair(source, target, rng.choice(SCENERY[place_name]), kind)
        if kind == "mark":
            text = filled(rng, rng.choice(MARK), category)
            return Pair(source, source, text, kind, category, f"mark:{category}")
        if kind == "restore":
            return Pair(source, source, rng.choice(RESTORE), kind, effect="restore")
        raise ValueError(f"unknown kind of edit {kind!r}")


def _refit(rng: random.Random, old: Item, category: str) -> Item:
    """An object of `category` centred where `old` stands, kept inside the picture."""
    look = LOOKS[category]
    size = max(15, min(23, old.size))
    width, height = round(size * look.width), round(size * look.height)
    cx, cy = old.centre
    x = min(max(0.0, cx - width / 2), SIZE - width)
    y = min(max(0.0, cy - height / 2), SIZE - height)
    flip = look.mirror and rng.random() < 0.5
    x, y = (round(side * scenes.SUPERSAMPLE) / scenes.SUPERSAMPLE for side in (x, y))
    return Item(category, rng.choice(look.colours), size, x, y, flip)


def _moved(rng: random.Random, item: Item, most: int) -> Item:
    """At most so many quarters of a pixel away, within the picture."""
    x0, y0, x1, y1 = item.extent
    x = min(max(0.0, item.x + rng.randint(-most, most) / 4), SIZE - (x1 - x0))
    y = min(max(0.0, item.y + rng.randint(-most, most) / 4), SIZE - (y1 - y0))
    return replace(item, x=x, y=y)


def rerender(rng: random.Random, scene: Scene) -> Scene:
    """The same things in a newly drawn picture: other colours and places nearby."""
    items: list[Item] = []
    for item in scene.items:
        moved = replace(item, colour=rng.choice(LOOKS[item.category].colours))
        for _ in range(20):
            candidate = replace(_moved(rng, item, 28), colour=moved.colour)
            x0, y0, x1, y1 = candidate.extent
            if all(x0 >= a[2] or a[0] >= x1 or y0 >= a[3] or a[1] >= y1 for a in (o.extent for o in items)):
                moved = candidate
                break
        items.append(moved)
    return replace(scene, background_seed=rng.randrange(200), items=tuple(items))


def pair_images(pair: Pair, rng: Any, style: str) -> tuple[np.ndarray, np.ndarray]:
    target_scene = pair.target
    if style == "generated" and rng.random() < 0.5:
        # As in pairs from a generator, everything may shift by up to one pixel.
        target_scene = replace(target_scene, items=tuple(_moved(rng, part, 4) for part in target_scene.items))
    if style == "rerendered":
        target_scene = rerender(rng, target_scene)
    source, target = render(pair.source), render(target_scene)
    if pair.effect.startswith("mark:"):
        category = pair.effect.removeprefix("mark:")
        covered = np.zeros(source.shape[:2], bool)
        for item in pair.source.items:
            if item.category == category:
                covered |= scenes.mask(item)
        target = np.where(
            covered[..., None], (0.4 * target + 0.6 * np.array([255, 0, 0])).astype(np.uint8), target
        )
    if pair.effect == "restore":
        noise = np.random.Generator(np.random.PCG64(rng.getrandbits(63))).normal(0, 18, source.shape)
        source = np.clip(source + noise, 0, 255).astype(np.uint8)
    if style == "rerendered":  # another light
        gain = 1 + 0.12 * (rng.random() * 2 - 1)
        shift = 255 * 0.12 * 0.5 * np.array([rng.random() * 2 - 1 for _ in range(3)])
        target = np.clip(target.astype(np.float32) * gain + shift, 0, 255).astype(np.uint8)
    return source, target


@dataclass(frozen=True, slots=True)
class DrawnPair:
    """A pair of drawn pictures. world: its version, with recipe and style."""

    name: str
    edit: Pair
    world: str
    style: str
    state: Any

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        rng = random.Random()
        rng.setstate(self.state)
        return pair_images(self.edit, rng, self.style)

    def key(self) -> str:
        text = repr((self.edit.source, self.edit.target, self.edit.effect))
        return f"{self.world}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def draw_pairs(
    count: int, base: str, hold_out: tuple[str, ...] = ()
) -> tuple[list[DrawnPair], dict[str, Any]]:
    """`count` affirmative pairs, in the mixture and the style of the base editor's own recipe, and what they
    are, for the manifest.

    hold_out  Objects that no instruction may name, under any of their names.
    """
    name = base.removeprefix("nano:")
    recipe = name if name in MIXTURES else "ip2p"
    weights, style = MIXTURES[recipe]
    words = [word for noun in hold_out for form in names(noun) for word in (form, plural(form))]
    pairs = []
    for index in range(count):
        rng = rng_for("train", index, f"affirmative/{recipe}")
        edit = sample_pair(rng, weights)
        while mentions(edit.instruction, words):
            edit = sample_pair(rng, weights)
        world = f"{world_version()}/{recipe}/{style}"
        pairs.append(DrawnPair(f"affirmative_{index + 1:06d}", edit, world, style, rng.getstate()))
    return pairs, {"pairs": count, "kinds": dict(weights), "style": style, "recipe": recipe}


def mentions(sentence: str, words: Iterable[str]) -> bool:
    """Whether a sentence contains one of the words (or word groups), in any case, as a whole word."""
    return any(re.search(rf"\b{re.escape(word)}\b", sentence, re.IGNORECASE) for word in words)
