"""Scores every caption, image and question of a task from features and answers; `scores` makes the table of a
run from these rows.

Rows of retrieval: id, item, source, kind, direction, the recalls, also of baselines ("text only@1"), reason
(why there are none). Of judged retrieval: `judged.make_verdict_rows`. Of questions: `make_choice_row`."""

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
EMPTY_CAPTION, NO_CAPTION = "the caption is empty", "it has no caption"  # reasons that no model causes
RECALLS = [f"{name}@{k}" for name in ("recall", *BASELINES) for k in retrieval.KS]
_UNRANKED: Row = dict.fromkeys(RECALLS)


def read_rows(model_tasks: ModelTasks, task: Any) -> Iterator[Row]:
    """The rows of a task, made from the blocks of a finished run."""
    config, folder = model_tasks.config, model_tasks.folder
    options: Row = {"protocol": config.protocol, "seed": config.seed}
    if isinstance(task, RetrievalTask) and task.is_judged:  # judged by the questions of the test
        ids = {query.id for query, _ in judged.list_unsearched(task)}
        verdict_rows = folder.rows(judged.name_output(task), model_tasks.blocks(task).numbers)
        yield from (row for row in verdict_rows if row["id"] in ids)
    elif isinstance(task, RetrievalTask):
        yield from score_retrieval(task, *model_tasks.read_features(task), protocol=config.protocol)
    elif model_tasks.kind == "dual":
        model = folder.models()["model"]
        options |= {"features": config.features, "scale": model["scale"], "bias": model["bias"]}
        yield from score_choices(task, *model_tasks.read_features(task), **options)
    else:
        answers: list[tuple[Any, dict[str, Row]]] = []  # (None or the baseline, rows by id)
        for stage, blind_task in model_tasks.ask_questions(task):
            answer_rows = folder.rows(stage.name, stage.blocks.numbers if stage.task.questions else ())
            answers.append((blind_task, {row["id"]: row for row in answer_rows}))
        yield from score_answers(task, answers[0][1], answers[1:], **options)


# --- retrieval -------------------------------------------------------------------------------------
def score_retrieval(
    task: RetrievalTask, pictures: Encoded, texts: Encoded, *, protocol: str = "fixed"
) -> Iterator[Row]:
    """One row per caption (text_to_image) and per image (image_to_text), of either kind.

    protocol  Where a caption is looked for. "fixed": among every image of the task that could be encoded,
              once, so that both kinds of captions search the same gallery. "paper": among the rows of the
              caption's own file, as released. It also decides ties (`retrieval.Ranks.recall`).

    A caption that occurs for two images is two captions."""
    for items_of_kind in (task.original, task.negated):
        items = [item for item in items_of_kind if item.image]

        # The gallery, and each item's entry in it.
        if protocol == "fixed":
            gallery = task.references
            entry_of = {name: entry for entry, name in enumerate(gallery)}
            entries = [entry_of[item.image] for item in items]
        else:
            gallery, entries = [item.image for item in items], list(range(len(items)))
        readable = [entry for entry, name in enumerate(gallery) if name in pictures.rows]  # G entries
        column_of = {entry: column for column, entry in enumerate(readable)}

        # The N captions with a feature whose image has one, too.
        empty = {text for item in items for text in item.captions if not text.strip()}
        reason_of = {**texts.reasons, **dict.fromkeys(empty, EMPTY_CAPTION)}  # caption -> why it has no rank
        caption_rows, targets = list[int](), list[int]()  # rows of `texts`; columns of the own images
        for item, entry in zip(items, entries, strict=True):
            for text in item.captions:
                if entry in column_of and text not in reason_of:
                    caption_rows.append(texts.rows[text])
                    targets.append(column_of[entry])

        caption_recalls: list[Row | None] = []  # of the N captions
        image_recalls: list[Row | None] = [None] * len(readable)
        if caption_rows:
            gallery_rows = np.array([pictures.rows[gallery[entry]] for entry in readable])
            rows = np.array(caption_rows), gallery_rows, np.array(targets)
            to_image, to_text = retrieval.rank(texts.features, pictures.features, *rows)
            blind_image, blind_text = retrieval.rank_baselines(texts.features, pictures.features, *rows)
            caption_recalls = _make_recalls({"recall": to_image, **blind_image}, protocol)
            image_recalls = _make_recalls({"recall": to_text, **blind_text}, protocol)

        # The rows, in the order of the file.
        ranked_captions = iter(caption_recalls)
        queried = set[int]()  # entries: an image is one query, however many items it has
        for item, entry in zip(items, entries, strict=True):
            labels = {"item": item.id, "source": item.cluster, "kind": item.kind}
            unreadable = pictures.reasons.get(item.image, "")
            for k, text in enumerate(item.captions):
                recalls = next(ranked_captions) if entry in column_of and text not in reason_of else None
                row = {"id": f"{item.id}#{k}", **labels, "direction": TEXT_TO_IMAGE}
                yield row | (recalls or {**_UNRANKED, "reason": unreadable or reason_of.get(text, "")})
            if entry not in queried:
                queried.add(entry)
                recalls = image_recalls[column_of[entry]] if entry in column_of else None
                reason = "none of its captions could be encoded" if item.captions else NO_CAPTION
                row = {"id": item.id, **labels, "direction": IMAGE_TO_TEXT}
                yield row | (recalls or {**_UNRANKED, "reason": unreadable or reason})


