"""Multiple choice by models that are asked: order of options, answers, what a choice is worth, baselines.

A generative model is shown the picture with all options and answers with a letter, as the paper asks LLaVA
(appendix A; its wording is not published). A judge "itm" scores every option.

Order of options and ties go by `protocol`: docs/reference/quirks.md.

Baselines: "text only" shows a grey picture in place of each (Goyal et al., CVPR 2017, arXiv:1612.00837), each
distinct question once; "picture only" tells a caption, or asks a question, that says nothing.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY, grey, spread
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.encode import UNUSABLE
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.other_tests import NO, YES
from nein.datasets.negbench.records import ChoiceTask, Media, Option, Question
from nein.engine import images
from nein.engine.blocks import Blocks, sample_seed
from nein.engine.folder import Row
from nein.engine.stages import Functions, Model, Stage
from nein.loading.errors import isolated
from nein.metrics.base import parse_yes_no
from nein.metrics.choices import ChoiceQuestion, answer_each, prompt, yes_or_no
from nein.metrics.letters import LETTERS, parse

PICTURE, MODEL = "picture", "model"  # why a row has no answer, which may be mended
YES_NO = sorted((YES, NO))
QUESTION = "Which caption describes the image?"
GREY = "grey"  # the reference of the picture that says nothing
SAID, ASKED = "A picture.", "What is the answer?"  # a caption and a question that say nothing
#: A question with its pictures by reference, or why one cannot be read.
_Read = tuple[Question, dict[str, "np.ndarray | str"]]


def order(question: Question, seed: int, protocol: str = "fixed") -> list[int]:
    """The options' indices as they are shown, in the quirk `protocol`."""
    places = list(range(len(question.options)))
    if protocol == "paper":
        return places
    random.Random(sample_seed(seed, question.id)).shuffle(places)
    return places


def shares(scores: Sequence[float] | np.ndarray, shown: Sequence[int], protocol: str = "fixed") -> np.ndarray:
    """(C,) float64, adding up to 1: how a choice falls on the options, in the data's order, as are the (C,)
    finite scores; `shown`: see `order`. `torch.argmax` is documented to take the first."""
    x = np.asarray(scores, dtype=np.float64)
    credit = np.zeros(len(x))
    if protocol == "paper":
        credit[shown[int(np.argmax(x[list(shown)]))]] = 1.0
        return credit
    top = x == x.max()
    credit[top] = 1.0 / top.sum()
    return credit


def asking(output: str, task: ChoiceTask, blocks: Blocks, *, config: EvalConfig, model: Model) -> Stage:
    """Asks a model the questions of blocks of a task.

    Rows: id, answer, letter, chosen (index of an option as the data have them), reason, failed: MODEL (asked
    again at the next command), PICTURE (as soon as the picture is there), "" (never).
    """
    empty = {"answer": None, "letter": None, "chosen": None}
    read = read_beaf if config.protocol == "paper" and "beaf" in task.name else parse_yes_no
    return _stage(output, task, blocks, model, functools.partial(_answers, config=config, read=read), empty)


def read_beaf(answer: str) -> bool | None:
    """As BEAF's release: "yes" anywhere ("Eyes"), else "no" anywhere ("I do not know"). Without either it
    takes the answer to the question before; here None."""
    text = answer.lower()
    return True if "yes" in text else False if "no" in text else None


def scoring(output: str, task: ChoiceTask, blocks: Blocks, *, model: Model) -> Stage:
    """Lets a judge "itm" score the options. Rows: id, scores (in the data's order), reason, failed."""
    return _stage(output, task, blocks, model, _matches, {"scores": None})


