"""Plural and singular of English nouns: inflect and spaCy, and lists of words both get wrong."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

#: Singular words that end like plurals; words in -us and -ss need no entry.
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
    """The only `inflect.engine`, created on first use.

    On import the package lets typeguard rewrite its functions to check arguments, which takes as long as the
    rest of a command; here it is imported without that.
    """
    import typeguard

    checks = typeguard.typechecked
    typeguard.typechecked = lambda checked: checked  # type: ignore[assignment]
    try:
        import inflect
    finally:
        typeguard.typechecked = checks
    return inflect.engine()


@lru_cache(maxsize=4096)
def is_plural(noun: str) -> bool:
    """Whether a noun phrase is plural, by its last word: "skis", "people", not "bus" or "wine glass"."""
    last = noun.split()[-1].lower()
    if last in PLURAL or last in PLURAL_US:
        return True
    if last in SINGULAR or last in UNCOUNTABLE or last.endswith(("us", "ss")):
        return False
    singular = engine().singular_noun(last)
    return bool(singular) and singular != last


@lru_cache(maxsize=4096)
def singular(noun: str, lemma: str = "") -> str:
    """Singular of a noun phrase: "wine glasses" -> "wine glass"; "scissors", "glasses" and "thermos" stay.

    lemma  spaCy's lemma of the last word; without it `inflect` forms the singular.
    """
    head, _, last = noun.rpartition(" ")
    word = last.lower()
    plural_only = word in PLURAL and not (head and word == "glasses")  # "wine glasses" have a singular
    if plural_only or not (is_plural(noun) or (lemma and not word.endswith("s"))):
        return noun
    return f"{head} {lemma or engine().singular_noun(last)}".strip()
