"""Scores from features and answers: a row per caption, image and question, then the table of scores.

Retrieval row: id, item, source, kind, direction, reason, and the recalls, also of the baselines
("text only@1"). Rows of judged retrieval: `judged.rows_of`. Choice row: `choice_row`. A row without a value
says why. Metrics of the table are those of `estimates`, of single samples, and

cell, answer cell      of minimal pairs the four scores, or yes (1) and no (0), in the order of `two_way`
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nein.benchmarks import baselines
from nein.benchmarks.baselines import BASELINES, PICTURE_ONLY, TEXT_ONLY
from nein.benchmarks.negbench import judged, retrieval
from nein.benchmarks.negbench.retrieval import Ranks
from nein.benchmarks.negbench.stages import Distinct, Encoded, ModelTasks, order
from nein.datasets.negbench import records
from nein.datasets.negbench.other_tests import ALL_FOUR, GROUP, NO, YES
from nein.datasets.negbench.records import AFFIRMATION, NEGATION, ChoiceTask, Question, RetrievalTask
from nein.datasets.negbench.registry import BINARY
from nein.engine.folder import Row
from nein.metrics.dual import prepare, products
from nein.reporting.scores import ScoreTable

TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text_to_image", "image_to_text"
#: Columns of the table. item: what original and negated captions share, or what one query found. templates,
#: chosen: of the options, and of those that a choice fell on, separated by "/". difficulty: JSON. failed:
#: a model or the reading of a picture failed, which the next command tries again. alike: all options score
#: the same. first: the right option is shown first. answer: of yes/no questions the right one.
_DETAILS = "task kind direction item type templates chosen outcome difficulty failed alike first answer"
DETAILS = tuple(_DETAILS.split())
#: Chance for four questions that share scores: the two that belong together are the highest once in six
#: (Winoground, arXiv:2204.03162, Table 3).
SIXTH = 1 / 6
NO_CAPTION = "the caption is empty", "it has no caption"
#: Of two questions that belong together, which are answered right.
OUTCOMES = ("both", "first alone", "second alone", "neither")
RECALLS = [f"{name}@{k}" for name in ("recall", *BASELINES) for k in retrieval.KS]


# --- rows of a task --------------------------------------------------------------------------------


def make_scores(asked: ModelTasks) -> ScoreTable:
    """The table of scores; the manifest gets the count of captions that were cut."""
    if asked.kind == "dual":
        asked.folder.update(cut=asked.count_cut())
    return table(row for task in asked.tasks for row in of_task(task, rows(asked, task), asked.whole(task)))


def rows(asked: ModelTasks, task: Any) -> Iterator[Row]:
    """Of a task, from the blocks."""
    config, folder = asked.config, asked.folder
    how: Row = {"protocol": config.protocol}
    if isinstance(task, RetrievalTask) and task.asked:
        ids = {query.id for query, _ in judged.unfound(task)}
        found = folder.rows(judged.verdicts(task), asked.blocks(task).numbers)
        yield from (row for row in found if row["id"] in ids)
    elif isinstance(task, RetrievalTask):
        yield from retrieval_rows(task, *asked.features(task), **how)
    elif asked.kind == "dual":
        model = folder.models()["model"]
        how |= {"features": config.features, "scale": model["scale"], "bias": model["bias"]}
        yield from choice_rows(task, *asked.features(task), seed=config.seed, **how)
    else:
        answers: list[tuple[Any, dict[str, Row]]] = []
        for stage, distinct in asked.askings(task):
            made = folder.rows(stage.name, stage.blocks.numbers if stage.task.questions else ())
            answers.append((distinct, {row["id"]: row for row in made}))
        yield from asked_rows(task, answers[0][1], answers[1:], seed=config.seed, **how)


def retrieval_rows(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, *, protocol: str = "fixed"
) -> Iterator[Row]:
    """One row per caption (text_to_image) and per image (image_to_text), of either kind.

    protocol  Where a caption is looked for. "fixed": among every image of the task that could be encoded,
              once, so that both kinds of captions search the same gallery. "paper": among the rows of the
              caption's own file, as released. It also decides ties (`retrieval.Ranks.recall`).

    A caption that occurs for two images is two captions."""
    for kind in (task.original, task.negated):
        items = [item for item in kind if item.image]
        gallery, entries = [item.image for item in items], list(range(len(items)))  # entry of every item
        if protocol == "fixed":
            gallery = task.references
            places = {name: index for index, name in enumerate(gallery)}
            entries = [places[item.image] for item in items]
        readable = [index for index, name in enumerate(gallery) if name in pictures.rows]
        column = {index: number for number, index in enumerate(readable)}
        reasons = [[_why_not(text, texts) for text in item.captions] for item in items]
        usable = [
            (text, column[entry])
            for item, entry, whys in zip(items, entries, reasons, strict=True)
            for text, why in zip(item.captions, whys, strict=True)
            if entry in column and not why
        ]
        to_image: Iterator[Row | None] = iter(())
        to_text: list[Row | None] = [None] * len(readable)
        if usable:
            caption_rows, targets = np.array([(texts.rows[text], target) for text, target in usable]).T
            shown = np.array([pictures.rows[gallery[index]] for index in readable])
            sides = texts.features, pictures.features, caption_rows, shown, targets
            both = zip(retrieval.ranks(*sides), retrieval.baselines(*sides), strict=True)
            first, to_text = (_recalls({"recall": own, **alone}, protocol) for own, alone in both)
            to_image = iter(first)
        seen = set[int]()
        for item, entry, whys in zip(items, entries, reasons, strict=True):
            what = {"item": item.id, "source": item.cluster, "kind": item.kind}
            unreadable = pictures.reasons.get(item.image, "")
            for k, why in enumerate(whys):
                recalls = next(to_image) if entry in column and not why else None
                named = {"id": f"{item.id}#{k}", **what, "direction": TEXT_TO_IMAGE}
                yield named | (recalls or _unranked(unreadable or why))
            if entry not in seen:  # else another row about the same image, which is one query
                seen.add(entry)
                why = "none of its captions could be encoded" if item.captions else NO_CAPTION[1]
                recalls = to_text[column[entry]] if entry in column else None
                named = {"id": item.id, **what, "direction": IMAGE_TO_TEXT}
                yield named | (recalls or _unranked(unreadable or why))


def _why_not(text: str, texts: Encoded) -> str:
    return texts.reasons.get(text, "") if text.strip() else NO_CAPTION[0]


def _unranked(reason: str) -> Row:
    return {**dict.fromkeys(RECALLS), "reason": reason}


def _recalls(ranks: Mapping[str, Ranks], protocol: str) -> list[Row | None]:
    """Of each query; None of one without an own entry."""
    columns = [places.recall(k, protocol).tolist() for places in ranks.values() for k in retrieval.KS]
    values = (dict(zip(RECALLS, row, strict=True), reason="") for row in zip(*columns, strict=True))
    return [row if own else None for own, row in zip(ranks["recall"].relevant, values, strict=True)]


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
) -> Iterator[Row]:
    """One row per question, answered by the score of every option with the image.

    features  "unnormalised": options are compared by products of features as they are, as the released code
              did at first."""
    if features != "normalised":
        scale, bias = 1.0, 0.0
    mean_picture = retrieval.mean(pictures.features, None, features)  # (D,)
    mean_text = retrieval.mean(texts.features, None, features)  # (D,)
    for question in task.questions:
        why = (*map(pictures.reasons.get, question.images), *map(texts.reasons.get, question.texts))
        if reason := next(filter(None, why), ""):
            given, alone = Row(scores=None, reason=reason), Row.fromkeys(BASELINES)
            yield choice_row(question, given, alone, protocol=protocol, seed=seed)
            continue
        seen = prepare(pictures.features[[pictures.rows[name] for name in question.images]], features)
        read = prepare(texts.features[[texts.rows[text] for text in question.texts]], features)
        given = {"scores": products(seen, read), "reason": ""}  # of (options, D) both
        alone = {TEXT_ONLY: products(mean_picture, read), PICTURE_ONLY: products(seen, mean_text)}
        row = choice_row(question, given, alone, protocol=protocol, seed=seed)
        yield {**row, "scores": [float(scale * float(x) + bias) for x in given["scores"]]}


def asked_rows(
    task: ChoiceTask,
    answers: Mapping[str, Row],
    unseen: Sequence[tuple[Distinct, Mapping[str, Row]]] = (),
    *,
    protocol: str = "fixed",
    seed: int = 0,
) -> Iterator[Row]:
    """One row per question, from rows of `stages.Questions` by id.

    unseen  Of each baseline (questions asked in place of the task's, their rows by id). A question whose
            options are all alike is not asked, and the baseline is what guessing gets."""
    for question in task.questions:
        alone: dict[str, Sequence[float] | None] = {}
        for distinct, given in unseen:
            stand_in = distinct.standing.get(question.id)
            if stand_in is None:
                alone[distinct.name] = [1 / len(question.options)] * len(question.options)
            elif stand_in.id in given:
                values = _values(stand_in, given[stand_in.id])
                same = None if values is None else distinct.same_order(question, stand_in, values)
                alone[distinct.name] = same
        yield choice_row(question, answers[question.id], alone, protocol=protocol, seed=seed)


def choice_row(
    question: Question,
    given: Mapping[str, Any],
    alone: Mapping[str, Sequence[float] | np.ndarray | None],
    *,
    protocol: str,
    seed: int,
) -> Row:
    """given: `scores` of the options, or `chosen`, and the reason where there is none. alone: of a baseline
    that was asked the scores, or the choice as shares; under "paper" all-equal scores are none."""
    shown = order(question, seed, protocol)
    shares, by_score = _values(question, given), "scores" in given
    credits: dict[str, float | None] = {}
    for name, values in alone.items():
        if values is not None and by_score:
            values = None if protocol == "paper" and _alike(values) else fall(values, shown, protocol)
        credits[name] = None if values is None else float(values[question.correct])
    if shares is not None and by_score:
        shares = fall(shares, shown, protocol).tolist()
    return {
        "id": question.id,
        "source": question.cluster,
        "type": question.type,
        "correct": question.correct,
        "templates": [option.template for option in question.options],
        "shown": shown,
        "shares": shares,
        "groups": [list(group) for group in question.groups],
        "difficulty": dict(question.difficulty),
        **{key: given[key] for key in ("scores", "answer", "letter", "failed") if key in given},
        **credits,
        "credit": None if shares is None else float(shares[question.correct]),
        "reason": given["reason"] if shares is None else "",
    }


def _values(question: Question, given: Mapping[str, Any]) -> Any:
    """The scores of the options, or the choice as shares of them; None where there is none."""
    if "scores" in given:
        return given["scores"]
    chosen = given["chosen"]
    return None if chosen is None else [float(k == chosen) for k in range(len(question.options))]


def fall(scores: Sequence[float] | np.ndarray, shown: Sequence[int], protocol: str = "fixed") -> np.ndarray:
    """(C,) float64, adding up to 1: how a choice falls on the options, in the data's order, as are the (C,)
    finite scores; `shown`: see `stages.order`. `torch.argmax` is documented to take the first."""
    x = np.asarray(scores, dtype=np.float64)
    if protocol == "paper":
        return np.eye(len(x))[shown[int(np.argmax(x[list(shown)]))]]
    top = x == x.max()
    return top / top.sum()


# --- rows of the table -----------------------------------------------------------------------------

table = functools.partial(ScoreTable.from_rows, details=DETAILS)


def of_task(task: records.Task, rows: Iterable[Row], whole: records.Task | None = None) -> Iterator[Row]:
    """The rows of the table from those of a task. whole: without a limit, what a text reader learns from."""
    if isinstance(task, ChoiceTask):
        known = task.kind != BINARY
        yes_no = bool(task.questions) and task.questions[0].texts == [YES, NO]
        read = of_reader(whole, task) if isinstance(whole, ChoiceTask) else ()
        figures: Iterable[Row] = (*of_choices(rows, known=known, asked=yes_no), *read)
    else:
        figures = of_judged(rows) if task.asked else of_retrieval(rows)
    return ({"task": task.what, "variant": task.variant, **row} for row in figures)


def of_reader(whole: ChoiceTask, task: ChoiceTask) -> Iterator[Row]:
    """Of the text reader, about the questions that are asked."""
    learned = {}
    for question in whole.questions:
        # Both images of a pair of HardNeg-Syn, positive/7_img.png and negative/7_img.png, are one scene.
        scene = re.sub("^(positive|negative)/", "", question.cluster)
        words = question.asked, tuple(question.texts)
        learned[question.id] = baselines.Question(*words, question.correct, scene)
    right = baselines.read_texts(learned)
    for question in task.questions if right else ():
        what = {"id": question.id, "source": question.cluster, "metric": baselines.TEXT_READER}
        kind = question.type if task.kind != BINARY else None
        yield {**what, "type": kind, "value": right[question.id]}


def of_retrieval(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        what = {key: row[key] for key in ("id", "source", "kind", "direction", "item")}
        failed = "yes" if row["reason"] not in ("", *NO_CAPTION) else None
        what |= {"reason": row["reason"] or None, "failed": failed}
        for metric in RECALLS:
            yield {**what, "metric": metric, "value": row[metric]}


def of_judged(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        what = {
            "id": f"{row['id']}.{row['rank']}",
            "item": row["id"],
            "source": row["source"],
            "kind": row["kind"],
            "value": row["absent"],
            "reason": row["reason"] or None,
            "failed": "yes" if row.get("failed") else None,
        }
        metric = "satisfied" if row["asked"] else "without"
        yield from ({**what, "metric": f"{metric}@{k}"} for k in retrieval.KS if row["rank"] < k)


def of_choices(rows: Iterable[Row], known: bool = True, asked: bool = False) -> Iterator[Row]:
    """known: whether anything is known of the options but which is right. asked: they are yes and no."""
    groups: dict[str, dict[tuple[str, int], list[Row]]] = {}  # score -> (name, size) -> its questions
    for row in rows:
        what = {"id": row["id"], "source": row["source"], "type": row["type"] if known else None}
        shares, reason = row["shares"], row["reason"] or None
        taken = [t or "" for t, share in zip(row["templates"], shares or (), strict=False) if share > 0]
        yield {
            **what,
            "value": row["credit"],
            "reason": reason,
            "templates": "/".join((template or "") if known else "" for template in row["templates"]),
            "chosen": None if shares is None else "/".join(taken),
            "failed": "yes" if row.get("failed", row["reason"]) else None,
            "alike": "yes" if _alike(row.get("scores")) else None,
            "first": "yes" if row["shown"][0] == row["correct"] else None,
            "answer": None if not asked else "no" if row["correct"] else "yes",
        }
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
    measured = {**what, "reason": None if lost is None else lost["reason"]}
    difficulty = json.dumps(group[0]["difficulty"]) if len(group) == 4 else None
    value = _joint(group, [False] * len(group))
    yield {**measured, "metric": "joint", "value": value, "difficulty": difficulty}
    # also where the four questions of GROUP belong together by another name
    four = len(group) == 4 and all(GROUP in {kind for kind, _, _ in row["groups"]} for row in group)
    guessed = SIXTH if four or score == GROUP else float(np.prod([1 / len(r["templates"]) for r in group]))
    yield {**what, "metric": "joint chance", "value": guessed}
    if len(group) == 2:
        for k, outcome in enumerate(OUTCOMES):
            value = _joint(group, (k >= 2, k in (1, 3)))
            yield {**measured, "metric": "pair", "outcome": outcome, "value": value}
    if score not in (GROUP, ALL_FOUR) or len(group) != 4:
        return
    # a minimal pair: a caption that affirms and one that denies, each picture and caption once
    places, choosing = {_place(row) for row in group}, [row for row in group if _chooses(row)]
    kinds = {row["type"] for row in group}
    if len(places) == (2 if choosing else 4) and kinds == {AFFIRMATION, NEGATION}:
        metric = "answer cell" if all("answer" in row for row in choosing) else "cell"
        for index, value in enumerate(_cells(group).flat):
            lacks = None if np.isfinite(value) else "a score of the pair is lacking"
            cell = {**what, "source": group[0]["source"], "outcome": str(index), "reason": lacks}
            yield {**cell, "metric": metric, "value": None if lacks else float(value)}


def _joint(group: Sequence[Row], wrong: Sequence[bool]) -> float | None:
    """The share of choices that are right, or `wrong`, in every question of a group."""
    credits = [row["credit"] for row in group]
    if None in credits:
        return None
    return float(np.prod([1 - right if no else right for right, no in zip(credits, wrong, strict=True)]))


def _chooses(row: Row) -> bool:
    """Whether it is a picture that chooses between the two captions."""
    return set(row["templates"]) == {AFFIRMATION, NEGATION}


def _place(row: Row) -> tuple[int, int]:
    """(caption, picture) that a question is about, 0 for the affirming caption and what it is true of."""
    caption = int(row["type"] == NEGATION)
    true = row["correct"] == 0 if row["templates"][0] is None else True
    return caption, caption if true else 1 - caption


def _cells(four: Sequence[Row]) -> np.ndarray:
    """(2, 2) scores [caption, picture]; NaN where one is lacking."""
    cells = np.full((2, 2), np.nan)
    for row in four:
        caption, picture = _place(row)
        if _chooses(row) and row.get("scores") is not None:
            affirms = row["templates"].index(AFFIRMATION)
            cells[:, picture] = row["scores"][affirms], row["scores"][1 - affirms]
        elif row["templates"][0] is None and row["shares"] is not None:
            cells[caption, picture] = row["shares"][0]
    return cells