def _stage(
    output: str,
    task: ChoiceTask,
    blocks: Blocks,
    model: Model,
    answer: Callable[[Any, Sequence[_Read]], Iterable[Row]],
    empty: Row,
) -> Stage:
    """answer: (model, questions with readable pictures) -> their rows without the id. empty: no answer."""
    by_id = {question.id: question for question in task.questions}

    def seen(question: Question) -> dict[str, np.ndarray | str]:
        references = dict.fromkeys(question.picture(option) for option in question.options)
        return {name: picture(task.media, name) for name in references}

    def fault(shown: Mapping[str, np.ndarray | str]) -> str:
        return next((text for text in shown.values() if isinstance(text, str)), "")

    def read(number: int) -> list[_Read]:
        questions = (task.questions[index] for index in blocks.members(number))
        return [(question, seen(question)) for question in questions]

    def work(loaded: Any, block: list[_Read], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        usable = [item for item in block if not fault(item[1])]
        answers = iter(answer(loaded, usable) if usable else ())
        rows = []
        for question, pictures in block:
            why = fault(pictures)
            lost = {**empty, "reason": f"{UNUSABLE}{why}", "failed": PICTURE}
            rows.append({"id": question.id, **(lost if why else next(answers))})
        return {output: rows}

    def usable(_: str, number: int, rows: list[Row]) -> bool:
        return not any(
            row["failed"] == MODEL or (row["failed"] == PICTURE and not fault(seen(by_id[row["id"]])))
            for row in rows
        )

    def ids(records: range) -> list[str]:
        return [task.questions[index].id for index in records]

    def state(records: range) -> list[int | None]:
        questions = [task.questions[index] for index in records]
        return task.media.sizes(q.picture(option) for q in questions for option in q.options)

    return Functions(output, (output,), blocks, read, work, model, usable, ids=ids, state=state)


def _answers(
    model: Any, block: Sequence[_Read], config: EvalConfig, read: Callable[[str], bool | None]
) -> list[Row]:
    generated = config.scoring == "generated"
    orders = [order(question, config.seed, config.protocol) for question, _ in block]
    offered = [
        [question.options[k].text for k in places]
        for (question, _), places in zip(block, orders, strict=True)
    ]
    questions = []
    for (question, _), texts in zip(block, offered, strict=True):
        if generated and sorted(texts) == YES_NO:  # else options stand behind letters
            put = yes_or_no(question.asked)
        else:
            put = prompt(config.prompt, question.asked or QUESTION, texts)
        questions.append([ChoiceQuestion(put, len(texts))])
    pictures: list[Any] = [seen[question.image] for question, seen in block]
    rows = []
    replies = answer_each(model, pictures, questions, [config.scoring])
    for texts, places, [reply] in zip(offered, orders, replies, strict=True):
        letter, reason = None, reply.error
        if not reply.error and not generated:
            letter = reply.likeliest
            reason = "" if letter else "the model gives no probability to a letter, or the same to several"
        elif not reply.error and sorted(texts) == YES_NO and config.letters == "fixed":
            yes = read(reply.text or "")
            letter = None if yes is None else LETTERS[texts.index(YES if yes else NO)]
            reason = "" if letter else "the answer is neither yes nor no"
        elif not reply.error:
            letter, reason, *_ = parse(reply.text or "", texts, config.letters)
        chosen = None if letter is None else places[LETTERS.index(letter)]
        row = {"answer": reply.text, "letter": letter, "chosen": chosen, "reason": reason}
        rows.append({**row, "failed": MODEL if reply.error else ""})
    return rows


def _matches(model: Any, block: Sequence[_Read]) -> list[Row]:
    def scores(part: Sequence[_Read]) -> list[np.ndarray]:  # (options,) per question
        triples = [(question, name, image) for question, seen in part for name, image in seen.items()]
        texts = [
            [option.text for option in question.options if question.picture(option) == name]
            for question, name, _ in triples
        ]  # each picture with the sentences held against it
        images: list[Any] = [image for _, _, image in triples]
        matched = iter(model.match(images, texts))
        found = []
        for question, seen in part:
            by_picture = {name: iter(next(matched)) for name in seen}
            each = [next(by_picture[question.picture(option)]) for option in question.options]
            found.append(np.array(each, np.float64))
        return found

    rows = []
    for result in isolated(scores, block):
        reason = result if isinstance(result, str) else ""
        if not reason and not np.isfinite(result).all():
            reason = "the model's score is not finite"
        values = None if reason else [float(score) for score in result]
        rows.append({"scores": values, "reason": reason, "failed": MODEL if reason else ""})
    return rows


def picture(media: Media, reference: str) -> np.ndarray | str:
    """The picture behind a reference, the frames of a video in two rows, or why there is none."""
    try:
        frames = media.frames(reference)
    except images.ImageError as error:
        return str(error)
    if len(frames) == 1:
        return frames[0]
    half = -(-len(frames) // 2)
    frames = [*frames, *[np.zeros_like(frames[0])] * (2 * half - len(frames))]
    return np.concatenate([np.concatenate(frames[:half], 1), np.concatenate(frames[half:], 1)], 0)


@dataclass(frozen=True)
class Distinct:
    """Each distinct question of a task once, without its picture or its words."""

    name: str  # of the baseline
    task: ChoiceTask  # of the questions that are asked
    standing: Mapping[str, Question]  # id -> what stands for it; none where its options are all alike

    @classmethod
    def of_task(cls, name: str, task: ChoiceTask) -> Distinct:
        by_words: dict[tuple[str, ...], Question] = {}
        standing = {}
        for question in task.questions:
            if name == PICTURE_ONLY and not question.asked and not any(o.image for o in question.options):
                continue  # captions without their words
            changes: dict[str, Any] = {"asked": ASKED}
            if name == TEXT_ONLY:
                options = tuple(replace(choice, image="") for choice in question.options)
                changes = {"image": GREY, "options": options}
            elif not question.asked:
                changes = {"options": tuple(replace(choice, text=SAID) for choice in question.options)}
            left = question.asked if name == TEXT_ONLY else question.image if question.asked else ""
            words = left, *sorted(_option(name, option) for option in question.options)
            standing[question.id] = by_words.setdefault(words, replace(question, groups=(), **changes))
        media = Drawn(lambda _: grey()) if name == TEXT_ONLY else task.media
        return cls(name, replace(task, questions=tuple(by_words.values()), media=media), standing)

    def same_order(self, question: Question, asked: Question, values: Sequence[float]) -> list[float]:
        given = {_option(self.name, entry): value for entry, value in zip(asked.options, values, strict=True)}
        return [given[_option(self.name, entry)] for entry in question.options]

    def blocks(self, size: int, questions: Sequence[Question], most: int) -> Blocks:
        """Of what stands for `questions`, evenly spread where that is more than `most`."""
        positions = {item.id: index for index, item in enumerate(self.task.questions)}
        wanted = {positions[self.standing[item.id].id] for item in questions if item.id in self.standing}
        return spread(Blocks(len(positions), size, sorted(wanted)), most)


def _option(name: str, option: Option) -> str:
    return option.image if name == PICTURE_ONLY and option.image else option.text
