"""Multiple choice put to a generative model: the picture with all options, and the letter it answers with.

The paper asks LLaVA so (appendix A); its wording is not published. The wordings, and how a letter is read,
are in `metrics.choices` and `metrics.letters`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrics.choices import Asked, ChoiceModel, Prompt, Reply, prompt, yes_or_no
from metrics.letters import LETTERS, parse
from nein.benchmarks.negbench import mcq
from nein.benchmarks.negbench.encode import UNUSABLE
from nein.datasets.negbench.pairs import NO, YES
from nein.datasets.negbench.records import ChoiceTask, Media, Question
from nein.engine import images
from nein.engine.blocks import Blocks
from nein.engine.folder import Row
from nein.engine.stages import Model, Stage
from nein.models.references import JUDGE

#: Why a row has no answer: the picture cannot be read, or the model gave none. Both may be mended.
PICTURE, MODEL = "picture", "model"
QUESTION = "Which caption describes the image?"


@dataclass(frozen=True)
class Manner:
    """How questions are asked and answers read.

    wording   A name of `metrics.choices.PROMPTS`.
    scoring   "generated": the letter in what the model writes, by `rule` (`metrics.letters.RULES`).
              "logprob": the letter that is the likeliest first token.
    protocol  Order of the options (`mcq.order`), with `seed`.
    """

    wording: str = "paper"
    scoring: str = "generated"
    rule: str = "fixed"
    protocol: str = "fixed"
    seed: int = 0


def load(reference: str, *, revision: str | None, device: str, dtype: str, batch_size: int) -> ChoiceModel:
    """A model of `metrics.choices`; for `judge:REFERENCE`, or one that only `metrics.load_judge` knows, that
    judge."""
    import metrics
    from metrics import choices
    from metrics.served import is_served

    judge = reference.removeprefix(JUDGE)
    if judge != reference or (metrics.special_reference(reference) is not None and not is_served(reference)):
        return choices.of_judge(
            metrics.load_judge("vqa", judge, revision=revision, device=device, dtype=dtype)
        )
    return choices.load(reference, revision=revision, device=device, dtype=dtype, batch_size=batch_size)


def asking(output: str, task: ChoiceTask, blocks: Blocks, *, manner: Manner, model: Model) -> Stage:
    """Asks the questions of blocks of a task.

    Rows: id, answer, letter, chosen, reason, failed. `chosen` is an index into the question's options as the
    data have them; None with the `reason` where no letter could be read or nothing was answered. `failed`
    says what is asked again: MODEL at the next command, PICTURE as soon as the picture is there, "" never.
    """

    def read(number: int) -> list[tuple[Question, Any]]:
        asked = [task.questions[index] for index in blocks.members(number)]
        return [(question, picture(task.media, question.image)) for question in asked]

    def work(loaded: ChoiceModel, block: list[tuple[Question, Any]], missing: tuple[str, ...]) -> Any:
        return {output: _rows(loaded, block, manner)}

    def lost(number: int, reason: str, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        return {output: [_unread(task.questions[k], reason, MODEL) for k in blocks.members(number)]}

    return Stage(output, (output,), blocks, read, work, lost, model, unless_mended(task))


def unless_mended(task: ChoiceTask) -> Callable[[str, list[Row]], bool]:
    """Whether the rows of a block stay: no model failed, and no picture that could not be read now can be."""
    by_id = {question.id: question for question in task.questions}

    def readable(question: Question) -> bool:
        shown = {question.picture(option) for option in question.options}
        return not any(isinstance(picture(task.media, reference), str) for reference in shown)

    def usable(_: str, rows: list[Row]) -> bool:
        return not any(
            row["failed"] == MODEL or (row["failed"] == PICTURE and readable(by_id[row["id"]]))
            for row in rows
        )

    return usable


def _rows(model: ChoiceModel, block: Sequence[tuple[Question, Any]], manner: Manner) -> list[Row]:
    orders = [mcq.order(question, manner.seed, manner.protocol) for question, _ in block]
    shown, asked = [], []
    for (question, picture), order in zip(block, orders, strict=True):
        if not isinstance(picture, str):
            shown.append(picture)
            asked.append([Asked(_words(question, order, manner), len(order))])
    replies = iter(model.answer(shown, asked, [manner.scoring]) if shown else ())
    rows = []
    for (question, picture), order in zip(block, orders, strict=True):
        if isinstance(picture, str):
            rows.append(_unread(question, f"{UNUSABLE}{picture}", PICTURE))
            continue
        [reply] = next(replies)
        answer, (letter, reason) = reply.text, _letter(reply, question, order, manner)
        failed = MODEL if reply.error else ""
        chosen = None if letter is None else order[LETTERS.index(letter)]
        rows.append(
            {"id": question.id, "answer": answer, "letter": letter, "chosen": chosen, "reason": reason,
             "failed": failed})  # fmt: skip
    return rows


def _words(question: Question, order: Sequence[int], manner: Manner) -> Prompt:
    """A question with its options behind letters; one to be answered with yes or no has none, unless letters
    are what is scored."""
    options = [question.options[k].text for k in order]
    if sorted(options) == [NO, YES] and manner.scoring == "generated":
        return yes_or_no(question.asked)
    return prompt(manner.wording, question.asked or QUESTION, options)


def _unread(question: Question, reason: str, failed: str) -> Row:
    return {"id": question.id, "answer": None, "letter": None, "chosen": None, "reason": reason,
            "failed": failed}  # fmt: skip


def _letter(reply: Reply, question: Question, order: Sequence[int], manner: Manner) -> tuple[str | None, str]:
    if reply.error:
        return None, reply.error
    if manner.scoring == "logprob":
        letter = reply.likeliest
        return letter, "" if letter else "the model gives no probability to a letter, or the same to several"
    answer = parse(reply.text or "", [question.options[k].text for k in order], manner.rule)
    return answer.letter, answer.reason


def picture(media: Media, reference: str) -> np.ndarray | str:
    """The picture behind a reference; the frames of a video in two rows, in the order of reading. Or why
    there is none."""
    try:
        frames = media.frames(reference)
    except images.ImageError as error:
        return str(error)
    if len(frames) == 1:
        return frames[0]
    half = -(-len(frames) // 2)
    frames = [*frames, *[np.zeros_like(frames[0])] * (2 * half - len(frames))]
    return np.concatenate([np.concatenate(frames[:half], 1), np.concatenate(frames[half:], 1)], 0)
