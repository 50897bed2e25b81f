"""What decides the four scores of a minimal pair: the caption, the picture, or both together.

Of the questions of `nein.datasets.negbench.pairs` that belong to one pair, where one caption affirms and the
other denies: of a model that scores, the scores of both captions with either picture; of one that is asked
whether a caption is true, its yes (1) and no (0).

Metrics: "effect" by part, in the unit of the scores; "part", the share of the sum of squares; "text alone",
the share of the gap that the caption gives by itself; "same caption", the share of pairs in which both
pictures choose the same caption (`nein.statistics.two_way`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nein.datasets.negbench.pairs import ALL_FOUR, GROUP
from nein.datasets.negbench.records import AFFIRMATION, NEGATION
from nein.reporting.figures import figure
from nein.statistics import two_way

Rows = Sequence[Mapping[str, Any]]


def of_pairs(rows: Rows) -> list[dict[str, Any]]:
    """The figures of all pairs whose four questions are there; nothing where there is none."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        for score, name, size in row["groups"]:
            if score in (GROUP, ALL_FOUR) and size == 4:
                groups.setdefault(name, []).append(row)
    pairs = [four for four in groups.values() if len(four) == 4 and _opposed(four)]
    if not pairs:
        return []
    scored = [(cells, four[0]["source"]) for four in pairs if (cells := _cells(four)) is not None]
    scores = np.array([cells for cells, _ in scored]).reshape(-1, 2, 2)
    clusters = [source for _, source in scored]
    answers = not any(_has_scores(row) for four in pairs for row in four)
    unscored = len(pairs) - len(scored)
    figures = [
        figure(estimate, unit="", unscored=unscored, metric="effect", part=part)
        for part, estimate in two_way.effects(scores, clusters, 1.0 if answers else None).items()
    ]
    figures += [
        figure(estimate, unit="%", unscored=unscored, metric="part", part=part)
        for part, estimate in two_way.shares(scores, clusters).items()
    ]
    alone, same = two_way.text_alone(scores, clusters), two_way.same_caption(scores, clusters)
    figures.append(figure(alone, unit="%", unscored=unscored, metric="text alone"))
    if not answers:
        figures.append(figure(same, unit="%", unscored=unscored, metric="same caption"))
    return figures


def _has_scores(row: Mapping[str, Any]) -> bool:
    return _is_choice(row) and "answer" not in row


def _is_choice(row: Mapping[str, Any]) -> bool:
    """Whether it is a picture that chooses between the two captions."""
    return set(row["templates"]) == {AFFIRMATION, NEGATION}


def _opposed(four: Rows) -> bool:
    """Whether the four questions are about a caption that affirms and one that denies, and each picture and
    caption once."""
    return len({_place(row) for row in four}) == (2 if any(map(_is_choice, four)) else 4) and {
        row["type"] for row in four
    } == {AFFIRMATION, NEGATION}


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    """(caption, picture) that a question is about, 0 for the affirming caption and what it is true of."""
    caption = int(row["type"] == NEGATION)
    true = row["correct"] == 0 if row["templates"][0] is None else True
    return caption, caption if true else 1 - caption


def _cells(four: Rows) -> np.ndarray | None:
    """(2, 2) scores [caption, picture], as `two_way` takes them; None where one is lacking."""
    cells = np.full((2, 2), np.nan)
    for row in four:
        caption, picture = _place(row)
        if _is_choice(row) and row.get("scores") is not None:
            affirms = row["templates"].index(AFFIRMATION)
            cells[:, picture] = row["scores"][affirms], row["scores"][1 - affirms]
        elif row["templates"][0] is None and row["shares"] is not None:
            cells[caption, picture] = row["shares"][0]
    return cells if np.isfinite(cells).all() else None
