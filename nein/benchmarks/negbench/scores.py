"""Scores from features and answers: a row per caption, picture and question, then the table of scores.

Retrieval row: id, item, source, kind, direction, rank, tied, score, recall@1, recall@5, reason, and the
recalls of the baselines ("text only@1"). Rows of judged retrieval: `judged.rows_of`. Choice row: id, source,
type, templates, correct, groups, difficulty, shown, scores, shares, credit, reason (and answer, letter), and
the credit of each baseline. A row without a value says why. Metrics of the table are those of
`estimates`, of single samples, and

cell, answer cell      of minimal pairs the four scores, or yes (1) and no (0), in the order of `two_way`
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nein.benchmarks.baselines import BASELINES, PICTURE_ONLY, TEXT_ONLY
from nein.benchmarks.negbench import asking, retrieval
from nein.benchmarks.negbench.encode import Encoded
from nein.datasets.negbench import records
from nein.datasets.negbench.other_tests import ALL_FOUR, GROUP, NO, YES
from nein.datasets.negbench.registry import BINARY
from nein.engine.folder import Row
from nein.loading.errors import choose
from nein.metrics.dual import prepare, products
from nein.reporting.scores import ScoreTable

#: (questions that stand for the task's, what came of them by id).
Baselines = Sequence[tuple["asking.Distinct", Mapping[str, Mapping[str, Any]]]]
TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text_to_image", "image_to_text"
#: Columns of the table. item: what original and negated captions share, or what one query found. templates,
#: chosen: of the options, and of those that a choice fell on, separated by "/". difficulty: JSON. failed:
#: a model or the reading of a picture failed, which the next command tries again. alike: all options score
#: the same. first: the right option is shown first. answer: of yes/no questions the right one.
DETAILS = (
    "task", "kind", "direction", "item", "type", "templates", "chosen", "outcome", "difficulty", "failed",
    "alike", "first", "answer",
)  # fmt: skip
#: Chance for four questions that share scores: the two that belong together are the highest once in six
#: (Winoground, arXiv:2204.03162, Table 3).
SIXTH = 1 / 6
NO_CAPTION = "the caption is empty", "it has no caption"
#: Of two questions that belong together, which are answered right.
OUTCOMES = ("both", "first alone", "second alone", "neither")
RECALLS = [f"{name}@{k}" for name in ("recall", *BASELINES) for k in retrieval.KS]
_NO_RANK: dict[str, Any] = dict.fromkeys(("rank", "tied", "score", *RECALLS))


def retrieval_rows(
    task: records.RetrievalTask,
    pictures: Encoded,
    texts: Encoded,
    *,
    scale: float = 1.0,
    bias: float = 0.0,
    protocol: str = "fixed",
) -> Iterator[dict[str, Any]]:
    """One row per caption (text_to_image) and per picture (image_to_text), of either kind.

    protocol  Where a caption is looked for. "fixed": among every picture of the task that could be encoded,
              once, so that both kinds of captions search the same gallery. "paper": among the rows of the
              caption's own file, as released. It also decides ties (`retrieval.Ranks.recall`).

    A caption that occurs for two pictures is two captions."""
    choose("protocol", protocol, retrieval.PROTOCOLS)
    for kind in (task.original, task.negated):
        items = [item for item in kind if item.image]
        gallery, entries = [item.image for item in items], list(range(len(items)))
        if protocol == "fixed":
            gallery = task.references
            number = {name: index for index, name in enumerate(gallery)}
            entries = [number[item.image] for item in items]
        readable = [index for index, name in enumerate(gallery) if name in pictures.rows]
        column = {index: number for number, index in enumerate(readable)}
        captions = (
            (column[entry], texts.rows[text])
            for item, entry in zip(items, entries, strict=True)
            if entry in column
            for text in item.captions
            if not _why_not(text, texts)
        )
        targets, caption_rows = np.fromiter(captions, np.dtype((np.int64, 2))).T
        queries = iter(range(len(caption_rows)))
        to_image: Callable[[int | None], Row | None] = _nothing
        to_text = to_image
        if len(caption_rows):
            picture_rows = np.array([pictures.rows[gallery[index]] for index in readable])
            sides = texts.features, pictures.features, caption_rows, picture_rows, targets
            to_image, to_text = (
                _values(ranks, alone, scale, bias, protocol)
                for ranks, alone in zip(retrieval.ranks(*sides), retrieval.baselines(*sides), strict=True)
            )
        seen: set[int] = set()
        for item, entry in zip(items, entries, strict=True):
            subject = {"item": item.id, "source": item.cluster, "kind": item.kind}
            unreadable = pictures.reasons.get(item.image, "")
            for k, text in enumerate(item.captions):
                why = _why_not(text, texts)
                found = to_image(next(queries) if entry in column and not why else None)
                yield _row(f"{item.id}#{k}", subject, TEXT_TO_IMAGE, found, unreadable or why)
            if entry not in seen:  # else another row about the same picture, which is one query
                seen.add(entry)
                why = "none of its captions could be encoded" if item.captions else NO_CAPTION[1]
                found = to_text(column.get(entry))
                yield _row(item.id, subject, IMAGE_TO_TEXT, found, unreadable or why)


def _why_not(text: str, texts: Encoded) -> str:
    return texts.reasons.get(text, "") if text.strip() else NO_CAPTION[0]


def _nothing(query: int | None) -> Row | None:
    return None


def _values(
    ranks: retrieval.Ranks, baselines: Mapping[str, retrieval.Ranks], scale: float, bias: float, protocol: str
) -> Callable[[int | None], Row | None]:
    """The number of a query -> the values of its row; None for no query, or one without an own entry."""
    recalls = {
        f"{name}@{k}": places.recall(k, protocol)
        for name, places in {"recall": ranks, **baselines}.items()
        for k in retrieval.KS
    }

    def values(i: int | None) -> Row | None:
        if i is None or not ranks.relevant[i]:
            return None
        score = float(scale * float(ranks.best[i]) + bias)
        found = {"rank": int(ranks.better[i]) + 1, "tied": int(ranks.tied[i]), "score": score}
        return {**found, **{name: float(values[i]) for name, values in recalls.items()}}

    return values


def _row(
    name: str, subject: Mapping[str, Any], direction: str, values: Mapping[str, Any] | None, reason: str
) -> dict[str, Any]:
    row = {"id": name, **subject, "direction": direction, **(values or _NO_RANK)}
    return {**row, "reason": "" if values else reason}


def choice_rows(
    task: records.ChoiceTask,
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

    features  "unnormalised": options are compared by products of features as they are, as the released code
              did at first."""
    if features != "normalised":
        scale, bias = 1.0, 0.0
    mean_picture = retrieval.mean(pictures.features, None, features)
    mean_text = retrieval.mean(texts.features, None, features)
    for question in task.questions:
        order = asking.order(question, seed, protocol)
        images, captions = question.images, question.texts
        why = (*map(pictures.reasons.get, images), *map(texts.reasons.get, captions))
        if reason := next(filter(None, why), ""):
            yield {**_choice(question, order, None, reason), "scores": None, **dict.fromkeys(BASELINES)}
            continue
        seen = prepare(pictures.features[[pictures.rows[name] for name in images]], features)  # (options, D)
        read = prepare(texts.features[[texts.rows[text] for text in captions]], features)
        scores = products(seen, read)
        shares = asking.shares(scores, order, protocol).tolist()
        own = [float(scale * float(x) + bias) for x in scores]
        baselines: dict[str, float | None] = {}
        alone = {TEXT_ONLY: products(mean_picture, read), PICTURE_ONLY: products(seen, mean_text)}
        for name, blind in alone.items():
            share = float(asking.shares(blind, order, protocol)[question.correct])
            baselines[name] = None if protocol == "paper" and _alike(blind) else share
        yield {**_choice(question, order, shares), "scores": own, **baselines}


