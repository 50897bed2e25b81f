"""What a step sees: pictures with captions, pictures with questions, each a function of (seed, position).

A position counts as in `train.features`. A frozen vision tower's features of the pictures are stored once.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nein.datasets.negbench import official
from nein.datasets.negbench.records import Drawn, Files, Media, Question, RetrievalItem, check_records
from nein.engine import atomic
from nein.engine.folder import sample_seed
from nein.engine.images import ImageError
from nein.engine.machine import Processes
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.nano.data import world_version
from nein.nano.scenes import is_nano, world
from nein.train.clip_finetuning.options import ContrastConfig
from nein.train.features import FeatureFiles, Passes, share, stamp

log = logging.getLogger(__name__)
#: Neighbours tried in the place of a picture that cannot be decoded.
PATIENCE = 100
BLOCK = 256  # pictures per file of features
SIZED = 100_000  # pictures, evenly spread, whose files every start looks at


@dataclass(frozen=True)
class Corpus:
    """The two files of a run with the pictures behind them, and facts for the manifest."""

    captions: Sequence[RetrievalItem]
    questions: Sequence[Question]
    caption_media: Media
    question_media: Media  # the same object where a reference names the same picture in both files
    facts: dict[str, Any]

    @property
    def parts(self) -> tuple[tuple[Sequence[Any], Media], ...]:
        """Both files, each with where its pictures are read."""
        return ((self.captions, self.caption_media), (self.questions, self.question_media))


def load(config: ContrastConfig) -> Corpus:
    """Reads or draws both files. Raises UserError for what cannot be used."""
    from nein.datasets.negbench import drawn

    root = Path(config.image_root) if config.image_root else None
    captions: Sequence[RetrievalItem]
    questions: Sequence[Question]
    scenes, seed, words = config.nano_scenes, config.seed, config.wordings
    left_out = 0
    if is_nano(config.captions):
        where = world(config.captions)
        captions = drawn.negcap("train", scenes, seed, where, words, config.original_captions)[: config.limit]
    else:
        captions, left_out = read_captions(config)
    if is_nano(config.questions):
        where = world(config.questions)
        questions = drawn.negmcq("train", scenes, seed, where, words, config.caption_questions)
        questions = questions[: config.limit]
    else:
        questions = official.read_questions(Path(config.questions))[: config.limit]
        if len(counts := {len(question.options) for question in questions}) > 1:
            raise UserError(
                f"'{config.questions}' has questions with {' and '.join(map(str, sorted(counts)))} options; "
                "a batch needs the same number throughout."
            )
    for name, count, needed in (
        ("pictures with captions", len(captions), config.batch_size),
        ("questions", len(questions), config.questions_per_step),
    ):
        if count < needed:
            raise UserError(
                f"A step takes {needed} {name}, but there are {count}; lower --batch-size and "
                "--questions-per-step."
            )
    # Where both files are drawn, or in one folder, equal references name one picture.
    places = [
        "nano" if is_nano(source) else root or Path(source).parent
        for source in (config.captions, config.questions)
    ]
    media = {place: Drawn(drawn.picture) if place == "nano" else Files(root, Path(place)) for place in places}
    of_captions, of_questions = (media[place] for place in places)
    digest, sizes = hashlib.sha256(), []
    for records, images in ((captions, of_captions), (questions, of_questions)):
        for record in records:
            digest.update(repr(record).encode("utf-8", "surrogatepass"))
        spread = records[:: -(-len(records) // SIZED)]
        sizes.append([stamp(file)[1] for file in images.files(record.image for record in spread)])
    facts = {
        "captions": Path(config.captions).name,
        "questions": Path(config.questions).name,
        "rows_of_captions": len(captions),
        "rows_without_caption": left_out,
        "number_of_questions": len(questions),
        "records_sha256": digest.hexdigest(),
        "images": json_digest({"sizes": sizes})[:12],
    }
    return Corpus(captions, questions, of_captions, of_questions, facts)


def read_captions(config: ContrastConfig) -> tuple[list[RetrievalItem], int]:
    """Pictures with a caption or a list of them per row, up to `--limit`; and how many rows hold none, which
    are left out: `*_neg_captions.csv` lost some. Raises UserError, naming file and line."""
    path, items, left_out = Path(config.captions), list[RetrievalItem](), 0
    for line, row in official.iter_rows(path, (config.image_column,)):
        where = f"'{path}', line {line}"
        column = official.caption_column(list(row), path, config.caption_column)
        image = official.cell(row, config.image_column, where)
        texts = official.caption_texts(row[column], column, f"{where}, {column}")
        if not texts:
            left_out += 1
            continue
        item = RetrievalItem(id=row.get("id") or f"line {line}", image=image, captions=texts)
        check_records([item], where)
        items.append(item)
        if len(items) == config.limit:
            break
    if not items:
        raise UserError(f"'{path}' has {left_out} rows and a caption in none of them.")
    if left_out:
        log.warning("%d rows of '%s' hold no caption and are left out", left_out, path)
    return items, left_out


@dataclass(frozen=True)
class Members:
    """One process's part of a step, read."""

    pictures: list[Any]  # (H, W, 3) uint8, or numbers of pictures where features are kept
    captions: list[str]
    question_pictures: list[Any]
    options: list[tuple[str, ...]]
    correct: list[int]


