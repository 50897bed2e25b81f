"""What decides an edit: the instruction, the picture, or both together.

Of the family "minimal_pairs": every object is affirmed and denied, of a picture in which it is and of one in
which it is not. What is measured is the change in presence: whether a judge sees the object after the edit,
less whether the data have it there before. An editor that does what it is told puts it there where it is
affirmed and absent (+1), takes it away where it is denied and there (-1), and does nothing else: the text
part is +1, the picture part -1 and the interaction 0 (`nein.statistics.two_way`). One that removes, or adds,
whatever is named has 0, -1 and 0, one that does nothing 0 in all three: the text part is what it understands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nein import statistics
from nein.reporting.figures import figure
from nein.statistics import two_way
from nein.statistics.estimates import Estimate
from nein.wording.families import CELLS

ALL_FOUR = "all four"
#: What a sentence asks for, by caption: the object is there, or is not.
_WANTED = np.array([[1.0, 1.0], [0.0, 0.0]])
_BEFORE = np.array([[1.0, 0.0], [1.0, 0.0]])


def of_run(
    edits: Sequence[Mapping[str, Any]], removal: Mapping[str, float | None], metric: str
) -> Iterator[dict[str, Any]]:
    """The figures of a run by one judge (task "minimal_pairs"); nothing where the data are others.

    removal  Sample id -> 1.0 where the judge does not see the object in the edit, 0.0 where it does, or None.

    statistic: "change" by cell (group), "part" (group: text, picture, interaction), "obeyed" by cell and for
    all four together.
    """
    cells: dict[str, dict[tuple[int, int], float | None]] = {}
    source: dict[str, str] = {}
    for edit in edits:
        if (label := edit.get("family")) in CELLS:
            name = edit["id"].removesuffix(f"_{label.replace(', ', '_')}")
            gone = removal.get(edit["id"])
            cells.setdefault(name, {})[CELLS[label]] = None if gone is None else 1.0 - gone
            source[name] = edit["source_id"]
    whole = {name: four for name, four in cells.items() if len(four) == len(CELLS)}
    if not whole:
        return
    scored = {name: four for name, four in whole.items() if None not in four.values()}
    after = np.array(
        [[[four[c, i] for i in (0, 1)] for c in (0, 1)] for four in scored.values()], dtype=float
    )
    after = after.reshape(-1, 2, 2)
    clusters = [source[name] for name in scored]
    what: dict[str, Any] = {"task": "minimal_pairs", "metric": metric, "unscored": len(whole) - len(scored)}
    right = after == _WANTED
    for label, place in CELLS.items():
        column = (slice(None), *place)
        change = _shifted(statistics.bounded_mean(after[column], clusters), -float(_BEFORE[place]))
        yield figure(change, unit="points", statistic="change", group=label, **what)
        obeyed = statistics.bounded_mean(right[column].astype(float), clusters)
        yield figure(obeyed, unit="%", statistic="obeyed", group=label, **what)
    for part, effect in two_way.effects(after, clusters, 1.0).items():
        moved = _shifted(effect, -1.0) if part == two_way.PICTURE else effect
        yield figure(moved, unit="points", statistic="part", group=part, **what)
    obeyed = statistics.bounded_mean(right.all((1, 2)).astype(float), clusters)
    yield figure(obeyed, unit="%", statistic="obeyed", group=ALL_FOUR, **what)


def _shifted(estimate: Estimate | None, by: float) -> Estimate | None:
    """Of a value that differs by a constant: the change in presence is presence less what was there."""
    if estimate is None:
        return None
    low, high = (None if end is None else end + by for end in (estimate.low, estimate.high))
    return replace(estimate, value=estimate.value + by, low=low, high=high)
