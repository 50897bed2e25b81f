"""Makes the table of scores of a NegBench run: a row per metric of every caption, image, question and group.

The metrics are those of `estimates` that a single sample has, and "cell" and "answer cell": one of the four
scores of a minimal pair, or of its four answers (yes 1, no 0), in the order of `two_way`."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from nein.benchmarks import baselines
from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import retrieval
from nein.benchmarks.negbench.scoring import EMPTY_CAPTION, NO_CAPTION, RECALLS, are_tied, read_rows
from nein.benchmarks.negbench.stages import ModelTasks
from nein.datasets.negbench import records
from nein.datasets.negbench.other_tests import ALL_FOUR, GROUP, NO, YES
from nein.datasets.negbench.records import AFFIRMATION, NEGATION, ChoiceTask
from nein.datasets.negbench.registry import BINARY
from nein.engine.folder import Row
from nein.reporting.scores import ScoreTable

#: Columns of the table besides id, source, metric, value and reason.
DETAILS = (
    "task",
    "kind",
    "direction",
    "item",  # joins original and negated captions, or the images of one query
    "type",
    "templates",  # of the options, separated by "/"
    "chosen",  # templates of the chosen options
    "outcome",  # of `OUTCOMES`, or the index of a cell
    "difficulty",  # JSON: axis -> level
    "failed",  # "yes": the model or an image failed, and the next command tries again
    "alike",  # "yes": all options score the same
    "first",  # "yes": the right option is shown first
    "answer",  # the right answer to a yes/no question
)
#: Which of two questions that belong together are answered right.
OUTCOMES = ("both", "first alone", "second alone", "neither")


def make_scores(model_tasks: ModelTasks) -> ScoreTable:
    """The table of scores of a run; its manifest gets the number of truncated captions."""
    if model_tasks.kind == "dual":
        model_tasks.folder.update(cut=model_tasks.count_cut())
    rows_of_tasks = [
        make_table_rows(task, read_rows(model_tasks, task), model_tasks.find_complete(task))
        for task in model_tasks.tasks
    ]
    return make_table(itertools.chain(*rows_of_tasks))


def make_table(rows: Iterable[Row]) -> ScoreTable:
    return ScoreTable.from_rows(rows, details=DETAILS)


def make_table_rows(
    task: records.Task, rows: Iterable[Row], complete: records.Task | None = None
) -> Iterator[Row]:
    """The table rows of a task. complete: the task without a limit, on which the text reader is trained."""
    if isinstance(task, ChoiceTask):
        yes_no = bool(task.questions) and task.questions[0].texts == [YES, NO]
        table_rows = tabulate_choices(rows, knows_types=task.kind != BINARY, is_yes_no=yes_no)
        if isinstance(complete, ChoiceTask):
            table_rows = itertools.chain(table_rows, score_text_reader(complete, task))
    else:
        table_rows = tabulate_judged(rows) if task.is_judged else tabulate_retrieval(rows)
    for row in table_rows:
        yield {"task": task.what, "variant": task.variant, **row}


def score_text_reader(complete: ChoiceTask, task: ChoiceTask) -> Iterator[Row]:
    """The table rows of the text reader on the questions of `task`; it is trained on those of `complete`."""
    training = {}
    for question in complete.questions:
        # Both images of a pair of HardNeg-Syn, positive/7_img.png and negative/7_img.png, are one scene.
        scene = re.sub("^(positive|negative)/", "", question.cluster)
        texts = tuple(question.texts)
        training[question.id] = baselines.Question(question.asked, texts, question.correct, scene)
    values = baselines.score_text_reader(training)  # id -> 1.0 right, 0.0 wrong; empty: too few to learn from
    for question in task.questions if values else ():
        labels = {"id": question.id, "source": question.cluster, "metric": baselines.TEXT_READER}
        type_ = question.type if task.kind != BINARY else None
        yield {**labels, "type": type_, "value": values[question.id]}


def tabulate_retrieval(rows: Iterable[Row]) -> Iterator[Row]:
    """A table row per recall of every retrieval row."""
    for row in rows:
        labels = {key: row[key] for key in ("id", "source", "kind", "direction", "item")}
        is_final = row["reason"] in ("", EMPTY_CAPTION, NO_CAPTION)
        labels |= {"reason": row["reason"] or None, "failed": None if is_final else "yes"}
        for metric in RECALLS:
            yield {**labels, "metric": metric, "value": row[metric]}


def tabulate_judged(rows: Iterable[Row]) -> Iterator[Row]:
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
        for k in retrieval.KS:
            if row["rank"] < k:
                yield {**labels, "metric": f"{metric}@{k}"}


def tabulate_choices(rows: Iterable[Row], knows_types: bool = True, is_yes_no: bool = False) -> Iterator[Row]:
    """Table rows of every choice row and baseline, then of the groups of questions that belong together.

    knows_types  The data have templates and types, not only the right option.
    is_yes_no    The options are yes and no."""
    groups: dict[str, dict[tuple[str, int], list[Row]]] = {}  # score -> (name, size) -> its questions
    for row in rows:
        labels = {"id": row["id"], "source": row["source"], "type": row["type"] if knows_types else None}
        shares, reason = row["shares"], row["reason"] or None
        templates = [(template or "") if knows_types else "" for template in row["templates"]]
        chosen = [t or "" for t, share in zip(row["templates"], shares or (), strict=False) if share > 0]
        right_answer = "no" if row["correct"] else "yes"
        yield {
            **labels,
            "value": row["credit"],
            "reason": reason,
            "templates": "/".join(templates),
            "chosen": None if shares is None else "/".join(chosen),
            "failed": "yes" if row.get("failed", row["reason"]) else None,
            "alike": "yes" if are_tied(row.get("scores")) else None,
            "first": "yes" if row["shown"][0] == row["correct"] else None,
            "answer": right_answer if is_yes_no else None,
        }
        for baseline in BASELINES:
            if baseline in row:
                no_credit = reason or "not read, or all options score alike"
                why = no_credit if row[baseline] is None else reason
                yield {**labels, "metric": baseline, "value": row[baseline], "reason": why}
        for score, name, size in row["groups"]:
            groups.setdefault(score, {}).setdefault((name, size), []).append(row)
    for score, by_name in groups.items():
        for (name, size), group in by_name.items():
            if len(group) == size:  # --limit cuts the last one
                yield from _tabulate_group(score, name, group)


# --- groups of questions that belong together ------------------------------------------------------

#: Chance that the four comparisons of a pair are all right: they share four scores, and the two of the true
#: combinations are the highest in one of six orders (Winoground, arXiv:2204.03162, Table 3).
SIXTH = 1 / 6


def _tabulate_group(score: str, name: str, group: Sequence[Row]) -> Iterator[Row]:
    """The table rows of a group of questions; with an unscored question it is unscored."""
    unscored = next((row for row in group if row["credit"] is None), None)
    labels = {"id": name, "source": (unscored or group[0])["source"], "type": score}
    measured = {**labels, "reason": None if unscored is None else unscored["reason"]}

    # All right together, and by guessing.
    difficulty = json.dumps(group[0]["difficulty"]) if len(group) == 4 else None
    value = _multiply_credits(group, [True] * len(group))
    yield {**measured, "metric": "joint", "value": value, "difficulty": difficulty}
    # The comparisons of a pair are in GROUP, and maybe under another score, too.
    are_comparisons = all(GROUP in {kind for kind, _, _ in row["groups"]} for row in group)
    chance = float(np.prod([1 / len(row["templates"]) for row in group]))
    chance = SIXTH if are_comparisons and len(group) == 4 else chance
    yield {**labels, "metric": "joint chance", "value": chance}

    # Which of two is right, in the order of `OUTCOMES`.
    if len(group) == 2:
        for outcome, right in zip(OUTCOMES, itertools.product((True, False), repeat=2), strict=True):
            value = _multiply_credits(group, right)
            yield {**measured, "metric": "pair", "outcome": outcome, "value": value}

    # The cells of a minimal pair: an affirming and a denying caption, with each of two images once.
    if score not in (GROUP, ALL_FOUR) or len(group) != 4:
        return
    cells = {_locate_cell(row) for row in group}
    choosing = [row for row in group if _chooses(row)]
    types = {row["type"] for row in group}
    if len(cells) == (2 if choosing else 4) and types == {AFFIRMATION, NEGATION}:
        metric = "answer cell" if all("answer" in row for row in choosing) else "cell"
        for index, value in enumerate(_fill_cells(group).flat):
            reason = None if np.isfinite(value) else "a score of the pair is lacking"
            cell = {**labels, "source": group[0]["source"], "outcome": str(index), "reason": reason}
            yield {**cell, "metric": metric, "value": None if reason else float(value)}


def _multiply_credits(group: Sequence[Row], right: Sequence[bool]) -> float | None:
    """The product of the credits of a group; a question that is not to be `right` counts by 1 - credit."""
    credits = [row["credit"] for row in group]
    if None in credits:
        return None
    return float(np.prod([credit if yes else 1 - credit for credit, yes in zip(credits, right, strict=True)]))


def _chooses(row: Row) -> bool:
    """Whether an image chooses between the two captions; else a caption between the two images."""
    return set(row["templates"]) == {AFFIRMATION, NEGATION}


def _locate_cell(row: Row) -> tuple[int, int]:
    """(caption, image) of a question; 0: the affirming caption, and the image it is true of."""
    caption = int(row["type"] == NEGATION)
    is_true = row["templates"][0] is not None or row["correct"] == 0  # a caption to choose; the answer "yes"
    return caption, caption if is_true else 1 - caption


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
