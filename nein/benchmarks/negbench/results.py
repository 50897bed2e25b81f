"""Rows per caption, picture and question, from features or answers. A row without a value says why.

Retrieval row: id, item, source, kind, direction, rank, tied, score, recall@1, recall@5, reason, and both
recalls of the baselines ("text only@1").
Choice row: id, source, type, templates, correct, groups, difficulty, shown, scores, shares, credit, reason
(and answer, letter), and the credit of each baseline that was measured ("text only").

Rows are made and written one after the other, and figures are made of what `read` keeps of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metrics.dual.base import prepare, products
from nein.benchmarks.baselines import BASELINES, PICTURE_ONLY, TEXT_ONLY
from nein.benchmarks.negbench import blind, mcq, retrieval
from nein.benchmarks.negbench.encode import Encoded
from nein.datasets.negbench.records import (
    ChoiceTask,
    Question,
    RetrievalItem,
    RetrievalTask,
)
from nein.engine import atomic
from nein.loading.errors import choose

#: (questions that stand for the task's, what came of them by id).
Baselines = Sequence[tuple["blind.Distinct", Mapping[str, Mapping[str, Any]]]]
_Values = Callable[[int | None], dict[str, Any] | None]
TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text_to_image", "image_to_text"
#: Questions scored at once: what decides the memory, whatever their number.
BLOCK = 512


def retrieval_rows(
    task: RetrievalTask,
    pictures: Encoded,
    texts: Encoded,
    *,
    scale: float = 1.0,
    bias: float = 0.0,
    protocol: str = "fixed",
) -> Iterator[dict[str, Any]]:
    """One row per caption (text_to_image) and per picture (image_to_text), of either kind.

    protocol  What a caption is looked for among. "fixed": every picture of the task that could be encoded,
              once, so that original and negated captions search the same gallery even where a file lacks some
              pictures or has one in several rows. "paper": the rows of the caption's own file, as released.
              It also decides between ties (`retrieval.Ranks.recall`).

    A caption that occurs for two pictures is two captions.
    """
    choose("protocol", protocol, mcq.PROTOCOLS)
    for kind in (task.original, task.negated):
        items = [item for item in kind if item.image]
        gallery = _once(task.references, items) if protocol == "fixed" else _as_filed(items)
        yield from _one_kind(items, gallery, pictures, texts, scale, bias, protocol)


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
    protocol: str,
) -> Iterator[dict[str, Any]]:
    readable = [index for index, name in enumerate(gallery.images) if name in pictures.rows]
    column = {index: number for number, index in enumerate(readable)}
    captions = (
        (column[entry], texts.rows[text])
        for item, entry in zip(items, gallery.place, strict=True)
        if entry in column
        for text in item.captions
        if _why_not(text, texts) == ""
    )
    place, said = np.fromiter(captions, np.dtype((np.int64, 2))).T
    queries = iter(range(len(said)))
    to_image: _Values = _no_values
    to_text: _Values = _no_values
    if len(said):
        shown = np.array([pictures.rows[gallery.images[index]] for index in readable])
        of_captions, of_pictures = retrieval.ranks(texts.features, pictures.features, said, shown, place)
        by_words, by_picture = blind.alone(pictures.features, texts.features, said, shown)
        to_image = _values(of_captions, scale, bias, protocol, blind.of_captions(by_picture, place))
        to_text = _values(
            of_pictures, scale, bias, protocol, blind.of_gallery(by_words, place, len(readable))
        )
    asked: set[int] = set()
    for item, entry in zip(items, gallery.place, strict=True):
        subject = {"item": item.id, "source": item.cluster, "kind": item.kind}
        unreadable = pictures.reasons.get(item.image, "")
        for k, text in enumerate(item.captions):
            reason = unreadable or _why_not(text, texts)
            query = next(queries) if entry in column and not _why_not(text, texts) else None
            yield _row(f"{item.id}#{k}", subject, TEXT_TO_IMAGE, to_image(query), reason)
        if entry in asked:  # another row about the same picture, which is one query
            continue
        asked.add(entry)
        reason = unreadable or (
            "none of its captions could be encoded" if item.captions else "it has no caption"
        )
        yield _row(item.id, subject, IMAGE_TO_TEXT, to_text(column.get(entry)), reason)


def _why_not(text: str, texts: Encoded) -> str:
    return texts.reasons.get(text, "") if text.strip() else "the caption is empty"


def _values(
    ranks: retrieval.Ranks, scale: float, bias: float, protocol: str, baselines: Mapping[str, retrieval.Ranks]
) -> _Values:
    """The number of a query -> the values of its row; None for no query, or one without an own entry."""
    recalls = {
        f"{name}@{k}": places.recall(k, protocol)
        for name, places in {"recall": ranks, **baselines}.items()
        for k in retrieval.KS
    }

    def values(i: int | None) -> dict[str, Any] | None:
        if i is None or not ranks.relevant[i]:
            return None
        return {
            "rank": int(ranks.better[i]) + 1,
            "tied": int(ranks.tied[i]),
            "score": float(scale * float(ranks.best[i]) + bias),
            **{name: float(values[i]) for name, values in recalls.items()},
        }

    return values


def _no_values(i: int | None) -> None:
    """Where there is no query at all."""


def _row(
    name: str, subject: Mapping[str, Any], direction: str, values: Mapping[str, Any] | None, reason: str
) -> dict[str, Any]:
    if values is not None:
        return {"id": name, **subject, "direction": direction, **values, "reason": ""}
    empty: dict[str, Any] = {"rank": None, "tied": None, "score": None}
    empty |= dict.fromkeys(f"{name}@{k}" for name in ("recall", *BASELINES) for k in retrieval.KS)
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
) -> Iterator[dict[str, Any]]:
    """One row per question, answered by the score of every option with the picture.

    features  "unnormalised" compares options by the products of features as they are, which the released code
              did at first, in multiple choice only.
    """
    if features != "normalised":
        scale, bias = 1.0, 0.0
    means = blind.Means.of(pictures.features, texts.features, features)
    for start in range(0, len(task.questions), BLOCK):
        asked = [
            (question, _asked(question, seed, protocol)) for question in task.questions[start : start + BLOCK]
        ]
        reasons = [_unreadable(question, pictures, texts) for question, _ in asked]
        usable = [question for (question, _), reason in zip(asked, reasons, strict=True) if not reason]
        scored = iter(_option_scores(usable, pictures, texts, features))
        alone = {
            TEXT_ONLY: iter(_option_scores(usable, pictures, texts, features, means.picture, None)),
            PICTURE_ONLY: iter(_option_scores(usable, pictures, texts, features, None, means.text)),
        }
        for (question, row), reason in zip(asked, reasons, strict=True):
            if reason:
                lost = {"scores": None, "shares": None, "credit": None, "reason": reason}
                yield {**row, **lost, **dict.fromkeys(alone)}
                continue
            scores = next(scored)
            shown = [float(scale * float(x) + bias) for x in scores]
            made = _choice(question, scores, row["shown"], protocol)
            baselines = {
                name: _choice(question, next(each), row["shown"], protocol)["credit"]
                for name, each in alone.items()
            }
            yield {**row, "scores": shown, **made, **baselines}


def _choice(
    question: Question, scores: Sequence[float] | np.ndarray, shown: Sequence[int], protocol: str
) -> dict[str, Any]:
    shares = mcq.shares(scores, shown, protocol)
    return {"shares": shares.tolist(), "credit": float(shares[question.correct]), "reason": ""}


def matched_rows(
    task: ChoiceTask,
    scored: Mapping[str, Mapping[str, Any]],
    baselines: Baselines = (),
    *,
    protocol: str = "fixed",
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """One row per question, from the scores that a model gave to its options (`matching.scoring`).

    baselines  (questions asked in place of the task's, their scores by id). Where its options are all alike
               nothing was asked of a question, and the baseline is what guessing gets.
    """
    for question in task.questions:
        row, said = _asked(question, seed, protocol), scored[question.id]
        scores, lost = said["scores"], {"shares": None, "credit": None, "reason": said["reason"]}
        made = lost if scores is None else _choice(question, scores, row["shown"], protocol)
        shares = {
            name: None if values is None else mcq.shares(values, row["shown"], protocol).tolist()
            for name, values in _alone(question, baselines, lambda _, told: told["scores"])
        }
        yield {**row, "scores": scores, **made, **_right(question, shares)}


def _alone(
    question: Question,
    baselines: Baselines,
    values: Callable[[Question, Mapping[str, Any]], list[float] | None],
) -> Iterator[tuple[str, list[float] | None]]:
    """(baseline, values of the question's options) of those that were asked in its place; equal values, and
    nobody asked, where the options are all alike.

    values  (what was asked, its row) -> the values of its options.
    """
    for asked, given in baselines:
        one = asked.of(question)
        if one is None:
            yield asked.name, [1 / len(question.options)] * len(question.options)
        elif one.id in given:
            made = values(one, given[one.id])
            yield asked.name, None if made is None else asked.same_order(question, one, made)


def _right(question: Question, shares: Mapping[str, Sequence[float] | None]) -> dict[str, float | None]:
    return {name: None if each is None else float(each[question.correct]) for name, each in shares.items()}


def _unreadable(question: Question, pictures: Encoded, texts: Encoded) -> str:
    """Why a question has no scores, or ""."""
    shown = (pictures.reasons.get(question.picture(option)) for option in question.options)
    said = (texts.reasons.get(option.text) for option in question.options)
    return next(filter(None, (*shown, *said)), "")


def _option_scores(
    questions: Sequence[Question],
    pictures: Encoded,
    texts: Encoded,
    features: str,
    picture: np.ndarray | None = None,
    text: np.ndarray | None = None,
) -> list[np.ndarray]:
    """(options,) float32 per question: the product of every option with the picture.

    picture, text  Prepared features in place of those of every picture, or of every option.
    """
    if not questions:
        return []
    counts = [len(question.options) for question in questions]
    options = [(question, option) for question in questions for option in question.options]
    if text is None:
        text = prepare(texts.features[[texts.rows[option.text] for _, option in options]], features)
    if picture is None:
        shown = [pictures.rows[question.picture(option)] for question, option in options]
        picture = prepare(pictures.features[shown], features)
    scores = products(*np.broadcast_arrays(picture, text, np.empty((len(options), 1)))[:2])
    return np.split(scores, np.cumsum(counts)[:-1])


def answer_rows(
    task: ChoiceTask,
    answers: Mapping[str, Mapping[str, Any]],
    baselines: Baselines = (),
    *,
    protocol: str = "fixed",
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """One row per question, from what a generative model answered (`vlm.asking`).

    baselines  As of `matched_rows`, with answers for scores.
    """
    for question in task.questions:
        row, answer = _asked(question, seed, protocol), answers[question.id]
        said = {"answer": answer["answer"], "letter": answer["letter"]}
        shares = _chosen(len(question.options), answer["chosen"])
        credit = None if shares is None else shares[question.correct]
        alone = _alone(question, baselines, lambda one, told: _chosen(len(one.options), told["chosen"]))
        reason = answer["reason"] if shares is None else ""
        chosen = {"shares": shares, "credit": credit, "reason": reason}
        yield {**row, **said, **chosen, **_right(question, dict(alone))}


def _chosen(options: int, chosen: int | None) -> list[float] | None:
    """The choice as shares of the options; None where there is none."""
    return None if chosen is None else [float(k == chosen) for k in range(options)]


def _asked(question: Question, seed: int, protocol: str) -> dict[str, Any]:
    return {
        "id": question.id,
        "source": question.cluster,
        "type": question.type,
        "templates": [option.template for option in question.options],
        "correct": question.correct,
        "groups": [list(group) for group in question.groups],
        "difficulty": dict(question.difficulty),
        "shown": mcq.order(question, seed, protocol),
    }


# --- what figures are made of ------------------------------------------------------------------


class Measured(Mapping[str, Any]):
    """What figures need of a row: a tenth of what the row takes, and of a million captions a million are
    held."""

    __slots__ = ("_place", "_values")

    def __init__(self, place: Mapping[str, int], values: tuple[Any, ...]) -> None:
        """place: key -> where in `values` it is; rows share it."""
        self._place, self._values = place, values

    def __getitem__(self, key: str) -> Any:
        return self._values[self._place[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


def read(path: Path) -> list[Measured]:
    """The rows of samples/<task>.jsonl in order, lists as tuples; equal values are one object."""
    places: dict[tuple[str, ...], dict[str, int]] = {}
    same: dict[Any, Any] = {}
    rows = []
    for row in atomic.checked_lines(path):
        unused = _unused(row)
        keys = tuple(key for key in row if key not in unused)
        place = places.setdefault(keys, {key: number for number, key in enumerate(keys)})
        values = [_frozen(row[key]) for key in keys]
        rows.append(Measured(place, tuple(same.setdefault(repr(one), one) for one in values)))
    return rows


def _unused(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of a row from which no figure follows."""
    if "tied" in row:
        return "id", "rank", "tied", "score"
    if "templates" in row:  # scores are compared where questions belong together
        return ("shown", "letter") if row["groups"] else ("shown", "letter", "scores")
    return ()


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
