"""Questions to a language model: objects of a caption, negated captions, paraphrases, scenes.

The prompts are ours; what they ask for is the paper's (appendix on construction). By protocol "fixed" all
answers are checked; by "paper" the right form is enough, as released.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, Field

from nein.datasets.negbench import polarity
from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION
from nein.datasets.negbench.sentences import WORDINGS, Concepts, Negation, Protocol
from nein.engine.folder import sample_seed
from nein.generate.negbench.pairs import PairPlan
from nein.models.llm import SILENT, Client, Request

#: How a problem begins that a later command may mend, since the model gave no answer at all.
NO_ANSWER = "the language model gave no answer"
NO_OBJECTS = "the language model named no usable object"
NO_LIST = "the language model takes its objects for no list of objects"
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


#: What is captioned -> its name in a prompt, what is looked for, as what, what is not. Videos show actions.
ASKED = {
    "image": ("photograph", "objects", "singular nouns", "places, actions or adjectives"),
    "video": ("video", "objects and actions", "singular nouns or -ing forms", "places or adjectives"),
}
#: Examples of negated captions: description, absent thing, caption with the affirmation first, with the
#: negation first. Three are drawn.
EXAMPLES = [
    text.split(" / ")
    for text in (
        "Two women carry a ladder across the yard / wheelbarrow / Two women carry a ladder across the yard, "
        "and no wheelbarrow is there. / Without any wheelbarrow, two women carry a ladder across the yard.",
        "A plate of pancakes / fork / A plate of pancakes without a fork. / There is no fork, but a plate of "
        "pancakes.",
        "A boat lies at the pier in the evening / seagull / In the evening a boat lies at the pier; not one "
        "seagull is to be seen. / Not one seagull is about while a boat lies at the pier in the evening.",
        "An old clock on a brick wall / window / An old clock hangs on a brick wall that has no window. / No "
        "window is there, yet an old clock hangs on a wall.",
    )
]


def extract(
    client: Client, images: Sequence[Concepts], seed: int, *, count: int, thing: str, protocol: Protocol
) -> list[Concepts]:
    """Adds the present and absent objects of every image's captions; of a video also actions.

    By "fixed" a present object that no caption mentions is dropped, and an absent one that a caption does;
    both are noted. An image whose answer cannot be used gets a problem, and keeps its place.
    """
    medium, targets, form, unwanted = ASKED[thing]
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
    extracted = {image.id: image for image in images}
    for image, outcome in zip(usable, client.complete(requests, Objects), strict=True):
        if (answer := outcome.value) is None:
            extracted[image.id] = replace(image, problem=_failure(outcome.failure))
            continue
        if protocol == "paper":
            affirmed, new = [*dict.fromkeys(answer.present)], [*dict.fromkeys(answer.absent)]
            usable_answer = bool(new)
        else:
            text = ". ".join(image.captions)  # a denial ends with its caption
            present, absent = _names(answer.present), _names(answer.absent)
            affirmed = [name for name in present if polarity.polarity(text, name) == "affirmed"]
            new = [name for name in absent if not polarity.mentions(text, name) and name not in present]
            notes = ["object not in the caption, dropped"] * (len(present) - len(affirmed))
            notes += ["absent object is in the caption, dropped"] * (len(absent) - len(new))
            image, new = image.add_notes(*notes), new[:count]
            usable_answer = bool(affirmed and new)
        extracted[image.id] = replace(
            image,
            positives=tuple(affirmed),
            negatives=tuple(new),
            problem="" if usable_answer else NO_OBJECTS,
        )
    return [*extracted.values()]


def validate(client: Client, images: Sequence[Concepts]) -> list[Concepts]:
    """Marks images whose object lists the model rejects; no clear yes is a no. Ask at temperature 0."""
    usable = [image for image in images if not image.problem]
    prompts = [
        f"{[*names]}\n\nIs every entry of this list the name of a thing or of a concept, and nothing "
        "else: no explanation, no instruction, no remains of another text?"
        for image in usable
        for names in (image.positives, image.negatives)
    ]
    outcomes = client.complete([*map(Request, prompts)], Soundness)
    validated = {image.id: image for image in images}
    for image, *pair in zip(usable, outcomes[::2], outcomes[1::2], strict=True):
        silent = [_failure(outcome.failure) for outcome in pair if outcome.failure in SILENT]
        is_sound = all(outcome.value is not None and outcome.value.valid for outcome in pair)
        problem = silent[0] if silent else "" if is_sound else NO_LIST
        validated[image.id] = replace(image, problem=problem)
    return [*validated.values()]


def _names(words: Sequence[str]) -> list[str]:
    """Object names as they can stand in a sentence: lower case, no article, at most four words, once each."""
    names: dict[str, None] = {}
    for word in words:
        name = re.sub(r"^(?:an?|the|some|any|no)\s+", "", " ".join(word.casefold().split())).strip(" .,;")
        if name and len(name.split()) <= LONGEST and re.fullmatch(r"[\w' -]+", name):
            names[name] = None
    return list(names)


def imagine(client: Client, names: Sequence[str], seed: int) -> dict[str, PairPlan | str]:
    """Id -> a pair to be drawn, or why there is none."""
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
            plans[name] = _failure(outcome.failure)
            continue
        texts, objects = (scene.caption, scene.caption_with_extra), _names(scene.objects)
        further = _names([scene.extra]) + _names([scene.other])
        polarities = [[polarity.polarity(text, thing) for thing in (*objects, *further)] for text in texts]
        expected = [["affirmed"] * len(objects) + [extra, "missing"] for extra in ("missing", "affirmed")]
        if len(objects) > 1 and polarities == expected:
            plans[name] = PairPlan(name, *texts, tuple(objects), further[0], further[1], name, None)
        else:
            plans[name] = "the sentences of a scene contradict its objects"
    return plans


@dataclass(frozen=True)
class Sentence:
    """A sentence to be rephrased, with what it says is there and is not, and what it does not speak of.

    negation  Of a training caption, which is written anew from it, as CC12M-NegCap was.
    """

    id: str
    text: str
    affirmed: list[str]
    denied: list[str]
    others: tuple[str, ...] = ()
    negation: Negation | None = None


def paraphrase(
    client: Client, sentences: Sequence[Sentence], seed: int, *, keep_order: bool, protocol: Protocol
) -> list[tuple[str | None, str]]:
    """(sentence in other words, "") or (None, why there is none) for every sentence.

    By "fixed" a sentence that loses an object or changes its polarity is refused and drawn again, as often as
    the client's `attempts` say; with `keep_order`, and of training captions always, so is one that changes
    what comes first. Where the model gave no answer at all, another seed is not tried.
    """
    results: dict[str, tuple[str | None, str]] = {}  # sentence id -> (paraphrase, why there is none)
    open_ = list(sentences)  # not paraphrased so far
    for turn in range(client.attempts if client.temperature > 0 else 1):
        requests = []
        for old in open_:
            number = sample_seed(seed, f"paraphrase/{old.id}", turn)
            requests.append(Request(_prompt(old, keep_order, random.Random(number)), number))
        for old, outcome in zip(open_, client.complete(requests, Paraphrase), strict=True):
            if outcome.value is None:
                results[old.id] = (None, _failure(outcome.failure))
                continue
            text, why = " ".join(outcome.value.sentence.split()), ""  # white space made single
            if protocol == "fixed":
                order = old.text if keep_order or old.negation is not None else None
                claims_ = (old.affirmed, old.denied)
                why = polarity.find_change(text, *claims_, keep_order_of=order, others=old.others)
                if not why and len(text.split()) > LONGER * len(old.text.split()) + 10:
                    why = "it says much more"
            results[old.id] = (None, why) if why else (text, "")
        open_ = [old for old in open_ if (why := results[old.id][1]) and not why.startswith(NO_ANSWER)]
    return [results[sentence.id] for sentence in sentences]


def _prompt(sentence: Sentence, keep_order: bool, rng: random.Random) -> str:
    if (negation := sentence.negation) is not None:
        first, second = ("negation", "affirmation") if negation.before else ("affirmation", "negation")
        lines = [
            "Say in one fluent caption what a description of a picture says, and that something is absent "
            f"from the picture. The {first} comes first, then the {second}. Add nothing else, and keep the "
            "word for what is absent."
        ]
        examples = [(text, absent, captions[negation.before]) for text, absent, *captions in EXAMPLES]
        for text, absent, caption in (*rng.sample(examples, 3), (negation.caption, negation.absent, "")):
            lines += ["", f"Description: {text}", f"Absent: {absent}", f"Caption: {caption}".rstrip()]
        return "\n".join(lines)
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
