"""Multiple choice put to a generative model: the picture with all options, and the letter it answers with.

The paper asks LLaVA so (appendix A); its wording is not published. `PROMPTS` has two, by name.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from metrics.base import MODEL_ERRORS
from metrics.base import reason as why
from metrics.judges.templates import template
from metrics.letters import LETTERS, parse
from nein import images, journal
from nein.blocks import prefetch, share
from nein.negbench import mcq
from nein.negbench.data import ChoiceTask, Question
from nein.world import World

log = logging.getLogger(__name__)
QUESTION = "Which caption describes the image?"

#: {question}: `QUESTION`, {options}: one line per option, "A. This image features ...".
PROMPTS = {
    "direct": "{question}\n{options}\nAnswer with the option's letter from the given choices directly.",
    "vlmevalkit": "Question: {question}\nOptions:\n{options}\nPlease select the correct answer from the "
    "options above. \n",
}


def prompt(question: Question, shown: Sequence[int], name: str = "direct") -> str:
    """The words put to the model, options in the order `shown`."""
    lines = [f"{LETTERS[k]}. {question.options[index].text}" for k, index in enumerate(shown)]
    return PROMPTS[name].format(question=QUESTION, options="\n".join(lines))


def ask(
    load: Callable[[], Any],
    task: ChoiceTask,
    needed: int,
    journals: Path,
    *,
    wording: str,
    rule: str,
    protocol: str,
    seed: int,
    batch_size: int,
    world: World,
    label: str,
    fingerprint: str | None,
) -> dict[str, dict[str, Any]]:
    """Question id -> {answer, letter, chosen, reason}, for the blocks of the first `needed` questions.

    chosen  Index into the question's options as the data have them; None with the `reason` where no letter
            could be read or nothing was answered.

    Answers are journalled by block; running again asks only what is missing. Blocks are cut over all
    questions of the task.
    """
    asked = [wording, rule, protocol, seed, task.sha256]
    blocks = [task.questions[i : i + batch_size] for i in range(0, len(task.questions), batch_size)]
    wanted = blocks[: -(-needed // batch_size)]
    key = _key(task, asked, fingerprint) if fingerprint is not None else None
    done = _done(journals, key) if key is not None else {}
    todo = [number for number in range(len(wanted)) if number not in done]
    world.barrier()
    if todo:
        judge = load()
        key = _key(task, asked, judge.fingerprint)
        done = _done(journals, key)
        todo = [number for number in todo if number not in done]
        mine = share(todo, world.rank, world.size)

        def read(number: int) -> list[np.ndarray | str]:
            return [_picture(task, question) for question in wanted[number]]

        with (
            journal.Journal(journals, "answers", world.rank) as lines,
            tqdm(
                total=len(mine), desc=f"questions of {label}", unit="block", disable=not world.is_main or None
            ) as bar,
        ):
            for number, pictures in prefetch(read, mine):
                rows = _block(judge, wanted[number], pictures, wording, rule, protocol, seed)
                lines.append({"block": number, "key": key, "rows": rows})
                bar.update(1)
        world.barrier()
        done = _done(journals, key)
    return {row["id"]: row for number in range(len(wanted)) for row in done.get(number, [])}


def _block(
    judge: Any,
    questions: Sequence[Question],
    pictures: Sequence[np.ndarray | str],
    wording: str,
    rule: str,
    protocol: str,
    seed: int,
) -> list[dict[str, Any]]:
    wrapper = template(judge.template).wrapper
    orders = [mcq.order(question, seed, protocol) for question in questions]
    prompts = [
        wrapper.replace("{question}", prompt(question, order, wording))
        for question, order in zip(questions, orders, strict=True)
    ]
    usable = [i for i, picture in enumerate(pictures) if not isinstance(picture, str)]
    replies = dict(
        zip(usable, _replies(judge, [pictures[i] for i in usable], [prompts[i] for i in usable]), strict=True)
    )
    rows = []
    for i, (question, order) in enumerate(zip(questions, orders, strict=True)):
        row: dict[str, Any] = {"id": question.id, "answer": None, "letter": None, "chosen": None}
        if i not in replies:
            rows.append({**row, "reason": f"the picture is unusable: {pictures[i]}"})
            continue
        answer, error = replies[i]
        if error:
            rows.append({**row, "reason": error})
            continue
        texts = [question.options[k].text for k in order]
        found = parse(answer, texts, rule)
        chosen = None if found.letter is None else order[LETTERS.index(found.letter)]
        rows.append(
            {**row, "answer": answer, "letter": found.letter, "chosen": chosen, "reason": found.reason}
        )
    return rows


def _replies(judge: Any, pictures: Sequence[Any], prompts: Sequence[str]) -> list[tuple[str, str]]:
    """(answer, "") or ("", reason) per picture; a batch that fails is asked one by one."""
    if not pictures:
        return []
    try:
        return [(row[0].text, "") for row in judge.ask(pictures, [[text] for text in prompts])]
    except MODEL_ERRORS as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        if len(pictures) == 1:
            return [("", why(error))]
        log.warning("asking %d questions together failed (%s); asking one by one", len(pictures), why(error))
    return [reply for p, t in zip(pictures, prompts, strict=True) for reply in _replies(judge, [p], [t])]


def _picture(task: ChoiceTask, question: Question) -> np.ndarray | str:
    """The picture; frames of a video side by side in two rows."""
    try:
        frames = task.media.frames(question.image)
    except images.ImageError as error:
        return str(error)
    if len(frames) == 1:
        return frames[0]
    half = -(-len(frames) // 2)
    frames += [np.zeros_like(frames[0])] * (2 * half - len(frames))
    return np.concatenate([np.concatenate(frames[:half], 1), np.concatenate(frames[half:], 1)], 0)


def _done(journals: Path, key: str) -> dict[int, list[dict[str, Any]]]:
    return {
        record["block"]: record["rows"]
        for record in journal.read(journals, "answers")
        if record["key"] == key
    }


def _key(task: ChoiceTask, asked: Sequence[Any], fingerprint: str) -> str:
    text = json.dumps([task.name, task.variant, *asked, fingerprint])
    return hashlib.sha256(text.encode()).hexdigest()[:20]
