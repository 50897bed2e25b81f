"""Sentences from which remedies for text encoders learn what a denial changes.

Steering takes pairs, one sentence that affirms and one that denies: JSON {affirmed: negation} as in
github.com/fawazsammani/negation-steering, data/train_data.json. NEAT takes captions apart: what they affirm,
what they deny, and their inversion, as in *_logic_inversion.csv of github.com/hhc1997/NEAT. Ours are
templates and rules, without the held-out wordings of `sentences`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nein.datasets.negbench import official
from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION
from nein.datasets.negbench.sentences import ABSENT, CAPTION_FORMS, PAIR, PRESENT, VARIED
from nein.engine import atomic, shapes
from nein.engine.errors import UserError
from nein.nano.draw import CATEGORIES
from nein.nano.scenes import HELD_OUT
from nein.wording import denials
from nein.wording.nouns import with_article

Pairs = tuple[tuple[str, str], ...]
#: What a caption affirms, denies, and its inversion.
Parts = tuple[str, str, str]
_COLUMNS = ("captions", "pos_captions", "neg_captions", "inverted_captions")


def drawn_pairs() -> Pairs:
    """(affirmed, denied) for every taught wording and every object that is not held out."""
    names = [name for name in CATEGORIES if name not in HELD_OUT]
    pairs = []
    for wording, forms in CAPTION_FORMS.items():
        if wording != "code" and wording not in VARIED:
            continue
        for k, name in enumerate(names):
            other = names[(k + 7) % len(names)]
            words = {"A": other, "B": name, "N": name, "x": name, "thing": "image"}
            present = forms[PRESENT].format(**{**words, "x": with_article(name)})
            pairs.append((f"{present}.", f"{forms[ABSENT].format(**words)}."))
            if AFFIRMATION in forms:
                affirmed = forms[AFFIRMATION].format(A=name, thing="image")
                pairs.append((affirmed, forms[NEGATION].format(**words)))
                pairs.append((forms[PAIR].format(**words), forms[HYBRID].format(**words)))
    return tuple(pairs)


def read_pairs(path: Path) -> Pairs:
    content = atomic.read_json(path)
    if not isinstance(content, dict) or len(content) < 2 or shapes.fault([*content.values()], [str]):
        raise UserError(f"'{path}' must hold a JSON object of affirmed sentences and their negations.")
    return tuple(content.items())


def invert(texts: Sequence[str]) -> list[Parts | None]:
    """Of every text, None where nothing is denied: "A cat on a mat. There is no dog." -> "A cat on a mat.",
    "A photo of a dog." and "A photo of a dog with no cat and no mat."
    """
    found: list[Parts | None] = []
    for read in denials.read(texts):
        denied = f"A photo of {' and '.join(map(with_article, read.absent))}"
        without = " and ".join(f"no {name}" for name in read.present)
        inverted = f"{denied} with {without}." if without else f"{denied}."
        found.append((read.affirmed or "A photo.", f"{denied}.", inverted) if read.absent else None)
    return found


def read_inversions(path: Path) -> Mapping[str, Parts]:
    """Caption -> its parts, of a file as published. Raises UserError."""
    parts: dict[str, Parts] = {}
    for row in official.Records(path, _COLUMNS):
        where = f"'{path}', line {row.line}"
        lists = [official.strings(row.cells[name], f"{where}, {name}", nested=True) for name in _COLUMNS]
        if len({len(each) for each in lists}) > 1:
            raise UserError(f"{where}: not every caption has an affirmed, a denied and an inverted text.")
        for text, affirmed, denied, inverted in zip(*lists, strict=True):
            parts[text] = (affirmed, denied, inverted)
    if not parts:
        raise UserError(f"'{path}' holds no caption.")
    return parts