def asked_rows(
    task: records.ChoiceTask,
    answers: Mapping[str, Mapping[str, Any]],
    baselines: Baselines = (),
    *,
    protocol: str = "fixed",
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """One row per question, from rows of `asking.asking` or `asking.scoring` by id.

    baselines  (questions asked in place of the task's, their rows by id). A question whose options are all
               alike is not asked, and the baseline is what guessing gets."""
    for question in task.questions:
        answer, order = answers[question.id], asking.order(question, seed, protocol)
        shares = _shares(len(question.options), answer)
        alone: dict[str, float | None] = {}
        for distinct, given in baselines:
            stand_in = distinct.standing.get(question.id)
            if stand_in is None:
                values: list[float] | None = [1 / len(question.options)] * len(question.options)
            elif stand_in.id not in given:
                continue
            elif (values := _shares(len(stand_in.options), given[stand_in.id])) is not None:
                values = distinct.same_order(question, stand_in, values)
            if values is not None and "scores" in answer:
                tie = protocol == "paper" and _alike(values)
                values = None if tie else asking.shares(values, order, protocol).tolist()
            alone[distinct.name] = None if values is None else float(values[question.correct])
        if shares is not None and "scores" in answer:
            shares = asking.shares(shares, order, protocol).tolist()
        facts = {key: answer[key] for key in ("scores", "answer", "letter", "failed") if key in answer}
        reason = answer["reason"] if shares is None else ""
        yield {**_choice(question, order, shares, reason), **facts, **alone}


def _shares(options: int, answer: Mapping[str, Any]) -> list[float] | None:
    """The scores of the options, or the choice as shares of them; None where there is none."""
    if "scores" in answer:
        return answer["scores"]
    return None if answer["chosen"] is None else [float(k == answer["chosen"]) for k in range(options)]


def _choice(
    question: records.Question, shown: list[int], shares: list[float] | None, reason: str = ""
) -> dict[str, Any]:
    return {
        "id": question.id, "source": question.cluster, "type": question.type,
        "templates": [option.template for option in question.options], "correct": question.correct,
        "groups": [list(group) for group in question.groups], "difficulty": dict(question.difficulty),
        "shown": shown, "shares": shares,
        "credit": None if shares is None else float(shares[question.correct]), "reason": reason,
    }  # fmt: skip


table = functools.partial(ScoreTable.of, details=DETAILS)


def of_task(task: records.Task, rows: Iterable[Row]) -> Iterator[Row]:
    """The rows of the table from those of a task."""
    what = {"task": task.what, "variant": task.variant}
    if not isinstance(task, records.ChoiceTask):
        figures = of_judged(rows) if task.asked else of_retrieval(rows)
    else:
        words = task.questions[0].texts if task.questions else []
        figures = of_choices(rows, known=task.kind != BINARY, asked=words == [YES, NO])
    return ({**what, **row} for row in figures)


def of_retrieval(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        what = {key: row[key] for key in ("id", "source", "kind", "direction", "item")}
        failed = "yes" if row["reason"] not in ("", *NO_CAPTION) else None
        what |= {"reason": row["reason"] or None, "failed": failed}
        for metric in RECALLS:
            yield {**what, "metric": metric, "value": row[metric]}


def of_judged(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        metric = "satisfied" if row["asked"] else "without"
        what = {"id": f"{row['id']}.{row['rank']}", "item": row["id"]}
        what |= {"source": row["source"], "kind": row["kind"], "value": row["absent"]}
        what |= {"reason": row["reason"] or None, "failed": "yes" if row.get("failed") else None}
        for k in retrieval.KS:
            if row["rank"] < k:
                yield {**what, "metric": f"{metric}@{k}"}


def of_choices(rows: Iterable[Row], known: bool = True, asked: bool = False) -> Iterator[Row]:
    """known: whether anything is known of the options but which is right. asked: they are yes and no."""
    groups: dict[str, dict[tuple[str, int], list[Row]]] = {}  # score -> (name, size)
    for row in rows:
        what = {key: row[key] for key in ("id", "source")} | {"type": row["type"] if known else None}
        made_as = "/".join((template or "") if known else "" for template in row["templates"])
        chosen, reason = None, row["reason"] or None
        if row["shares"] is not None:
            taken = zip(row["templates"], row["shares"], strict=True)
            chosen = "/".join(template or "" for template, share in taken if share > 0)
        failed = "yes" if row.get("failed", row["reason"]) else None
        yield {
            **what, "value": row["credit"], "reason": reason, "templates": made_as, "chosen": chosen,
            "failed": failed, "alike": "yes" if _alike(row.get("scores")) else None,
            "first": "yes" if row["shown"][0] == row["correct"] else None,
            "answer": "no" if asked and row["correct"] else "yes" if asked else None,
        }  # fmt: skip
        for name in BASELINES:
            if name in row:
                why = reason or (None if row[name] is not None else "not read, or all options score alike")
                yield {**what, "metric": name, "value": row[name], "reason": why}
        for score, name, size in row["groups"]:
            groups.setdefault(score, {}).setdefault((name, size), []).append(row)
    for score, by_name in groups.items():
        for (name, size), group in by_name.items():
            if len(group) == size:  # others were cut off
                yield from _of_group(score, name, group)


def _alike(scores: Sequence[float] | np.ndarray | None) -> bool:
    """Whether a choice says nothing; under "paper" the first option, nearly always the right one, gets it."""
    return scores is not None and bool(np.ptp(scores) == 0)


def _of_group(score: str, name: str, group: Sequence[Row]) -> Iterator[Row]:
    """A group with an unscored question is unscored."""
    lost = next((row for row in group if row["credit"] is None), None)
    what = {"id": name, "source": (lost or group[0])["source"], "type": score}

    def joint(wrong: Sequence[bool]) -> float | None:
        if lost is not None:
            return None
        credits = [row["credit"] for row in group]
        return float(np.prod([1 - right if no else right for right, no in zip(credits, wrong, strict=True)]))

    measured = {**what, "reason": None if lost is None else lost["reason"]}
    difficulty = json.dumps(group[0]["difficulty"]) if len(group) == 4 else None
    value = joint([False] * len(group))
    yield {**measured, "metric": "joint", "value": value, "difficulty": difficulty}
    # also where the four questions of GROUP belong together by another name
    four = len(group) == 4 and all(GROUP in {kind for kind, _, _ in row["groups"]} for row in group)
    guessed = SIXTH if four or score == GROUP else float(np.prod([1 / len(r["templates"]) for r in group]))
    yield {**what, "metric": "joint chance", "value": guessed}
    if len(group) == 2:
        for k, outcome in enumerate(OUTCOMES):
            falls = joint((k >= 2, k in (1, 3)))
            yield {**measured, "metric": "pair", "outcome": outcome, "value": falls}
    if score not in (GROUP, ALL_FOUR) or len(group) != 4:
        return
    # a minimal pair: a caption that affirms and one that denies, each picture and caption once
    places, choosing = {_place(row) for row in group}, [row for row in group if _chooses(row)]
    if len(places) == (2 if choosing else 4) and {row["type"] for row in group} == {
        records.AFFIRMATION,
        records.NEGATION,
    }:
        answers = all("answer" in row for row in choosing)
        for index, value in enumerate(_cells(group).flat):
            lacks = None if np.isfinite(value) else "a score of the pair is lacking"
            cell = {**what, "source": group[0]["source"], "outcome": str(index), "reason": lacks}
            metric = "answer cell" if answers else "cell"
            yield {**cell, "metric": metric, "value": None if lacks else float(value)}


def _chooses(row: Row) -> bool:
    """Whether it is a picture that chooses between the two captions."""
    return set(row["templates"]) == {records.AFFIRMATION, records.NEGATION}


def _place(row: Row) -> tuple[int, int]:
    """(caption, picture) that a question is about, 0 for the affirming caption and what it is true of."""
    caption = int(row["type"] == records.NEGATION)
    true = row["correct"] == 0 if row["templates"][0] is None else True
    return caption, caption if true else 1 - caption


def _cells(four: Sequence[Row]) -> np.ndarray:
    """(2, 2) scores [caption, picture]; NaN where one is lacking."""
    cells = np.full((2, 2), np.nan)
    for row in four:
        caption, picture = _place(row)
        if _chooses(row) and row.get("scores") is not None:
            affirms = row["templates"].index(records.AFFIRMATION)
            cells[:, picture] = row["scores"][affirms], row["scores"][1 - affirms]
        elif row["templates"][0] is None and row["shares"] is not None:
            cells[caption, picture] = row["shares"][0]
    return cells
