"""Names of things in sentences: bare, with an article, in the plural."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from nein.metrics.plurals import UNCOUNTABLE, engine, is_plural
from nein.metrics.plurals import singular as singular


def bare(name: str) -> str:
    """The name without article, white space and the punctuation around it: " the apple." -> "apple"; "" of
    punctuation alone."""
    kinds = {mark: unicodedata.category(mark) for mark in name}
    if all(kind[0] in "PZC" for kind in kinds.values()):
        return ""
    around = "".join(mark for mark, kind in kinds.items() if kind in ("Po", "Pi", "Pf"))  # no brackets
    name = " ".join(name.split()).strip(f" {around}")
    return re.sub(r"^(?:an?|the|some) (?=.)", "", name, flags=re.IGNORECASE)


@lru_cache(maxsize=4096)
def plural(noun: str) -> str:
    """The plural of a name; itself if it has none or is one."""
    if is_plural(noun) or noun.split()[-1].lower() in UNCOUNTABLE:
        return noun
    head, _, last = noun.rpartition(" ")
    many = engine().plural_noun(last)
    return f"{head} {f'{last}es' if many.endswith('ss') else many}".strip()  # not "thermoss"


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
