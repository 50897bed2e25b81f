"""From features and answers to the table of scores, in two steps: a row per caption, image and question
(`read_rows`), then a row per metric (`make_table_rows`).

Retrieval row: id, item, source, kind, direction, reason, and the recalls, also of the baselines
("text only@1"). Rows of judged retrieval: `judged.make_verdict_rows`. Choice row: `make_choice_row`. A row
without a value has a reason. Metrics of the table are those of `estimates`, of single samples, and

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
#: Columns of the table. item: joins original and negated captions, or the images of one query. templates,
#: chosen: of the options, and of the chosen ones, separated by "/". difficulty: JSON. failed: the model or an
#: image failed, and the next command tries again. alike: all options score the same. first: the right
#: option is shown first. answer: the right answer to a yes/no question.
_DETAILS = "task kind direction item type templates chosen outcome difficulty failed alike first answer"
DETAILS = tuple(_DETAILS.split())
#: Chance that four questions which share their scores are all right: in one of six orders the two true pairs
#: score highest (Winoground, arXiv:2204.03162, Table 3).
SIXTH = 1 / 6
NO_CAPTION = "the caption is empty", "it has no caption"
#: Which of two questions that belong together are answered right.
OUTCOMES = ("both", "first alone", "second alone", "neither")
RECALLS = [f"{name}@{k}" for name in ("recall", *BASELINES) for k in retrieval.KS]


# --- rows of a task --------------------------------------------------------------------------------


def make_scores(model_tasks: ModelTasks) -> ScoreTable:
    """The table of scores of a run; its manifest gets the number of truncated captions."""
    if model_tasks.kind == "dual":
        model_tasks.folder.update(cut=model_tasks.count_cut())
    return table(
        row
        for task in model_tasks.tasks
        for row in make_table_rows(task, read_rows(model_tasks, task), model_tasks.find_complete(task))
    )


def read_rows(model_tasks: ModelTasks, task: Any) -> Iterator[Row]:
    """The rows of a task, made from the run's blocks."""
    config, folder = model_tasks.config, model_tasks.folder
    options: Row = {"protocol": config.protocol}
    if isinstance(task, RetrievalTask) and task.asked:  # judged by the questions of the test
        ids = {query.id for query, _ in judged.list_unsearched(task)}
        verdict_rows = folder.rows(judged.name_output(task), model_tasks.blocks(task).numbers)
        yield from (row for row in verdict_rows if row["id"] in ids)
    elif isinstance(task, RetrievalTask):
        yield from score_retrieval(task, *model_tasks.features(task), **options)
    elif model_tasks.kind == "dual":
        model = folder.models()["model"]
        options |= {"features": config.features, "scale": model["scale"], "bias": model["bias"]}
        yield from score_choices(task, *model_tasks.features(task), seed=config.seed, **options)
    else:
        answers: list[tuple[Any, dict[str, Row]]] = []
        for stage, distinct in model_tasks.askings(task):
            answer_rows = folder.rows(stage.name, stage.blocks.numbers if stage.task.questions else ())
            answers.append((distinct, {row["id"]: row for row in answer_rows}))
        yield from score_answers(task, answers[0][1], answers[1:], seed=config.seed, **options)


