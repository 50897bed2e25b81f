"""Single questions in the page of a NegVQA report: a card each, with the answers of every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nein.datasets.negvqa.questions import VARIANTS, Item
from nein.engine import images
from nein.reporting import cards, page
from nein.reporting.cards import Card, Cell

SIDE = 128
OUTCOMES = {
    ("right", "right"): "both right",
    ("right", "wrong"): "only original",
    ("wrong", "right"): "only negated",
    ("wrong", "wrong"): "neither",
}
Lines = Sequence[Mapping[str, Any]]


def samples(
    answers: Mapping[str, Lines],
    scores: Mapping[str, Lines],
    items: Sequence[Item] | None,
    limit: int,
    headlines: Mapping[str, str],
) -> list[Card]:
    """The first model's questions in data order, `limit` random ones if there are more.

    answers, scores  Model -> lines of answers.jsonl and scores.jsonl.
    items            The questions with their pictures, or None: no pictures.
    headlines        Model -> the scoring that makes an answer right or wrong, where it has that.
    """
    pictures = {item.id: item for item in items or ()}
    verdicts = {
        (model, row["id"], row["variant"], row["scoring"]): row
        for model, rows in scores.items()
        for row in rows
        if row["protocol"] == "fixed"
    }
    replies = {(m, row["id"], row["variant"]): row for m, rows in answers.items() for row in rows}
    first = next(iter(answers), "")
    ids = list(dict.fromkeys(row["id"] for row in answers.get(first, [])))
    made = []
    for identity in cards.drawn(ids, limit):
        asked = [replies[first, identity, variant] for variant in VARIANTS]
        lines, outcomes = [], []
        for model in answers:
            said = [
                _said(model, replies.get((model, identity, variant)), verdicts, headlines.get(model, ""))
                for variant in VARIANTS
            ]
            lines.append([Cell(model), *said])
            outcomes.append(OUTCOMES.get((said[0].mark, said[1].mark), "unscored"))
        options = zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", asked[0]["options"], strict=False)
        heads = [f"{row['question']} ({row['variant']}: {row['answer']})" for row in asked]
        title = "   ".join(f"{letter}: {text}" for letter, text in options)
        made.append(
            Card(
                identity, title, ["model", *heads], lines,
                subtitle=asked[0]["subset"],
                picture=_picture(pictures.get(identity)),
                facets={"subset": [asked[0]["subset"]], "pair": sorted({*outcomes})},
            )
        )  # fmt: skip
    return made


def _said(
    model: str,
    row: Mapping[str, Any] | None,
    verdicts: Mapping[tuple[str, str, str, str], Mapping[str, Any]],
    headline: str,
) -> Cell:
    """What a model said to one question, the letters that were read, and whether it is right."""
    if row is None:
        return Cell("not asked", mark="none")
    keys = [(model, row["id"], row["variant"], scoring) for scoring in ("generated", "logprob")]
    read = [verdicts[key] for key in keys if key in verdicts]
    letters = ", ".join(f"{r['scoring']} {r['letter'] or r['reason']}" for r in read)
    if row["logprobs"]:
        letters += f"; log p {' / '.join('–' if p is None else f'{p:.2f}' for p in row['logprobs'])}"
    chief = next((r for r in read if r["scoring"] == headline), read[0] if read else None)
    value = chief["value"] if chief else None
    mark = "none" if value is None else "right" if value else "wrong"
    return Cell(row["error"] or row["text"] or "", letters, mark)


def _picture(item: Item | None) -> str:
    if item is None:
        return ""
    try:
        return page.uri(page.thumbnail(item.load(), SIDE), "webp")
    except images.ImageError:
        return ""
