"""Multiple choice put to a generative model: the picture with all options, and the letter it answers with.

The paper asks LLaVA so (appendix A); its wording is not published. The wordings, and how a letter is read,
are in `metrics.choices` and `metrics.letters`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from metrics.choices import Asked, ChoiceModel, Reply, answer_each, prompt
from metrics.letters import LETTERS, parse
from nein.benchmarks.negbench import mcq
from nein.benchmarks.negbench.encode import UNUSABLE
from nein.datasets.negbench.records import ChoiceTask, Question
from nein.engine import images, journal
from nein.engine.errors import UserError
from nein.engine.executors import read_ahead, share
from nein.engine.world import World

#: Why a row has no answer: the picture cannot be read, or the model gave none. Both may be mended.
PICTURE, MODEL = "picture", "model"
SILENT = "the endpoint gave no answer"
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
    """A model of `metrics.choices`, or, for a reference only `metrics.load_judge` knows, that judge."""
    import metrics
    from metrics import choices

    prefix = metrics.special_reference(reference)
    if prefix is not None and prefix != "openai":
        return choices.of_judge(metrics.load_judge("vqa", reference, device=device, dtype=dtype))
    options = {} if prefix == "openai" else {"batch_size": batch_size}
    return choices.load(reference, revision=revision, device=device, dtype=dtype, **options)


def ask(
    model: Callable[[], ChoiceModel],
    task: ChoiceTask,
    needed: int,
    journals: Path,
    *,
    manner: Manner,
    batch_size: int,
    world: World,
    label: str,
    fingerprint: str | None,
) -> dict[str, dict[str, Any]]:
    """Question id -> {answer, letter, chosen, reason}, for the first `needed` questions and the rest of their
    last block.

    chosen       Index into the question's options as the data have them; None with the `reason` where no
                 letter could be read or nothing was answered.
    fingerprint  The model's, where an earlier command has loaded it; a finished run then loads nothing.

    Blocks are cut over all questions and journalled one by one: running again asks only what is missing, and
    what failed. Raises UserError when an endpoint has stopped answering altogether.
    """
    blocks = [task.questions[i : i + batch_size] for i in range(0, len(task.questions), batch_size)]
    wanted = blocks[: -(-needed // batch_size)]
    key = None if fingerprint is None else _key(task, manner, fingerprint)
    done = {} if key is None else _done(journals, key)
    if any(_open(task, block, done) for block in wanted):
        asked = model()
        key = _key(task, manner, asked.fingerprint)
        done = _done(journals, key)
        todo = [number for number, block in enumerate(wanted) if _open(task, block, done)]
        world.barrier()  # all have read the journals before one of them writes
        _ask_blocks(asked, task, wanted, todo, done, journals, key, manner, world, label)
        world.barrier()
        done = _done(journals, key)
    lost = [question.id for block in wanted for question in block if question.id not in done]
    if lost:
        raise UserError(f"{label}: {len(lost)} answers are missing; give the same command again.")
    return {question.id: done[question.id] for block in wanted for question in block}


def _ask_blocks(
    model: ChoiceModel,
    task: ChoiceTask,
    blocks: Sequence[Sequence[Question]],
    todo: Sequence[int],
    done: Mapping[str, dict[str, Any]],
    journals: Path,
    key: str,
    manner: Manner,
    world: World,
    label: str,
) -> None:
    """Asks this process's share of the blocks `todo`; each is in the journal before the next is asked."""
    mine = share(todo, world.rank, world.size)
    # Questions to an endpoint do not share a batch: those that it has answered need not be asked again.
    kept = {name: row for name, row in done.items() if not row["failed"]} if model.concurrent else {}
    open_ = [[question for question in block if question.id not in kept] for block in blocks]

    def read(number: int) -> list[np.ndarray | str]:
        return [_picture(task, question) for question in open_[number]]

    silent, limit = 0, 2 * model.concurrent + 4
    quiet = not world.is_main or None
    with (
        journal.Journal(journals, "answers", world.rank) as lines,
        tqdm(total=len(mine), desc=f"questions of {label}", unit="block", disable=quiet) as bar,
    ):
        for number, pictures in read_ahead(read, mine):
            rows = _block(model, open_[number], pictures, manner)
            lines.append({"block": number, "key": key, "rows": rows})
            bar.update(1)
            for row in rows:
                silent = silent + 1 if row["reason"].startswith(SILENT) else 0
            if silent >= limit:
                raise UserError(
                    f"The endpoint left {silent} questions in a row without an answer; "
                    "see that it runs, then give the same command again to go on."
                )


