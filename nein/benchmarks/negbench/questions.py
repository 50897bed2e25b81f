"""The stages that put NegBench's questions to a model: `Asking` a generative model, `Matching` an image with
each option, and `FileAnswers` from a log.

A generative model is shown the image with all options and answers with a letter, as the paper asks LLaVA
(appendix A; its wording is not published). A judge "itm" scores every option. Order of options and ties go by
`protocol`: docs/reference/quirks.md.

Baselines: "text only" shows a gray image in place of each (Goyal et al., CVPR 2017, arXiv:1612.00837), each
distinct question once; "picture only" tells a caption, or asks a question, that says nothing.
"""

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
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.folder import UNUSABLE
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

YES_NO = sorted((YES, NO))
QUESTION = "Which caption describes the image?"
GREY = "grey"  # reference of the plain gray image
SAID, ASKED = "A picture.", "What is the answer?"  # a caption and a question without information
Picture = np.ndarray | str  # (H, W, 3) uint8, or why there is no image


def picture(media: Media, reference: str) -> Picture:
    """(H, W, 3) uint8: the image behind a reference, or the frames of a video in two rows; or why there is
    none."""
    try:
        frames = media.frames(reference)
    except ImageError as error:
        return str(error)
    if len(frames) == 1:
        return frames[0]
    half = -(-len(frames) // 2)  # rounded up; a black frame fills the second row
    frames = [*frames, *[np.zeros_like(frames[0])] * (2 * half - len(frames))]
    return np.concatenate([np.concatenate(frames[:half], 1), np.concatenate(frames[half:], 1)], 0)


class Shown(NamedTuple):
    """A question with its images by reference, or why one of them cannot be read."""

    question: Question
    images: Mapping[str, Any]
    fault: str


class Questions(Stage):
    """Asks the questions of a task, by `answer` of a subclass. Rows: id, entries of `answer`, reason, failed
    (`data.MODEL`: asked again next time; `data.PICTURE`: once the image changes; "": final)."""

    empty: Row  # the entries of a question without an answer

    def __init__(
        self, output: str, task: ChoiceTask, blocks: Blocks, *, config: EvalConfig, model: Model | None
    ) -> None:
        self.name, self.outputs, self.task, self.blocks = output, (output,), task, blocks
        self.config, self.model = config, model

    def answer(self, model: Any, block: Sequence[Shown]) -> Iterable[Row]:
        """A row without id for each question; all images are readable."""
        raise NotImplementedError

    def read(self, number: int) -> list[Shown]:
        block = []
        for question in (self.task.questions[index] for index in self.blocks.members(number)):
            images_seen = {name: picture(self.task.media, name) for name in dict.fromkeys(question.images)}
            fault = next((text for text in images_seen.values() if isinstance(text, str)), "")
            block.append(Shown(question, images_seen, fault))
        return block

    def work(self, model: Any, block: list[Shown], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        usable = [item for item in block if not item.fault]
        replies = iter(self.answer(model, usable) if usable else ())
        rows = []
        for item in block:
            lost = {**self.empty, "reason": f"{UNUSABLE}{item.fault}", "failed": files.PICTURE}
            rows.append({"id": item.question.id, **(lost if item.fault else next(replies))})
        return {self.name: rows}

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        return all(row["failed"] != files.MODEL for row in rows)

    def ids(self, records: range) -> list[str]:
        return [self.task.questions[index].id for index in records]

    def files(self, records: range) -> list[Path]:
        names = [name for index in records for name in self.task.questions[index].images]
        return self.task.media.files(dict.fromkeys(names))


class Asking(Questions):
    """Asks a generative model. Rows: answer, letter, chosen (index of an option as the data have them)."""

    empty = {"answer": None, "letter": None, "chosen": None}  # noqa: RUF012

    def answer(self, model: Any, block: Sequence[Shown]) -> list[Row]:
        orders = [order_options(item.question, self.config.seed, self.config.protocol) for item in block]
        offered = [
            [s.question.texts[k] for k in shown_order] for s, shown_order in zip(block, orders, strict=True)
        ]
        questions = []
        for item, texts in zip(block, offered, strict=True):
            words = self._answers_in_words(texts)
            prompt = write_prompt(self.config.prompt, item.question.asked or QUESTION, texts)
            prompt = write_yes_no_prompt(item.question.asked) if words else prompt
            questions.append([ChoiceQuestion(prompt, len(texts))])
        images_shown = [item.images[item.question.image] for item in block]
        replies = answer_each(model, images_shown, questions, [self.config.scoring])
        rows = []
        for texts, shown_order, [reply] in zip(offered, orders, replies, strict=True):
            letter, reason = (None, reply.error) if reply.error else self._letter(reply, texts)
            chosen = None if letter is None else shown_order[LETTERS.index(letter)]  # in the data's order
            row = {"answer": reply.text, "letter": letter, "chosen": chosen, "reason": reason}
            rows.append({**row, "failed": files.MODEL if reply.error else ""})
        return rows

    def _answers_in_words(self, texts: Sequence[str]) -> bool:
        """Whether the model answers yes or no in words; otherwise by the letter of an option."""
        return self.config.scoring == "generated" and sorted(texts) == YES_NO

    def _letter(self, reply: Any, texts: Sequence[str]) -> tuple[str | None, str]:
        """(the letter of an answer or None, why there is none)."""
        if self.config.scoring != "generated":
            why = "the model gives no probability to a letter, or the same to several"
            return reply.likeliest, "" if reply.likeliest else why
        if self._answers_in_words(texts):
            by_release = self.config.protocol == "paper" and "beaf" in self.task.name
            yes = (read_beaf if by_release else parse_yes_no)(reply.text or "")
            if yes is None:
                return None, "the answer is neither yes nor no"
            return LETTERS[texts.index(YES if yes else NO)], ""
        letter, reason, *_ = parse(reply.text or "", texts)
        return letter, reason


class Matching(Questions):
    """Lets a judge "itm" score the options. Rows: scores (in the data's order)."""

    empty = {"scores": None}  # noqa: RUF012

    def answer(self, model: Any, block: Sequence[Shown]) -> Iterator[Row]:
        for result in isolate(functools.partial(self._scores, model), block):
            reason = result if isinstance(result, str) else ""
            if not reason and not np.isfinite(result).all():
                reason = "the model's score is not finite"
            values = None if reason else [float(score) for score in result]
            yield {"scores": values, "reason": reason, "failed": files.MODEL if reason else ""}

    def _scores(self, model: Any, block: Sequence[Shown]) -> list[np.ndarray]:
        """(options,) float64 per question; an image is matched with all of its sentences at once."""
        pairs = [(item, name) for item in block for name in item.images]
        options = [
            [o for o in item.question.options if item.question.picture(o) == name] for item, name in pairs
        ]
        texts = [[option.text for option in group] for group in options]
        matches = iter(model.match([item.images[name] for item, name in pairs], texts))
        scores = []
        for item in block:
            by_image = {name: iter(next(matches)) for name in item.images}
            # back in the order of the options
            scores.append(np.array([next(by_image[name]) for name in item.question.images], np.float64))
        return scores


class FileAnswers(Asking):
    """Reads letters in the answers of a log of another harness, by `question_key`. Rows: as of `Asking`."""

    def __init__(self, *args: Any, answers: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answers = answers

    def read(self, number: int) -> list[Shown]:
        """The questions without their images."""
        return [Shown(self.task.questions[index], {}, "") for index in self.blocks.members(number)]

    def answer(self, model: None, block: Sequence[Shown]) -> list[Row]:
        rows = []
        for question in (item.question for item in block):
            text = self.answers.get(question_key(self.task, question))
            shown_order = order_options(question, self.config.seed)  # of the options, as they were exported
            letter, reason = None, "the log has no answer"
            if text:
                letter, reason, *_ = parse(text, [question.texts[place] for place in shown_order])
            chosen = None if letter is None else shown_order[LETTERS.index(letter)]
            row = {"answer": text, "letter": letter, "chosen": chosen, "reason": reason}
            rows.append({**row, "failed": ""})
        return rows

    def files(self, records: range) -> list[Path]:
        return []


def question_key(task: Task, question: Question) -> str:
    """The name of a question in other harnesses."""
    return f"{task.name}.{task.variant}/{question.id}"


def export_questions(tasks: Sequence[Task], seed: int) -> Iterator[harness.Question]:
    """The questions about one image each for another harness, with options as by `order_options`."""
    for task in tasks:
        for question in task.questions if isinstance(task, ChoiceTask) and task.fits_model("log") else ():
            shown_order = order_options(question, seed)
            yield harness.Question(
                key=question_key(task, question),
                read_image=functools.partial(_read_png, task.media, question),
                text=question.asked or QUESTION,
                options=tuple(question.texts[place] for place in shown_order),
                answer=LETTERS[shown_order.index(question.correct)],
                category=question.type or task.key,
            )


def _read_png(media: Media, question: Question) -> bytes:
    """A PNG file of the question's image, or of a video's frames. Raises UserError."""
    pixels = picture(media, question.image)  # (H, W, 3) uint8, or why there are none
    if isinstance(pixels, str):
        raise UserError(f"Question '{question.id}' has no image: {pixels}.")
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def read_beaf(answer: str) -> bool | None:
    """Reads an answer as BEAF's release does: "yes" anywhere ("Eyes"), else "no" anywhere ("I do not know").
    Without either the release reuses the answer to the previous question; here None."""
    text = answer.lower()
    return True if "yes" in text else False if "no" in text else None


def order_options(question: Question, seed: int, protocol: str = "fixed") -> list[int]:
    """The indices of the options as shown: shuffled by the question's seed, or under "paper" as they are."""
    positions = list(range(len(question.options)))
    if protocol != "paper":
        random.Random(sample_seed(seed, question.id)).shuffle(positions)
    return positions


@dataclass(frozen=True)
class Distinct:
    """The questions of a baseline: every distinct question of a task once, without its image or its text."""

    name: str  # of the baseline
    task: ChoiceTask  # of the distinct questions
    standing: Mapping[str, Question]  # id -> the distinct question for it; missing: all its options are alike

    @classmethod
    def make(cls, name: str, task: ChoiceTask) -> Distinct:
        """Removes the image ("text only") or the text ("picture only") from every question of a task."""
        by_words: dict[tuple[str, ...], Question] = {}
        standing = {}
        for question in task.questions:
            if name == PICTURE_ONLY and not question.asked and not any(o.image for o in question.options):
                continue  # captions without their words
            if name == TEXT_ONLY:
                options = tuple(replace(choice, image="") for choice in question.options)
                fixed_half, plain = question.asked, replace(question, groups=(), image=GREY, options=options)
            elif question.asked:
                fixed_half, plain = question.image, replace(question, groups=(), asked=ASKED)
            else:
                options = tuple(replace(choice, text=SAID) for choice in question.options)
                fixed_half, plain = "", replace(question, groups=(), options=options)
            words = fixed_half, *sorted(_option(name, option) for option in question.options)
            standing[question.id] = by_words.setdefault(words, plain)
        media = Drawn(lambda _: make_gray()) if name == TEXT_ONLY else task.media
        return cls(name, replace(task, questions=tuple(by_words.values()), media=media), standing)

    def reorder(self, question: Question, representative: Question, values: Sequence[float]) -> list[float]:
        """The values of a distinct question's options, in the order of the question it stands for."""
        value_of = {
            _option(self.name, entry): value
            for entry, value in zip(representative.options, values, strict=True)
        }
        return [value_of[_option(self.name, entry)] for entry in question.options]

    def blocks(self, size: int, questions: Sequence[Question], most: int) -> Blocks:
        """The blocks of the distinct questions for `questions`; `most` of them at most, evenly spread."""
        positions = {item.id: index for index, item in enumerate(self.task.questions)}
        indices = {positions[self.standing[item.id].id] for item in questions if item.id in self.standing}
        return spread_blocks(Blocks(len(positions), size, sorted(indices)), most)


def _option(name: str, option: Option) -> str:
    """The half of an option that a baseline shows."""
    return option.image if name == PICTURE_ONLY and option.image else option.text
