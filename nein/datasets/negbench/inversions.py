"""Captions that deny something, taken apart: what they affirm, what they deny, and their inversion, which
denies what they affirm and affirms what they deny. NEAT adapts a text encoder to these.

The published ones (github.com/hhc1997/NEAT, *_logic_inversion.csv) are a language model's: columns captions,
pos_captions, neg_captions and inverted_captions, each a text of a Python list, in which the released code
takes a list of strings for one, too (data/utils.py, `pre_caption`). Ours are made by rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nein.datasets.negbench import official
from nein.datasets.negbench.official import Records
from nein.engine.errors import UserError
from nein.wording import denials
from nein.wording.nouns import with_article

#: What a caption affirms, denies, and its inversion.
Parts = tuple[str, str, str]
_COLUMNS = ("captions", "pos_captions", "neg_captions", "inverted_captions")


def by_rule(texts: Sequence[str]) -> list[Parts | None]:
    """Of every text; None where nothing is denied (`nein.wording.denials`).

    "A cat on a mat. There is no dog." -> "A cat on a mat.", "A photo of a dog." and "A photo of a dog with
    no cat and no mat."
    """
    return [_parts(read) if read.absent else None for read in denials.read(texts)]


def _parts(read: denials.Denials) -> Parts:
    denied = f"A photo of {' and '.join(map(with_article, read.absent))}"
    without = " and ".join(f"no {name}" for name in read.present)
    return read.affirmed or "A photo.", f"{denied}.", f"{denied} with {without}." if without else f"{denied}."


def read(path: Path) -> Mapping[str, Parts]:
    """Caption -> its parts, of a file as published. Raises UserError for any other."""
    parts: dict[str, Parts] = {}
    for row in Records(path, _COLUMNS):
        where = f"'{path}', line {row.line}"
        lists = [official.strings(row.cells[name], f"{where}, {name}", nested=True) for name in _COLUMNS]
        if len({len(each) for each in lists}) > 1:
            raise UserError(f"{where}: not every caption has an affirmed, a denied and an inverted text.")
        for text, affirmed, denied, inverted in zip(*lists, strict=True):
            parts[text] = (affirmed, denied, inverted)
    if not parts:
        raise UserError(f"'{path}' holds no caption.")
    return parts
