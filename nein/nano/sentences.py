"""Write English about nano scenes: captions, and two-choice questions with their negations.

Captions and affirmative questions have no negated word. The data depend on the order of the calls of `rng`.
In this order: captions, questions.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nein.metrics.plurals import engine
from nein.nano import scenes
from nein.nano.scenes import CATEGORIES, LOOKS, NANO, PALETTE, SIZE, Item, Scene, World, rng_for, sample_scene
from nein.wording.families import a_or_an, plural

# --- captions --------------------------------------------------------------------------------------------
TABLES = json.loads(Path(__file__).with_name("wordings.json").read_text(encoding="utf-8"))
#: Background -> nouns that are true of it, phrases of place ("on the grass"), views ("a green field").
PLACES: dict[str, tuple[list[str], list[str], list[str]]] = TABLES["places"]


def names(category: str) -> tuple[str, ...]:
    """The category and its synonyms in captions, such as "hydrant"."""
    return (category, *TABLES["synonyms"].get(category, ()))


def _name_group(rng: random.Random, category: str, group: list[Item]) -> str:
    """A noun phrase for `group`, all objects of a category: "three dogs", "a red cup", "a hydrant"."""
    noun = rng.choice(names(category)) if rng.random() < 0.25 else category
    if len(group) > 1:
        return f"{engine().number_to_words(len(group))} {plural(noun)}"
    if rng.random() < 0.35:
        return a_or_an(f"{group[0].color} {noun}")
    return a_or_an(noun)


def write_caption(scene: Scene, rng: random.Random) -> str:
    """One caption; like a person's, it may leave an object out."""
    _, places, views = PLACES[scene.background]
    place, view = rng.choice(places), rng.choice(views)
    categories = list(scene.categories)
    rng.shuffle(categories)
    if len(categories) > 2 and rng.random() < 0.25:
        categories.pop()
    if not categories:
        text = rng.choice((f"a quiet view of {view}", f"{view} and wide open space", f"a picture of {view}"))
        return f"{text[0].upper()}{text[1:]}."
    groups = [[item for item in scene.items if item.category == category] for category in categories]
    phrases = [_name_group(rng, name, group) for name, group in zip(categories, groups, strict=True)]
    listing = phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
    starts_singular = len(groups[0]) == 1
    options = [
        f"{listing} {place}",
        f"{listing} {place}",  # twice as likely
        f"{'there is' if starts_singular else 'there are'} {listing} {place}",
        f"{view} with {listing}",
        f"{view} where {listing} can be seen",
        f"{listing} {'stands' if starts_singular and len(groups) == 1 else 'stand'} {place}",
    ]
    # The first two are single objects: also where they are to each other.
    if len(groups) > 1 and len(groups[0]) == len(groups[1]) == 1:
        (x0, y0), (x1, y1) = groups[0][0].center, groups[1][0].center  # pixels, y downward
        if abs(x0 - x1) > abs(y0 - y1):
            side = "to the left of" if x0 < x1 else "to the right of"
        else:
            side = "above" if y0 < y1 else "below"
        options += [
            f"{phrases[0]} {side} {phrases[1]} {place}",
            f"{phrases[0]} is {side} {phrases[1]} {place}",
            f"{phrases[0]} next to {phrases[1]} {place}",
        ]
    text = rng.choice(options)
    return f"{text[0].upper()}{text[1:]}."


def write_captions(scene: Scene, rng: random.Random, count: int = 5) -> list[str]:
    """`count` captions, distinct where the scene allows it."""
    captions: list[str] = []
    for _ in range(count * 8):
        caption = write_caption(scene, rng)
        if caption not in captions:
            captions.append(caption)
        if len(captions) == count:
            break
    return (captions * count)[:count]  # repeated if there are too few


# --- questions -------------------------------------------------------------------------------------------
KINDS = ("presence", "colour", "count", "position")
#: A kind, or "side" for a position in the image -> pairs (question, negated question), with {thing} for an
#: object's name and {side} for a direction.
Pairs = dict[str, list[tuple[str, str]]]
WORDINGS: Pairs = TABLES["questions"]  # the last pair of every kind is held out from training
NEGATORS: Pairs = TABLES["negators"]  # the same affirmative questions, denied by a word that no other has
MORE: Pairs = TABLES["more"]  # further pairs, for training only
#: Wording of a world (see `scenes`) -> the questions asked in it.
ASKED: dict[str, Pairs] = {
    scenes.ALL: WORDINGS,
    scenes.TAUGHT: {kind: pairs[:-1] for kind, pairs in WORDINGS.items()},
    scenes.UNSEEN: {kind: pairs[-1:] for kind, pairs in WORDINGS.items()},
    scenes.NEGATOR: NEGATORS,
    scenes.VARIED: {kind: [*pairs[:-1], *MORE[kind]] for kind, pairs in WORDINGS.items()},
}
# Direction -> (axis, sign): axis 0 is x, to the right; axis 1 is y, downward.
SIDES = {"to the left of": (0, -1), "to the right of": (0, 1), "above": (1, -1), "below": (1, 1)}
_CLEAR = 7.0  # pixels between centers, or from the middle of the image, that make a direction clear


