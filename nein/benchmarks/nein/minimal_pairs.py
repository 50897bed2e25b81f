"""What decides an edit: the instruction, the picture, or both together.

Of the family "minimal_pairs": every object affirmed and denied, of a picture with it and of one without. The
change in presence is what a judge sees after the edit less what it sees before, so that an editor which does
nothing changes nothing however the judge errs. One that obeys has +1 of text, -1 of picture and 0 of
interaction (`nein.statistics.two_way`); one that removes, or adds, whatever is named 0, -1 and 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nein import statistics
from nein.reporting.figures import figure
from nein.reporting.scores import ScoreTable
from nein.statistics import two_way
from nein.wording.families import CELLS

ALL_FOUR = "all four"
#: What a sentence asks for, by caption: the object is there, or is not.
_WANTED = np.array([[1.0, 1.0], [0.0, 0.0]])
#: What the data have in the unedited picture.
_BEFORE = np.array([[1.0, 0.0], [1.0, 0.0]])


def of_rows(scores: ScoreTable, metric: str) -> Iterator[dict[str, Any]]:
    """The figures of a run by one judge (task "minimal_pairs"); nothing where the data are others.

    statistic: "change" by cell (group), "part" (group: text, picture, interaction), "obeyed" by cell and for
    all four together, "agrees" (the judge with the data, about the unedited pictures).
    """
    cells: dict[str, dict[tuple[int, int], tuple[float, float] | None]] = {}
    source: dict[str, str] = {}
    rows = scores.where(family=tuple(CELLS)).frame
    columns = [rows[name].tolist() for name in ("id", "source", "family", "value", "before")]
    for sample, picture, label, gone, seen in zip(*columns, strict=True):
        name = sample.removesuffix(f"_{label.replace(', ', '_')}")
        known = gone == gone and seen == seen  # neither is NaN
        cells.setdefault(name, {})[CELLS[label]] = (float(seen), 1.0 - gone) if known else None
        source[name] = picture
    whole = {name: four for name, four in cells.items() if len(four) == len(CELLS)}
    if not whole:
        return
    scored = {name: four for name, four in whole.items() if None not in four.values()}
    seen_in = np.array([[[four[c, i] for i in (0, 1)] for c in (0, 1)] for four in scored.values()], float)
    first, after = np.moveaxis(seen_in.reshape(-1, 2, 2, 2), -1, 0)
    change, right = after - first, after == _WANTED
    clusters = [source[name] for name in scored]
    what: dict[str, Any] = {"task": "minimal_pairs", "metric": metric, "unscored": len(whole) - len(scored)}
    for label, place in CELLS.items():
        column = (slice(None), *place)
        moved = statistics.bounded_mean(change[column], clusters, -1.0, 1.0)
        yield figure(moved, unit="points", statistic="change", group=label, **what)
        obeyed = statistics.bounded_mean(right[column].astype(float), clusters)
        yield figure(obeyed, unit="%", statistic="obeyed", group=label, **what)
    picture = two_way.effects(change, clusters, 2.0)[two_way.PICTURE]
    for part, effect in {**two_way.effects(after, clusters, 1.0), two_way.PICTURE: picture}.items():
        yield figure(effect, unit="points", statistic="part", group=part, **what)
    obeyed = statistics.bounded_mean(right.all((1, 2)).astype(float), clusters)
    yield figure(obeyed, unit="%", statistic="obeyed", group=ALL_FOUR, **what)
    agrees = statistics.bounded_mean((first == _BEFORE).mean((1, 2)), clusters)
    yield figure(agrees, unit="%", statistic="agrees", **what)
