"""The stages of a NegBench run, a model on a data set: `Encoding` (features of images and captions), or
`Asking` and `Matching` (answers to questions, scores of their options). `ModelTasks` lists those of a run.

Images are cut into blocks over all tasks of a data set, sentences over all of a task; a block is encoded as
a whole, so that no feature depends on `--limit` or on the selected tasks.

A generative model is shown the image with all options and answers with a letter, as the paper asks LLaVA
(appendix A; its wording is not published). A judge "itm" scores every option. Order of options and ties go by
`protocol`: docs/reference/quirks.md.

Baselines: "text only" shows a gray image in place of each (Goyal et al., CVPR 2017, arXiv:1612.00837), each
distinct question once; "picture only" tells a caption, or asks a question, that says nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import logging
import random
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from nein.benchmarks.baselines import BASELINES, PICTURE_ONLY, TEXT_ONLY, make_gray, spread_blocks
from nein.benchmarks.negbench import data as files
from nein.benchmarks.negbench.config import EvalConfig
from nein.datasets import harness
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.other_tests import NO, YES
from nein.datasets.negbench.records import ChoiceTask, Drawn, Media, Option, Question, RetrievalTask, Task
from nein.engine import answers, images
from nein.engine.folder import Blocks, Folder, Row, sample_seed
from nein.engine.stages import Model, Stage
from nein.loading.digests import pixel_digest
from nein.loading.errors import UserError, isolate
from nein.metrics.base import parse_yes_no
from nein.metrics.choices import ChoiceQuestion, answer_each, write_prompt, yes_or_no
from nein.metrics.dual import pool
from nein.metrics.letters import LETTERS, parse

log = logging.getLogger(__name__)
UNUSABLE = "the picture is unusable: "
YES_NO = sorted((YES, NO))
QUESTION = "Which caption describes the image?"
GREY = "grey"  # reference of the plain gray image
SAID, ASKED = "A picture.", "What is the answer?"  # a caption and a question without information
Picture = np.ndarray | str  # (H, W, 3) uint8, or why there is no image


# --- features --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Features of images or sentences, by row."""

    features: np.ndarray  # (N, D) float32 or float64, may lie in a file
    rows: dict[str, int]  # reference or sentence -> its row
    reasons: dict[str, str]  # reference or sentence -> why it has none


