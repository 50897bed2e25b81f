"""Equal figures are equal files, as `tests/reporting` proves: what has been drawn need not be drawn again."""

from __future__ import annotations

import hashlib
import io
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pytest
from PIL import Image

from nein.generate.nein import card
from nein.reporting.plots import Drawing

#: (kind of file, plot, figures, stamp) -> its bytes.
Made: TypeAlias = tuple[str, str, str, str]
Drawn: TypeAlias = dict[Made, bytes]
KINDS = ("png", "svg")


def remember(patch: pytest.MonkeyPatch) -> Drawn:
    """A drawing of the same plot, figures and stamp as one before it has that one's bytes."""
    drawn: Drawn = {}
    for kind in KINDS:
        patch.setattr(Drawing, kind, _once(kind, vars(Drawing)[kind], drawn))
    return drawn


def sketch(patch: pytest.MonkeyPatch) -> None:
    """A drawing is a few pixels that follow from plot, figures and stamp: equal exactly where those are.
    The examples beside the card of a data set are drawn, but small."""
    for kind in KINDS:
        patch.setattr(Drawing, kind, property(lambda drawing, kind=kind: _sketched(_made_of(kind, drawing))))
    patch.setattr(card, "PICTURE_SIZE", 16)


def _once(kind: str, draw: cached_property[bytes], drawn: Drawn) -> property:
    def read(drawing: Any) -> bytes:
        made_of = _made_of(kind, drawing)
        if made_of not in drawn:
            drawn[made_of] = draw.func(drawing)
        return drawn[made_of]

    return property(read)


def _made_of(kind: str, drawing: Drawing) -> Made:
    return kind, repr(drawing.plot), drawing.figures.to_csv(), drawing.stamp


def _sketched(made_of: Made) -> bytes:
    digest = hashlib.sha256(repr(made_of).encode())
    if made_of[0] != "png":
        return (
            b'<svg xmlns="http://www.w3.org/2000/svg"><title>%b</title></svg>' % digest.hexdigest().encode()
        )
    buffer = io.BytesIO()
    Image.fromarray(np.frombuffer(digest.digest(), np.uint8).reshape(4, 8)).save(buffer, format="PNG")
    return buffer.getvalue()
