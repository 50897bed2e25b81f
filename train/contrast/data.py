"""What a step sees: pictures with captions, pictures with questions, each a function of (seed, position).

A position counts the examples of its kind seen by all processes since the beginning. Nothing depends on what
was asked before, so a resumed run, or one on another number of processes, sees the same examples.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from PIL import Image

from nein.datasets.negbench.records import Media, Question, RetrievalItem
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.engine.images import ImageError
from nein.nano.worlds import is_nano, world
from nein.train.contrast.options import ContrastConfig
from nein.train.order import Passes, generator, share

log = logging.getLogger(__name__)
Record = TypeVar("Record", RetrievalItem, Question)
#: Neighbours tried in the place of a picture that cannot be decoded.
PATIENCE = 100


@dataclass(frozen=True)
class Corpus:
    """The two files of a run with the pictures behind them.

    caption_media, question_media  One object where a reference names the same picture in both files.
    facts  JSON-serialisable: where they come from, how many there are, `records_sha256`.

    Rows of files are read when they are asked for: memory holds 8 bytes of each.
    """

    captions: Sequence[RetrievalItem]
    questions: Sequence[Question]
    caption_media: Media
    question_media: Media
    facts: dict[str, Any]

    @property
    def parts(self) -> tuple[tuple[Sequence[Any], Media], ...]:
        """Both files, each with where its pictures are read."""
        return ((self.captions, self.caption_media), (self.questions, self.question_media))


def load(config: ContrastConfig) -> Corpus:
    """Reads or draws both files. Raises UserError for what cannot be used."""
    from nein.datasets.negbench import drawn
    from nein.datasets.negbench.media import Drawn, Files
    from nein.train.contrast import table

    root = Path(config.image_root) if config.image_root else None

    def media(source: str) -> Media:
        return Drawn(drawn.picture) if is_nano(source) else Files(root, Path(source).parent)

    captions: Sequence[RetrievalItem]
    questions: Sequence[Question]
    digests: list[str] = []
    if is_nano(config.captions):
        captions = drawn.negcap(
            "train",
            config.nano_scenes,
            config.seed,
            world(config.captions),
            config.wordings,
            config.original_captions,
        )[: config.limit]
        digests.append(_digest(captions))
    else:
        captions = table.Captions(
            Path(config.captions),
            config.limit,
            image=config.image_column,
            captions=config.caption_column,
            delimiter={"comma": ",", "tab": "\t"}[config.separator],
        )
        digests.append(captions.sha256)
    if is_nano(config.questions):
        questions = drawn.negmcq(
            "train",
            config.nano_scenes,
            config.seed,
            world(config.questions),
            config.wordings,
            config.caption_questions,
        )[: config.limit]
        digests.append(_digest(questions))
    else:
        questions = table.Questions(Path(config.questions), config.limit)
        digests.append(questions.sha256)
        if len(questions.options) > 1:
            raise UserError(
                f"'{config.questions}' has questions with {' and '.join(map(str, questions.options))} "
                "options; a batch needs the same number throughout."
            )
    for name, count, flag in (
        ("pictures with captions", len(captions), config.batch_size),
        ("questions", len(questions), config.questions_per_step),
    ):
        if count < flag:
            raise UserError(
                f"A step takes {flag} {name}, but there are {count}; lower --batch-size and "
                "--questions-per-step."
            )
    facts = {
        "captions": Path(config.captions).name,
        "questions": Path(config.questions).name,
        "rows_of_captions": len(captions),
        "rows_without_caption": getattr(captions, "left_out", 0),
        "number_of_questions": len(questions),
        "records_sha256": hashlib.sha256(json.dumps(digests).encode()).hexdigest(),
    }
    shown = media(config.captions)
    drawn_too = is_nano(config.captions), is_nano(config.questions)
    shared = all(drawn_too) or (
        not any(drawn_too)
        and (root is not None or Path(config.captions).parent == Path(config.questions).parent)
    )
    return Corpus(captions, questions, shown, shown if shared else media(config.questions), facts)


def _digest(records: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(repr(dataclasses.astuple(record)).encode())
    return digest.hexdigest()


class Shuffled(Generic[Record]):
    """Which row stands at a position: all of them in a new order, before any comes again.

    part   0 for captions, 1 for questions: its place in `Corpus.parts`.
    share  Part of a pass after which the next begins.
    """

    def __init__(self, records: Sequence[Record], part: int, seed: int, share: float = 1.0) -> None:
        self.records: Sequence[Record] = records
        self.part = part
        name = ("captions", "questions")[part]
        self._passes = Passes(
            max(1, int(len(records) * share)),
            lambda number: generator(seed, f"{name}/{number}").permutation(len(records)),
        )

    def row(self, position: int, shift: int = 0) -> int:
        """The row at a position, or the `shift`-th after it in the file (for one that is unreadable)."""
        return (self._passes.at(position) + shift) % len(self.records)


@dataclass(frozen=True)
class Members:
    """One process's part of a step, read.

    pictures, question_pictures  (H, W, 3) uint8 arrays, or numbers of pictures where features are kept.
    captions   One per picture. `options`: per question; `correct`: the index of the right one.
    """

    pictures: list[Any]
    captions: list[str]
    question_pictures: list[Any]
    options: list[tuple[str, ...]]
    correct: list[int]


class Stored(Protocol):
    """Pictures whose features are stored: `number` raises ImageError where there are none."""

    def number(self, part: int, row: int) -> int: ...


class Reader:
    """Reads the parts of a step. Threads may share one.

    stored  Pictures whose features are stored: they are not read, `Members` holds their numbers.
    """

    def __init__(self, config: ContrastConfig, corpus: Corpus, stored: Stored | None = None) -> None:
        self._config, self._corpus, self._stored = config, corpus, stored
        alpha, seed = config.alphas[0], config.seed
        of_pass = float(config.epoch_share) if config.protocol == "fixed" else 1.0  # there loaders go on
        self.captions = Shuffled(corpus.captions, 0, seed, of_pass) if alpha > 0 else None
        self.questions = Shuffled(corpus.questions, 1, seed, of_pass) if alpha < 1 else None
        self.skipped: set[str] = set()

    def read(self, step: int, rank: int, size: int) -> Members:
        """The members of process `rank` of `size`: its contiguous part of both batches of the step."""
        members = Members([], [], [], [], [])
        if self.captions is not None:
            for position in share(step, self._config.batch_size, rank, size):
                item, picture = self._picture(self.captions, position)
                rng = random.Random(sample_seed(self._config.seed, f"caption/{position}"))
                members.captions.append(rng.choice(item.captions))
                members.pictures.append(self._cropped(picture, rng))
        if self.questions is not None:
            for position in share(step, self._config.questions_per_step, rank, size):
                question, picture = self._picture(self.questions, position)
                rng = random.Random(sample_seed(self._config.seed, f"question/{position}"))
                members.options.append(tuple(option.text for option in question.options))
                members.correct.append(question.correct)
                members.question_pictures.append(self._cropped(picture, rng))
        return members

    def _picture(self, stream: Shuffled[Record], position: int) -> tuple[Record, Any]:
        """The record at a position, and its picture or the number of its features."""
        media = self._corpus.parts[stream.part][1]
        reason = ""
        for shift in range(PATIENCE if self._config.unreadable == "skip" else 1):
            row = stream.row(position, shift)
            record = stream.records[row]
            try:
                if self._stored is not None:
                    return record, self._stored.number(stream.part, row)
                return record, media.frames(record.image)[0]
            except ImageError as error:
                reason = str(error)
            if record.image not in self.skipped:
                self.skipped.add(record.image)
                log.warning("left out: %s", reason)
        raise UserError(f"A picture cannot be used ({reason}); mend it, or say --unreadable skip.")

    def _cropped(self, picture: Any, rng: random.Random) -> Any:
        return random_crop(picture, rng) if self._config.augment == "crop" else picture


def random_crop(picture: np.ndarray, rng: random.Random, low: float = 0.9) -> np.ndarray:
    """A crop of `low` to 100 % of the area with a side ratio of 3/4 to 4/3, squashed to a square.

    That is torchvision's RandomResizedCrop with scale (0.9, 1), which open_clip trains with. The square has
    the length of the shorter side; the model's own preprocessing then makes it the size it needs.
    """
    height, width = picture.shape[:2]
    left, top, w, h = 0, 0, width, height
    for _ in range(10):
        area = height * width * rng.uniform(low, 1.0)
        ratio = float(np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3))))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            break
    else:
        w, h, left, top = width, height, 0, 0
    side = min(height, width)
    box = (left, top, left + w, top + h)
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC, box=box))
