"""The check sheet: one HTML file with random conversions, on which a person ticks what is right.

The page needs no network and no server. The browser keeps the ticks under the sheet's own name; they leave it
as a JSON file that `nein negvqa check` reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nein.datasets.negvqa.questions import VARIANTS
from nein.engine import atomic
from nein.reporting import cards, page, thumbnails

FORMAT = "nein negvqa check 1"
HOW = (
    "An item is right when the negated question is good English, asks for the opposite of the original with "
    "little changed, and the option marked for each question is right for the picture. Ticks stay in this "
    "browser; export them when you are done."
)
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
    samples = cards.Samples(
        [row["index"] for row in rows],
        [f"{number} of {len(rows)}" for number in range(1, len(rows) + 1)],
        [row["category"] for row in rows],
        {"Category": [[row["category"]] for row in rows]},
        [cards.Member(variant) for variant in VARIANTS],
        words=("items", "", ""),
        heads=("question", "A", "B"),
        page=len(rows),
    )
    browser = cards.browser(lambda: (samples, (_detail(path, row) for row in rows)), title="Items")
    values = {"facts": page.script_json(facts), "errors": ERRORS}
    html = page.render(
        title="Are these negated questions right?",
        subtitle=f"{len(rows)} random items out of {population} (negated by: {negator}). {HOW}",
        parts=[browser, page.Part("check", "Ticks", Path(__file__).parent / "templates", lambda: values)],
    )
    atomic.write_text(path, html)


def _detail(path: Path, row: Mapping[str, Any]) -> cards.Detail:
    said = []
    for variant in VARIANTS:
        right = row[f"{variant}_answer"]
        options = [cards.Cell(row[letter], mark="right" if right == letter else "") for letter in "AB"]
        said.append(cards.Said(cells=[cards.Cell(row[f"{variant}_question"]), *options]))
    picture = thumbnails.of_file(path.parent / row["image"], SIDE)
    return cards.Detail([("", picture)], said=said)


def name(rows: Sequence[Mapping[str, Any]]) -> str:
    """16 hex digits over everything that is to be checked."""
    text = json.dumps([dict(row) for row in rows], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