def _block(
    model: ChoiceModel, questions: Sequence[Question], pictures: Sequence[np.ndarray | str], manner: Manner
) -> list[dict[str, Any]]:
    orders = [mcq.order(question, manner.seed, manner.protocol) for question in questions]
    usable = [i for i, picture in enumerate(pictures) if not isinstance(picture, str)]
    words = [
        prompt(manner.wording, QUESTION, [questions[i].options[k].text for k in orders[i]]) for i in usable
    ]
    asked = [[Asked(text, len(orders[i]))] for i, text in zip(usable, words, strict=True)]
    shown = [pictures[i] for i in usable]
    replies = answer_each(model, shown, asked, [manner.scoring]) if usable else []  # type: ignore[arg-type]
    found = {i: row[0] for i, row in zip(usable, replies, strict=True)}
    rows = []
    for i, (question, order) in enumerate(zip(questions, orders, strict=True)):
        if i not in found:
            answer, letter, reason, failed = None, None, f"{UNUSABLE}{pictures[i]}", PICTURE
        else:
            answer, (letter, reason) = found[i].text, _letter(found[i], question, order, manner)
            failed = MODEL if found[i].error else ""
        chosen = None if letter is None else order[LETTERS.index(letter)]
        rows.append(
            {"id": question.id, "answer": answer, "letter": letter, "chosen": chosen, "reason": reason,
             "failed": failed})  # fmt: skip
    return rows


def _open(task: ChoiceTask, block: Sequence[Question], done: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a block has to be asked: for the first time, because the model failed on one of its questions
    (a timeout, say), or because a picture that could not be read is there now."""
    for question in block:
        row = done.get(question.id)
        if row is None or row["failed"] == MODEL:
            return True
        if row["failed"] == PICTURE and not isinstance(_picture(task, question), str):
            return True
    return False


def _letter(reply: Reply, question: Question, order: Sequence[int], manner: Manner) -> tuple[str | None, str]:
    if reply.error:
        return None, reply.error
    if manner.scoring == "logprob":
        letter = reply.likeliest
        return letter, "" if letter else "the model gives no probability to a letter, or the same to several"
    found = parse(reply.text or "", [question.options[k].text for k in order], manner.rule)
    return found.letter, found.reason


def _picture(task: ChoiceTask, question: Question) -> np.ndarray | str:
    """The picture; the frames of a video in two rows, in the order of reading."""
    try:
        frames = task.media.frames(question.image)
    except images.ImageError as error:
        return str(error)
    if len(frames) == 1:
        return frames[0]
    half = -(-len(frames) // 2)
    frames = [*frames, *[np.zeros_like(frames[0])] * (2 * half - len(frames))]
    return np.concatenate([np.concatenate(frames[:half], 1), np.concatenate(frames[half:], 1)], 0)


def _done(journals: Path, key: str) -> dict[str, dict[str, Any]]:
    """Question id -> its row; of a question asked twice, one that is no failure if there is one."""
    found: dict[str, dict[str, Any]] = {}
    for record in journal.read(journals, "answers"):
        for row in record["rows"] if record["key"] == key else ():
            if row["id"] not in found or not row["failed"]:
                found[row["id"]] = row
    return found


def _key(task: ChoiceTask, manner: Manner, fingerprint: str) -> str:
    # "2": rows say what failed.
    text = json.dumps(
        ["2", task.name, task.variant, task.sha256, asdict(manner), fingerprint], sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()[:20]
