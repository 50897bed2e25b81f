"""NegCap and NegMCQ as files too long for memory: a row is read from the file when it is asked for.

A file is looked through once, row by row, which checks every row and notes where it begins. What is noted,
8 bytes a row, is kept in the user's cache by path, size and time of the file, and mapped into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
from filelock import FileLock
from safetensors import safe_open
from safetensors.numpy import save

from nein.datasets.negbench import official
from nein.datasets.negbench.records import (
    Option,
    Question,
    RetrievalItem,
    check_items,
    check_questions,
)
from nein.datasets.negbench.rows import Records, parse
from nein.engine import atomic, user_cache
from nein.engine.errors import UserError

FORMAT = 1
Record = TypeVar("Record", RetrievalItem, Question)


class Table(Sequence[Record], Generic[Record]):
    """The rows of a file of captions or of questions; threads may share one.

    sha256   Over the rows. `options`: the numbers of options that occur among questions.
    limit    Only the first rows, which alone are looked at.

    Raises UserError, naming file and line, for the first row that cannot be used.
    """

    needed: tuple[str, ...] = ()

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.path, self._limit = path, limit
        try:
            self._file = path.open("rb")
            found = os.fstat(self._file.fileno())
        except FileNotFoundError:
            raise UserError(f"There is no file '{path}'.") from None
        except OSError as error:
            raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
        stamp = [FORMAT, str(path.resolve()), found.st_size, found.st_mtime_ns, limit, self.needed]
        name = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:24]
        kept = user_cache.root() / "tables" / f"{name}.safetensors"
        atomic.make_folder(kept.parent)
        with FileLock(kept.with_suffix(".lock")):  # of several processes one looks through the file
            if not kept.is_file():
                atomic.write_bytes(kept, self._look_through())
        with safe_open(kept, "np") as content:
            about = json.loads(content.metadata()["about"])
        self.columns: list[str] = about["columns"]
        self.sha256: str = about["sha256"]
        self.options: list[int] = about["options"]
        self._ends = mapped(kept, "ends", "<u8")
        self._first: int = about["first"]

    def record(self, row: dict[str, str], where: int | str) -> Record:
        """A checked record of a row. Raises UserError."""
        raise AssertionError("a table is of captions or of questions")

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        start, end = int(self._ends[k - 1]) if k else self._first, int(self._ends[k])
        data = os.pread(self._file.fileno(), end - start, start)
        if len(data) < end - start:
            raise UserError(
                f"'{self.path}' has become shorter while it was read; start again with the whole file."
            )
        return self.record(parse(self.columns, data), f"row {k + 1}")

    def _look_through(self) -> bytes:
        rows, ends, options, first = Records(self.path, self.needed), array("Q"), set[int](), 0
        for row in rows:
            found = self.record(row.cells, row.line)
            if isinstance(found, Question):
                options.add(len(found.options))
            first = first if ends else row.start
            ends.append(row.end)
            if len(ends) == self._limit:
                break
        about = {
            "sha256": rows.sha256, "columns": rows.columns, "options": sorted(options), "first": first,
        }  # fmt: skip
        return save({"ends": np.frombuffer(ends, np.uint64)}, {"about": json.dumps(about)})


class Captions(Table[RetrievalItem]):
    needed = ("filepath", "captions")

    def record(self, row: dict[str, str], where: int | str) -> RetrievalItem:
        place = f"{self.path}, line {where}"
        item = RetrievalItem(
            id=row.get("id") or f"line {where}",
            image=official._cell(row, "filepath", self.path, where),  # type: ignore[arg-type]
            captions=official._strings(row["captions"], f"{place}, captions"),
        )
        check_items([item], place)
        return item


class Questions(Table[Question]):
    needed = ("correct_answer", "caption_0", "caption_1", "image_path")

    def record(self, row: dict[str, str], where: int | str) -> Question:
        place = f"{self.path}, line {where}"
        texts = [row[name] for name in sorted(official._captions(row), key=official._number)]
        while texts and not texts[-1]:
            texts.pop()
        question = Question(
            id=row.get("id") or f"line {where}",
            image=official._cell(row, "image_path", self.path, where),  # type: ignore[arg-type]
            options=tuple(Option(text) for text in texts),
            correct=official._index(row["correct_answer"], len(texts), f"{place}, correct_answer"),
        )
        check_questions([question], place)
        return question


def mapped(path: Path, name: str, kind: str) -> np.ndarray:
    """A tensor of a safetensors file, mapped into memory: only what is looked at is read.

    kind  Its number type as NumPy writes it. The format: https://github.com/huggingface/safetensors#format
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        about: dict[str, Any] = json.loads(file.read(length))[name]
    shape = tuple(about["shape"])
    if 0 in shape:
        return np.zeros(shape, kind)
    return np.memmap(path, kind, "r", 8 + length + about["data_offsets"][0], shape)
