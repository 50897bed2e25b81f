"""Load the training data of a CLIP, images with captions and images with questions, and read its batches.

In this order: data files, image features, batches. Examples and crops are functions of (seed, position):
see `train.features.Passes`.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nein.datasets.negbench import official
from nein.datasets.negbench.media import Drawn, Files, Media
from nein.datasets.negbench.records import Question, RetrievalItem, check_records
from nein.engine import atomic
from nein.engine.folder import sample_seed
from nein.engine.images import ImageError
from nein.engine.machine import Processes
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.nano.data import world_version
from nein.nano.scenes import find_world, is_nano
from nein.train.clip_finetuning.options import ClipConfig
from nein.train.features import FeatureFiles, Passes, list_positions, read_sizes, stamp_files

log = logging.getLogger(__name__)


# --- data files ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Part:
    """One data file: its records, and the reader of their images."""

    records: Sequence[Any]
    media: Media  # one object for both files if they have the same image folder


@dataclass(frozen=True)
class Corpus:
    """Both data files."""

    captions: Part  # of `RetrievalItem`s
    questions: Part  # of `Question`s
    facts: dict[str, Any]  # for the manifest


MOST_SIZES = 100_000  # images of a file, evenly spread, whose sizes in bytes identify the data


def load(config: ClipConfig) -> Corpus:
    """Read or draw both data files. Raises UserError for unusable ones."""
    from nein.datasets.negbench import drawn

    captions: Sequence[RetrievalItem]
    questions: Sequence[Question]
    rows_skipped = 0
    # Read or draw the records.
    drawing: Any = {"scenes": config.nano_scenes, "seed": config.seed, "wordings": config.wordings}
    if is_nano(config.captions):
        world = find_world(config.captions)
        captions = drawn.draw_negcap(world=world, originals=config.original_captions, **drawing)
    else:
        captions, rows_skipped = read_captions(config)
    if is_nano(config.questions):
        world = find_world(config.questions)
        questions = drawn.draw_negmcq(world=world, hard=config.caption_questions, **drawing)
    else:
        questions = official.read_questions(Path(config.questions))
    captions, questions = captions[: config.limit], questions[: config.limit]
    # Check that batches can be made of them.
    counts = {len(question.options) for question in questions}
    if len(counts) > 1:
        raise UserError(
            f"'{config.questions}' has questions with {' and '.join(map(str, sorted(counts)))} options; "
            "a batch needs the same number throughout."
        )
    for name, count, needed in (
        ("images with captions", len(captions), config.batch_size),
        ("questions", len(questions), config.questions_per_step),
    ):
        if count < needed:
            raise UserError(
                f"A step needs {needed} {name}, but there are {count}; lower --batch-size and "
                "--questions-per-step."
            )
    # Find the images; hash records and image files.
    root = Path(config.image_root) if config.image_root else None
    media: dict[Path | None, Media] = {}  # image folder -> its reader; None: drawn images
    digest = hashlib.sha256()
    sizes, parts = list[list[int | None]](), list[Part]()
    for file, records in ((config.captions, captions), (config.questions, questions)):
        folder = None if is_nano(file) else root or Path(file).parent
        if folder not in media:
            media[folder] = Drawn(drawn.draw_image) if folder is None else Files(root, folder)
        for record in records:
            digest.update(repr(record).encode("utf-8", "surrogatepass"))
        stride = math.ceil(len(records) / MOST_SIZES)
        images = [record.image for record in records[::stride]]
        sizes.append(read_sizes(media[folder].files(images)))
        parts.append(Part(records, media[folder]))
    facts = {
        "captions": Path(config.captions).name,
        "questions": Path(config.questions).name,
        "rows_of_captions": len(captions),
        "rows_without_caption": rows_skipped,
        "number_of_questions": len(questions),
        "records_sha256": digest.hexdigest(),
        "images": json_digest({"sizes": sizes})[:12],
    }
    return Corpus(parts[0], parts[1], facts)


def read_captions(config: ClipConfig) -> tuple[list[RetrievalItem], int]:
    """Images with their captions, up to `--limit`, and the number of rows without a caption, all skipped (the
    released `*_neg_captions.csv` have some). Raises UserError with file and line."""
    path = Path(config.captions)
    items: list[RetrievalItem] = []
    rows_skipped = 0
    for line, row in official.iter_rows(path, (config.image_column,)):
        location = f"'{path}', line {line}"
        column = official.find_caption_column(list(row), path, config.caption_column)
        image = official.get_cell(row, config.image_column, location)
        texts = official.parse_captions(row[column], column, f"{location}, {column}")
        if not texts:
            rows_skipped += 1
            continue
        item = RetrievalItem(id=row.get("id") or f"line {line}", image=image, captions=texts)
        check_records([item], location)
        items.append(item)
        if len(items) == config.limit:
            break
    if not items:
        raise UserError(f"'{path}' has {rows_skipped} rows, all without a caption; pass --caption-column.")
    if rows_skipped:
        log.warning("%d rows of '%s' have no caption and are skipped", rows_skipped, path)
    return items, rows_skipped


# --- image features --------------------------------------------------------------------------------------
BLOCK = 256  # images per feature file


class Features:
    """Stored image features of a frozen vision tower, (D,) float32 for each distinct image of a corpus."""

    def __init__(self, corpus: Corpus, dual: Any, folder: Path | None) -> None:
        self._dual = dual
        self._images: list[tuple[Media, str]] = []
        # (id of the folder's reader, name) -> number: equal names in two folders are different images
        self._numbers: dict[tuple[int, str], int] = {}
        for part in (corpus.captions, corpus.questions):
            for record in part.records:
                key = (id(part.media), record.image)
                if key not in self._numbers:
                    self._numbers[key] = len(self._images)
                    self._images.append((part.media, record.image))
        folder = (folder or atomic.cache_root() / "clip-features") / dual.fingerprint
        self._files = FeatureFiles(
            folder, "pictures", len(self._images), key=self._key, read=self._read, block_size=BLOCK
        )

    def _key(self, number: int) -> str:
        media, reference = self._images[number]
        if not isinstance(media, Files):
            return f"{world_version()}/{reference}"
        try:
            file = media.path(reference)
        except ImageError:  # there is no file
            return reference
        return f"{file.resolve()} {stamp_files(file)}"

    def _read(self, number: int) -> np.ndarray:
        media, reference = self._images[number]
        return media.frames(reference)[0]

    def _encode(self, images: list[np.ndarray]) -> dict[str, torch.Tensor]:
        return {"rows": torch.from_numpy(np.asarray(self._dual.encode(images), np.float32))}  # (N, D)

    def make(self, processes: Processes, ahead: int = 1) -> None:
        """Encode the missing features, shared among processes; `ahead` blocks are prefetched."""
        self._files.make(self._encode, processes, ahead)

    def find_number(self, media: Media, reference: str) -> int:
        """Number of an image. Raises ImageError if it was unreadable."""
        number = self._numbers[id(media), reference]
        if number in self._files.unreadable:
            raise ImageError(self._files.unreadable[number])
        return number

    def read_rows(self, numbers: Sequence[int]) -> torch.Tensor:
        """Features of the images with these numbers, (N, D) float32 on the CPU."""
        return torch.stack([self._files.read_row(number, "rows") for number in numbers])


# --- batches ---------------------------------------------------------------------------------------------
TRIES = 100  # records tried, from the first with an unreadable image


@dataclass(frozen=True)
class Members:
    """One process's part of a step. An image is (H, W, 3) uint8, or its number in `Features`."""

    images: list[Any] = field(default_factory=list)  # one per caption
    captions: list[str] = field(default_factory=list)
    question_images: list[Any] = field(default_factory=list)  # one per question
    options: list[tuple[str, ...]] = field(default_factory=list)  # of each question
    correct: list[int] = field(default_factory=list)  # index of the right option of each question


