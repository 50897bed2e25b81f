"""Negation in scope, drawn: pairs of scenes and sentences in which it matters what a denying word reaches.

Of a pair each sentence is true of one scene and false of the other, by construction:

    exception  There are no cups except the red one. / There are cups other than the red one.
    neither    There is neither a cup nor a dog. / There is a dog but no cup.
    contrast   There is a cup but not a dog. / There is a dog but not a cup.
    not all    Not all cups are red. / All cups are red.
    past       There used to be a cup. / There is still a cup.
    clause     There is a cup that is not blue. / There is a cup that is blue.

The difficulty is how many other things stand in both scenes, 0 to 2.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nein.engine.images import write_png
from nein.nano.captions import plural
from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS
from nein.nano.scenes import Item, Scene, place, render, rng_for
from nein.wording.nouns import with_article

FILE = "scope.json"
CONSTRUCTIONS = ("exception", "neither", "contrast", "not all", "past", "clause")
LEVELS = (0, 1, 2)
_ATTEMPTS = 200  # at drawing a thing of a colour


@dataclass(frozen=True)
class Pair:
    """scenes[k] is what sentences[k] is true of, and the other sentence false of."""

    construction: str
    others: int
    scenes: tuple[Scene, Scene]
    sentences: tuple[str, str]


def pairs(split: str, count: int) -> Iterator[Pair]:
    """`count` pairs, the constructions and the levels in turns."""
    kinds = [name for name in CATEGORIES if len(LOOKS[name].colours) > 1]
    made = index = 0
    while made < count:
        rng = rng_for(split, index, "scope")
        construction = CONSTRUCTIONS[made % len(CONSTRUCTIONS)]
        level = LEVELS[made // len(CONSTRUCTIONS) % len(LEVELS)]
        pair = _pair(construction, level, rng.choice(kinds), rng)
        index += 1
        if pair is not None:
            made += 1
            yield pair


def write(root: Path, split: str, count: int) -> None:
    """The pictures and FILE: [{image_0, image_1, caption_0, caption_1, construction, others}]."""
    rows = []
    for number, pair in enumerate(pairs(split, count)):
        names = [f"images/{number:05d}_{k}.png" for k in (0, 1)]
        for name, scene in zip(names, pair.scenes, strict=True):
            write_png(root / name, render(scene))
        texts = {f"caption_{k}": text for k, text in enumerate(pair.sentences)}
        shown = {f"image_{k}": name for k, name in enumerate(names)}
        rows.append({**shown, **texts, "construction": pair.construction, "others": pair.others})
    (root / FILE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _pair(construction: str, level: int, kind: str, rng: random.Random) -> Pair | None:
    """None where there was no room."""
    other = rng.choice([name for name in CATEGORIES if name != kind])
    first, second = rng.sample(LOOKS[kind].colours, 2)
    background, seed = rng.choice(tuple(BACKGROUNDS)), rng.randrange(200)
    wanted, sentences = _said(construction, kind, other, first, second)
    pool = [name for name in CATEGORIES if name not in (kind, other)]
    around: list[Item] = []
    for name in rng.sample(pool, level):
        around += [item] if (item := place(rng, name, around)) is not None else []
    scenes = [_scene(background, seed, around, things, rng) for things in wanted]
    if len(around) < level or scenes[0] is None or scenes[1] is None:
        return None
    return Pair(construction, level, (scenes[0], scenes[1]), sentences)


_Thing = tuple[str, str | None]  # a category and its colour, None for any


def _said(
    construction: str, kind: str, other: str, first: str, second: str
) -> tuple[tuple[Sequence[_Thing], Sequence[_Thing]], tuple[str, str]]:
    """What is shown in either scene, and what is said of it."""
    a, b, many = with_article(kind), with_article(other), plural(kind)
    one, two = (kind, first), (kind, second)
    if construction == "exception":
        said = f"There are no {many} except the {first} one.", f"There are {many} other than the {first} one."
        return ([one], [one, two]), said
    if construction == "neither":
        return ([], [(other, None)]), (f"There is neither {a} nor {b}.", f"There is {b} but no {kind}.")
    if construction == "contrast":
        said = f"There is {a} but not {b}.", f"There is {b} but not {a}."
        return ([(kind, None)], [(other, None)]), said
    if construction == "not all":
        return ([one, two], [one, one]), (f"Not all {many} are {first}.", f"All {many} are {first}.")
    if construction == "past":
        return ([], [(kind, None)]), (f"There used to be {a}.", f"There is still {a}.")
    return ([one], [two]), (f"There is {a} that is not {second}.", f"There is {a} that is {second}.")


def _scene(
    background: str, seed: int, around: Sequence[Item], things: Sequence[_Thing], rng: random.Random
) -> Scene | None:
    items = list(around)
    for kind, colour in things:
        tried = (place(rng, kind, items) for _ in range(_ATTEMPTS))
        item = next((one for one in tried if one is not None and colour in (None, one.colour)), None)
        if item is None:
            return None
        items.append(item)
    return Scene(background, seed, tuple(items))
