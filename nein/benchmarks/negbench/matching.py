"""Questions answered by the scores of a model that looks at a picture and a sentence together.

What `metrics.judges.base.Matcher` asks for: methods with a head of their own, and BLIP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.judges.base import Matcher
from nein.benchmarks.negbench.encode import UNUSABLE
from nein.benchmarks.negbench.vlm import MODEL, PICTURE, picture, unless_mended
from nein.datasets.negbench.records import ChoiceTask, Question
from nein.engine.blocks import Blocks
from nein.engine.folder import Row
from nein.engine.stages import Model, Stage
from nein.loading.isolation import isolated

#: A question with its pictures by reference, or why one cannot be read.
_Read = tuple[Question, dict[str, np.ndarray | str]]


def scoring(output: str, task: ChoiceTask, blocks: Blocks, *, model: Model) -> Stage:
    """Scores the options of the questions of blocks of a task.

    Rows: id, scores, reason, failed. `scores` are in the order of the options as the data have them; None
    with the `reason` where there are none, and what is tried again in `failed`, as of `vlm.asking`.
    """

    def read(number: int) -> list[_Read]:
        asked = [task.questions[index] for index in blocks.members(number)]
        references = dict.fromkeys(q.picture(option) for q in asked for option in q.options)
        seen = {reference: picture(task.media, reference) for reference in references}
        return [(q, {name: seen[name] for name in map(q.picture, q.options)}) for q in asked]

    def work(loaded: Matcher, block: list[_Read], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        return {output: _rows(loaded, block)}

    def lost(number: int, reason: str, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        return {output: [_row(task.questions[k], None, reason, MODEL) for k in blocks.members(number)]}

    return Stage(output, (output,), blocks, read, work, lost, model, unless_mended(task))


def _rows(model: Matcher, block: Sequence[_Read]) -> list[Row]:
    faults = [next((said for said in shown.values() if isinstance(said, str)), "") for _, shown in block]
    usable = [one for one, fault in zip(block, faults, strict=True) if not fault]
    scored = iter(isolated(lambda part: _scores(model, part), usable) if usable else ())
    rows = []
    for (question, _), fault in zip(block, faults, strict=True):
        if fault:
            rows.append(_row(question, None, f"{UNUSABLE}{fault}", PICTURE))
            continue
        scores = next(scored)
        if isinstance(scores, str):
            rows.append(_row(question, None, scores, MODEL))
        elif not np.isfinite(scores).all():
            rows.append(_row(question, None, "the model's score is not finite", MODEL))
        else:
            rows.append(_row(question, [float(score) for score in scores], "", ""))
    return rows


def _scores(model: Matcher, block: Sequence[Any]) -> list[np.ndarray]:
    """(options,) per question; each picture of a question goes with the sentences held against it."""
    images, texts = [], []
    for question, shown in block:
        for name, image in shown.items():
            images.append(image)
            texts.append([option.text for option in question.options if question.picture(option) == name])
    matched = iter(model.match(images, texts))
    scores = []
    for question, shown in block:
        by_picture = {name: iter(next(matched)) for name in shown}
        scores.append(
            np.array([next(by_picture[question.picture(option)]) for option in question.options], np.float64)
        )
    return scores


def _row(question: Question, scores: list[float] | None, reason: str, failed: str) -> Row:
    return {"id": question.id, "scores": scores, "reason": reason, "failed": failed}
