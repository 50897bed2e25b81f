"""Features of a frozen vision tower, computed once: a row for every distinct picture of a corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nein.datasets.negbench.media import Files
from nein.datasets.negbench.records import Media
from nein.engine import atomic
from nein.engine.images import ImageError
from nein.engine.processes import Processes
from nein.nano.data import world_version
from nein.train.contrast.data import Corpus
from nein.train.features import FeatureFiles, stamp

BLOCK = 256  # pictures per file


class CorpusPictures:
    """The distinct pictures of a corpus, numbered as they first appear.

    Memory holds 8 bytes of each row of both files and 8 of each picture.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._parts = corpus.parts
        self._starts = [0, len(corpus.captions)]
        one_media = corpus.caption_media is corpus.question_media
        keys = (
            _key(record.image if one_media else f"{part}: {record.image}")
            for part, (records, _) in enumerate(self._parts)
            for record in records
        )
        count = sum(len(records) for records, _ in self._parts)
        _, first, inverse = np.unique(
            np.fromiter(keys, np.uint64, count), return_index=True, return_inverse=True
        )
        by_appearance = np.argsort(first)
        rank = np.empty_like(by_appearance)
        rank[by_appearance] = np.arange(len(first))
        self._number = rank[inverse]  # row of both files, one behind the other -> number of its picture
        self._row = first[by_appearance]  # number of a picture -> the first row that has it

    def __len__(self) -> int:
        return len(self._row)

    def number(self, part: int, row: int) -> int:
        """The picture of a row of the captions (part 0) or the questions (1)."""
        return int(self._number[self._starts[part] + row])

    def _find(self, index: int) -> tuple[str, Media]:
        row = int(self._row[index])
        part = int(row >= self._starts[1])
        records, media = self._parts[part]
        return records[row - self._starts[part]].image, media

    def key(self, index: int) -> str:
        reference, media = self._find(index)
        if not isinstance(media, Files):
            return f"{world_version()}/{reference}"
        try:
            file = media.path(reference)
        except ImageError:
            return reference
        return f"{file.resolve()} {stamp(file)}"

    def read(self, index: int) -> np.ndarray:
        reference, media = self._find(index)
        return media.frames(reference)[0]


class Features:
    """One (D,) float32 row per picture of a corpus, addressed by the model and the picture.

    dual  The model, whose `encode` takes (H, W, 3) uint8 pictures.
    """

    def __init__(self, corpus: Corpus, dual: Any, folder: Path | None) -> None:
        self._dual = dual
        self._pictures = CorpusPictures(corpus)
        root = folder or atomic.cache_root() / "clip-features"
        self._files = FeatureFiles(root / dual.fingerprint, "pictures", self._pictures, BLOCK)

    def make(self, processes: Processes, ahead: int = 1) -> None:
        """Computes what is missing, shared among the processes."""
        before = torch.get_num_threads()
        device = next(self._dual.model.parameters()).device.type
        # On a CPU a block is computed on one thread, and several at once, as everywhere.
        at_once = processes.workers(device) if device == "cpu" else None
        self._files.make(self._encode, processes, ahead=ahead, at_once=at_once)
        torch.set_num_threads(before)

    def _encode(self, pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
        return {"rows": torch.from_numpy(np.asarray(self._dual.encode(pictures), np.float32))}

    def number(self, part: int, row: int) -> int:
        """The number of the picture of a row of the captions (part 0) or the questions (1).

        Raises ImageError for one that has no features.
        """
        number = self._pictures.number(part, row)
        if number in self._files.unreadable:
            raise ImageError(self._files.unreadable[number])
        return number

    def rows(self, numbers: Sequence[int]) -> torch.Tensor:
        """(N, D) float32 on the CPU."""
        return torch.stack([self._files.row(number, "rows") for number in numbers])


def _key(text: str) -> int:
    """64 bits of a text's SHA-256: of 10^8 texts two agree with a chance of 1 in 3,700."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
