"""NegBench over the miniature world: retrieval and multiple choice about drawn scenes, drawn from seeds.

Splits of scenes never meet: "train" (fine-tuning), "dev" (choosing a recipe), "val" (evaluation). Figures on
them say nothing about the published sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from nein.datasets.negbench import sentences
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.records import ChoiceTask, Option, Question, RetrievalItem, RetrievalTask
from nein.datasets.negbench.sentences import Concepts, Rules, add_negatives, stream
from nein.engine.images import ImageError
from nein.loading.errors import unknown
from nein.nano import scenes as nano
from nein.nano.data import world_version
from nein.nano.scenes import CATEGORIES, NANO, SPLITS, Scene, World, rng_for
from nein.nano.sentences import captions

SCENES = {"train": 12_000, "dev": 500, "val": 1_000}  # per split when none are asked for
CAPTIONS = 2  # per scene, of the five that are drawn
#: Wording of a world -> that of its sentences.
WORDING = dict.fromkeys((nano.ALL, nano.TAUGHT, nano.VARIED), "code")
WORDING |= {nano.UNSEEN: sentences.UNSEEN, nano.NEGATOR: sentences.NEGATOR}


def scene(split: str, index: int, world: World = NANO) -> Scene:
    """One to four objects, mostly two or three."""
    rng = rng_for(split, index, "negbench")
    return nano.sample_scene(rng, rng.choice((1, 2, 2, 3, 3, 4)), world.pool)


def reference(split: str, index: int, world: World = NANO) -> str:
    """ "nano/val/000012.png", in other worlds "nano-style/val/000012.png"."""
    return f"{world.name.replace(':', '-')}/{split}/{index:06d}.png"


def draw_image(name: str) -> np.ndarray:
    """The scene of a reference as (64, 64, 3) uint8 RGB. Raises ImageError for a name that is none."""
    parts = name.split("/")
    world = nano.WORLDS.get(parts[0].replace("-", ":"))
    if len(parts) != 3 or world is None or parts[1] not in SPLITS or not parts[2][:-4].isdigit():
        raise ImageError(f"{name}: this is not the name of a scene, such as {reference('val', 0)}")
    return nano.render(scene(parts[1], int(parts[2][:-4]), world), world.style)


@lru_cache(maxsize=8)
def concepts(split: str, scenes: int, world: World = NANO) -> tuple[Concepts, ...]:
    """Scenes as images with captions, the objects in them, and three absent ones."""
    if split not in SPLITS:
        raise unknown("nano split", split, SPLITS)
    unsure = tuple(name for name in CATEGORIES if name not in world.named)
    images = []
    for index in range(scenes):
        drawn = scene(split, index, world)
        texts = captions(drawn, rng_for(split, index, "negbench captions"))
        present = tuple(name for name in drawn.categories if name in world.named)
        path = reference(split, index, world)
        images.append(Concepts(f"{split}-{index:06d}", path, tuple(texts), present, unsure=unsure))
    return tuple(add_negatives(images))


def tasks(
    split: str = "val", scenes: int | None = None, seed: int = 0, world: World = NANO
) -> tuple[RetrievalTask, ChoiceTask]:
    """Retrieval over all scenes, and up to three questions about every scene with two objects."""
    scenes, wording = scenes or SCENES[split], WORDING[world.wording]
    images = concepts(split, scenes, world)
    pairs = [p for c in images if (p := sentences.retrieval_items(c, seed, captions=CAPTIONS))]
    negated = tuple(_replace_wording(item, wording) for _, item in pairs)
    questions = [q for c in images for q in sentences.evaluation_questions(c, seed, Rules(wording))]
    facts = {"kind": world.name, "split": split, "scenes": scenes, "seed": seed, "world": world_version()}
    name, media = world.name.replace(":", "-"), Drawn(draw_image)
    original = tuple(item for item, _ in pairs)
    return (
        RetrievalTask(f"{name}/retrieval", original, negated, media, origin=facts),
        ChoiceTask(f"{name}/mcq", tuple(questions), media, origin=facts),
    )


def negcap(
    split: str = "train",
    scenes: int | None = None,
    seed: int = 0,
    world: World = NANO,
    wordings: Sequence[str] = ("code",),
    originals: int = 0,
) -> tuple[RetrievalItem, ...]:
    """Three negated captions per scene, as CC12M-NegCap, in a random wording; and `originals` plain ones."""
    items = []
    for image in concepts(split, scenes or SCENES.get(split, 1), world):
        item = sentences.training_captions(image, seed)
        if item is not None:
            item = _replace_wording(item, stream(seed, image.id, "wording").choice(list(wordings)))
            items.append(replace(item, captions=(*item.captions, *image.captions[:originals])))
    return tuple(items)


def negmcq(
    split: str = "train",
    scenes: int | None = None,
    seed: int = 0,
    world: World = NANO,
    wordings: Sequence[str] = ("code",),
    hard: bool = False,
) -> tuple[Question, ...]:
    """One question per scene, as CC12M-NegMCQ, in a random wording; with several wordings every other one
    lacks full stops. hard: adds `caption_question`."""
    questions: list[Question | None] = []
    for image in concepts(split, scenes or SCENES.get(split, 1), world):
        wording = stream(seed, image.id, "wording").choice(list(wordings))
        question = sentences.training_question(image, seed, Rules(wording))
        if question is not None and len(wordings) > 1 and stream(seed, image.id, "stop").random() < 0.5:
            plain = tuple(replace(option, text=option.text.removesuffix(".")) for option in question.options)
            question = replace(question, options=plain)
        questions.append(question)
        if hard:
            questions.append(caption_question(image, seed, wording))
    return tuple(question for question in questions if question is not None)


def caption_question(image: Concepts, seed: int, wording: str) -> Question | None:
    """Which of four captions is true? One caption with four claims; the right claim affirms or denies,
    evenly. None without a present or two absent objects."""
    if not image.captions or not image.positives or len(image.negatives) < 2:
        return None
    rng = stream(seed, image.id, "caption-question")
    absent, other = rng.sample(image.negatives, 2)
    present = rng.choice(image.positives)
    denied, affirms = rng.choice(image.captions), rng.random() < 0.5
    before = rng.random() < 0.5
    forms = sentences.WORDINGS[wording]

    def option(form: str, name: str) -> Option:
        sentence = forms[form].format(x=name, thing="image")
        text = f"{sentence}. {denied}" if before else f"{denied} {sentence}."
        return Option(text, sentences.NEGATION if form == sentences.ABSENT else sentences.AFFIRMATION)

    no, yes = sentences.ABSENT, sentences.PRESENT
    right = option(yes, present) if affirms else option(no, absent)
    options = [right, option(no, present), option(yes, absent), option(yes, other)]
    order, name = sentences.shuffle_order(len(options), rng), f"{image.id}/caption"
    question = Question(name, image.path, tuple(options[k] for k in order), order.index(0), right.template)
    return replace(question, positives=image.positives, negatives=(absent, other), source=image.id)


def _replace_wording(item: RetrievalItem, wording: str) -> RetrievalItem:
    denial = f"{sentences.WORDINGS[wording][sentences.ABSENT]}."
    captions = item.captions
    for name in item.negatives or ():
        before, other = (form.format(x=name, thing="image") for form in (sentences.ABSENCE, denial))
        captions = tuple(text.replace(before, other[:1].upper() + other[1:]) for text in captions)
    return replace(item, captions=captions)
