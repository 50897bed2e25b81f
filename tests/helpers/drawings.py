"""Equal figures are equal files, as `tests/reporting` proves: what has been drawn need not be drawn again."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import pytest

from nein.reporting.plots import Drawing

#: (kind of file, plot, figures, stamp) -> its bytes.
Drawn: TypeAlias = dict[tuple[str, str, str, str], bytes]


def remember(patch: pytest.MonkeyPatch) -> Drawn:
    """A drawing of the same plot, figures and stamp as one before it has that one's bytes."""
    drawn: Drawn = {}
    for kind in ("png", "svg", "narrow"):
        patch.setattr(Drawing, kind, _once(kind, vars(Drawing)[kind], drawn))
    return drawn


def _once(kind: str, draw: cached_property[bytes], drawn: Drawn) -> property:
    def read(drawing: Any) -> bytes:
        made_of = (kind, repr(drawing.plot), drawing.figures.to_csv(), drawing.stamp)
        if made_of not in drawn:
            drawn[made_of] = draw.func(drawing)
        return drawn[made_of]

    return property(read)