class Features:
    """One (D,) float32 row per distinct picture of a corpus, addressed by the model and the picture."""

    def __init__(self, corpus: Corpus, dual: Any, folder: Path | None) -> None:
        self._dual = dual
        one_media = corpus.caption_media is corpus.question_media
        numbers: dict[tuple[int, str], int] = {}  # by file, where equal names are of different pictures
        self._pictures: list[tuple[str, Media]] = []
        self._numbers: list[list[int]] = []  # of each file: row -> number of its picture
        for part, (records, media) in enumerate(corpus.parts):
            rows = []
            for record in records:
                number = numbers.setdefault((0 if one_media else part, record.image), len(numbers))
                if number == len(self._pictures):
                    self._pictures.append((record.image, media))
                rows.append(number)
            self._numbers.append(rows)
        folder = (folder or atomic.cache_root() / "clip-features") / dual.fingerprint
        self._files = FeatureFiles(folder, "pictures", len(numbers), self._key, self._read, BLOCK)

    def _key(self, index: int) -> str:
        reference, media = self._pictures[index]
        if not isinstance(media, Files):
            return f"{world_version()}/{reference}"
        try:
            file = media.path(reference)
        except ImageError:
            return reference
        return f"{file.resolve()} {stamp(file)}"

    def _read(self, index: int) -> np.ndarray:
        reference, media = self._pictures[index]
        return media.frames(reference)[0]

    def make(self, processes: Processes, ahead: int = 1) -> None:
        def encode(pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
            return {"rows": torch.from_numpy(np.asarray(self._dual.encode(pictures), np.float32))}

        self._files.make(encode, processes, ahead)

    def number(self, part: int, row: int) -> int:
        """The picture of a row of the captions (part 0) or the questions (1); ImageError if unreadable."""
        number = self._numbers[part][row]
        if number in self._files.unreadable:
            raise ImageError(self._files.unreadable[number])
        return number

    def rows(self, numbers: Sequence[int]) -> torch.Tensor:
        """(N, D) float32 on the CPU."""
        return torch.stack([self._files.row(number, "rows") for number in numbers])


class Reader:
    """Reads the parts of a step; where features are stored, numbers of pictures. Threads may share one."""

    def __init__(self, config: ContrastConfig, corpus: Corpus, stored: Features | None = None) -> None:
        self._config, self._corpus, self._stored = config, corpus, stored
        alpha, self.skipped = config.alphas[0], set[str]()
        # By paper the loaders go on after a share of a pass.
        of_pass = float(config.epoch_share) if config.protocol == "fixed" else 1.0
        self.passes = [
            Passes(len(records), max(1, int(len(records) * of_pass)), name, config.seed)
            for name, (records, _) in zip(("captions", "questions"), corpus.parts, strict=True)
        ]
        self._sizes = (config.batch_size if alpha > 0 else 0, config.questions_per_step if alpha < 1 else 0)

    def read(self, step: int, rank: int, size: int) -> Members:
        """Of process `rank` of `size`: its contiguous part of both batches of the step."""
        members = Members([], [], [], [], [])
        for position in share(step, self._sizes[0], rank, size):
            item, picture = self._picture(0, position)
            rng = random.Random(sample_seed(self._config.seed, f"caption/{position}"))
            members.captions.append(rng.choice(item.captions))
            members.pictures.append(self._cropped(picture, rng))
        for position in share(step, self._sizes[1], rank, size):
            question, picture = self._picture(1, position)
            rng = random.Random(sample_seed(self._config.seed, f"question/{position}"))
            members.options.append(tuple(option.text for option in question.options))
            members.correct.append(question.correct)
            members.question_pictures.append(self._cropped(picture, rng))
        return members

    def _picture(self, part: int, position: int) -> tuple[Any, Any]:
        """The record at a position, and its picture or the number of its features."""
        (records, media), reason = self._corpus.parts[part], ""
        first = self.passes[part].at(position)
        for shift in range(PATIENCE if self._config.unreadable == "skip" else 1):
            row = (first + shift) % len(records)
            record = records[row]
            try:
                if self._stored is not None:
                    return record, self._stored.number(part, row)
                return record, media.frames(record.image)[0]
            except ImageError as error:
                reason = str(error)
            if record.image not in self.skipped:
                self.skipped.add(record.image)
                log.warning("left out: %s", reason)
        raise UserError(f"A picture cannot be used ({reason}); mend it, or say --unreadable skip.")

    def _cropped(self, picture: Any, rng: random.Random) -> Any:
        return random_crop(picture, rng) if self._config.augment == "crop" else picture


def random_crop(picture: np.ndarray, rng: random.Random) -> np.ndarray:
    """A crop of 90 to 100 % of the area with a side ratio of 3/4 to 4/3, squashed to a square with the
    length of the shorter side: torchvision's RandomResizedCrop with scale (0.9, 1), as open_clip trains."""
    height, width = picture.shape[:2]
    for _ in range(10):
        area = height * width * rng.uniform(0.9, 1.0)
        ratio = float(np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3))))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            break
    else:
        left, top, w, h = 0, 0, width, height
    side = min(height, width)
    box = (left, top, left + w, top + h)
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC, box=box))
