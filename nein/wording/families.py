"""Write English sentences that deny an object, and read the object back from them.

In this order: templates by family of negation, sentences from templates, objects and templates from
sentences, negation in scope, names of objects. The thirteen templates of NeIn are the family "plain"; the
paper names the other families as future work, and their sentences are this project's.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nein.metrics.plurals import UNCOUNTABLE, engine, is_plural


# --- templates by family ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Family:
    """Templates of one kind of negation.

    Slots: {S} the object's name, {a S} with its article, {the S}, {S+} its plural, {is S} "is" or "are" in
    agreement; T is a second absent object, A an object that is there and must stay.
    """

    text: str  # templates with " / " between them
    needs: str = ""  # the other object that they name: "" none, "T" a second absent one, "A" one that stays
    stays: bool = False  # whether the sentences say that the object is there: the right edit changes nothing

    @property
    def templates(self) -> tuple[str, ...]:
        return tuple(self.text.split(" / "))


#: NeIn's thirteen, as published: "is" also after a plural. In the order of the authors' code. Source: Bui et
#: al., "NeIn: Telling What You Don't Want" (CVPR Workshops 2025), Table 2; github.com/tanbuinhat/NeIn.
NEGATIVE_TEMPLATES = tuple(
    "The image doesn't have any {S}. / The image does not have any {S}. / The image cannot have any {S}. / "
    "No {S} present in the image. / No {S} in the image. / The image is without {S}. / Not a single {S} in "
    "sight. / {S} is not part of the scene. / The image lacks {S}. / {S} is nowhere to be seen in the image. "
    "/ {S} is missing from the image. / A scene without {S}. / "
    "The image lacks the presence of {S}.".split(" / ")
)
#: The same thirteen without their denials, in the same order.
AFFIRMED_TEMPLATES = tuple(
    "The image has {a S}. / The image has {a S}. / The image can have {a S}. / {a S} present in the image. / "
    "{a S} in the image. / The image is with {a S}. / {a S} in sight. / {a S} {is S} part of the scene. / "
    "The image has {a S}. / {a S} {is S} to be seen in the image. / {a S} {is S} in the image. / A scene "
    "with {a S}. / The image has the presence of {a S}.".split(" / ")
)
FAMILIES: dict[str, Family] = {
    # The same thirteen with agreement in number: "Skis are missing from the image."
    "plain": Family(re.sub(r"\{S\} is\b", "{S} {is S}", " / ".join(NEGATIVE_TEMPLATES))),
    "exception": Family(
        "Everything but {a S}. / Keep all except {the S}. / Everything in the image except {the S}. / The "
        "image shows everything but {the S}."
    ),
    "neither_nor": Family(
        "Neither {a S} nor {a T} {is T} in the image. / The image has neither {a S} nor {a T}. / "
        "There {is S} neither {a S} nor {a T} in sight.",
        needs="T",
    ),
    "scoped": Family(
        "The image has {a A} but no {S}. / {a A} but no {S}. / A scene with {a A} and without {a S}. / Keep "
        "{the A} but no {S}.",
        needs="A",
    ),
    "contrastive": Family(
        "The image shows {a A}, not {a S}. / {a A} rather than {a S}. / {a A} instead of {a S}. / Not {a S} "
        "but {a A}.",
        needs="A",
    ),
    "double_negation": Family(
        "The image is not without {a S}. / It is not true that there {is S} no {S} in the image. / The image "
        "does not lack {a S}. / It is not the case that {the S} {is S} missing from the image.",
        stays=True,
    ),
    "past": Family("There used to be {a S}. / The image once showed {a S}. / There {is S} no longer {a S}."),
    "clause": Family(
        "The image shows {a S} that nobody has removed. / There {is S} {a S} that should not go. / The image "
        "has {a S} that did not move.",
        stays=True,
    ),
    "implicit": Family(
        "The image is free of {S+}. / The scene is devoid of {S+}. / {the S} {is S} absent from the image. / "
        "An image free of any {S}."
    ),
}
#: Families without templates: they name a color, and need scenes whose drawing is known (`nein.nano.scope`).
SCENE_FAMILIES = ("except_one", "not_all")
FAMILY_NAMES = (*FAMILIES, *SCENE_FAMILIES)
#: Families whose sentences are true of an image without the object, and of no other.
DENYING = ("plain", "implicit")
#: A choice beside the families: each sample becomes four, the object affirmed or denied, there or absent.
MINIMAL_PAIRS = "minimal_pairs"
#: Name of each of the four -> its cell (caption, image) in `nein.statistics.two_way`; 0: affirmed, there.
CELLS = {
    "affirmed, there": (0, 0),
    "affirmed, absent": (0, 1),
    "denied, there": (1, 0),
    "denied, absent": (1, 1),
}
#: Families in which the right edit keeps the object.
OBJECT_STAYS = frozenset([*(name for name, family in FAMILIES.items() if family.stays), "not_all"])


# --- sentences from templates ----------------------------------------------------------------------------
def list_templates(family: str, noun: str, protocol: str) -> list[int]:
    """Indices of the templates that fit `noun`: not "Not a single skis", except under protocol "paper"."""
    templates = FAMILIES[family].templates
    if protocol == "paper" or not is_plural(noun):
        return list(range(len(templates)))
    return [index for index, text in enumerate(templates) if not text.startswith("Not a single")]


def write_sentence(
    family: str, index: int, noun: str, *, second: str = "", present: str = "", protocol: str = "fixed"
) -> str:
    """The sentence of template `index` of a family.

    second, present  T and A, for families that name them.
    protocol         "paper": as in NeIn's released sentences, "is" also after a plural, and the article by
                     the first letter; "fixed": agreement in number, and the article by sound.
    """
    return fill_template(FAMILIES[family].templates[index], {"S": noun, "T": second, "A": present}, protocol)


def affirm(template: int | None, noun: str) -> str:
    """The affirmed form of template 0..12 of `NEGATIVE_TEMPLATES`; of None "There is a cat in the image."."""
    pattern = "There {is S} {a S} in the image." if template is None else AFFIRMED_TEMPLATES[template]
    return fill_template(pattern, {"S": noun}, "fixed")


def fill_template(template: str, objects: Mapping[str, str], protocol: str) -> str:
    """The sentence of a template, with a capital. objects: "S", "T", "A" -> object; protocol: as above."""

    def fill(slot: re.Match[str]) -> str:  # "{is S}" -> "are" for skis
        word, noun = slot.group("word"), objects[slot.group("object")]
        if word == "is":
            return "are" if protocol == "fixed" and is_plural(noun) else "is"
        if word == "the":
            return f"the {noun}"
        if word == "a":
            return add_article(noun) if protocol == "fixed" else a_or_an(noun)
        return plural(noun) if slot.group("plus") else noun

    text = re.sub(r"\{(?:(?P<word>a|the|is) )?(?P<object>[STA])(?P<plus>\+)?\}", fill, template)
    return text[:1].upper() + text[1:]


def a_or_an(phrase: str) -> str:
    """The phrase with "an" before a written vowel, else "a": NeIn's rule, which also says "a scissors"."""
    return f"an {phrase}" if phrase.lower().startswith(tuple("aeiou")) else f"a {phrase}"


