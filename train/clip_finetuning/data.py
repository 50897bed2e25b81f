"""What a step sees: images with captions, images with questions, each a function of (seed, position).

A position counts as in `train.features`. A frozen vision tower's features of the images are stored once.
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
#: Neighbors tried in the place of an image that cannot be decoded.
PATIENCE = 100
BLOCK = 256  # images per file of features
SIZED = 100_000  # images, evenly spread, whose files every start looks at


@dataclass(frozen=True)
class Part:
    """One file of a run: records with images, and where these are read."""

    records: Sequence[Any]
    media: Media  # the same object in both files where a reference names the same image


@dataclass(frozen=True)
class Corpus:
    """captions: of `RetrievalItem`; questions: of `Question`; facts: for the manifest."""

    captions: Part
    questions: Part
    facts: dict[str, Any]


def load(config: ContrastConfig) -> Corpus:
    """Reads or draws both files. Raises UserError for what cannot be used."""
    from nein.datasets.negbench import drawn

    scenes, seed, words = config.nano_scenes, config.seed, config.wordings
    captions: Sequence[RetrievalItem]
    questions: Sequence[Question]
    left_out = 0
    if is_nano(config.captions):
        where = world(config.captions)
        captions = drawn.negcap("train", scenes, seed, where, words, config.original_captions)
    else:
        captions, left_out = read_captions(config)
    if is_nano(config.questions):
        where = world(config.questions)
        questions = drawn.negmcq("train", scenes, seed, where, words, config.caption_questions)
    else:
        questions = official.read_questions(Path(config.questions))
    captions, questions = captions[: config.limit], questions[: config.limit]
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
    root, media, parts = (
        config.image_root and Path(config.image_root),
        dict[Path | None, Media](),
        list[Part](),
    )
    digest, sizes = hashlib.sha256(), list[list[str]]()
    for file, records in ((config.captions, captions), (config.questions, questions)):
        place = None if is_nano(file) else root or Path(file).parent
        if place not in media:
            media[place] = Drawn(drawn.picture) if place is None else Files(root or None, place)
        for record in records:
            digest.update(repr(record).encode("utf-8", "surrogatepass"))
        spread = [record.image for record in records[:: -(-len(records) // SIZED)]]
        sizes.append([stamp(path)[1] for path in media[place].files(spread)])
        parts.append(Part(records, media[place]))
    facts = {
        "captions": Path(config.captions).name,
        "questions": Path(config.questions).name,
        "rows_of_captions": len(captions),
        "rows_without_caption": left_out,
        "number_of_questions": len(questions),
        "records_sha256": digest.hexdigest(),
        "images": json_digest({"sizes": sizes})[:12],
    }
    return Corpus(parts[0], parts[1], facts)


def read_captions(config: ContrastConfig) -> tuple[list[RetrievalItem], int]:
    """Images with a caption or a list of them per row, up to `--limit`; and how many rows hold none, which
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
    """One process's part of a step. images, asked: (H, W, 3) uint8, or numbers where features are kept."""

    images: list[Any]
    captions: list[str]
    asked: list[Any]
    options: list[tuple[str, ...]]
    correct: list[int]


