"""Pairs of sentences, one that affirms and one that denies the same thing: from which a direction is learned.

The published pairs (github.com/fawazsammani/negation-steering, data/train_data.json) are a JSON object of
affirmed sentences and their negations, made by a language model. Ours are templates; those of the held-out
wordings of `rewording` are not among them.
"""

from __future__ import annotations

from pathlib import Path

from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION
from nein.datasets.negbench.rewording import ABSENCE, CAPTION_FORMS, PAIR, PRESENCE, VARIED
from nein.engine import atomic, shapes
from nein.engine.errors import UserError
from nein.nano.draw import CATEGORIES
from nein.nano.worlds import HELD_OUT
from nein.wording.nouns import with_article

Pairs = tuple[tuple[str, str], ...]


def drawn() -> Pairs:
    """(affirmed, denied) for every taught wording and every object that is not held out, each beside another
    object."""
    names = [name for name in CATEGORIES if name not in HELD_OUT]
    pairs = []
    for wording, forms in CAPTION_FORMS.items():
        if wording != "code" and wording not in VARIED:
            continue
        for k, name in enumerate(names):
            other = names[(k + 7) % len(names)]
            words = {"A": other, "B": name, "N": name, "x": name, "thing": "image"}
            present = forms[PRESENCE].format(**{**words, "x": with_article(name)})
            pairs.append((f"{present}.", f"{forms[ABSENCE].format(**words)}."))
            if AFFIRMATION in forms:
                affirmed = forms[AFFIRMATION].format(A=name, thing="image")
                pairs.append((affirmed, forms[NEGATION].format(**words)))
                pairs.append((forms[PAIR].format(**words), forms[HYBRID].format(**words)))
    return tuple(pairs)


def read(path: Path) -> Pairs:
    """Those of a file as published: {affirmed: denied}."""
    content = atomic.read_json(path)
    if not isinstance(content, dict) or len(content) < 2 or shapes.fault([*content.values()], [str]):
        raise UserError(f"'{path}' must hold a JSON object of affirmed sentences and their negations.")
    return tuple(content.items())
