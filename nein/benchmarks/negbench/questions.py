"""The stages that put NegBench's questions to a model: `Asking` a generative model, `Matching` each option
with its image, and `FileAnswers` from a log; then the questions for other harnesses, and for the baselines.

A generative model is shown the image with all options and answers with a letter, as the paper asks LLaVA
(appendix A; its wording is not published). Order of options and ties: `protocol` in docs/reference/quirks.md.

Baselines: "text only" shows a gray image in place of each (Goyal et al., CVPR 2017, arXiv:1612.00837);
"picture only" shows a caption, or asks a question, that says nothing."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY, make_gray, spread_blocks
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.folder import IMAGE_FAILED, MODEL_FAILED, UNUSABLE
from nein.datasets import harness
from nein.datasets.negbench.media import Drawn, Media
from nein.datasets.negbench.other_tests import NO, YES
from nein.datasets.negbench.records import ChoiceTask, Option, Question, Task
from nein.engine.folder import Blocks, Row, sample_seed
from nein.engine.images import ImageError
from nein.engine.stages import Model, Stage
from nein.loading.errors import UserError, isolate
from nein.metrics.choice_prompts import write_prompt, write_yes_no_prompt
from nein.metrics.choices import ChoiceQuestion, answer_each
from nein.metrics.judges.base import parse_yes_no
from nein.metrics.letters import LETTERS, parse

CAPTION_QUESTION = "Which caption describes the image?"
GREY = "grey"  # the reference that stands for a plain gray image
Pixels = np.ndarray | str  # (H, W, 3) uint8, or the reason why the image cannot be read


def read_image(media: Media, reference: str) -> Pixels:
    """The image behind a reference, or the frames of a video in two rows."""
    try:
        frames = media.frames(reference)
    except ImageError as error:
        return str(error)
    if len(frames) == 1:
        return frames[0]
    columns = -(-len(frames) // 2)  # rounded up; a black frame fills the second row
    if len(frames) % 2:
        frames = [*frames, np.zeros_like(frames[0])]
    return np.concatenate([np.concatenate(frames[:columns], 1), np.concatenate(frames[columns:], 1)], 0)


def order_options(question: Question, seed: int, protocol: str = "fixed") -> list[int]:
    """The indices of the options in the order shown: shuffled by seed and id; "paper": as in the data."""
    indices = list(range(len(question.options)))
    if protocol != "paper":
        random.Random(sample_seed(seed, question.id)).shuffle(indices)
    return indices


# --- stages ----------------------------------------------------------------------------------------
class LoadedQuestion(NamedTuple):
    """A question with its images, and why one of them cannot be read ("": all can)."""

    question: Question
    images: Mapping[str, Any]  # reference -> `Pixels`
    problem: str


class Questions(Stage):
    """Puts the questions of a task to a model; subclasses define `answer`. Rows: id, entries of `answer`,
    reason (why there is no answer), failed (`MODEL_FAILED`: the next command asks again; `IMAGE_FAILED`: a
    command asks again once the image has changed)."""

    empty: Row  # the entries of a question without an answer

    def __init__(
        self, output: str, task: ChoiceTask, blocks: Blocks, *, config: EvalConfig, model: Model | None
    ) -> None:
        self.name, self.outputs = output, (output,)
        self.task, self.blocks = task, blocks
        self.config, self.model = config, model

    def answer(self, model: Any, block: Sequence[LoadedQuestion]) -> Iterable[Row]:
        """A row without id for each question of `block`, whose images are all readable."""
        raise NotImplementedError

    def read(self, number: int) -> list[LoadedQuestion]:
        block = []
        for index in self.blocks.members(number):
            question = self.task.questions[index]
            names = dict.fromkeys(question.images)  # options may share an image
            images = {name: read_image(self.task.media, name) for name in names}
            problems = [image for image in images.values() if isinstance(image, str)]
            block.append(LoadedQuestion(question, images, problems[0] if problems else ""))
        return block

    def work(self, model: Any, block: list[LoadedQuestion], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        usable = [item for item in block if not item.problem]
        answers = iter(self.answer(model, usable) if usable else ())
        rows = []
        for item in block:
            unusable = {**self.empty, "reason": f"{UNUSABLE}{item.problem}", "failed": IMAGE_FAILED}
            rows.append({"id": item.question.id, **(unusable if item.problem else next(answers))})
        return {self.name: rows}

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        return all(row["failed"] != MODEL_FAILED for row in rows)

    def ids(self, records: range) -> list[str]:
        return [self.task.questions[index].id for index in records]

    def files(self, records: range) -> list[Path]:
        names = [name for index in records for name in self.task.questions[index].images]
        return self.task.media.files(dict.fromkeys(names))


class Asking(Questions):
    """Asks a generative model. Rows: answer (its text), letter, chosen (index of the option in the data)."""

    empty = {"answer": None, "letter": None, "chosen": None}  # noqa: RUF012

    def answer(self, model: Any, block: Sequence[LoadedQuestion]) -> list[Row]:
        orders = [order_options(item.question, self.config.seed, self.config.protocol) for item in block]
        texts_shown: list[list[str]] = []  # per question: its options in the order shown
        prompts: list[list[ChoiceQuestion]] = []
        for item, order in zip(block, orders, strict=True):
            texts = [item.question.texts[k] for k in order]
            if self._answers_in_words(texts):
                prompt = write_yes_no_prompt(item.question.asked)
            else:
                prompt = write_prompt(self.config.prompt, item.question.asked or CAPTION_QUESTION, texts)
            texts_shown.append(texts)
            prompts.append([ChoiceQuestion(prompt, len(texts))])
        images = [item.images[item.question.image] for item in block]  # (H, W, 3) uint8 each
        replies = answer_each(model, images, prompts, [self.config.scoring])
        rows = []
        for texts, order, [reply] in zip(texts_shown, orders, replies, strict=True):
            letter, reason = (None, reply.error) if reply.error else self._read_letter(reply, texts)
            failed = MODEL_FAILED if reply.error else ""
            rows.append(_make_answer_row(reply.text, letter, reason, order, failed=failed))
        return rows

    def _answers_in_words(self, texts: Sequence[str]) -> bool:
        """Whether the model answers yes or no in words; otherwise by the letter of an option."""
        return self.config.scoring == "generated" and sorted(texts) == [NO, YES]

    def _read_letter(self, reply: Any, texts: Sequence[str]) -> tuple[str | None, str]:
        """(the letter of an answer or None, why there is none)."""
        if self.config.scoring != "generated":
            why = "the model gives no probability to a letter, or the same to several"
            return reply.likeliest, "" if reply.likeliest else why
        answer = reply.text or ""
        if self._answers_in_words(texts):
            as_released = self.config.protocol == "paper" and "beaf" in self.task.name
            is_yes = read_beaf(answer) if as_released else parse_yes_no(answer)
            if is_yes is None:
                return None, "the answer is neither yes nor no"
            return LETTERS[texts.index(YES if is_yes else NO)], ""
        letter, reason, *_ = parse(answer, texts)
        return letter, reason


def _make_answer_row(
    text: str | None, letter: str | None, reason: str, order: Sequence[int], *, failed: str = ""
) -> Row:
    """The row of an answer; order: of the options as shown."""
    chosen = None if letter is None else order[LETTERS.index(letter)]
    return {"answer": text, "letter": letter, "chosen": chosen, "reason": reason, "failed": failed}


def read_beaf(answer: str) -> bool | None:
    """Reads an answer as BEAF's release does: "yes" anywhere ("Eyes"), else "no" anywhere ("I do not know").
    Without either the release reuses the answer to the previous question; here None."""
    if "yes" in answer.lower():
        return True
    return False if "no" in answer.lower() else None


class Matching(Questions):
    """Scores every option with its image, by a judge "itm". Rows: scores (in the order of the data)."""

    empty = {"scores": None}  # noqa: RUF012

    def answer(self, model: Any, block: Sequence[LoadedQuestion]) -> Iterator[Row]:
        for result in isolate(functools.partial(self._score_options, model), block):
            reason = result if isinstance(result, str) else ""
            if not reason and not np.isfinite(result).all():
                reason = "the model's score is not finite"
            scores = None if reason else [float(score) for score in result]
            yield {"scores": scores, "reason": reason, "failed": MODEL_FAILED if reason else ""}

    def _score_options(self, model: Any, block: Sequence[LoadedQuestion]) -> list[np.ndarray]:
        """(options,) float64 per question; an image is matched with all of its sentences at once."""
        images, texts = [], []
        for question, image_of, _ in block:
            for name, image in image_of.items():
                images.append(image)
                texts.append([o.text for o in question.options if question.get_image(o) == name])
        matches = iter(model.match(images, texts))  # per image: the scores of its texts
        block_scores = []
        for question, image_of, _ in block:
            scores = np.empty(len(question.options))
            for name in image_of:
                scores[np.array(question.images) == name] = next(matches)  # the options with this image
            block_scores.append(scores)
        return block_scores


class FileAnswers(Asking):
    """Reads letters in the answers of another harness's log. Rows: as of `Asking`."""

    def __init__(self, *args: Any, answers: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answers = answers  # `question_key` -> answer

    def read(self, number: int) -> list[LoadedQuestion]:
        """The questions without their images."""
        return [LoadedQuestion(self.task.questions[k], {}, "") for k in self.blocks.members(number)]

    def answer(self, model: None, block: Sequence[LoadedQuestion]) -> list[Row]:
        rows = []
        for question, *_ in block:
            text = self.answers.get(question_key(self.task, question))
            order = order_options(question, self.config.seed)  # as `export_questions` wrote them
            letter, reason = None, "the log has no answer"
            if text:
                letter, reason, *_ = parse(text, [question.texts[k] for k in order])
            rows.append(_make_answer_row(text, letter, reason, order))
        return rows

    def files(self, records: range) -> list[Path]:
        return []


# --- questions for another harness -----------------------------------------------------------------
def question_key(task: Task, question: Question) -> str:
    """The name of a question in other harnesses."""
    return f"{task.name}.{task.variant}/{question.id}"


def export_questions(tasks: Sequence[Task], seed: int) -> Iterator[harness.Question]:
    """The questions about one image each, with their options in the order of `order_options`."""
    for task in tasks:
        if not isinstance(task, ChoiceTask) or not task.fits_model("log"):  # a harness shows one image
            continue
        for question in task.questions:
            order = order_options(question, seed)
            yield harness.Question(
                key=question_key(task, question),
                read_image=functools.partial(_read_png, task.media, question),
                text=question.asked or CAPTION_QUESTION,
                options=tuple(question.texts[k] for k in order),
                answer=LETTERS[order.index(question.correct)],
                category=question.type or task.key,
            )


def _read_png(media: Media, question: Question) -> bytes:
    """A PNG file of the question's image, or of a video's frames. Raises UserError."""
    pixels = read_image(media, question.image)
    if isinstance(pixels, str):
        raise UserError(f"Question '{question.id}' has no image: {pixels}.")
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


# --- baselines -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class BlindTask:
    """The distinct questions of a task without its images ("text only") or its texts ("picture only")."""

    baseline: str
    task: ChoiceTask  # of the distinct questions
    #: Id -> the distinct question that stands for it; none if its options are alike without their texts.
    stand_ins: Mapping[str, Question]

    @classmethod
    def make(cls, baseline: str, task: ChoiceTask) -> BlindTask:
        """The blind form of a task for one of `BASELINES`."""
        distinct: dict[tuple[str, ...], Question] = {}  # what a blind question still shows -> the question
        stand_ins = {}
        for question in task.questions:
            blind = replace(question, groups=())
            visible = ""  # of the question itself, besides its options
            if baseline == TEXT_ONLY:
                options = tuple(replace(option, image="") for option in question.options)
                blind = replace(blind, image=GREY, options=options)
                visible = question.asked
            elif question.asked:  # the image stays, with the answers
                blind = replace(blind, asked="What is the answer?")
                visible = question.image
            elif any(option.image for option in question.options):  # a caption is held against several images
                options = tuple(replace(option, text="A picture.") for option in question.options)
                blind = replace(blind, options=options)
            else:
                continue  # an image with captions: without their words they are alike
            key = visible, *sorted(_visible_half(baseline, option) for option in question.options)
            stand_ins[question.id] = distinct.setdefault(key, blind)
        media = Drawn(lambda _: make_gray()) if baseline == TEXT_ONLY else task.media
        return cls(baseline, replace(task, questions=tuple(distinct.values()), media=media), stand_ins)

    def reorder(self, question: Question, stand_in: Question, values: Sequence[float]) -> list[float]:
        """The values of a stand-in's options, in the order of the question that it stands for."""
        value_of = {}
        for option, value in zip(stand_in.options, values, strict=True):
            value_of[_visible_half(self.baseline, option)] = value
        return [value_of[_visible_half(self.baseline, option)] for option in question.options]

    def blocks(self, size: int, questions: Sequence[Question], limit: int) -> Blocks:
        """The blocks that hold the stand-ins of `questions`, thinned out evenly to `limit` questions."""
        positions = {item.id: index for index, item in enumerate(self.task.questions)}
        indices = {positions[self.stand_ins[q.id].id] for q in questions if q.id in self.stand_ins}
        return spread_blocks(Blocks(len(positions), size, sorted(indices)), limit)


def _visible_half(baseline: str, option: Option) -> str:
    """The half of an option that a baseline shows: its image or its text."""
    return option.image if baseline == PICTURE_ONLY and option.image else option.text
