"""Two-choice questions about drawn scenes, each with its negation: presence, colour, count, position.

Of the two options one is right for the question and the other for its negation, as in NegVQA
(https://github.com/yuhui-zh15/NegVQA). Scenes come from the split's own seeds, so questions of different
splits never share a picture. No affirmative question holds a negated word.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nein.nano.captions import TABLES
from nein.nano.draw import CATEGORIES, LOOKS, PALETTE, SIZE
from nein.nano.scenes import Item, Scene, rng_for, sample_scene
from nein.nano.worlds import ALL, NANO, NEGATOR, TAUGHT, UNSEEN, VARIED, World

KINDS = ("presence", "colour", "count", "position")
Pairs = dict[str, tuple[tuple[str, str], ...]]
#: Kind -> (question, negated question), with {thing} for an object's name and {side} for a direction. The
#: last negated wording of every kind is held out: no model is taught it. NEGATORS: the same affirmed
#: questions, denied by a word that occurs in none of these. MORE: for training, neither held out nor there.
WORDINGS, NEGATORS, MORE = (
    Pairs({kind: tuple((a, b) for a, b in pairs) for kind, pairs in TABLES[name].items()})
    for name in ("questions", "negators", "more")
)
#: Wording of a world -> the questions asked in it.
ASKED: dict[str, Pairs] = {
    ALL: WORDINGS,
    TAUGHT: {kind: pairs[:-1] for kind, pairs in WORDINGS.items()},
    UNSEEN: {kind: pairs[-1:] for kind, pairs in WORDINGS.items()},
    NEGATOR: NEGATORS,
    VARIED: {kind: (*pairs[:-1], *MORE[kind]) for kind, pairs in WORDINGS.items()},
}
SIDES = {"to the left of": (0, -1), "to the right of": (0, 1), "above": (1, -1), "below": (1, 1)}
_CLEAR = 7.0  # pixels between centres (or from the middle of the picture) for a direction to be clear


@dataclass(frozen=True)
class Question:
    """One question with its negation about one scene.

    right, wrong   The option that answers `question`, and the one that answers `negated`.
    held_out       The wording of `negated` is kept from training.
    """

    kind: str
    question: str
    negated: str
    right: str
    wrong: str
    held_out: bool = False


def question_scene(split: str, index: int, world: World = NANO) -> Scene:
    """The `index`-th scene that questions of a split are about: two to four objects."""
    rng = rng_for(split, index, "question-scene")
    return sample_scene(rng, rng.choice((2, 3, 3, 4)), world.shown)


def ask(
    rng: random.Random, scene: Scene, kind: str, world: World = NANO, wordings: Pairs | None = None
) -> Question | None:
    """A random question of a kind with a known answer; None when the scene allows none.

    world     Which objects it may name, and how it asks; `wordings`: how it asks, if otherwise.
    """
    wording, thing, side = kind, "", ""
    counts = Counter(item.category for item in scene.items)
    single = [item for item in scene.items if counts[item.category] == 1 and item.category in world.named]
    present = [category for category in scene.categories if category in world.named]
    absent = [c for c in CATEGORIES if c in world.named and c not in scene.categories]
    if kind == "presence":
        if not present or not absent:
            return None
        right, wrong = rng.choice(present), rng.choice(absent)
    elif kind == "colour":
        if not single:
            return None
        item = rng.choice(single)
        thing, right = item.category, item.colour
        likely = [colour for colour in LOOKS[thing].colours if colour != right]
        others = [colour for colour in PALETTE if colour != right]
        wrong = rng.choice(likely if likely and rng.random() < 0.5 else others)
    elif kind == "count":
        count = len(scene.items)
        right, wrong = str(count), str(rng.choice([n for n in (2, 3, 4) if n != count]))
    else:
        halves = [(i, axis) for i in single for axis in (0, 1) if abs(i.centre[axis] - SIZE / 2) >= _CLEAR]
        if rng.random() < 0.5 and halves:
            wording = "side"
            item, axis = rng.choice(halves)
            thing, names = item.category, (("left", "right"), ("top", "bottom"))[axis]
            right, wrong = names if item.centre[axis] < SIZE / 2 else names[::-1]
        elif (parts := _relation(rng, single, absent)) is not None:
            thing, side, right, wrong = parts
        else:
            return None
    pair = rng.choice((wordings or ASKED[world.wording])[wording])
    question, negated = (text.format(thing=thing, side=side) for text in pair)
    return Question(kind, question, negated, right, wrong, held_out=pair == WORDINGS[wording][-1])


def _relation(rng: random.Random, single: list[Item], absent: list[str]) -> tuple[str, str, str, str] | None:
    """(reference, direction, what is there, what is on the other side or not in the picture at all)."""
    relations = []
    for reference in single:
        for side, (axis, sign) in SIDES.items():
            away = [((i.centre[axis] - reference.centre[axis]) * sign, i.category) for i in single]
            ahead = [name for distance, name in away if distance >= _CLEAR]
            if ahead:
                behind = [name for distance, name in away if distance <= -_CLEAR]
                relations.append((reference.category, side, ahead, behind))
    if not relations:
        return None
    hard = [entry for entry in relations if entry[3]]
    thing, side, ahead, behind = rng.choice(hard if hard and rng.random() < 0.7 else relations)
    if not behind and not absent:
        return None
    wrong = rng.choice(behind or absent)
    return thing, side, rng.choice(ahead), wrong


def iter_questions(split: str, count: int, world: World = NANO) -> Iterator[tuple[int, Scene, Question]]:
    """`count` (scene number, scene, question): up to one of each kind per scene, kinds in turn, so that
    every kind has its quarter (to within one scene)."""
    made = index = 0
    while made < count:
        scene = question_scene(split, index, world)
        rng = rng_for(split, index, "questions")
        questions = [ask(rng, scene, kind, world) for kind in KINDS]
        if all(questions):
            for question in questions:
                if question is not None and made < count:
                    made += 1
                    yield index, scene, question
        index += 1
