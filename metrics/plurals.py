"""Plural or singular: English nouns by `inflect` and spaCy, with the kinds that both miss."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

#: Singular words whose ending says plural; those in -us and -ss are told by the ending.
SINGULAR = frozenset(
    """gas lens canvas atlas tennis iris oasis axis basis crisis ibis mantis clematis trellis pelvis debris
    chassis thermos rhinoceros cosmos asbestos pancreas molasses mathematics physics gymnastics christmas
    alias madras crossroads""".split()
)
#: Plural words in -us: their singular ends in u.
PLURAL_US = frozenset("menus emus gurus gnus tutus bayous caribous".split())
#: Plural words without a singular of the same thing ("a scissor", "a jean").
PLURAL = frozenset(
    """scissors trousers pants jeans shorts clothes glasses eyeglasses sunglasses spectacles goggles pajamas
    pyjamas tights leggings overalls binoculars pliers tweezers tongs""".split()
)
#: Words without a plural: "some broccoli", never "a broccoli".
UNCOUNTABLE = frozenset("broccoli rice bread water grass sand snow furniture luggage food hair".split())


@lru_cache(maxsize=1)
def engine() -> Any:
    """The one `inflect.engine`, loaded where it is first needed.

    The package has typeguard rewrite all of its functions when it is imported, so that they check their
    arguments, which takes as long as all else that a command does; here it is imported without.
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
    """Whether a name is plural by its last word: "skis" and "people" are, "bus" and "wine glass" are not."""
    last = noun.split()[-1].lower()
    if last in PLURAL or last in PLURAL_US:
        return True
    if last in SINGULAR or last in UNCOUNTABLE or last.endswith(("us", "ss")):
        return False
    singular = engine().singular_noun(last)
    return bool(singular) and singular != last


@lru_cache(maxsize=4096)
def singular(noun: str, lemma: str = "") -> str:
    """The name of one of its kind: "wine glasses" -> "wine glass"; "scissors", "glasses" and "thermos" stay.

    lemma  Of the last word, by spaCy; without it `inflect` says what is the singular of a plural.
    """
    head, _, last = noun.rpartition(" ")
    word = last.lower()
    own_form = word in PLURAL and not (head and word == "glasses")  # worn, not drunk from
    if own_form or not (is_plural(noun) or (lemma and not word.endswith("s"))):
        return noun
    return f"{head} {lemma or engine().singular_noun(last)}".strip()