def score_retrieval(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, *, protocol: str = "fixed"
) -> Iterator[Row]:
    """One row per caption (text_to_image) and per image (image_to_text), of either kind.

    protocol  Where a caption is looked for. "fixed": among every image of the task that could be encoded,
              once, so that both kinds of captions search the same gallery. "paper": among the rows of the
              caption's own file, as released. It also decides ties (`retrieval.Ranks.recall`).

    A caption that occurs for two images is two captions."""
    for kind in (task.original, task.negated):
        items = [item for item in kind if item.image]
        gallery, entries = [item.image for item in items], list(range(len(items)))  # each item's entry
        if protocol == "fixed":
            gallery = task.references
            entry_of = {name: index for index, name in enumerate(gallery)}
            entries = [entry_of[item.image] for item in items]
        readable = [index for index, name in enumerate(gallery) if name in pictures.rows]  # (G,) entries
        column = {index: number for number, index in enumerate(readable)}  # entry -> column of the scores
        reasons = [[_why_not(text, texts) for text in item.captions] for item in items]
        usable = [  # captions with a feature, whose image has one
            (text, column[entry])
            for item, entry, whys in zip(items, entries, reasons, strict=True)
            for text, why in zip(item.captions, whys, strict=True)
            if entry in column and not why
        ]
        to_image: Iterator[Row | None] = iter(())
        to_text: list[Row | None] = [None] * len(readable)
        if usable:
            caption_rows, targets = np.array(
                [(texts.rows[text], target) for text, target in usable]
            ).T  # (N,)
            gallery_rows = np.array([pictures.rows[gallery[index]] for index in readable])  # (G,)
            inputs = texts.features, pictures.features, caption_rows, gallery_rows, targets
            directions = zip(retrieval.rank(*inputs), retrieval.rank_baselines(*inputs), strict=True)
            of_captions, to_text = (
                _make_recalls({"recall": ranks, **baseline_ranks}, protocol)
                for ranks, baseline_ranks in directions
            )
            to_image = iter(of_captions)
        queried = set[int]()
        for item, entry, whys in zip(items, entries, reasons, strict=True):
            labels = {"item": item.id, "source": item.cluster, "kind": item.kind}
            unreadable = pictures.reasons.get(item.image, "")
            for k, why in enumerate(whys):
                recalls = next(to_image) if entry in column and not why else None
                named = {"id": f"{item.id}#{k}", **labels, "direction": TEXT_TO_IMAGE}
                yield named | (recalls or _make_unranked(unreadable or why))
            if entry not in queried:  # an image is one query, however many items it has
                queried.add(entry)
                why = "none of its captions could be encoded" if item.captions else NO_CAPTION[1]
                recalls = to_text[column[entry]] if entry in column else None
                named = {"id": item.id, **labels, "direction": IMAGE_TO_TEXT}
                yield named | (recalls or _make_unranked(unreadable or why))


def _why_not(text: str, texts: Encoded) -> str:
    """Why a caption is no query; "" if it is one."""
    return texts.reasons.get(text, "") if text.strip() else NO_CAPTION[0]


def _make_unranked(reason: str) -> Row:
    return {**dict.fromkeys(RECALLS), "reason": reason}


def _make_recalls(ranks: Mapping[str, Ranks], protocol: str) -> list[Row | None]:
    """The recalls of each query, None if it has no own entry. ranks: "recall" or baseline -> ranks, (Q,)."""
    columns = [part.recall(k, protocol).tolist() for part in ranks.values() for k in retrieval.KS]
    values = (dict(zip(RECALLS, row, strict=True), reason="") for row in zip(*columns, strict=True))
    return [row if count else None for count, row in zip(ranks["recall"].relevant, values, strict=True)]


