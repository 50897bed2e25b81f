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

from nein.nano.draw import CATEGORIES, LOOKS, PALETTE, SIZE
from nein.nano.scenes import Item, Scene, rng_for, sample_scene
from nein.nano.worlds import ALL, NANO, NEGATOR, TAUGHT, UNSEEN, VARIED, World

KINDS = ("presence", "colour", "count", "position")
Pairs = dict[str, tuple[tuple[str, str], ...]]
#: Kind -> (question, negated question), with {thing} for an object's name and {side} for a direction. The
#: last negated wording of every kind is held out: no model is taught it.
WORDINGS: Pairs = {
    "presence": (
        ("Which of these is in the picture?", "Which of these is not in the picture?"),
        ("What can be seen in the image?", "What cannot be seen in the image?"),
        ("Which of these things is shown here?", "Which of these things is not shown here?"),
    ),
    "colour": (
        ("What colour is the {thing}?", "What colour is the {thing} not?"),
        ("Which colour does the {thing} have?", "Which colour does the {thing} not have?"),
    ),
    "count": (
        ("How many things are in the picture?", "How many things are not in the picture?"),
        ("What is the number of things in the image?", "What is not the number of things in the image?"),
    ),
    "position": (
        ("What is {side} the {thing}?", "What is not {side} the {thing}?"),
        ("Which of these is {side} the {thing}?", "Which of these is not {side} the {thing}?"),
    ),
    "side": (
        ("On which side of the picture is the {thing}?", "On which side of the picture is the {thing} not?"),
        ("Where in the image is the {thing}?", "Where in the image is the {thing} not?"),
    ),
}
#: The same affirmed questions, denied by a word that occurs in none of `WORDINGS`.
NEGATORS: Pairs = {
    "presence": (("Which of these is in the picture?", "Which of these is missing from the picture?"),),
    "colour": (("Which colour does the {thing} have?", "Which colour does the {thing} lack?"),),
    "count": (
        ("What is the number of things in the image?", "What is a wrong number of things in the image?"),
    ),
    "position": (
        ("Which of these is {side} the {thing}?", "Which of these is anywhere but {side} the {thing}?"),
    ),
    "side": (
        (
            "On which side of the picture is the {thing}?",
            "From which side of the picture is the {thing} absent?",
        ),
    ),
}
#: More wordings for training: held-out sentences and those of `NEGATORS` are not among them.
MORE: Pairs = {
    "presence": (
        ("Which thing does the picture show?", "Which thing does the picture not show?"),
        ("Which of the two is there?", "Which of the two is not there?"),
        ("There is one of these in the picture. Which?", "There is no such thing in the picture. Which?"),
        ("Which of these is visible?", "Which of these isn't visible?"),
        ("What do you see?", "What don't you see?"),
    ),
    "colour": (
        ("The {thing} has which colour?", "The {thing} does not have which colour?"),
        ("Of what colour is the {thing}?", "Of what colour is the {thing} not?"),
        ("Which is the colour of the {thing}?", "Which is not the colour of the {thing}?"),
        ("What colour do you see on the {thing}?", "What colour don't you see on the {thing}?"),
        ("The {thing} is which colour?", "The {thing} isn't which colour?"),
    ),
    "count": (
        ("How many things do you see?", "How many things do you not see?"),
        ("Which number of things is right?", "Which number of things is not right?"),
        ("There are how many things?", "There are not how many things?"),
        ("Which number is it?", "Which number isn't it?"),
        ("How many are there?", "How many aren't there?"),
    ),
    "position": (
        ("Which thing is {side} the {thing}?", "Which thing is not {side} the {thing}?"),
        ("What do you see {side} the {thing}?", "What do you not see {side} the {thing}?"),
        ("There is what {side} the {thing}?", "There is no what {side} the {thing}?"),
        ("Which one stands {side} the {thing}?", "Which one doesn't stand {side} the {thing}?"),
    ),
    "side": (
        ("The {thing} is on which side?", "The {thing} is not on which side?"),
        ("Which part of the picture has the {thing}?", "Which part of the picture has no {thing}?"),
        ("In which half do you see the {thing}?", "In which half do you not see the {thing}?"),
        ("Where is the {thing}?", "Where isn't the {thing}?"),
    ),
}
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
