"""Rows per caption, picture and question, from features or answers. A row without a value says why.

Retrieval row: id, item, source, kind, direction, rank, tied, score, recall@1, recall@5, reason.
Choice row: id, source, type, templates, correct, shown, scores, shares, credit, reason (and answer, letter).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metrics.dual.base import prepare
from nein.negbench import mcq, retrieval
from nein.negbench.data import ChoiceTask, Question, RetrievalItem, RetrievalTask
from nein.negbench.encode import Encoded

TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text_to_image", "image_to_text"


def retrieval_rows(
    task: RetrievalTask,
    pictures: Encoded,
    texts: Encoded,
    *,
    features: str = "normalised",
    scale: float = 1.0,
    bias: float = 0.0,
) -> list[dict[str, Any]]:
    """One row per caption (text_to_image) and per picture (image_to_text), of either kind.

    The gallery of a kind is every picture, and every caption, of its items that could be encoded. A caption
    that occurs for two pictures is two captions.
    """
    rows = []
    for items in (task.original, task.negated):
        rows += _one_kind(items, pictures, texts, features, scale, bias)
    return rows


def _one_kind(
    items: Sequence[RetrievalItem],
    pictures: Encoded,
    texts: Encoded,
    features: str,
    scale: float,
    bias: float,
) -> list[dict[str, Any]]:
    shown = [item for item in items if item.image in pictures.rows]
    gallery = prepare(pictures.features[[pictures.rows[item.image] for item in shown]], features)
    place = {item.id: index for index, item in enumerate(shown)}
    captions = [(item, k) for item in shown for k, text in enumerate(item.captions) if text in texts.rows]
    queries = prepare(texts.features[[texts.rows[item.captions[k]] for item, k in captions]], features)
    own: list[list[int]] = [[] for _ in shown]
    for index, (item, _) in enumerate(captions):
        own[place[item.id]].append(index)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    if captions:
        ranks = retrieval.ranks(queries, gallery, [[place[item.id]] for item, _ in captions])
        for row, (item, k) in zip(_ranked(ranks, features, scale, bias), captions, strict=True):
            found[TEXT_TO_IMAGE, f"{item.id}#{k}"] = row
        with_caption = [index for index, entries in enumerate(own) if entries]
        ranks = retrieval.ranks(gallery[with_caption], queries, [own[index] for index in with_caption])
        for row, index in zip(_ranked(ranks, features, scale, bias), with_caption, strict=True):
            found[IMAGE_TO_TEXT, shown[index].id] = row
    rows = []
    for item in items:
        about = {"item": item.id, "source": item.cluster, "kind": item.kind}
        unreadable = pictures.reasons.get(item.image)
        for k, text in enumerate(item.captions):
            name = f"{item.id}#{k}"
            reason = unreadable or texts.reasons.get(text, "")
            rows.append(_row(name, about, TEXT_TO_IMAGE, found, reason))
        reason = unreadable or "none of its captions could be encoded"
        rows.append(_row(item.id, about, IMAGE_TO_TEXT, found, reason))
    return rows


def _ranked(ranks: retrieval.Ranks, features: str, scale: float, bias: float) -> list[dict[str, Any]]:
    recalls = {f"recall@{k}": ranks.recall(k) for k in retrieval.KS}
    if features != "normalised":
        scale, bias = 1.0, 0.0
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
    name: str,
    about: Mapping[str, Any],
    direction: str,
    found: Mapping[tuple[str, str], Mapping[str, Any]],
    reason: str,
) -> dict[str, Any]:
    values = found.get((direction, name))
    if values is not None:
        return {"id": name, **about, "direction": direction, **values, "reason": ""}
    empty: dict[str, Any] = {"rank": None, "tied": None, "score": None}
    empty |= dict.fromkeys(f"recall@{k}" for k in retrieval.KS)
    return {"id": name, **about, "direction": direction, **empty, "reason": reason}


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
    """One row per question, answered by the score of every option with the picture."""
    shown = prepare(pictures.features, features)
    said = prepare(texts.features, features)
    if features != "normalised":
        scale, bias = 1.0, 0.0
    rows = []
    for question in task.questions:
        about = _about(question, seed, protocol)
        reason = pictures.reasons.get(question.image) or next(
            (texts.reasons[o.text] for o in question.options if o.text in texts.reasons), ""
        )
        if reason:
            rows.append({**about, "scores": None, "shares": None, "credit": None, "reason": reason})
            continue
        own = said[[texts.rows[option.text] for option in question.options]]
        # One product per option, so that equal sentences get equal scores to the last bit.
        products = (own * shown[pictures.rows[question.image]]).sum(1).astype(np.float32)
        shares = mcq.shares(products, about["shown"], protocol)
        rows.append(
            {
                **about,
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
    """One row per question, from what a generative model answered (`vlm.ask`)."""
    rows = []
    for question in task.questions:
        about = _about(question, seed, protocol)
        found = answers[question.id]
        said = {"answer": found["answer"], "letter": found["letter"]}
        if found["chosen"] is None:
            rows.append({**about, **said, "shares": None, "credit": None, "reason": found["reason"]})
            continue
        shares = [float(k == found["chosen"]) for k in range(len(question.options))]
        rows.append({**about, **said, "shares": shares, "credit": shares[question.correct], "reason": ""})
    return rows


def _about(question: Question, seed: int, protocol: str) -> dict[str, Any]:
    return {
        "id": question.id,
        "source": question.cluster,
        "type": question.type,
        "templates": [option.template for option in question.options],
        "correct": question.correct,
        "shown": mcq.order(question, seed, protocol),
    }
