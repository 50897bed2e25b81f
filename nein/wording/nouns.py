"""Names of things in sentences: number, article, plural, by `inflect` and a few words that it misses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

#: Singular words whose ending `inflect` takes for a plural.
SINGULAR = frozenset(
    "bus minibus gas lens iris tennis cactus octopus walrus virus circus canvas atlas compass bonus".split()
)
#: Plural words that `inflect` cannot tell from their singular.
PLURAL = frozenset("scissors trousers pants clothes binoculars pliers tweezers shorts".split())
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
    if last in PLURAL or last in SINGULAR or last in UNCOUNTABLE:
        return last in PLURAL
    singular = engine().singular_noun(last)
    return bool(singular) and singular != last


@lru_cache(maxsize=4096)
def plural(noun: str) -> str:
    """The plural of a name; itself if it has none or is one."""
    if is_plural(noun) or noun.split()[-1].lower() in UNCOUNTABLE:
        return noun
    head, _, last = noun.rpartition(" ")
    return f"{head} {engine().plural_noun(last)}".strip()


@lru_cache(maxsize=4096)
def singular(noun: str) -> str:
    """The singular of a plural name, "wine glasses" -> "wine glass"; any other, and "scissors", as it is."""
    head, _, last = noun.rpartition(" ")
    if not is_plural(noun) or last.lower() in PLURAL:
        return noun
    return f"{head} {engine().singular_noun(last)}".strip()


@lru_cache(maxsize=4096)
def with_article(noun: str, *, some: bool = False) -> str:
    """The name as one of its kind: "a cat", "an hour", "a unicorn".

    some  Plurals and uncountables, which have no article, stand after "some".
    """
    if is_plural(noun) or noun.split()[-1].lower() in UNCOUNTABLE:
        return f"some {noun}" if some else noun
    return f"{engine().a(noun.split()[0]).split()[0]} {noun}"


def named_in(captions: Sequence[str], objects: Sequence[str]) -> list[str]:
    """Objects whose name stands in a caption, in singular or plural: those that are surely there."""
    text = " ".join(captions)
    named = []
    for noun in objects:
        forms = "|".join(re.escape(form) for form in (noun, plural(noun)))
        if re.search(rf"(?<![\w-])(?:{forms})(?![\w-])", text, flags=re.IGNORECASE):
            named.append(noun)
    return named
