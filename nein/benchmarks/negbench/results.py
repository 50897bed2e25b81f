"""Rows per caption, picture and question, from features or answers. A row without a value says why.

Retrieval row: id, item, source, kind, direction, rank, tied, score, recall@1, recall@5, reason.
Choice row: id, source, type, templates, correct, shown, scores, shares, credit, reason (and answer, letter).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrics.base import choose
from metrics.dual.base import prepare
from nein.benchmarks.negbench import mcq, retrieval
from nein.benchmarks.negbench.encode import Encoded
from nein.datasets.negbench.records import (
    ChoiceTask,
    Question,
    RetrievalItem,
    RetrievalTask,
)

TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text_to_image", "image_to_text"


def retrieval_rows(
    task: RetrievalTask,
    pictures: Encoded,
    texts: Encoded,
    *,
    scale: float = 1.0,
    bias: float = 0.0,
    protocol: str = "fixed",
) -> list[dict[str, Any]]:
    """One row per caption (text_to_image) and per picture (image_to_text), of either kind.

    protocol  What a caption is looked for among. "fixed": every picture of the task that could be encoded,
              once, so that original and negated captions search the same gallery even where a file lacks some
              pictures or has one in several rows. "paper": the rows of the caption's own file, as released.

    A caption that occurs for two pictures is two captions.
    """
    choose("protocol", protocol, mcq.PROTOCOLS)
    rows = []
    for items in (task.original, task.negated):
        gallery = _once(task.references, items) if protocol == "fixed" else _as_filed(items)
        rows += _one_kind(items, gallery, pictures, texts, scale, bias)
    return rows


@dataclass(frozen=True)
class _Gallery:
    """`images`: a reference per entry; `place`: per item, its entry."""

    images: list[str]
    place: list[int]


def _once(references: Sequence[str], items: Sequence[RetrievalItem]) -> _Gallery:
    place = {name: index for index, name in enumerate(references)}
    return _Gallery(list(references), [place[item.image] for item in items])


def _as_filed(items: Sequence[RetrievalItem]) -> _Gallery:
    return _Gallery([item.image for item in items], list(range(len(items))))


def _one_kind(
    items: Sequence[RetrievalItem],
    gallery: _Gallery,
    pictures: Encoded,
    texts: Encoded,
    scale: float,
    bias: float,
) -> list[dict[str, Any]]:
    readable = [index for index, name in enumerate(gallery.images) if name in pictures.rows]
    column = {index: number for number, index in enumerate(readable)}
    shown = prepare(pictures.features[[pictures.rows[gallery.images[index]] for index in readable]])
    captions = [
        (column[entry], item, k)
        for item, entry in zip(items, gallery.place, strict=True)
        if entry in column
        for k, text in enumerate(item.captions)
        if _why_not(text, texts) == ""
    ]
    queries = prepare(texts.features[[texts.rows[item.captions[k]] for _, item, k in captions]])
    captions_of: dict[int, list[int]] = {}
    for index, (entry, _, _) in enumerate(captions):
        captions_of.setdefault(entry, []).append(index)
    to_image: dict[str, dict[str, Any]] = {}
    to_text: dict[int, dict[str, Any]] = {}
    if captions:
        ranks = retrieval.ranks(queries, shown, [[entry] for entry, _, _ in captions])
        for row, (_, item, k) in zip(_ranked(ranks, scale, bias), captions, strict=True):
            to_image[f"{item.id}#{k}"] = row
        ranks = retrieval.ranks(shown[list(captions_of)], queries, list(captions_of.values()))
        to_text = dict(zip(captions_of, _ranked(ranks, scale, bias), strict=True))
    rows = []
    asked: set[int] = set()
    for item, entry in zip(items, gallery.place, strict=True):
        subject = {"item": item.id, "source": item.cluster, "kind": item.kind}
        unreadable = pictures.reasons.get(item.image, "")
        for k, text in enumerate(item.captions):
            name = f"{item.id}#{k}"
            reason = unreadable or _why_not(text, texts)
            rows.append(_row(name, subject, TEXT_TO_IMAGE, to_image.get(name), reason))
        if entry in asked:  # another row about the same picture, which is one query
            continue
        asked.add(entry)
        reason = unreadable or (
            "none of its captions could be encoded" if item.captions else "it has no caption"
        )
        ranked = to_text.get(column[entry]) if entry in column else None
        rows.append(_row(item.id, subject, IMAGE_TO_TEXT, ranked, reason))
    return rows


def _why_not(text: str, texts: Encoded) -> str:
    return texts.reasons.get(text, "") if text.strip() else "the caption is empty"


def _ranked(ranks: retrieval.Ranks, scale: float, bias: float) -> list[dict[str, Any]]:
    recalls = {f"recall@{k}": ranks.recall(k) for k in retrieval.KS}
    return [
        {
            "rank": int(ranks.rank[i]),
            "tied": int(ranks.tied[i]),
            "score": float(scale * float(ranks.best[i]) + bias),
            **{name: float(values[i]) for name, values in recalls.items()},
        }
        for i in range(len(ranks.best))
    ]


def _row(
    name: str, subject: Mapping[str, Any], direction: str, values: Mapping[str, Any] | None, reason: str
) -> dict[str, Any]:
    if values is not None:
        return {"id": name, **subject, "direction": direction, **values, "reason": ""}
    empty: dict[str, Any] = {"rank": None, "tied": None, "score": None}
    empty |= dict.fromkeys(f"recall@{k}" for k in retrieval.KS)
    return {"id": name, **subject, "direction": direction, **empty, "reason": reason}


def choice_rows(
    task: ChoiceTask,
    pictures: Encoded,
    texts: Encoded,
    *,
    features: str = "normalised",
    scale: float = 1.0,
    bias: float = 0.0,
    protocol: str = "fixed",
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One row per question, answered by the score of every option with the picture.

    features  "unnormalised" compares options by the products of features as they are, which the released code
              did at first, in multiple choice only.
    """
    shown = prepare(pictures.features, features)
    said = prepare(texts.features, features)
    if features != "normalised":
        scale, bias = 1.0, 0.0
    rows = []
    for question in task.questions:
        asked = _asked(question, seed, protocol)
        reason = pictures.reasons.get(question.image) or next(
            (texts.reasons[o.text] for o in question.options if o.text in texts.reasons), ""
        )
        if reason:
            rows.append({**asked, "scores": None, "shares": None, "credit": None, "reason": reason})
            continue
        options = said[[texts.rows[option.text] for option in question.options]]
        # One product per option, so that equal sentences get equal scores to the last bit.
        products = (options * shown[pictures.rows[question.image]]).sum(1).astype(np.float32)
        shares = mcq.shares(products, asked["shown"], protocol)
        rows.append(
            {
                **asked,
                "scores": [float(scale * float(x) + bias) for x in products],
                "shares": shares.tolist(),
                "credit": float(shares[question.correct]),
                "reason": "",
            }
        )
    return rows


def answer_rows(
    task: ChoiceTask, answers: Mapping[str, Mapping[str, Any]], *, protocol: str = "fixed", seed: int = 0
) -> list[dict[str, Any]]:
    """One row per question, from what a generative model answered (`vlm.asking`)."""
    rows = []
    for question in task.questions:
        asked = _asked(question, seed, protocol)
        answer = answers[question.id]
        said = {"answer": answer["answer"], "letter": answer["letter"]}
        if answer["chosen"] is None:
            rows.append({**asked, **said, "shares": None, "credit": None, "reason": answer["reason"]})
            continue
        shares = [float(k == answer["chosen"]) for k in range(len(question.options))]
        rows.append({**asked, **said, "shares": shares, "credit": shares[question.correct], "reason": ""})
    return rows


def _asked(question: Question, seed: int, protocol: str) -> dict[str, Any]:
    return {
        "id": question.id,
        "source": question.cluster,
        "type": question.type,
        "templates": [option.template for option in question.options],
        "correct": question.correct,
        "shown": mcq.order(question, seed, protocol),
    }