def write_negative(template: int, noun: str) -> str:
    """NeIn's negative sentence of template 0..12 for an object."""
    return fill_template(NEGATIVE_TEMPLATES[template], {"S": noun}, "paper")


def write_addition(noun: str) -> str:
    """The instruction with which NeIn's images were made: "Add a cat."."""
    return f"Add {a_or_an(noun)}."


def write_removal(noun: str) -> str:
    """The affirmative instruction to remove an object: "Remove the cat."."""
    return f"Remove the {noun}."


# --- objects and templates from sentences ----------------------------------------------------------------
@functools.lru_cache(10_000)  # here and below: data sets repeat their sentences
def find_template(sentence: str, noun: str) -> int | None:
    """The template (0..12) of a negative sentence; None for a sentence of another form."""
    given, name = sentence.strip().rstrip(".").casefold(), noun.casefold()
    for index in range(len(NEGATIVE_TEMPLATES)):
        text = write_negative(index, noun).rstrip(".").casefold()
        if given in (text, text.replace(f"{name} is ", f"{name} are ")):  # "skis are": agreement mended
            return index
    return None


@functools.lru_cache(10_000)
def parse_added(generated: str) -> str | None:
    """The object in "Add a/an X."; None for a sentence of another form."""
    match = re.fullmatch(r"Add (?:a|an|some) (.+)", generated.strip())
    return (strip_article(match[1]) or None) if match else None


@functools.lru_cache(10_000)
def find_object(generated: str, negated: str) -> str:
    """The object in "Add a/an X." or "Add some Xs.". Raises ValueError for another form, or if the negative
    sentence names it neither in the singular nor in the plural."""
    noun = parse_added(generated)
    if noun is None:
        raise ValueError(f"T_generated {generated!r} is not of the form 'Add a/an OBJECT.'")
    forms = f"{re.escape(noun)}|{re.escape(plural(noun))}"
    if not re.search(rf"(?<!\w)(?:{forms})(?!\w)", negated, flags=re.IGNORECASE):
        raise ValueError(f"the object {noun!r} of T_generated does not occur in T_negative {negated!r}")
    return noun


