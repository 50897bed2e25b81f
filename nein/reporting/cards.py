"""A sample browser for some hundred samples: a card each, with its picture and what every model made of it.

Cards are part of the page's text, found by words and by the entries of their facets. Benchmarks with more
samples or with a picture per model bring a browser of their own (`page.Browser`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nein.engine.seeds import sample_seed
from nein.reporting.page import TEMPLATES, Browser

Identity = TypeVar("Identity", bound=str)


@dataclass(frozen=True)
class Cell:
    """What one model said: text, a fainter remark, and whether it was "right", "wrong" or "none" of both."""

    text: str
    aside: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Card:
    """One sample.

    picture  A data address (`page.uri`), or "".
    heads, rows  A small table; the first cell of a row names the model.
    facets   What it can be filtered by: {"subset": ["VQAv2"], "pair": ["both", "neither"]}.
    """

    id: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    subtitle: str = ""
    picture: str = ""
    facets: Mapping[str, Sequence[str]] = field(default_factory=dict)


def browser(cards: Sequence[Card], title: str = "Samples") -> Browser | None:
    """The part of the page that shows the cards; None without any."""
    facets: dict[str, list[str]] = {}
    for card in cards:
        for facet, entries in card.facets.items():
            seen = facets.setdefault(facet, [])
            seen.extend(entry for entry in entries if entry not in seen)
    return Browser("cards", title, TEMPLATES, {"cards": cards, "facets": facets}) if cards else None


def drawn(ids: Sequence[str], limit: int) -> list[str]:
    """At most `limit` of the ids, in their order: those whose hash is smallest, so that a sample keeps its
    place when there are more."""
    chosen = set(sorted(ids, key=lambda identity: sample_seed(0, identity))[:limit])
    return [identity for identity in ids if identity in chosen]


def of_scores(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    limit: int = 400,
    title: Callable[[Mapping[str, Any]], str] = lambda row: str(row.get("question", "")),
    said: Callable[[Mapping[str, Any]], str] = lambda row: str(row.get("answer", "")),
    picture: Callable[[str], str] = lambda identity: "",
    facets: Sequence[str] = ("variant",),
) -> list[Card]:
    """Cards from score rows of any benchmark: a row per model, right and wrong by its value.

    rows     Model -> score rows with `id`, `value`, `reason` and what `title`, `said` and `facets` read.
    picture  Sample id -> data address of its picture.
    """
    by: dict[str, dict[str, Mapping[str, Any]]] = {}
    for model, scored in rows.items():
        for row in scored:
            by.setdefault(str(row["id"]), {})[model] = row
    cards = []
    for identity in drawn(list(by), limit):
        first = next(iter(by[identity].values()))
        lines = [
            [Cell(model), Cell(said(row), row.get("reason", ""), _mark(row["value"]))]
            for model, row in by[identity].items()
        ]
        marks = list(dict.fromkeys(line[1].mark for line in lines))
        shared = {name: [str(first[name])] for name in facets if name in first}
        cards.append(
            Card(
                identity,
                title(first),
                ["model", "said"],
                lines,
                "",
                picture(identity),
                {**shared, "answer": marks},
            )
        )
    return cards


def _mark(value: float | None) -> str:
    return "none" if value is None else "right" if value >= 0.5 else "wrong"
