"""Scores every caption, image and question of a task, from features and answers: one row each.

Retrieval row: id, item, source, kind, direction, reason, and the recalls, also of the baselines
("text only@1"). Rows of judged retrieval: `judged.make_verdict_rows`. Choice row: `make_choice_row`. A row
without a value has a reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nein.benchmarks.baselines import BASELINES, PICTURE_ONLY, TEXT_ONLY
from nein.benchmarks.negbench import judged, retrieval
from nein.benchmarks.negbench.encoding import Encoded
from nein.benchmarks.negbench.questions import BlindTask, order_options
from nein.benchmarks.negbench.retrieval import Ranks
from nein.benchmarks.negbench.stages import ModelTasks
from nein.datasets.negbench.records import ChoiceTask, Question, RetrievalTask
from nein.engine.folder import Row
from nein.metrics.dual import prepare, products

TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text_to_image", "image_to_text"
NO_CAPTION = "the caption is empty", "it has no caption"
RECALLS = [f"{name}@{k}" for name in ("recall", *BASELINES) for k in retrieval.KS]


def read_rows(model_tasks: ModelTasks, task: Any) -> Iterator[Row]:
    """The rows of a task, made from the run's blocks."""
    config, folder = model_tasks.config, model_tasks.folder
    options: Row = {"protocol": config.protocol}
    if isinstance(task, RetrievalTask) and task.asked:  # judged by the questions of the test
        ids = {query.id for query, _ in judged.list_unsearched(task)}
        verdict_rows = folder.rows(judged.name_output(task), model_tasks.blocks(task).numbers)
        yield from (row for row in verdict_rows if row["id"] in ids)
    elif isinstance(task, RetrievalTask):
        yield from score_retrieval(task, *model_tasks.read_features(task), **options)
    elif model_tasks.kind == "dual":
        model = folder.models()["model"]
        options |= {"features": config.features, "scale": model["scale"], "bias": model["bias"]}
        yield from score_choices(task, *model_tasks.read_features(task), seed=config.seed, **options)
    else:
        answers: list[tuple[Any, dict[str, Row]]] = []
        for stage, distinct in model_tasks.ask_questions(task):
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
    unseen: Sequence[tuple[BlindTask, Mapping[str, Row]]] = (),
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
            stand_in = distinct.stand_ins.get(question.id)
            if stand_in is None:
                alone[distinct.baseline] = [1 / len(question.options)] * len(question.options)
            elif stand_in.id in rows_by_id:
                values = _values(stand_in, rows_by_id[stand_in.id])
                same = None if values is None else distinct.reorder(question, stand_in, values)
                alone[distinct.baseline] = same
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
    order_shown = order_options(question, seed, protocol)
    shares, by_score = _values(question, outcome), "scores" in outcome
    credits: dict[str, float | None] = {}
    for name, values in alone.items():
        if values is not None and by_score:
            values = (
                None
                if protocol == "paper" and are_tied(values)
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


def are_tied(scores: Sequence[float] | np.ndarray | None) -> bool:
    """Whether all scores are equal, so that the choice means nothing. Under "paper" the first option, nearly
    always the right one, would win."""
    return scores is not None and bool(np.ptp(scores) == 0)
