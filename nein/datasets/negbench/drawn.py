"""Draws NegBench's tasks in the miniature world, retrieval and multiple choice about scenes; then captions
and questions for fine-tuning. Everything is drawn from a seed.

Splits share no scene: "train" (fine-tuning), "dev" (choosing a recipe), "val" (evaluation). Figures on them
say nothing about the published sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from nein.datasets.negbench import sentences
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.records import ChoiceTask, Option, Question, RetrievalItem, RetrievalTask
from nein.datasets.negbench.sentences import Concepts, Rules, add_negatives, make_rng
from nein.engine.images import ImageError
from nein.loading.errors import unknown
from nein.nano import scenes as nano
from nein.nano.data import world_version
from nein.nano.scenes import CATEGORIES, NANO, SPLITS, Scene, World, rng_for
from nein.nano.sentences import write_captions

SCENES = {"train": 12_000, "dev": 500, "val": 1_000}  # split -> default number of scenes
CAPTIONS = 2  # captions used per scene for retrieval, of the five that are drawn
CODE = ("code",)  # the default wordings of training data
#: Wording of a world -> key of `sentences.WORDINGS`.
WORDING = {
    **dict.fromkeys((nano.ALL, nano.TAUGHT, nano.VARIED), "code"),
    nano.UNSEEN: sentences.UNSEEN,
    nano.NEGATOR: sentences.NEGATOR,
}


def draw_scene(split: str, index: int, world: World = NANO) -> Scene:
    """A scene with one to four objects, mostly two or three."""
    rng = rng_for(split, index, "negbench")
    return nano.sample_scene(rng, rng.choice((1, 2, 2, 3, 3, 4)), world.pool)


def make_reference(split: str, index: int, world: World = NANO) -> str:
    """ "nano/val/000012.png", in other worlds "nano-style/val/000012.png"."""
    return f"{world.name.replace(':', '-')}/{split}/{index:06d}.png"


def draw_image(name: str) -> np.ndarray:
    """The scene of a reference as (64, 64, 3) uint8 RGB. Raises ImageError for another name."""
    world_name, _, path = name.partition("/")
    split, _, file = path.partition("/")
    world = nano.WORLDS.get(world_name.replace("-", ":"))
    if world is None or split not in SPLITS or not file[:-4].isdigit():  # without ".png"
        raise ImageError(f"{name}: this is not the name of a scene, such as {make_reference('val', 0)}")
    return nano.render(draw_scene(split, int(file[:-4]), world), world.style)


@lru_cache(maxsize=8)
def draw_concepts(split: str, scenes: int, world: World = NANO) -> tuple[Concepts, ...]:
    """Scenes as images with captions, the objects in them, and three absent ones."""
    if split not in SPLITS:
        raise unknown("nano split", split, SPLITS)
    unsure = tuple(name for name in CATEGORIES if name not in world.named)  # no sentence names these
    images = []
    for index in range(scenes):
        scene = draw_scene(split, index, world)
        captions = tuple(write_captions(scene, rng_for(split, index, "negbench captions")))
        present = tuple(name for name in scene.categories if name in world.named)
        path = make_reference(split, index, world)
        images.append(Concepts(f"{split}-{index:06d}", path, captions, present, unsure=unsure))
    return tuple(add_negatives(images))


def make_tasks(
    split: str = "val", scenes: int | None = None, seed: int = 0, world: World = NANO
) -> tuple[RetrievalTask, ChoiceTask]:
    """Retrieval over all scenes, and up to three questions about every scene with two objects."""
    scenes = scenes or SCENES[split]
    wording = WORDING[world.wording]
    original, negated, questions = list[RetrievalItem](), list[RetrievalItem](), list[Question]()
    for image in draw_concepts(split, scenes, world):
        questions += sentences.make_evaluation_questions(image, seed, Rules(wording))
        items = sentences.make_retrieval_items(image, seed, captions=CAPTIONS)
        if items is not None:
            original.append(items[0])
            negated.append(_replace_wording(items[1], wording))
    facts = {"kind": world.name, "split": split, "scenes": scenes, "seed": seed, "world": world_version()}
    name = world.name.replace(":", "-")
    media = Drawn(draw_image)
    return (
        RetrievalTask(f"{name}/retrieval", tuple(original), tuple(negated), media, origin=facts),
        ChoiceTask(f"{name}/mcq", tuple(questions), media, origin=facts),
    )


# --- training data ---------------------------------------------------------------------------------
def draw_negcap(
    scenes: int | None, seed: int = 0, world: World = NANO, wordings: Sequence[str] = CODE, originals: int = 0
) -> tuple[RetrievalItem, ...]:
    """Three negated captions per scene, like CC12M-NegCap, randomly worded, and `originals` plain ones."""
    items = []
    for image in draw_concepts("train", scenes or SCENES["train"], world):
        item = sentences.make_training_captions(image, seed)
        if item is not None:
            item = _replace_wording(item, make_rng(seed, image.id, "wording").choice(list(wordings)))
            items.append(replace(item, captions=(*item.captions, *image.captions[:originals])))
    return tuple(items)


def draw_negmcq(
    scenes: int | None, seed: int = 0, world: World = NANO, wordings: Sequence[str] = CODE, hard: bool = False
) -> tuple[Question, ...]:
    """One question per scene, as in CC12M-NegMCQ, in a random wording; with several wordings half of them
    lack full stops. hard: adds `make_caption_question`."""
    questions: list[Question | None] = []
    for image in draw_concepts("train", scenes or SCENES["train"], world):
        wording = make_rng(seed, image.id, "wording").choice(list(wordings))
        question = sentences.make_training_question(image, seed, Rules(wording))
        if question is not None and len(wordings) > 1 and make_rng(seed, image.id, "stop").random() < 0.5:
            options = [replace(option, text=option.text.removesuffix(".")) for option in question.options]
            question = replace(question, options=tuple(options))
        questions.append(question)
        if hard:
            questions.append(make_caption_question(image, seed, wording))
    return tuple(question for question in questions if question is not None)


def make_caption_question(image: Concepts, seed: int, wording: str) -> Question | None:
    """A question which of four captions is true: one caption with four claims, of which the right one affirms
    or denies, evenly. None without a caption, a present object or two absent ones."""
    if not image.captions or not image.positives or len(image.negatives) < 2:
        return None
    rng = make_rng(seed, image.id, "caption-question")
    absent, other = rng.sample(image.negatives, 2)
    present = rng.choice(image.positives)
    caption = rng.choice(image.captions)
    affirms = rng.random() < 0.5  # whether the right claim affirms
    claim_first = rng.random() < 0.5  # whether the claims stand before the caption
    forms = sentences.WORDINGS[wording]

    def make_option(form: str, name: str) -> Option:
        claim = forms[form].format(x=name, thing="image")
        text = f"{claim}. {caption}" if claim_first else f"{caption} {claim}."
        return Option(text, sentences.NEGATION if form == sentences.ABSENT else sentences.AFFIRMATION)

    no, yes = sentences.ABSENT, sentences.PRESENT
    right = make_option(yes, present) if affirms else make_option(no, absent)
    options = [right, make_option(no, present), make_option(yes, absent), make_option(yes, other)]
    order = sentences.shuffle_order(len(options), rng)
    return sentences.make_question(image, f"{image.id}/caption", options, (absent, other), order)


def _replace_wording(item: RetrievalItem, wording: str) -> RetrievalItem:
    """The item with its denials in another wording than "code"."""
    form = f"{sentences.WORDINGS[wording][sentences.ABSENT]}."
    captions = item.captions
    for name in item.negatives or ():
        denial, new = sentences.ABSENCE.format(x=name, thing="image"), form.format(x=name, thing="image")
        captions = tuple(text.replace(denial, new[:1].upper() + new[1:]) for text in captions)
    return replace(item, captions=captions)
