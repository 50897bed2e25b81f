"""Asks a language model for NegBench data: objects of captions, scenes for pairs of images, and paraphrases.

The prompts are ours; what they ask for is the paper's (appendix on construction). Under protocol "fixed" all
answers are checked; under "paper" any answer of the right form counts, as released.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, Field

from nein.datasets.negbench import polarity
from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION
from nein.datasets.negbench.sentences import PAIR, WORDINGS, Concepts, Negation, Protocol
from nein.engine.folder import sample_seed
from nein.generate.negbench.pairs import PairPlan
from nein.models.llm import SILENT, Client, Request

NO_ANSWER = "the language model gave no answer"  # start of a problem: a later command asks again
NO_OBJECTS = "the language model named no usable object"
NO_LIST = "the language model rejects an object list"


# --- replies: docstrings and descriptions are part of the schema that the model reads ------------
class Objects(BaseModel):
    """Objects of a caption."""

    present: list[str] = Field(
        description="concrete visible objects that the caption mentions, singular nouns"
    )
    absent: list[str] = Field(description="related objects that the caption does not mention, singular nouns")


class Paraphrase(BaseModel):
    """A sentence in other words."""

    sentence: str


class Soundness(BaseModel):
    """Whether a list can be used."""

    valid: bool


class Scene(BaseModel):
    """A scene to be drawn twice."""

    caption: str = Field(description="one sentence about the scene, without the extra object")
    objects: list[str] = Field(description="two or three objects that the caption mentions")
    extra: str = Field(description="one object that could be added to the scene")
    caption_with_extra: str = Field(description="the same sentence with the extra object added")
    other: str = Field(description="one object that could be there too, but is in neither sentence")


# --- objects -------------------------------------------------------------------------------------
#: Value of --thing -> words of the prompt: the medium, what to list, in which form, what not to list.
PROMPT_WORDS = {
    "image": ("photograph", "objects", "singular nouns", "places, actions or adjectives"),
    "video": ("video", "objects and actions", "singular nouns or -ing forms", "places or adjectives"),
}


def extract(
    client: Client, images: Sequence[Concepts], seed: int, *, count: int, thing: str, protocol: Protocol
) -> list[Concepts]:
    """Adds the present and `count` absent objects of every image's captions; of a video also actions. Under
    "fixed" present objects that no caption affirms and absent ones that one mentions are dropped."""
    medium, targets, form, unwanted = PROMPT_WORDS[thing]
    usable = [image for image in images if not image.problem]
    requests = []
    for image in usable:
        listed = "\n".join(f"- {text}" for text in image.captions)
        prompt = (
            f"These captions describe one {medium}:\n{listed}\n\nList the concrete, visible {targets} that "
            f"the captions mention, as {form} in lower case (no {unwanted}). Then list {count} other "
            f"{targets} that often occur together with these but are mentioned in no caption."
        )
        requests.append(Request(prompt, sample_seed(seed, f"objects/{image.id}")))
    results = {image.id: image for image in images}
    for image, outcome in zip(usable, client.complete(requests, Objects), strict=True):
        if (answer := outcome.value) is None:
            results[image.id] = replace(image, problem=_describe_failure(outcome.failure))
            continue
        if protocol == "paper":
            present, absent = list(dict.fromkeys(answer.present)), list(dict.fromkeys(answer.absent))
            is_usable = bool(absent)
        else:
            text = ". ".join(image.captions)  # the dot: "no" in a caption denies nothing in the next one
            named, others = _clean_names(answer.present), _clean_names(answer.absent)
            present = [name for name in named if polarity.find_polarity(text, name) == "affirmed"]
            absent = [name for name in others if not polarity.find_mentions(text, name) and name not in named]
            notes = ["object not in the caption, dropped"] * (len(named) - len(present))
            notes += ["absent object is in the caption, dropped"] * (len(others) - len(absent))
            image = image.add_notes(*notes)
            absent = absent[:count]
            is_usable = bool(present and absent)
        problem = "" if is_usable else NO_OBJECTS
        results[image.id] = replace(image, positives=tuple(present), negatives=tuple(absent), problem=problem)
    return [*results.values()]


def validate(client: Client, images: Sequence[Concepts]) -> list[Concepts]:
    """Adds a problem to every image unless the model clearly accepts both of its lists of objects."""
    usable = [image for image in images if not image.problem]
    prompts = [
        f"{[*names]}\n\nIs every entry of this list the name of a thing or of a concept, and nothing "
        "else: no explanation, no instruction, no remains of another text?"
        for image in usable
        for names in (image.positives, image.negatives)
    ]
    outcomes = client.complete([Request(prompt) for prompt in prompts], Soundness)  # two per image
    results = {image.id: image for image in images}
    for number, image in enumerate(usable):
        pair = outcomes[2 * number : 2 * number + 2]
        silent = [outcome.failure for outcome in pair if outcome.failure in SILENT]
        if silent:
            results[image.id] = replace(image, problem=_describe_failure(silent[0]))
        elif not all(outcome.value is not None and outcome.value.valid for outcome in pair):
            results[image.id] = replace(image, problem=NO_LIST)
    return [*results.values()]


def _clean_names(words: Sequence[str]) -> list[str]:
    """Object names as they can stand in a sentence: lower case, no article, at most four words, once each."""
    names: dict[str, None] = {}
    for word in words:
        name = re.sub(r"^(?:an?|the|some|any|no)\s+", "", " ".join(word.casefold().split())).strip(" .,;")
        if name and len(name.split()) <= 4 and re.fullmatch(r"[\w' -]+", name):
            names[name] = None
    return list(names)


def _describe_failure(kind: str) -> str:
    return f"{NO_ANSWER} ({kind})" if kind in SILENT else f"the language model's answer is unusable ({kind})"


# --- scenes --------------------------------------------------------------------------------------
def plan_scenes(client: Client, names: Sequence[str], seed: int) -> dict[str, PairPlan | str]:
    """Id -> a pair of images to be made from text, or why there is none. names: the ids."""
    requests = [
        Request(
            "Imagine an everyday photograph. Describe the scene in one sentence that names two or three "
            "concrete objects. Choose one further concrete object that could plausibly be there but is not "
            "mentioned, and write the sentence again with that object added. Name another one that is in "
            f"neither sentence. Do not use any negation. Be original: this is scene number {name}.",
            sample_seed(seed, f"scene/{name}"),
        )
        for name in names
    ]
    plans: dict[str, PairPlan | str] = {}
    for name, outcome in zip(names, client.complete(requests, Scene), strict=True):
        if (scene := outcome.value) is None:
            plans[name] = _describe_failure(outcome.failure)
            continue
        objects = _clean_names(scene.objects)
        further = _clean_names([scene.extra]) + _clean_names([scene.other])  # two, if the names are usable
        texts = (scene.caption, scene.caption_with_extra)
        polarities = [[polarity.find_polarity(text, noun) for noun in (*objects, *further)] for text in texts]
        affirmed = ["affirmed"] * len(objects)
        expected = [[*affirmed, "missing", "missing"], [*affirmed, "affirmed", "missing"]]
        if len(objects) < 2 or polarities != expected:
            plans[name] = "the sentences of a scene contradict its objects"
            continue
        extra, other = further
        plans[name] = PairPlan(
            id=name, caption=scene.caption, caption_with=scene.caption_with_extra, objects=tuple(objects),
            extra=extra, other=other, source_id=name, start=None,
        )  # fmt: skip
    return plans


# --- paraphrases ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sentence:
    """A sentence to be rephrased, with the objects of its image."""

    id: str
    text: str
    affirmed: list[str]  # objects that it says are there
    denied: list[str]  # objects that it says are absent
    others: tuple[str, ...] = ()  # objects that it does not mention
    negation: Negation | None = None  # of a training caption: it is written from this, as for CC12M-NegCap


def paraphrase(
    client: Client, sentences: Sequence[Sentence], seed: int, *, keep_order: bool, protocol: Protocol
) -> list[tuple[str | None, str]]:
    """For every sentence: (its paraphrase, ""), or (None, why there is none).

    Under "fixed" a paraphrase is refused if it loses an object or changes an object's polarity. Training
    captions, with `keep_order` all sentences, must also keep whether the affirmation or the negation comes
    first. A refused one is drawn again, up to the client's `attempts`.
    """
    results: dict[str, tuple[str | None, str]] = {}  # sentence id -> (paraphrase, why there is none)
    pending = list(sentences)
    for attempt in range(client.attempts if client.temperature > 0 else 1):
        requests = []
        for old in pending:
            own_seed = sample_seed(seed, f"paraphrase/{old.id}", attempt)
            requests.append(Request(_write_prompt(old, keep_order, random.Random(own_seed)), own_seed))
        refused = []
        for old, outcome in zip(pending, client.complete(requests, Paraphrase), strict=True):
            if outcome.value is None:
                results[old.id] = (None, _describe_failure(outcome.failure))
                if outcome.failure not in SILENT:
                    refused.append(old)
                continue
            text = " ".join(outcome.value.sentence.split())  # white space made single
            why = ""  # why it is refused
            if protocol == "fixed":
                order = old.text if keep_order or old.negation is not None else None
                why = polarity.find_change(
                    text, old.affirmed, old.denied, keep_order_of=order, others=old.others
                )
                if not why and len(text.split()) > 2 * len(old.text.split()) + 10:  # words
                    why = "it says much more"
            results[old.id] = (None, why) if why else (text, "")
            if why:
                refused.append(old)
        pending = refused
    return [results[sentence.id] for sentence in sentences]


#: Examples of a prompt, which draws three: description, absent object, negated caption with the affirmation
#: first, and with the negation first.
EXAMPLES = [
    ("Two women carry a ladder across the yard", "wheelbarrow",
     "Two women carry a ladder across the yard, and no wheelbarrow is there.",
     "Without any wheelbarrow, two women carry a ladder across the yard."),
    ("A plate of pancakes", "fork",
     "A plate of pancakes without a fork.", "There is no fork, but a plate of pancakes."),
    ("A boat lies at the pier in the evening", "seagull",
     "In the evening a boat lies at the pier; not one seagull is to be seen.",
     "Not one seagull is about while a boat lies at the pier in the evening."),
    ("An old clock on a brick wall", "window",
     "An old clock hangs on a brick wall that has no window.",
     "No window is there, yet an old clock hangs on a wall."),
]  # fmt: skip


def _write_prompt(sentence: Sentence, keep_order: bool, rng: random.Random) -> str:
    """Asks for a negated caption if the sentence has a negation, else for a paraphrase."""
    if (negation := sentence.negation) is not None:
        first, second = ("negation", "affirmation") if negation.before else ("affirmation", "negation")
        lines = [
            "Say in one fluent caption what a description of a picture says, and that something is absent "
            f"from the picture. The {first} comes first, then the {second}. Add nothing else, and keep the "
            "word for what is absent."
        ]
        for text, absent, affirmed_first, denied_first in rng.sample(EXAMPLES, 3):
            caption = denied_first if negation.before else affirmed_first
            lines += ["", f"Description: {text}", f"Absent: {absent}", f"Caption: {caption}"]
        lines += ["", f"Description: {negation.caption}", f"Absent: {negation.absent}", "Caption:"]
        return "\n".join(lines)
    named = [f'"{name}"' for name in (*sentence.affirmed, *sentence.denied)]
    lines = ["Rephrase this description of a picture as one fluent, natural sentence:", sentence.text, ""]
    lines.append(f"Keep its meaning exactly, and keep the words {', '.join(named)}.")
    if sentence.denied:
        lines.append(f"It must still say that there is no {' and no '.join(sentence.denied)}.")
    if keep_order and sentence.affirmed and sentence.denied:
        lines.append("Say what is there and what is not there in the same order as the original.")
    return "\n".join(lines)


# --- templated options ---------------------------------------------------------------------------
def parse_option(text: str, wording: str, thing: str) -> tuple[list[str], list[str]]:
    """(affirmed, denied) objects of a templated option, with or without a full stop."""
    for form in (HYBRID, NEGATION, PAIR, AFFIRMATION):
        pattern = re.escape(WORDINGS[wording][form].replace("{thing}", thing))
        for slot in "ABN":
            pattern = pattern.replace(re.escape("{" + slot + "}"), f"(?P<{slot}>.+?)")
        match = re.fullmatch(rf"{pattern}\.?", text)
        if match:
            named = match.groupdict()  # A, B: affirmed objects, N: a denied one
            affirmed = [named[slot] for slot in "AB" if slot in named]
            return affirmed, [named["N"]] if "N" in named else []
    raise ValueError(f"this is no sentence of the wording {wording!r}: {text!r}")
