"""The sentences of NegBench: templated negated captions, and multiple-choice options with their distractors.

Sources: the paper (its section on templates and the appendix) and the released code
(github.com/m1k2zoo/negbench @ 2ac009b). Both wordings are kept by name: `WORDINGS`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.records import (
    AFFIRMATION,
    HYBRID,
    NEGATED,
    NEGATION,
    ORIGINAL,
    TEMPLATES,
    Option,
    Question,
    RetrievalItem,
)
from nein.datasets.negbench.rewording import REWORDED
from nein.engine.seeds import sample_seed

#: Wording -> template -> sentence. {thing}: "image" or "video"; A, B: present; N: absent.
WORDINGS: dict[str, dict[str, str]] = {
    "code": {
        "pair": "This {thing} features {A} and {B}.",
        AFFIRMATION: "This {thing} features {A}.",
        NEGATION: "This {thing} does not feature {N}.",
        HYBRID: "This {thing} features {A}, but not {N}.",
    },
    "paper": {
        "pair": "This {thing} includes {A} and {B}.",
        AFFIRMATION: "This {thing} includes {A}.",
        NEGATION: "This {thing} does not include {N}.",
        HYBRID: "This {thing} includes {A} but not {N}.",
    },
    **REWORDED,
}
#: "There is no {x} in the image. {caption}" and the other way round, with equal chances.
ABSENCE = "There is no {x} in the {thing}."


def stream(run_seed: int, image_id: str, purpose: str) -> random.Random:
    """The random numbers of one image and purpose."""
    return random.Random(sample_seed(run_seed, f"negbench/{purpose}/{image_id}"))


def negated_caption(
    caption: str, absent: str, rng: random.Random, *, thing: str = "image", order: str = "either"
) -> str:
    """A caption with one true negation before or behind it.

    order  "either" (equal chances, as released), "prefix", or "suffix" ("affneg": affirmation first).
    """
    before = rng.random() < 0.5 if order == "either" else order == "prefix"
    sentence = ABSENCE.format(x=absent, thing=thing)
    said = caption.strip()
    said += "" if said.endswith((".", "!", "?")) else "."
    return f"{sentence} {said}" if before else f"{said} {sentence}"


def options(
    first: str, second: str | None, absent: str, template: str, *, wording: str = "code", thing: str = "image"
) -> list[Option]:
    """The right option of `template` and behind it the three wrong ones: hybrid, affirmation, negation.

    first, second  Present objects; second None where an image shows one thing only (training sets).
    absent         The object that is not there.

    The wrong options misread the same picture: "features N, but not B", "features N", "does not feature A".
    """
    words = WORDINGS[wording]
    other = second or first

    def say(form: str, a: str = "", b: str = "", n: str = "") -> str:
        return words[form].format(A=a, B=b, N=n, thing=thing)

    right = {
        AFFIRMATION: say("pair", first, second) if second else say(AFFIRMATION, first),
        NEGATION: say(NEGATION, n=absent),
        HYBRID: say(HYBRID, other, n=absent),
    }[template]
    return [
        Option(right, template),
        Option(say(HYBRID, absent, n=other), HYBRID),
        Option(say(AFFIRMATION, absent), AFFIRMATION),
        Option(say(NEGATION, n=first), NEGATION),
    ]


def evaluation_questions(
    image: Concepts, seed: int, *, count: int = 3, wording: str = "code", thing: str = "image"
) -> list[Question]:
    """Up to `count` questions about one image, one per absent object, which are drawn without replacement.

    None for an image with fewer than two positives. The template of the right option is drawn evenly; the
    right one stands first, as in the released files: whoever asks shuffles by the question's seed.
    """
    if len(image.positives) < 2:
        return []
    rng = stream(seed, image.id, "mcq")
    questions = []
    for number, absent in enumerate(rng.sample(image.negatives, min(count, len(image.negatives)))):
        first, second = rng.sample(image.positives, 2)
        template = rng.choice(TEMPLATES)
        made = options(first, second, absent, template, wording=wording, thing=thing)
        questions.append(_question(image, f"{image.id}#{number}", made, range(len(made)), (absent,)))
    return questions


def training_question(
    image: Concepts, seed: int, *, wording: str = "code", thing: str = "image"
) -> Question | None:
    """One question about an image with its options shuffled, or None where nothing is present or absent.

    An image with one positive gets the released code's `modified_positive`, "features {A}.", in the place of
    "features {A} and {B}.".
    """
    if not image.positives or not image.negatives:
        return None
    rng = stream(seed, image.id, "train-mcq")
    absent = rng.choice(image.negatives)
    pair = rng.sample(image.positives, min(2, len(image.positives)))
    second = pair[1] if len(pair) > 1 else None
    made = options(pair[0], second, absent, rng.choice(TEMPLATES), wording=wording, thing=thing)
    order = list(range(len(made)))
    rng.shuffle(order)
    return _question(image, image.id, made, order, (absent,))


def _question(
    image: Concepts, name: str, made: Sequence[Option], order: Sequence[int], absent: tuple[str, ...]
) -> Question:
    return Question(
        id=name,
        image=image.path,
        options=tuple(made[i] for i in order),
        correct=list(order).index(0),
        type=made[0].template,
        positives=image.positives,
        negatives=absent,
        source=image.source_id or image.id,
    )


def retrieval_items(
    image: Concepts, seed: int, *, captions: int | None = None, thing: str = "image", order: str = "either"
) -> tuple[RetrievalItem, RetrievalItem] | None:
    """The original and the negated item of an image, or None for one without captions or absent objects.

    captions  How many of the image's captions are used; default all. Each is negated with an absent object
              drawn for it.
    order     Where the negation goes: see `negated_caption`.
    """
    chosen = image.captions[:captions]
    if not chosen or not image.negatives:
        return None
    rng = stream(seed, image.id, "retrieval")
    absent = [rng.choice(image.negatives) for _ in chosen]
    negated = tuple(
        negated_caption(text, name, rng, thing=thing, order=order)
        for text, name in zip(chosen, absent, strict=True)
    )
    shared: dict[str, Any] = {"id": image.id, "image": image.path, "source": image.source_id or image.id}
    return (
        RetrievalItem(captions=tuple(chosen), kind=ORIGINAL, positives=image.positives, **shared),
        RetrievalItem(
            captions=negated,
            kind=NEGATED,
            positives=image.positives,
            negatives=tuple(dict.fromkeys(absent)),
            **shared,
        ),
    )


def training_captions(
    image: Concepts, seed: int, *, count: int = 3, thing: str = "image", order: str = "either"
) -> RetrievalItem | None:
    """The item of CC12M-NegCap's form: `count` negated captions of an image, or None where nothing is absent.

    An image with fewer captions has them used again, each time with a newly drawn absent object.
    """
    if not image.captions or not image.negatives:
        return None
    rng = stream(seed, image.id, "negcap")
    chosen = list(itertools.islice(itertools.cycle(image.captions), count))
    absent = [rng.choice(image.negatives) for _ in chosen]
    return RetrievalItem(
        id=image.id,
        image=image.path,
        captions=tuple(
            negated_caption(text, name, rng, thing=thing, order=order)
            for text, name in zip(chosen, absent, strict=True)
        ),
        kind=NEGATED,
        positives=image.positives,
        negatives=tuple(dict.fromkeys(absent)),
        source=image.source_id or image.id,
    )