class Features:
    """One (D,) float32 row per distinct image of a corpus, addressed by the model and the image."""

    def __init__(self, corpus: Corpus, dual: Any, folder: Path | None) -> None:
        self._dual = dual
        self._images: list[tuple[Media, str]] = []
        self._numbers: dict[tuple[int, str], int] = {}  # equal names in two folders are of different images
        for part in (corpus.captions, corpus.questions):
            for record in part.records:
                key = (id(part.media), record.image)
                if key not in self._numbers:
                    self._numbers[key] = len(self._images)
                    self._images.append((part.media, record.image))
        folder = (folder or atomic.cache_root() / "clip-features") / dual.fingerprint
        self._files = FeatureFiles(folder, "pictures", len(self._images), self._key, self._read, BLOCK)

    def _key(self, number: int) -> str:
        media, reference = self._images[number]
        if not isinstance(media, Files):
            return f"{world_version()}/{reference}"
        try:
            file = media.path(reference)
        except ImageError:
            return reference
        return f"{file.resolve()} {stamp(file)}"

    def _read(self, number: int) -> np.ndarray:
        media, reference = self._images[number]
        return media.frames(reference)[0]

    def _encode(self, images: list[np.ndarray]) -> dict[str, torch.Tensor]:
        return {"rows": torch.from_numpy(np.asarray(self._dual.encode(images), np.float32))}  # N, D

    def make(self, processes: Processes, ahead: int = 1) -> None:
        self._files.make(self._encode, processes, ahead)

    def number(self, media: Media, reference: str) -> int:
        """Of an image; ImageError where it is unreadable."""
        number = self._numbers[id(media), reference]
        if number in self._files.unreadable:
            raise ImageError(self._files.unreadable[number])
        return number

    def rows(self, numbers: Sequence[int]) -> torch.Tensor:
        """(N, D) float32 on the CPU."""
        return torch.stack([self._files.row(number, "rows") for number in numbers])


class Reader:
    """Reads the parts of a step; where features are stored, numbers of images. Threads may share one."""

    def __init__(self, config: ContrastConfig, corpus: Corpus, stored: Features | None = None) -> None:
        self._config, self._corpus, self._stored = config, corpus, stored
        self.skipped = set[str]()
        # By paper the loaders go on after a share of a pass.
        share_of_pass = float(config.epoch_share) if config.protocol == "fixed" else 1.0
        self.passes = []
        for name, part in (("captions", corpus.captions), ("questions", corpus.questions)):
            count = len(part.records)
            self.passes.append(Passes(count, max(1, int(count * share_of_pass)), name, config.seed))

    def read(self, step: int, rank: int, size: int) -> Members:
        """Of process `rank` of `size`: its contiguous part of both batches of the step."""
        config, members = self._config, Members([], [], [], [], [])
        alpha = config.alphas[0]
        for position in share(step, config.batch_size if alpha > 0 else 0, rank, size):
            item, image = self._image(self._corpus.captions, self.passes[0].at(position))
            rng = random.Random(sample_seed(config.seed, f"caption/{position}"))
            members.captions.append(rng.choice(item.captions))
            members.images.append(self._cropped(image, rng))
        for position in share(step, config.questions_per_step if alpha < 1 else 0, rank, size):
            question, image = self._image(self._corpus.questions, self.passes[1].at(position))
            rng = random.Random(sample_seed(config.seed, f"question/{position}"))
            members.options.append(tuple(option.text for option in question.options))
            members.correct.append(question.correct)
            members.asked.append(self._cropped(image, rng))
        return members

    def _image(self, part: Part, first: int) -> tuple[Any, Any]:
        """The record in row `first`, or the next whose image can be used, and that image or its number."""
        reason = ""
        for shift in range(PATIENCE if self._config.unreadable == "skip" else 1):
            record = part.records[(first + shift) % len(part.records)]
            try:
                if self._stored is not None:
                    return record, self._stored.number(part.media, record.image)
                return record, part.media.frames(record.image)[0]
            except ImageError as error:
                reason = str(error)
            if record.image not in self.skipped:
                self.skipped.add(record.image)
                log.warning("left out: %s", reason)
        raise UserError(f"A picture cannot be used ({reason}); mend it, or say --unreadable skip.")

    def _cropped(self, image: Any, rng: random.Random) -> Any:
        return random_crop(image, rng) if self._config.augment == "crop" else image


def random_crop(image: np.ndarray, rng: random.Random) -> np.ndarray:
    """A crop of 90 to 100 % of the area with a side ratio of 3/4 to 4/3, squashed to a square with the
    length of the shorter side: torchvision's RandomResizedCrop with scale (0.9, 1), as open_clip trains."""
    height, width = image.shape[:2]
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
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC, box=box))