class Encoding(Stage):
    """Encodes the images or sentences that the cache of features lacks; failures are tried again. Rows: name,
    key (SHA-256 of the content), reason (why there is no feature), cut (the model truncates the sentence).

    names      Distinct references or sentences, in an order that no selection changes.
    selection  The names whose blocks are encoded.
    media      The images and videos; None: `names` are sentences.
    """

    def __init__(
        self,
        output: str,
        tasks: ModelTasks,
        names: Sequence[str],
        selection: Collection[str],
        media: Media | None = None,
    ) -> None:
        self.name, self.outputs, self.model = output, (output,), tasks.model
        self.folder, self.cache, self.media = tasks.folder, tasks.config.cache_dir, media
        self.names, self.selection = names, selection
        chosen = [index for index, name in enumerate(names) if name in selection]
        self.blocks = Blocks(len(names), tasks.config.batch_size, chosen)

    def read(self, number: int) -> list[tuple[Row, Any]]:
        """Rows, each with its input: a sentence, the frames of an image or video, or None (unreadable)."""
        inputs: list[tuple[Row, Any]] = []
        for name in (self.names[index] for index in self.blocks.members(number)):
            try:
                frames = [] if self.media is None else self.media.frames(name)
            except images.ImageError as error:
                inputs.append(({"name": name, "key": "", "reason": f"{UNUSABLE}{error}"}, None))
                continue
            content = "".join(map(pixel_digest, frames)) if frames else name
            key = hashlib.sha256(content.encode()).hexdigest()
            inputs.append(({"name": name, "key": key, "reason": ""}, frames or name))
        return inputs

    def work(self, model: Any, inputs: list[tuple[Row, Any]], missing: tuple[str, ...]) -> dict[str, Any]:
        rows: list[Row] = [row for row, _ in inputs]
        if self.media is None and hasattr(model, "overlong"):
            for row, cut in zip(rows, isolate(model.overlong, [row["name"] for row in rows]), strict=True):
                row |= {"cut": True} if cut is True else {}
        cache, space = answers.FeatureCache(self.cache), self._space(model.fingerprint)
        cached = cache.get(space, _scope(rows))
        readable = [(row, content) for row, content in inputs if row["key"]]
        if any(row["key"] not in cached for row, _ in readable):
            encoded = isolate(functools.partial(self.encode, model), [content for _, content in readable])
            entries = {}
            for (row, _), feature in zip(readable, encoded, strict=True):
                if isinstance(feature, str):
                    row |= {"key": "", "reason": feature}
                elif not np.isfinite(feature).all():
                    row |= {"key": "", "reason": "the model's feature is not finite"}
                else:
                    entries[row["key"]] = feature
            # Keyed by the inputs that could be encoded: a failed one changes the batch of the others.
            cache.put(space, _scope(rows), entries)
        return {self.name: rows}

    def encode(self, model: Any, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """(D,) float32 per sentence, (frames, D) per image or video."""
        if self.media is None:
            return model.encode_text(list(inputs))
        ends = np.cumsum([len(frames) for frames in inputs])[:-1]  # where each input's frames end
        return np.split(model.encode([frame for frames in inputs for frame in frames]), ends)

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        if [row["name"] for row in rows] != [self.names[index] for index in self.blocks.members(number)]:
            return False
        cached = self._read_cache(rows)  # an input on which the model failed is tried again
        return all(row["key"] in cached or row["reason"].startswith(UNUSABLE) for row in rows)

    def files(self, records: range) -> list[Path]:
        return [] if self.media is None else self.media.files(self.names[index] for index in records)

    def features(self, selection: Collection[str]) -> Encoded:
        """The features of the selected names, after the stage. Raises UserError if they have vanished."""
        vectors = np.zeros((0, 1))  # (N, D)
        rows: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for number in self.blocks.numbers:
            block = self.folder.read(self.name, number)
            cached = self._read_cache(block)
            for name, row in ((row["name"], row) for row in block if row["name"] in selection):
                if row["reason"]:
                    reasons[name] = row["reason"]
                    continue
                if row["key"] not in cached:
                    raise UserError(f"Features have vanished from '{self.cache}'; rerun the command.")
                feature = cached[row["key"]] if self.media is None else pool(cached[row["key"]])
                if not rows:
                    # An unnamed file: features of a million captions, 2 GiB, use no more than free memory.
                    with tempfile.TemporaryFile(dir=self.cache) as file:
                        vectors = np.memmap(file, feature.dtype, "w+", shape=(len(selection), len(feature)))
                vectors[len(rows)] = feature
                rows[name] = len(rows)
        return Encoded(vectors[: len(rows)], rows, reasons)

    def keys(self) -> dict[str, str]:
        """Name -> key of every feature in the finished blocks."""
        done = sorted(self.folder.list_blocks(self.name).intersection(self.blocks.numbers))
        return {row["name"]: row["key"] for row in self.folder.rows(self.name, done) if row["key"]}

    @functools.cached_property
    def _fingerprint(self) -> str:
        """The fingerprint of the model that made the features of this folder."""
        return str(self.folder.models()["model"]["fingerprint"])

    def _read_cache(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        return answers.FeatureCache(self.cache).get(self._space(self._fingerprint), _scope(rows))

    def _space(self, fingerprint: str) -> str:
        return f"negbench/{self.name.partition('/')[0]}/{fingerprint}"


def _scope(rows: Sequence[Row]) -> str:
    """The key of a block: its contents in order; an image without a feature counts by its reason."""
    return answers.hash_scope(row["key"] or row["reason"].partition(":")[0] for row in rows)


def picture(media: Media, reference: str) -> Picture:
    """(H, W, 3) uint8: the image behind a reference, or the frames of a video in two rows; or why there is
    none."""
    try:
        frames = media.frames(reference)
    except images.ImageError as error:
        return str(error)
    if len(frames) == 1:
        return frames[0]
    half = -(-len(frames) // 2)  # rounded up; a black frame fills the second row
    frames = [*frames, *[np.zeros_like(frames[0])] * (2 * half - len(frames))]
    return np.concatenate([np.concatenate(frames[:half], 1), np.concatenate(frames[half:], 1)], 0)


# --- questions -------------------------------------------------------------------------------------


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
        orders = [order(item.question, self.config.seed, self.config.protocol) for item in block]
        offered = [
            [s.question.texts[k] for k in shown_order] for s, shown_order in zip(block, orders, strict=True)
        ]
        questions = []
        for item, texts in zip(block, offered, strict=True):
            words = self._answers_in_words(texts)
            text = write_prompt(self.config.prompt, item.question.asked or QUESTION, texts)
            questions.append([ChoiceQuestion(yes_or_no(item.question.asked) if words else text, len(texts))])
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
            shown_order = order(question, self.config.seed)  # of the options, as they were exported
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
    """The questions about one image each for another harness, with options in the order of `order`."""
    for task in tasks:
        for question in task.questions if isinstance(task, ChoiceTask) and task.fits_model("log") else ():
            shown_order = order(question, seed)
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


def order(question: Question, seed: int, protocol: str = "fixed") -> list[int]:
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


# --- a run -----------------------------------------------------------------------------------------


def config_of(folder: Folder) -> EvalConfig:
    """The configuration of a finished run, from its manifest."""
    names = {field.name for field in dataclasses.fields(EvalConfig)}
    values = {key: value for key, value in folder.manifest()["config"].items() if key in names}
    return EvalConfig(**{**values, "out": str(folder.path.parents[1])})


@dataclass(frozen=True)
class ModelTasks:
    """The tasks of a run, with the stages and features of each."""

    folder: Folder
    config: EvalConfig
    data: DataSet
    tasks: Sequence[Task]  # the selected ones, cut to `--limit`; those of `data` are complete
    kind: str  # of the model (`data.Choice`)
    model: Model | None = None  # None: the run is only read
    answers: Mapping[str, str] = field(default_factory=dict)  # of a log, by `question_key`

    @classmethod
    def load(cls, folders: Sequence[Folder]) -> list[ModelTasks]:
        """The tasks of finished runs, read again from their data; a warning for data that have vanished."""
        sets: dict[str, DataSet] = {}  # by the digest of the records
        loaded = []
        for folder in folders:
            manifest, config = folder.manifest(), config_of(folder)
            digest, kind = manifest["data"]["records_sha256"], manifest["summary"]["kind"]
            if digest not in sets:
                try:
                    sets |= {data.sha256: data for data, _ in files.select_tasks(config)}
                except UserError as error:
                    log.warning(
                        "no sample of '%s' is shown, since its data are missing: %s", folder.path, error
                    )
            if digest in sets:
                tasks = files.tasks_of(config, sets[digest])
                tasks = [task for task in tasks if task.fits_model(kind)]
                loaded.append(cls(folder, config, sets[digest], tasks, kind))
        return loaded

    def find_complete(self, task: Task) -> Task:
        """The same task without a limit."""
        return next(other for other in self.data.tasks if (other.name, other.key) == (task.name, task.key))

    def blocks(self, task: Task) -> Blocks:
        """The blocks of a task's questions, or of the captions that a judge is asked about."""
        size, cut = (len(getattr(part, part.parts[-1])) for part in (self.find_complete(task), task))
        return Blocks.first(size, self.config.batch_size, cut)

    def pictures(self) -> Encoding:
        """The images of all tasks."""
        names = {name for task in self.tasks for name in task.references}
        return Encoding(files.PICTURES, self, self.data.references, names, self.data.media)

    def sentences(self, task: Task) -> Encoding:
        """The captions of a task, or the texts of its options."""
        names = list(dict.fromkeys(self.find_complete(task).sentences))
        return Encoding(
            f"{files.SENTENCES}/{task.key}", self, names, set(self.complete_blocks(task).sentences)
        )

    def features(self, task: Task) -> tuple[Encoded, Encoded]:
        """The features of the images and of the sentences of a task."""
        pictures = self.pictures().features(set(task.references))
        return pictures, self.sentences(task).features(set(task.sentences))

    def complete_blocks(self, task: Task) -> Task:
        """The task with all captions of its blocks, if a judge is asked: a block is judged as a whole."""
        complete = self.find_complete(task)
        if not task.asked or not isinstance(complete, RetrievalTask):
            return task
        blocks = self.blocks(task)
        members = (index for number in blocks.numbers for index in blocks.members(number))
        return replace(complete, negated=tuple(complete.negated[index] for index in members))

    def askings(self, task: Task) -> Iterator[tuple[Questions, Distinct | None]]:
        """Yields (stage of a task's questions, None), then (stage, distinct questions) of each baseline."""
        complete = self.find_complete(task)
        assert isinstance(complete, ChoiceTask)
        kind, output = (Matching, files.SCORES) if self.kind == "itm" else (Asking, files.ANSWERS)
        output, options = f"{output}/{task.key}", dict[str, Any](config=self.config, model=self.model)
        if self.kind == "log":  # its model saw no baseline
            yield FileAnswers(output, complete, self.blocks(task), answers=self.answers, **options), None
            return
        yield kind(output, complete, self.blocks(task), **options), None
        for name in BASELINES if self.config.blind else ():
            distinct = Distinct.make(name, complete)
            questions: Any = task.records
            blocks = distinct.blocks(self.config.batch_size, questions, self.config.blind)
            yield kind(f"{output}.{name.replace(' ', '-')}", distinct.task, blocks, **options), distinct

    def count_cut(self) -> dict[str, int]:
        """How many of the captions the model truncates: {"count": ..., "of": all}."""
        counts = {"count": 0, "of": 0}
        for part in map(self.sentences, self.tasks):
            rows = part.folder.rows(part.name, part.blocks.numbers)
            counts["count"] += sum(bool(row.get("cut")) for row in rows if row["name"] in part.selection)
            counts["of"] += len(part.selection)
        return counts