class Reader:
    """Reads a process's part of a step; thread-safe. With `features`, numbers take the place of images."""

    def __init__(self, config: ClipConfig, corpus: Corpus, features: Features | None = None) -> None:
        self._config, self._corpus, self._features = config, corpus, features
        self.skipped = set[str]()
        # "fixed": an epoch is a fraction of a new order; "paper": it continues the last order.
        fraction = float(config.epoch_share) if config.protocol == "fixed" else 1.0
        self.passes: list[Passes] = []  # over the captions, over the questions
        for name, part in (("captions", corpus.captions), ("questions", corpus.questions)):
            count = len(part.records)
            self.passes.append(Passes(count, max(1, int(count * fraction)), name, config.seed))

    def read(self, step: int, rank: int, size: int) -> Members:
        """Part of process `rank` of `size`: contiguous positions of the step's captions and questions."""
        config, members = self._config, Members()
        alpha = config.alphas[0]
        caption_passes, question_passes = self.passes
        for position in list_positions(step, config.batch_size if alpha > 0 else 0, rank, size):
            item, image = self._read_record(self._corpus.captions, caption_passes.index_at(position))
            rng = random.Random(sample_seed(config.seed, f"caption/{position}"))
            members.captions.append(rng.choice(item.captions))
            members.images.append(self._crop(image, rng))
        for position in list_positions(step, config.questions_per_step if alpha < 1 else 0, rank, size):
            question, image = self._read_record(self._corpus.questions, question_passes.index_at(position))
            rng = random.Random(sample_seed(config.seed, f"question/{position}"))
            members.options.append(tuple(option.text for option in question.options))
            members.correct.append(question.correct)
            members.question_images.append(self._crop(image, rng))
        return members

    def _read_record(self, part: Part, first: int) -> tuple[Any, Any]:
        """Record `first`, or with --unreadable skip the next readable one, and its image or image number."""
        reason = ""
        for shift in range(TRIES if self._config.unreadable == "skip" else 1):
            record = part.records[(first + shift) % len(part.records)]
            try:
                if self._features is not None:
                    return record, self._features.find_number(part.media, record.image)
                return record, part.media.frames(record.image)[0]
            except ImageError as error:
                reason = str(error)
            if record.image not in self.skipped:
                self.skipped.add(record.image)
                log.warning("skipped: %s", reason)
        raise UserError(f"An image cannot be read ({reason}); fix it, or pass --unreadable skip.")

    def _crop(self, image: Any, rng: random.Random) -> Any:
        """The image or its number; with --augment crop, a random crop."""
        return random_crop(image, rng) if self._config.augment == "crop" else image


def random_crop(image: np.ndarray, rng: random.Random) -> np.ndarray:
    """Crop 90 to 100 % of the area at an aspect ratio of 3/4 to 4/3, then squash it to a square with the
    length of the shorter side: torchvision's RandomResizedCrop with scale (0.9, 1), as open_clip trains."""
    height, width = image.shape[:2]
    for _ in range(10):
        area = height * width * rng.uniform(0.9, 1.0)
        ratio = float(np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3))))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            break
    else:  # no crop fits a very elongated image
        left, top, w, h = 0, 0, width, height
    side = min(height, width)
    box = (left, top, left + w, top + h)
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC, box=box))