# --- negation in scope -----------------------------------------------------------------------------------
# Six constructions, named like the families of the same negation, with sentences of their own: `write_twins`
# gives a sentence and its twin, of which one is true in a scene made for them. "no" denies the noun phrase,
# "neither" and "nor" each of two, "not" before "all" the quantifier; "used to" names a state that has ended
# (Huddleston and Pullum, The Cambridge Grammar of the English Language, 2002, chapter 9).
#: Construction -> whether the sentence has a denying word, whether its twin has one.
HAS_DENIAL = {
    "except_one": (True, False),
    "neither_nor": (True, True),
    "scoped": (True, True),
    "not_all": (True, False),
    "past": (False, False),
    "clause": (True, False),
}
CONSTRUCTIONS = tuple(HAS_DENIAL)
OTHERS = "other things"  # column: number of things in the scene that the sentence does not name
DEPTH = "denials above"  # column: number of "The following is not true:" before the sentence
#: Objects that a sentence may name. Do not reorder: a seed draws by position.
THINGS = tuple(
    "airplane,apple,banana,bench,bicycle,bird,boat,book,bottle,bus,cake,car,cat,chair,cup,dog,kite,pizza,"
    "sheep,teddy bear,umbrella".split(",")
)


@dataclass(frozen=True)
class SceneWords:
    """The words of a sentence in scope."""

    thing: str  # of THINGS
    other: str  # another of THINGS
    color: str  # of `thing`
    second: str  # another color of `thing`


def write_twins(construction: str, words: SceneWords, depth: int = 0) -> tuple[str, str]:
    """A sentence and its twin, under `depth` denials of the whole, each of which swaps their truth."""
    thing, other = add_article(words.thing), add_article(words.other)
    many, color, second = plural(words.thing), words.color, words.second
    sentence, twin = {
        "except_one": (
            f"There are no {many} except the {color} one",
            f"There are {many} other than the {color} one",
        ),
        "neither_nor": (f"There is neither {thing} nor {other}", f"There is {other} but no {words.thing}"),
        "scoped": (f"There is {thing} but not {other}", f"There is {other} but not {thing}"),
        "not_all": (f"Not all {many} are {color}", f"All {many} are {color}"),
        "past": (f"There used to be {thing}", f"There is still {thing}"),
        "clause": (f"There is {thing} that is not {second}", f"There is {thing} that is {second}"),
    }[construction]
    sentence, twin = f"{sentence}.", f"{twin}."
    for _ in range(depth):  # the denied twin is true where the sentence was
        sentence, twin = f"The following is not true: {twin}", f"The following is not true: {sentence}"
    return sentence, twin


# --- names of objects ------------------------------------------------------------------------------------
def strip_article(name: str) -> str:
    """The name without article, outer white space and outer punctuation: " the apple." -> "apple"."""
    categories = {letter: unicodedata.category(letter) for letter in name}
    if all(category[0] in "PZC" for category in categories.values()):  # punctuation, separators, control
        return ""
    # Punctuation of the classes "other", "initial quote" and "final quote"; brackets stay.
    outer = "".join(letter for letter, category in categories.items() if category in ("Po", "Pi", "Pf"))
    name = " ".join(name.split()).strip(f" {outer}")
    return re.sub(r"^(?:an?|the|some) (?=.)", "", name, flags=re.IGNORECASE)


@functools.lru_cache(maxsize=4096)
def plural(noun: str) -> str:
    """The plural of a name; the name itself if it is plural or uncountable."""
    if is_plural(noun) or noun.split()[-1].lower() in UNCOUNTABLE:
        return noun
    first_words, _, last = noun.rpartition(" ")
    many = engine().plural_noun(last)
    many = f"{last}es" if many.endswith("ss") else many  # not inflect's "thermoss"
    return f"{first_words} {many}".strip()


@functools.lru_cache(maxsize=4096)
def add_article(noun: str, *, some: bool = False) -> str:
    """The name with an article by sound ("an hour"); plurals and uncountables with none, or with "some"."""
    if is_plural(noun) or noun.split()[-1].lower() in UNCOUNTABLE:
        return f"some {noun}" if some else noun
    article = engine().a(noun.split()[0]).split()[0]  # inflect gives "an hour" for "hour"
    return f"{article} {noun}"


def find_named(captions: Sequence[str], objects: Sequence[str]) -> list[str]:
    """Those of the objects that a caption names, in singular or plural, and so are surely present."""
    text = " ".join(captions)
    forms = [f"{re.escape(noun)}|{re.escape(plural(noun))}" for noun in objects]
    matches = [re.search(rf"(?<![\w-])(?:{either})(?![\w-])", text, re.IGNORECASE) for either in forms]
    return [noun for noun, match in zip(objects, matches, strict=True) if match]
