"""English for scenes: captions with real variety, and the words by which each thing may be called.

No sentence made here contains a negation.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from nein.nano.scenes import Item, Scene
from nein.wording.nouns import engine
from nein.wording.templates import indefinite

#: The words of this module and of `questions`.
TABLES: dict[str, Any] = json.loads(Path(__file__).with_name("wordings.json").read_text(encoding="utf-8"))
#: Other words captions use for a category, also the last word of its name ("hydrant") where people say so.
SYNONYMS: dict[str, tuple[str, ...]] = {name: tuple(words) for name, words in TABLES["synonyms"].items()}
#: Background -> nouns that are true of it, phrases that say where things are, and what it is a view of.
PLACES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    kind: (tuple(nouns), tuple(where), tuple(views))
    for kind, (nouns, where, views) in TABLES["places"].items()
}


def names(category: str) -> tuple[str, ...]:
    """The category's name first, then its synonyms."""
    return (category, *SYNONYMS.get(category, ()))


@lru_cache(maxsize=4096)
def plural(noun: str) -> str:
    return engine().plural_noun(noun) or noun


def _noun_phrase(rng: random.Random, category: str, group: list[Item]) -> str:
    noun = rng.choice(names(category)) if rng.random() < 0.25 else category
    if len(group) > 1:
        return f"{engine().number_to_words(len(group))} {plural(noun)}"
    if rng.random() < 0.35:
        return indefinite(f"{group[0].colour} {noun}")
    return indefinite(noun)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _relation(a: Item, b: Item) -> str:
    (ax, ay), (bx, by) = a.centre, b.centre
    if abs(ax - bx) > abs(ay - by):
        return "to the left of" if ax < bx else "to the right of"
    return "above" if ay < by else "below"


def caption(scene: Scene, rng: random.Random) -> str:
    """One sentence about the scene; like a person's caption it may leave an object out."""
    _, where, what = PLACES[scene.background]
    place, view = rng.choice(where), rng.choice(what)
    counts = Counter(i.category for i in scene.items)
    categories = list(scene.categories)
    rng.shuffle(categories)
    if len(categories) > 2 and rng.random() < 0.25:
        categories = categories[:-1]
    if not categories:
        empty = (f"a quiet view of {view}", f"{view} and wide open space", f"a picture of {view}")
        return _sentence(rng.choice(empty))
    groups = {c: [i for i in scene.items if i.category == c] for c in categories}
    phrases = [_noun_phrase(rng, c, groups[c]) for c in categories]
    listing = " and ".join(filter(None, (", ".join(phrases[:-1]), phrases[-1])))
    single = len(categories) == 1 and counts[categories[0]] == 1
    options = [
        f"{listing} {place}",
        f"{listing} {place}",
        f"{'there is' if single or counts[categories[0]] == 1 else 'there are'} {listing} {place}",
        f"{view} with {listing}",
        f"{view} where {listing} can be seen",
        f"{listing} {'stands' if single else 'stand'} {place}",
    ]
    if len(categories) >= 2 and all(counts[c] == 1 for c in categories[:2]):
        relation = _relation(groups[categories[0]][0], groups[categories[1]][0])
        options += [
            f"{phrases[0]} {relation} {phrases[1]} {place}",
            f"{phrases[0]} is {relation} {phrases[1]} {place}",
            f"{phrases[0]} next to {phrases[1]} {place}",
        ]
    return _sentence(rng.choice(options))


def captions(scene: Scene, rng: random.Random, count: int = 5) -> list[str]:
    """`count` captions, distinct where the scene allows it."""
    sentences: dict[str, None] = {}
    for _ in range(count * 8):
        sentences.setdefault(caption(scene, rng))
        if len(sentences) == count:
            break
    result = list(sentences)
    return (result * count)[:count]


def is_true_of(scene: Scene) -> frozenset[str]:
    """Every noun (category names, synonyms, background nouns) that is true of the scene."""
    words = {n for c in scene.categories for n in names(c)}
    return frozenset(words | set(PLACES[scene.background][0]))
