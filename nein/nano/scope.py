"""Negation in scope, drawn: pairs of scenes, of which each is what one of two sentences is true of.

    construction  first scene                          second scene
    except_one    a thing                              that and another of its kind, in another colour
    neither_nor   neither of two things                the second of them
    scoped        the first of two things              the second
    not_all       two of a kind in two colours         two in the second of these colours
    past          nothing                              a thing
    clause        a thing                              one of its kind, in another colour

The sentences are those of `nein.wording.languages`, the first of a pair of sentences being true of the first
scene. How difficult a pair is has two sides: how many other things stand in both scenes, and how many denials
stand above the sentence. There is none above "There used to be a cup.": it is not clear what is denied, that
there was one or that there is none now.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS
from nein.nano.scenes import Item, Scene, place, rng_for
from nein.wording.languages.base import CONSTRUCTIONS, THINGS, Named

OTHERS, DEPTHS = (0, 1, 2, 3), (0, 1)
#: (construction, other things, denials above) of the pairs, in turns.
CELLS = tuple(
    (construction, others, depth)
    for depth in DEPTHS
    for others in OTHERS
    for construction in CONSTRUCTIONS
    if not (depth and construction == "past")
)
_ATTEMPTS = 200  # at drawing a thing of a colour

Thing = tuple[str, str | None]  # a category and its colour, None for any


@dataclass(frozen=True)
class Pair:
    """scenes[k] is what the k-th sentence about `named` is true of, and the other is false of."""

    construction: str
    named: Named
    others: int
    depth: int
    scenes: tuple[Scene, Scene]


def pairs(split: str, count: int) -> Iterator[Pair]:
    """`count` pairs, those of CELLS in turns; the same scenes whatever is said of them."""
    made = index = 0
    while made < count:
        rng = rng_for(split, index, "scope")
        construction, others, depth = CELLS[made % len(CELLS)]
        named = _named(rng)
        scenes = _together(rng, named, others, _shown(construction, named))
        index += 1
        if scenes is not None:
            made += 1
            yield Pair(construction, named, others, depth, (scenes[0], scenes[1]))


def _shown(construction: str, named: Named) -> tuple[Sequence[Thing], Sequence[Thing]]:
    """What either scene holds besides the other things."""
    one, two = (named.thing, named.colour), (named.thing, named.second)
    shown: dict[str, tuple[Sequence[Thing], Sequence[Thing]]] = {
        "except_one": ([one], [one, two]),
        "neither_nor": ([], [(named.other, None)]),
        "scoped": ([(named.thing, None)], [(named.other, None)]),
        "not_all": ([one, two], [one, one]),
        "past": ([], [(named.thing, None)]),
        "clause": ([one], [two]),
    }
    return shown[construction]


def _named(rng: random.Random) -> Named:
    thing = rng.choice([name for name in THINGS if len(LOOKS[name].colours) > 1])
    other = rng.choice([name for name in THINGS if name != thing])
    colour, second = rng.sample(LOOKS[thing].colours, 2)
    return Named(thing, other, colour, second)


def _together(
    rng: random.Random, named: Named, others: int, shown: Sequence[Sequence[Thing]]
) -> list[Scene] | None:
    """A scene for every entry of `shown`, before one background and with the same other things; None where
    there was no room."""
    background, seed = rng.choice(tuple(BACKGROUNDS)), rng.randrange(200)
    around: list[Item] = []
    for name in rng.sample([name for name in CATEGORIES if name not in (named.thing, named.other)], others):
        item = place(rng, name, around)
        if item is None:
            return None
        around.append(item)
    scenes = []
    for things in shown:
        items = list(around)
        for thing in things:
            item = _of_colour(rng, thing, items)
            if item is None:
                return None
            items.append(item)
        scenes.append(Scene(background, seed, tuple(items)))
    return scenes


def _of_colour(rng: random.Random, thing: Thing, items: Sequence[Item]) -> Item | None:
    kind, colour = thing
    for _ in range(_ATTEMPTS):
        item = place(rng, kind, items)
        if item is None:
            return None
        if colour in (None, item.colour):
            return item
    return None