@dataclass(frozen=True)
class Question:
    """A two-choice question, its negation, and the two options."""

    kind: str
    question: str
    negated: str
    right: str  # the answer to `question`, not to `negated`
    wrong: str
    held_out: bool = False  # whether the wording of `negated` is kept from training


def question_scene(split: str, index: int, world: World = NANO) -> Scene:
    """A scene of two to four objects."""
    rng = rng_for(split, index, "question-scene")
    return sample_scene(rng, rng.choice((2, 3, 3, 4)), world.pool)


def ask(
    rng: random.Random, scene: Scene, kind: str, world: World = NANO, wordings: Pairs | None = None
) -> Question | None:
    """A random question of a kind with a known answer; None when the scene allows none. wordings: pairs to
    choose from (default: those of the world)."""
    pairs_key = kind
    thing = side = ""  # fill the slots of the question
    counts = Counter(item.category for item in scene.items)
    single = [item for item in scene.items if counts[item.category] == 1 and item.category in world.named]
    present = [category for category in scene.categories if category in world.named]
    absent = [name for name in CATEGORIES if name in world.named and name not in scene.categories]
    if kind == "presence":
        if not present or not absent:
            return None
        right, wrong = rng.choice(present), rng.choice(absent)
    elif kind == "colour":
        if not single:
            return None
        item = rng.choice(single)
        thing, right = item.category, item.color
        own_colors = [color for color in LOOKS[thing].colors if color != right]
        all_colors = [color for color in PALETTE if color != right]
        wrong = rng.choice(own_colors if own_colors and rng.random() < 0.5 else all_colors)
    elif kind == "count":
        count = len(scene.items)
        right, wrong = str(count), str(rng.choice([n for n in (2, 3, 4) if n != count]))
    else:
        # Position: in which half of the image an object is, or which object is beside another.
        halves = [(i, axis) for i in single for axis in (0, 1) if abs(i.center[axis] - SIZE / 2) >= _CLEAR]
        if rng.random() < 0.5 and halves:
            pairs_key = "side"
            item, axis = rng.choice(halves)
            right, wrong = (("left", "right"), ("top", "bottom"))[axis]
            if item.center[axis] >= SIZE / 2:
                right, wrong = wrong, right
            thing = item.category
        else:
            relations = list(_iter_relations(single))
            hard = [relation for relation in relations if relation.behind]
            if not relations:
                return None
            relation = rng.choice(hard if hard and rng.random() < 0.7 else relations)
            thing, side = relation.reference, relation.side
            if not relation.behind and not absent:
                return None
            wrong = rng.choice(relation.behind or absent)
            right = rng.choice(relation.ahead)
    pair = rng.choice((wordings or ASKED[world.wording])[pairs_key])
    question, negated = (text.format(thing=thing, side=side) for text in pair)
    return Question(kind, question, negated, right, wrong, held_out=pair == WORDINGS[pairs_key][-1])


class _Relation(NamedTuple):
    reference: str  # category of an object
    side: str  # a direction from it, a key of `SIDES`
    ahead: list[str]  # categories in this direction, at least one
    behind: list[str]  # categories in the opposite direction


def _iter_relations(single: list[Item]) -> Iterator[_Relation]:
    for reference in single:
        for side, (axis, sign) in SIDES.items():
            away = [((i.center[axis] - reference.center[axis]) * sign, i.category) for i in single]
            ahead = [name for distance, name in away if distance >= _CLEAR]
            behind = [name for distance, name in away if distance <= -_CLEAR]
            if ahead:
                yield _Relation(reference.category, side, ahead, behind)


def iter_questions(split: str, count: int, world: World = NANO) -> Iterator[tuple[int, Scene, Question]]:
    """Yield `count` (scene number, scene, question), one question of each kind per scene."""
    total = index = 0  # questions yielded, scenes drawn
    while total < count:
        scene = question_scene(split, index, world)
        rng = rng_for(split, index, "questions")
        questions = [ask(rng, scene, kind, world) for kind in KINDS]
        if all(questions):  # else the scene is not used
            for question in questions:
                if question is not None and total < count:
                    total += 1
                    yield index, scene, question
        index += 1