def score_choices(
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

    features  "unnormalised": options are compared by products of features that are not normalised, as in the
              first release of the authors' code."""
    if features != "normalised":
        scale, bias = 1.0, 0.0
    mean_picture = retrieval.mean_feature(pictures.features, None, features)  # (D,)
    mean_text = retrieval.mean_feature(texts.features, None, features)  # (D,)
    for question in task.questions:
        reasons = (*map(pictures.reasons.get, question.images), *map(texts.reasons.get, question.texts))
        if reason := next(filter(None, reasons), ""):
            outcome, alone = Row(scores=None, reason=reason), Row.fromkeys(BASELINES)
            yield make_choice_row(question, outcome, alone, protocol=protocol, seed=seed)
            continue
        image_features = prepare(
            pictures.features[[pictures.rows[name] for name in question.images]], features
        )
        # (options, D) each: a question may show one image or one per option
        text_features = prepare(texts.features[[texts.rows[text] for text in question.texts]], features)
        outcome = {"scores": products(image_features, text_features), "reason": ""}  # (options,)
        text_only = products(mean_picture, text_features)  # (options,)
        alone = {TEXT_ONLY: text_only, PICTURE_ONLY: products(image_features, mean_text)}
        row = make_choice_row(question, outcome, alone, protocol=protocol, seed=seed)
        yield {**row, "scores": [float(scale * float(x) + bias) for x in outcome["scores"]]}


def score_answers(
    task: ChoiceTask,
    answers: Mapping[str, Row],
    unseen: Sequence[tuple[Distinct, Mapping[str, Row]]] = (),
    *,
    protocol: str = "fixed",
    seed: int = 0,
) -> Iterator[Row]:
    """One row per question, from rows of `stages.Questions` by id.

    unseen  Per baseline (the questions that stand in for the task's, their rows by id). A question whose
            options are all alike is not asked: its baseline is chance."""
    for question in task.questions:
        alone: dict[str, Sequence[float] | None] = {}
        for distinct, rows_by_id in unseen:
            stand_in = distinct.standing.get(question.id)
            if stand_in is None:
                alone[distinct.name] = [1 / len(question.options)] * len(question.options)
            elif stand_in.id in rows_by_id:
                values = _values(stand_in, rows_by_id[stand_in.id])
                same = None if values is None else distinct.reorder(question, stand_in, values)
                alone[distinct.name] = same
        yield make_choice_row(question, answers[question.id], alone, protocol=protocol, seed=seed)


def make_choice_row(
    question: Question,
    outcome: Mapping[str, Any],
    alone: Mapping[str, Sequence[float] | np.ndarray | None],
    *,
    protocol: str,
    seed: int,
) -> Row:
    """The row of a question: its options, the choice as shares of them, and the credit.

    outcome  `scores` of the options, or `chosen`, with the reason if there is none.
    alone    Baseline -> scores, or the choice as shares; under "paper" all-equal scores have no credit.
    """
    order_shown = order(question, seed, protocol)
    shares, by_score = _values(question, outcome), "scores" in outcome
    credits: dict[str, float | None] = {}
    for name, values in alone.items():
        if values is not None and by_score:
            values = (
                None
                if protocol == "paper" and _are_tied(values)
                else choose_option(values, order_shown, protocol)
            )
        credits[name] = None if values is None else float(values[question.correct])
    if shares is not None and by_score:
        shares = choose_option(shares, order_shown, protocol).tolist()
    return {
        "id": question.id,
        "source": question.cluster,
        "type": question.type,
        "correct": question.correct,
        "templates": [option.template for option in question.options],
        "shown": order_shown,
        "shares": shares,
        "groups": [list(group) for group in question.groups],
        "difficulty": dict(question.difficulty),
        **{key: outcome[key] for key in ("scores", "answer", "letter", "failed") if key in outcome},
        **credits,
        "credit": None if shares is None else float(shares[question.correct]),
        "reason": outcome["reason"] if shares is None else "",
    }


def _values(question: Question, outcome: Mapping[str, Any]) -> Any:
    """The scores of the options, or the choice as shares of them; None if the model gave neither."""
    if "scores" in outcome:
        return outcome["scores"]
    chosen = outcome["chosen"]
    return None if chosen is None else [float(k == chosen) for k in range(len(question.options))]


def choose_option(
    scores: Sequence[float] | np.ndarray, order_shown: Sequence[int], protocol: str = "fixed"
) -> np.ndarray:
    """(C,) float64 with sum 1: the choice by (C,) finite scores, as shares of the options.
    "fixed": ties share the choice. "paper": the first shown option wins, as `torch.argmax` documents."""
    x = np.asarray(scores, dtype=np.float64)
    if protocol == "paper":
        return np.eye(len(x))[order_shown[int(np.argmax(x[list(order_shown)]))]]
    top = x == x.max()
    return top / top.sum()


# --- rows of the table -----------------------------------------------------------------------------

table = functools.partial(ScoreTable.from_rows, details=DETAILS)


def make_table_rows(
    task: records.Task, rows: Iterable[Row], complete: records.Task | None = None
) -> Iterator[Row]:
    """The table rows of a task. complete: the task without a limit, on which the text reader is trained."""
    if isinstance(task, ChoiceTask):
        knows_types = task.kind != BINARY
        yes_no = bool(task.questions) and task.questions[0].texts == [YES, NO]
        read = score_text_reader(complete, task) if isinstance(complete, ChoiceTask) else ()
        figures: Iterable[Row] = (*table_choices(rows, knows_types=knows_types, is_yes_no=yes_no), *read)
    else:
        figures = table_judged(rows) if task.asked else table_retrieval(rows)
    return ({"task": task.what, "variant": task.variant, **row} for row in figures)


def score_text_reader(complete: ChoiceTask, task: ChoiceTask) -> Iterator[Row]:
    """Rows of the text reader on the questions of `task`; it is trained on those of `complete`."""
    training = {}
    for question in complete.questions:
        # Both images of a pair of HardNeg-Syn, positive/7_img.png and negative/7_img.png, are one scene.
        scene = re.sub("^(positive|negative)/", "", question.cluster)
        words = question.asked, tuple(question.texts)
        training[question.id] = baselines.Question(*words, question.correct, scene)
    values = baselines.read_texts(training)  # id -> 1.0 right, 0.0 wrong; empty: too few to learn from
    for question in task.questions if values else ():
        labels = {"id": question.id, "source": question.cluster, "metric": baselines.TEXT_READER}
        kind = question.type if task.kind != BINARY else None
        yield {**labels, "type": kind, "value": values[question.id]}


def table_retrieval(rows: Iterable[Row]) -> Iterator[Row]:
    """A table row per recall of every retrieval row."""
    for row in rows:
        labels = {key: row[key] for key in ("id", "source", "kind", "direction", "item")}
        failed = "yes" if row["reason"] not in ("", *NO_CAPTION) else None
        labels |= {"reason": row["reason"] or None, "failed": failed}
        for metric in RECALLS:
            yield {**labels, "metric": metric, "value": row[metric]}


def table_judged(rows: Iterable[Row]) -> Iterator[Row]:
    """A table row per verdict and k: an image at rank r counts for every k > r."""
    for row in rows:
        labels = {
            "id": f"{row['id']}.{row['rank']}",
            "item": row["id"],
            "source": row["source"],
            "kind": row["kind"],
            "value": row["absent"],
            "reason": row["reason"] or None,
            "failed": "yes" if row.get("failed") else None,
        }
        metric = "satisfied" if row["asked"] else "without"
        yield from ({**labels, "metric": f"{metric}@{k}"} for k in retrieval.KS if row["rank"] < k)


def table_choices(rows: Iterable[Row], knows_types: bool = True, is_yes_no: bool = False) -> Iterator[Row]:
    """Table rows of every choice row and baseline, then of the groups of questions that belong together.

    knows_types  The data have templates and types, not only the right option.
    is_yes_no    The options are yes and no.
    """
    groups: dict[str, dict[tuple[str, int], list[Row]]] = {}  # score -> (name, size) -> its questions
    for row in rows:
        labels = {"id": row["id"], "source": row["source"], "type": row["type"] if knows_types else None}
        shares, reason = row["shares"], row["reason"] or None
        chosen = [t or "" for t, share in zip(row["templates"], shares or (), strict=False) if share > 0]
        yield {
            **labels,
            "value": row["credit"],
            "reason": reason,
            "templates": "/".join((template or "") if knows_types else "" for template in row["templates"]),
            "chosen": None if shares is None else "/".join(chosen),
            "failed": "yes" if row.get("failed", row["reason"]) else None,
            "alike": "yes" if _are_tied(row.get("scores")) else None,
            "first": "yes" if row["shown"][0] == row["correct"] else None,
            "answer": None if not is_yes_no else "no" if row["correct"] else "yes",
        }
        for name in BASELINES:
            if name in row:
                why = reason or (None if row[name] is not None else "not read, or all options score alike")
                yield {**labels, "metric": name, "value": row[name], "reason": why}
        for score, name, size in row["groups"]:
            groups.setdefault(score, {}).setdefault((name, size), []).append(row)
    for score, by_name in groups.items():
        for (name, size), group in by_name.items():
            if len(group) == size:  # --limit cuts the last one
                yield from _table_group(score, name, group)


def _are_tied(scores: Sequence[float] | np.ndarray | None) -> bool:
    """Whether all scores are equal, so that the choice means nothing. Under "paper" the first option, nearly
    always the right one, would win."""
    return scores is not None and bool(np.ptp(scores) == 0)


def _table_group(score: str, name: str, group: Sequence[Row]) -> Iterator[Row]:
    """The table rows of a group of questions; with an unscored question it is unscored."""
    lost = next((row for row in group if row["credit"] is None), None)
    labels = {"id": name, "source": (lost or group[0])["source"], "type": score}
    measured = {**labels, "reason": None if lost is None else lost["reason"]}
    difficulty = json.dumps(group[0]["difficulty"]) if len(group) == 4 else None
    value = _multiply_credits(group, [False] * len(group))
    yield {**measured, "metric": "joint", "value": value, "difficulty": difficulty}
    # also if the four questions of GROUP form a group under another name
    four = len(group) == 4 and all(GROUP in {kind for kind, _, _ in row["groups"]} for row in group)
    guessed = SIXTH if four or score == GROUP else float(np.prod([1 / len(r["templates"]) for r in group]))
    yield {**labels, "metric": "joint chance", "value": guessed}
    if len(group) == 2:
        for k, outcome in enumerate(OUTCOMES):
            value = _multiply_credits(group, (k >= 2, k in (1, 3)))
            yield {**measured, "metric": "pair", "outcome": outcome, "value": value}
    if score not in (GROUP, ALL_FOUR) or len(group) != 4:
        return
    # --- a minimal pair: an affirming and a denying caption, with each of two images once
    cells, choosing = {_locate_cell(row) for row in group}, [row for row in group if _chooses(row)]
    kinds = {row["type"] for row in group}
    if len(cells) == (2 if choosing else 4) and kinds == {AFFIRMATION, NEGATION}:
        metric = "answer cell" if all("answer" in row for row in choosing) else "cell"
        for index, value in enumerate(_fill_cells(group).flat):
            reason = None if np.isfinite(value) else "a score of the pair is lacking"
            cell = {**labels, "source": group[0]["source"], "outcome": str(index), "reason": reason}
            yield {**cell, "metric": metric, "value": None if reason else float(value)}


def _multiply_credits(group: Sequence[Row], wrong: Sequence[bool]) -> float | None:
    """The product of the credits of a group; `wrong`: questions that count by the credit of wrong options."""
    credits = [row["credit"] for row in group]
    if None in credits:
        return None
    return float(np.prod([1 - right if no else right for right, no in zip(credits, wrong, strict=True)]))


def _chooses(row: Row) -> bool:
    """Whether an image chooses between the two captions; else a caption between the two images."""
    return set(row["templates"]) == {AFFIRMATION, NEGATION}


def _locate_cell(row: Row) -> tuple[int, int]:
    """(caption, image) of a question; 0: the affirming caption, and the image it is true of."""
    caption = int(row["type"] == NEGATION)
    true = row["correct"] == 0 if row["templates"][0] is None else True
    return caption, caption if true else 1 - caption


def _fill_cells(four: Sequence[Row]) -> np.ndarray:
    """(2, 2) float64 scores [caption, image] of the four questions of a minimal pair; NaN: not scored."""
    cells = np.full((2, 2), np.nan)
    for row in four:
        caption, picture = _locate_cell(row)
        if _chooses(row) and row.get("scores") is not None:
            affirms = row["templates"].index(AFFIRMATION)
            cells[:, picture] = row["scores"][affirms], row["scores"][1 - affirms]  # a column: both captions
        elif row["templates"][0] is None and row["shares"] is not None:
            cells[caption, picture] = row["shares"][0]
    return cells
