"""The check sheet: one HTML file with random conversions, on which a person ticks what is right.

The page needs no network and no server. The browser keeps the ticks under the sheet's own name; they leave it
as a JSON file that `nein negvqa check` reads.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nein.engine import atomic, images
from nein.reporting import page
from nein.reporting.contact_sheet import fit

FORMAT = "nein negvqa check 1"
SIDE = 320  # pixels of a picture's longer side, so that writing on it can be read
#: What can be wrong with a conversion: the paper names the first two (NegVQA, section 3).
ERRORS = {
    "unnatural": "the negated question is unnatural or ungrammatical",
    "twice": "a condition or a negation is negated as well",
    "answer": "the letter of the negated question is not right",
    "original": "the original question or its letter is wrong already",
    "other": "something else (see the note)",
}


def write(path: Path, rows: Sequence[Mapping[str, Any]], *, population: int, negator: str) -> None:
    """Writes the sheet of `rows`, records of `convert.record` whose pictures lie beside `path`.

    population  How many conversions the rows were drawn from.
    """
    facts = {
        "format": FORMAT,
        "sheet": name(rows),
        "population": population,
        "negator": negator,
        "ids": [row["index"] for row in rows],
    }
    html = page.document(
        Path(__file__).parent / "templates",
        "check",
        facts=page.script_json(facts),
        count=len(rows),
        population=population,
        negator=negator,
        errors=ERRORS,
        items=[{**row, "picture": _picture(path.parent / row["image"])} for row in rows],
    )
    atomic.write_text(path, html)


def name(rows: Sequence[Mapping[str, Any]]) -> str:
    """16 hex digits over everything that is to be checked."""
    text = json.dumps([dict(row) for row in rows], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _picture(path: Path) -> str | None:
    """The picture, made smaller, as a data URL; None where it cannot be read (the sheet says so)."""
    try:
        pixels = images.decode(path)
    except images.ImageError:
        return None
    picture = fit(pixels, min(SIDE, max(128, *pixels.shape[:2])), smooth=max(pixels.shape[:2]) > 128)
    buffer = io.BytesIO()
    # Drawn scenes are small as PNG, photographs as JPEG.
    small = len(np.unique(np.asarray(picture).reshape(-1, 3)[::7], axis=0)) < 256
    picture.save(buffer, "PNG") if small else picture.save(buffer, "JPEG", quality=85)
    kind = "png" if small else "jpeg"
    return page.uri(buffer.getvalue(), kind)
