"""What a language model is asked: objects of a caption, paraphrases, scenes. All answers are checked.

The prompts are ours; what they ask for is the paper's (Alhamoud et al., NegBench, appendix on construction).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel, Field

from nein.datasets.negbench import polarity
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION
from nein.datasets.negbench.sentences import WORDINGS
from nein.engine.seeds import sample_seed
from nein.models.llm import Client, Request
from nein.models.llm.client import SILENT

#: How a problem begins that a later command may mend, since the model gave no answer at all.
NO_ANSWER = "the language model gave no answer"
NO_OBJECTS = "the language model named no usable object"
LONGEST = 4  # words of an object's name
LONGER = 2  # times as many words, and ten more, a paraphrase may have


class Objects(BaseModel):
    """Objects of a caption."""

    present: list[str] = Field(
        description="concrete visible objects that the caption mentions, singular nouns"
    )
    absent: list[str] = Field(description="related objects that the caption does not mention, singular nouns")


class Paraphrase(BaseModel):
    """A sentence in other words."""

    sentence: str


class Scene(BaseModel):
    """A scene to be drawn twice."""

    caption: str = Field(description="one sentence about the scene, without the extra object")
    objects: list[str] = Field(description="two or three objects that the caption mentions")
    extra: str = Field(description="one object that could be added to the scene")
    caption_with_extra: str = Field(description="the same sentence with the extra object added")


#: What is captioned -> its name in a prompt, what is looked for, as what, what is not. Videos show actions.
ASKED = {
    "image": ("photograph", "objects", "singular nouns", "places, actions or adjectives"),
    "video": ("video", "objects and actions", "singular nouns or -ing forms", "places or adjectives"),
}


def extract(
    client: Client, images: Sequence[Concepts], seed: int, count: int, thing: str = "image"
) -> list[Concepts]:
    """Objects of every image's captions, present and absent, from one request per image. Of a video also
    actions, as nouns or "-ing" forms.

    A present object that no caption mentions is dropped, and so is an absent one that a caption does mention;
    both are noted. An image whose answer cannot be used gets a problem, and keeps its place.
    """
    shown, wanted, form, unwanted = ASKED[thing]
    usable = [image for image in images if not image.problem]
    requests = [
        Request(
            f"These captions describe one {shown}:\n"
            + "\n".join(f"- {text}" for text in image.captions)
            + f"\n\nList the concrete, visible {wanted} that the captions mention, as {form} in lower "
            f"case (no {unwanted}). Then list {count} other {wanted} that often occur "
            "together with these but are mentioned in no caption.",
            sample_seed(seed, f"objects/{image.id}"),
        )
        for image in usable
    ]
    extracted = {}
    for image, outcome in zip(usable, client.complete(requests, Objects), strict=True):
        if outcome.value is None:
            extracted[image.id] = replace(image, problem=_failure(outcome.failure))
        else:
            extracted[image.id] = _sorted_out(image, outcome.value, count)
    return [extracted.get(image.id, image) for image in images]


def _sorted_out(image: Concepts, answer: Objects, count: int) -> Concepts:
    said = ". ".join(image.captions)  # a denial ends with its caption
    present, absent = _names(answer.present), _names(answer.absent)
    affirmed = tuple(name for name in present if polarity.polarity(said, name) == "affirmed")
    new = [name for name in absent if not polarity.mentions(said, name) and name not in present]
    notes = ["object not in the caption, dropped"] * (len(present) - len(affirmed))
    notes += ["absent object is in the caption, dropped"] * (len(absent) - len(new))
    return replace(
        image.noting(*notes),
        positives=affirmed,
        negatives=tuple(new[:count]),
        problem="" if affirmed and new else NO_OBJECTS,
    )


def _names(words: Sequence[str]) -> list[str]:
    """Object names as they can stand in a sentence: lower case, no article, at most four words, once each."""
    names: dict[str, None] = {}
    for word in words:
        name = re.sub(r"^(?:an?|the|some|any|no)\s+", "", " ".join(word.casefold().split())).strip(" .,;")
        if name and len(name.split()) <= LONGEST and re.fullmatch(r"[\w' -]+", name):
            names[name] = None
    return list(names)


def imagine(client: Client, numbers: Sequence[str], seed: int) -> list[Scene | str]:
    """A scene per id, or why there is none."""
    requests = [
        Request(
            "Imagine an everyday photograph. Describe the scene in one sentence that names two or three "
            "concrete objects. Choose one further concrete object that could plausibly be there but is not "
            "mentioned, and write the sentence again with that object added. Do not use any negation. Be "
            f"original: this is scene number {number}.",
            sample_seed(seed, f"scene/{number}"),
        )
        for number in numbers
    ]
    scenes: list[Scene | str] = []
    for outcome in client.complete(requests, Scene):
        value = outcome.value
        if value is None:
            scenes.append(_failure(outcome.failure))
            continue
        extra, objects = _names([value.extra]), _names(value.objects)
        sound = (
            len(extra) == 1
            and len(objects) >= 2
            and all(polarity.polarity(value.caption, name) == "affirmed" for name in objects)
            and polarity.polarity(value.caption, extra[0]) == "missing"
            and polarity.polarity(value.caption_with_extra, extra[0]) == "affirmed"
        )
        if sound:
            scenes.append(value.model_copy(update={"objects": objects, "extra": extra[0]}))
        else:
            scenes.append("the sentences of a scene contradict its objects")
    return scenes


class Sentence(BaseModel):
    """A sentence to be rephrased, with what it says is there and is not, and what it does not speak of."""

    id: str
    text: str
    affirmed: list[str]
    denied: list[str]
    others: list[str] = []


def paraphrase(
    client: Client, sentences: Sequence[Sentence], seed: int, *, keep_order: bool
) -> list[tuple[str | None, str]]:
    """(paraphrase, "") or (None, why there is none) for every sentence.

    A paraphrase that loses an object or turns its polarity round is refused and drawn again, as often as the
    client's `attempts` say; with `keep_order`, so is one that turns round what comes first. Where the model
    gave no answer at all, none of another seed takes its place: asked again, it gives what it would have.
    """
    said: dict[int, tuple[str | None, str]] = {}
    rounds = client.attempts if client.temperature > 0 else 1
    for turn in range(rounds):
        open_ = [
            k
            for k in range(len(sentences))
            if k not in said or (said[k][0] is None and not said[k][1].startswith(NO_ANSWER))
        ]
        requests = [
            Request(_prompt(sentences[k], keep_order), _seed(seed, sentences[k], turn)) for k in open_
        ]
        for k, outcome in zip(open_, client.complete(requests, Paraphrase), strict=True):
            if outcome.value is None:
                said[k] = (None, _failure(outcome.failure))
                continue
            text = " ".join(outcome.value.sentence.split())
            source = sentences[k]
            order = source.text if keep_order else None
            why = polarity.changed(
                text, source.affirmed, source.denied, keep_order_of=order, others=source.others
            )
            if not why and len(text.split()) > LONGER * len(source.text.split()) + 10:
                why = "it says much more"
            said[k] = (None, why) if why else (text, "")
    return [said[k] for k in range(len(sentences))]


def _prompt(sentence: Sentence, keep_order: bool) -> str:
    named = [f'"{name}"' for name in (*sentence.affirmed, *sentence.denied)]
    lines = [
        "Rephrase this description of a picture as one fluent, natural sentence:",
        sentence.text,
        "",
        f"Keep its meaning exactly, and keep the words {', '.join(named)}.",
    ]
    if sentence.denied:
        lines.append(f"It must still say that there is no {' and no '.join(sentence.denied)}.")
    if keep_order and sentence.affirmed and sentence.denied:
        lines.append("Say what is there and what is not there in the same order as the original.")
    return "\n".join(lines)


def _seed(seed: int, sentence: Sentence, turn: int) -> int:
    return sample_seed(seed, f"paraphrase/{sentence.id}", turn)


def claims(text: str, wording: str, thing: str) -> tuple[list[str], list[str]]:
    """(affirmed, denied) of a templated option, read back from its template; with or without a full stop."""
    for form in (HYBRID, NEGATION, "pair", AFFIRMATION):
        pattern = re.escape(WORDINGS[wording][form].replace("{thing}", thing))
        for slot in "ABN":
            pattern = pattern.replace(re.escape("{" + slot + "}"), f"(?P<{slot}>.+?)")
        match = re.fullmatch(rf"{pattern}\.?", text)
        if match:
            named = match.groupdict()
            return [named[s] for s in "AB" if s in named], [named["N"]] if "N" in named else []
    raise ValueError(f"this is no sentence of the wording {wording!r}: {text!r}")


def _failure(kind: str) -> str:
    return f"{NO_ANSWER} ({kind})" if kind in SILENT else f"the language model's answer is unusable ({kind})"
