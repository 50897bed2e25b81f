"""What a fine-tuning run learns from: picture pairs, and the sentences that lead from one to the other.

A NeIn sample is one pair: the NeIn picture F (with the object) and the COCO picture I (without). It gives up
to three examples: its negative sentence and "Remove the X." lead from F to I, "Add a X." leads from I to F.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from editors.resize import r64
from nein.datasets.nein.samples import Sample
from nein.engine import images


class Pictures(Protocol):
    """Numbered pairs of pictures.

    `read` gives (F, I), both (H, W, 3) uint8 RGB, and raises ImageError. `signature` is cheap (no file is
    read) and changes when a file is replaced; `content` is a hash of the files themselves. `groups` are the
    sizes of consecutive parts that are cheapest to read together.
    """

    @property
    def groups(self) -> Sequence[int]: ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> str: ...

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]: ...

    def signature(self, index: int) -> str: ...

    def content(self, index: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to learn: pair number, whether the way is from I to F, and the sentence."""

    id: str
    pair: int
    swapped: bool
    instruction: str


@dataclass
class Pairs:
    """Everything to learn from. `facts` are JSON-serialisable and go into the manifest and the card."""

    pictures: Pictures
    negative: list[Example]
    affirmative: list[Example]
    facts: dict[str, Any]

    def sentences(self) -> list[str]:
        """Every distinct sentence, in order of first appearance; the empty one first."""
        return list(dict.fromkeys(["", *(e.instruction for e in (*self.negative, *self.affirmative))]))

    def groups(self, examples: Sequence[Example]) -> list[np.ndarray]:
        """Positions in `examples`, gathered by the group of pictures they need."""
        ends = list(itertools.accumulate(self.pictures.groups))
        members: list[list[int]] = [[] for _ in ends]
        for position, example in enumerate(examples):
            members[bisect.bisect_right(ends, example.pair)].append(position)
        return [np.asarray(part) for part in members if part]


class FilePictures:
    """Pairs in image files, named by samples."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self.groups = [len(samples)]

    def __len__(self) -> int:
        return len(self._samples)

    def name(self, index: int) -> str:
        return self._samples[index].id

    def _paths(self, index: int) -> tuple[Path, Path]:
        return self._samples[index].sample_path, self._samples[index].source_path

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        first, second = self._paths(index)
        return images.decode(first), images.decode(second)

    def signature(self, index: int) -> str:
        files = [path.stat() for path in self._paths(index)]
        return ",".join(f"{info.st_size}:{info.st_mtime_ns}" for info in files)

    def content(self, index: int) -> str:
        digest = hashlib.sha256()
        for path in self._paths(index):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


class JoinedPictures:
    """Several collections, numbered one after the other."""

    def __init__(self, parts: Sequence[Pictures]) -> None:
        self._parts = parts
        self._starts = list(itertools.accumulate((len(part) for part in parts), initial=0))
        self.groups = [size for part in parts for size in part.groups]

    def __len__(self) -> int:
        return self._starts[-1]

    def _find(self, index: int) -> tuple[Pictures, int]:
        number = bisect.bisect_right(self._starts, index) - 1
        return self._parts[number], index - self._starts[number]

    def name(self, index: int) -> str:
        part, inner = self._find(index)
        return part.name(inner)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        part, inner = self._find(index)
        return part.read(inner)

    def signature(self, index: int) -> str:
        part, inner = self._find(index)
        return part.signature(inner)

    def content(self, index: int) -> str:
        part, inner = self._find(index)
        return part.content(inner)


def mentions(sentence: str, words: Iterable[str]) -> bool:
    """Whether a sentence contains one of the words (or word groups), in any case, as a whole word."""
    return any(re.search(rf"\b{re.escape(word)}\b", sentence, re.IGNORECASE) for word in words)


def prepare(
    first: np.ndarray, second: np.ndarray, *, resolution: int, align: str, align_resolution: int
) -> tuple[np.ndarray, np.ndarray]:
    """(F, I) as the model learns them: two (resolution, resolution, 3) uint8 pictures.

    align "r64_fit": I is cut and scaled as F was when NeIn was made (rule R64 of InstructPix2Pix), so that
    what is at one place in F is at the same place in I. "none": both are squashed as they are; for most
    pictures of COCO the object then also moves. Squashing with Lanczos: InstructPix2Pix' `EditDataset`
    (github.com/timothybrooks/instruct-pix2pix @ 0dffd1e).
    """
    if align == "r64_fit":
        second = r64(second, align_resolution)
    return _squash(first, resolution), _squash(second, resolution)


def _squash(image: np.ndarray, side: int) -> np.ndarray:
    if image.shape[:2] == (side, side):
        return image
    return np.array(Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS))
