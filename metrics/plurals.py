"""Tells plural from singular English nouns and forms the singular, with inflect and lists of its mistakes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

#: Singular words that end like plurals. Words in -us and -ss need no entry: they count as singular.
SINGULAR = frozenset(
    """gas lens canvas atlas tennis iris oasis axis basis crisis ibis mantis clematis trellis pelvis debris
    chassis thermos rhinoceros cosmos asbestos pancreas molasses mathematics physics gymnastics christmas
    alias madras crossroads""".split()
)
#: Plural words in -us, with a singular in -u.
PLURAL_US = frozenset("menus emus gurus gnus tutus bayous caribous".split())
#: Plural words without a singular ("a scissor", "a jean").
PLURAL = frozenset(
    """scissors trousers pants jeans shorts clothes glasses eyeglasses sunglasses spectacles goggles pajamas
    pyjamas tights leggings overalls binoculars pliers tweezers tongs""".split()
)
#: Words without a plural: "some broccoli", never "a broccoli".
UNCOUNTABLE = frozenset("broccoli rice bread water grass sand snow furniture luggage food hair".split())


@lru_cache(maxsize=1)
def engine() -> Any:
    """inflect's engine, created once, on first use."""
    import typeguard

    # On import, inflect lets typeguard rewrite its functions, which takes as long as the rest of a command.
    # Until then, a decorator that changes nothing replaces typeguard's.
    typechecked = typeguard.typechecked
    typeguard.typechecked = lambda function: function  # type: ignore[assignment]
    try:
        import inflect
    finally:
        typeguard.typechecked = typechecked
    return inflect.engine()


@lru_cache(maxsize=4096)
def is_plural(noun: str) -> bool:
    """Whether a noun phrase is plural, by its last word: "skis", "people", not "bus" or "wine glass"."""
    word = noun.split()[-1].lower()
    if word in PLURAL or word in PLURAL_US:
        return True
    if word in SINGULAR or word in UNCOUNTABLE or word.endswith(("us", "ss")):
        return False
    singular_form = engine().singular_noun(word)  # False if inflect takes the word for a singular
    return bool(singular_form) and singular_form != word


@lru_cache(maxsize=4096)
def singular(noun: str, lemma: str = "") -> str:
    """Singular of a noun phrase: "wine glasses" -> "wine glass"; "scissors", "glasses" and "thermos" stay.

    lemma  spaCy's lemma of the last word; "": inflect forms the singular."""
    modifiers, _, last_word = noun.rpartition(" ")
    word = last_word.lower()
    if word in PLURAL and not (modifiers and word == "glasses"):  # "wine glasses" have a singular
        return noun
    # A word without -s that inflect does not know as a plural ("cacti") becomes spaCy's lemma.
    if not is_plural(noun) and (word.endswith("s") or not lemma):
        return noun
    return f"{modifiers} {lemma or engine().singular_noun(last_word)}".strip()
