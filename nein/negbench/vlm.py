"""Multiple choice put to a generative model: the picture with all options, and the letter it answers with.

The paper asks LLaVA so (appendix A); its wording is not published. The wordings, and how a letter is read,
are in `metrics.choices` and `metrics.letters`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from metrics.choices import Asked, ChoiceModel, Reply, answer_each, prompt
from metrics.letters import LETTERS, parse
from nein import images, journal
from nein.blocks import prefetch, share
from nein.negbench import mcq
from nein.negbench.data import ChoiceTask, Question
from nein.negbench.encode import UNUSABLE
from nein.world import World

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

    Blocks are cut over all questions and journalled one by one: running again asks only what is missing.
    """
    blocks = [task.questions[i : i + batch_size] for i in range(0, len(task.questions), batch_size)]
    wanted = blocks[: -(-needed // batch_size)]
    key = None if fingerprint is None else _key(task, manner, fingerprint)
    done = {} if key is None else _done(journals, key)
    world.barrier()  # all have read the journals before one of them writes
    if any(number not in done for number in range(len(wanted))):
        asked = model()
        key = _key(task, manner, asked.fingerprint)
        done = _done(journals, key)
        todo = [number for number in range(len(wanted)) if number not in done]
        mine = share(todo, world.rank, world.size)

        def read(number: int) -> list[np.ndarray | str]:
            return [_picture(task, question) for question in wanted[number]]

        quiet = not world.is_main or None
        with (
            journal.Journal(journals, "answers", world.rank) as lines,
            tqdm(total=len(mine), desc=f"questions of {label}", unit="block", disable=quiet) as bar,
        ):
            for number, pictures in prefetch(read, mine):
                rows = _block(asked, wanted[number], pictures, manner)
                lines.append({"block": number, "key": key, "rows": rows})
                bar.update(1)
        world.barrier()
        done = _done(journals, key)
    return {row["id"]: row for number in range(len(wanted)) for row in done.get(number, [])}


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
            answer, letter, reason = None, None, f"{UNUSABLE}{pictures[i]}"
        else:
            answer, (letter, reason) = found[i].text, _letter(found[i], question, order, manner)
        chosen = None if letter is None else order[LETTERS.index(letter)]
        rows.append(
            {"id": question.id, "answer": answer, "letter": letter, "chosen": chosen, "reason": reason}
        )
    return rows


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


def _done(journals: Path, key: str) -> dict[int, list[dict[str, Any]]]:
    return {
        record["block"]: record["rows"]
        for record in journal.read(journals, "answers")
        if record["key"] == key
    }


def _key(task: ChoiceTask, manner: Manner, fingerprint: str) -> str:
    text = json.dumps([task.name, task.variant, task.sha256, asdict(manner), fingerprint], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