def _make_recalls(ranks: Mapping[str, Ranks], protocol: str) -> list[Row | None]:
    """The recalls of each of Q queries; None if it has no own entry. ranks: "recall" or baseline -> ranks."""
    columns = {}  # "recall@1" -> Q values
    for name, query_ranks in ranks.items():
        for k in retrieval.KS:
            columns[f"{name}@{k}"] = query_ranks.recall(k, protocol).tolist()
    rows: list[Row | None] = []
    for query, own_entries in enumerate(ranks["recall"].relevant):
        recalls = {name: values[query] for name, values in columns.items()}
        rows.append({**recalls, "reason": ""} if own_entries else None)
    return rows


# --- multiple choice -------------------------------------------------------------------------------
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
        scale, bias = 1.0, 0.0  # a model's own are for cosines
    mean_picture = retrieval.mean_feature(pictures.features, None, features)  # (D,)
    mean_text = retrieval.mean_feature(texts.features, None, features)  # (D,)
    for question in task.questions:
        lost = [pictures.reasons[name] for name in question.images if name in pictures.reasons]
        lost += [texts.reasons[text] for text in question.texts if text in texts.reasons]
        if lost:
            outcome: Row = {"scores": None, "reason": lost[0]}
            no_blind = dict.fromkeys(BASELINES)
            yield make_choice_row(question, outcome, no_blind, protocol=protocol, seed=seed)
            continue
        # (C, D) each, a row per option: a question may show one image, or one per option
        image_features = prepare(
            pictures.features[[pictures.rows[name] for name in question.images]], features
        )
        text_features = prepare(texts.features[[texts.rows[text] for text in question.texts]], features)
        scores = products(image_features, text_features)  # (C,)
        blind = {
            TEXT_ONLY: products(mean_picture, text_features),  # (C,)
            PICTURE_ONLY: products(image_features, mean_text),  # (C,)
        }
        outcome = {"scores": scores, "reason": ""}
        row = make_choice_row(question, outcome, blind, protocol=protocol, seed=seed)
        yield {**row, "scores": [float(scale * float(x) + bias) for x in scores]}


def score_answers(
    task: ChoiceTask,
    answers: Mapping[str, Row],
    blind_answers: Sequence[tuple[BlindTask, Mapping[str, Row]]] = (),
    *,
    protocol: str = "fixed",
    seed: int = 0,
) -> Iterator[Row]:
    """One row per question. answers: id -> row of `questions.Questions`.

    blind_answers  (Blind task, id -> row) per baseline. A question without a stand-in has alike options: its
                   baseline is chance. A stand-in without a row was not asked (`--blind` asks some)."""
    for question in task.questions:
        blind: dict[str, Sequence[float] | None] = {}
        for blind_task, rows_by_id in blind_answers:
            stand_in = blind_task.stand_ins.get(question.id)
            if stand_in is None:
                blind[blind_task.baseline] = [1 / len(question.options)] * len(question.options)
            elif stand_in.id in rows_by_id:
                values = _read_values(stand_in, rows_by_id[stand_in.id])
                if values is not None:
                    values = blind_task.reorder(question, stand_in, values)
                blind[blind_task.baseline] = values
        yield make_choice_row(question, answers[question.id], blind, protocol=protocol, seed=seed)


def make_choice_row(
    question: Question, outcome: Mapping[str, Any], blind: Mapping[str, Any], *, protocol: str, seed: int
) -> Row:
    """The row of a question: its options, the choice as shares of them, and the credit.

    outcome  `scores` of the options, or `chosen`, with the reason if there is none.
    blind    Baseline -> scores, or the choice as shares, or None; under "paper" all-equal scores have no
             credit."""
    order = order_options(question, seed, protocol)
    has_scores = "scores" in outcome
    credits: dict[str, float | None] = {}  # baseline -> credit
    for baseline, values in blind.items():
        if values is not None and has_scores:
            refused = protocol == "paper" and are_tied(values)
            values = None if refused else choose_option(values, order, protocol)
        credits[baseline] = None if values is None else float(values[question.correct])
    shares = _read_values(question, outcome)
    if shares is not None and has_scores:
        shares = choose_option(shares, order, protocol).tolist()
    return {
        "id": question.id,
        "source": question.cluster,
        "type": question.type,
        "correct": question.correct,
        "templates": [option.template for option in question.options],
        "shown": order,
        "shares": shares,
        "groups": [list(group) for group in question.groups],
        "difficulty": dict(question.difficulty),
        **{key: outcome[key] for key in ("scores", "answer", "letter", "failed") if key in outcome},
        **credits,
        "credit": None if shares is None else float(shares[question.correct]),
        "reason": outcome["reason"] if shares is None else "",
    }


def _read_values(question: Question, outcome: Mapping[str, Any]) -> Any:
    """The scores of the options, or the choice as shares of them; None if the model gave neither."""
    if "scores" in outcome:
        return outcome["scores"]
    chosen = outcome["chosen"]
    return None if chosen is None else [float(k == chosen) for k in range(len(question.options))]


def choose_option(
    scores: Sequence[float] | np.ndarray, order: Sequence[int], protocol: str = "fixed"
) -> np.ndarray:
    """(C,) float64 with sum 1: the choice by (C,) finite scores, as shares of the options.
    "fixed": ties share the choice. "paper": the first option shown wins, as in `torch.argmax`."""
    x = np.asarray(scores, dtype=np.float64)
    if protocol == "paper":
        return np.eye(len(x))[order[int(np.argmax(x[list(order)]))]]
    is_best = x == x.max()
    return is_best / is_best.sum()


def are_tied(scores: Sequence[float] | np.ndarray | None) -> bool:
    """Whether all scores are equal. Under "paper" the first option, mostly the right one, would win."""
    return scores is not None and bool(np.ptp(scores) == 0)
