"""NegCap and NegMCQ as files too long for memory: a row is read when it is wanted. A file is looked through
once, which checks every row and notes where it ends: 8 bytes a row, in the user's cache, mapped into memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from nein.datasets.negbench import official
from nein.datasets.negbench.official import Records, parse
from nein.datasets.negbench.records import Option, Question, RetrievalItem, check_items, check_questions
from nein.engine import atomic
from nein.engine.errors import UserError

log = logging.getLogger(__name__)
FORMAT = 4
_FACTS = {"sha256": str, "columns": [str], "options": [int], "first": int, "left_out": int}
Record = TypeVar("Record", RetrievalItem, Question)


class Table(Sequence[Record], Generic[Record]):
    """The rows (the first `limit`) of a file of captions or of questions; threads may share one.

    sha256   Over the rows. `options`: the numbers of options that occur among questions.

    A row for which `record` gives None is left out and counted (`left_out`). Raises UserError, naming file
    and line, for the first row that cannot be used.
    """

    needed: tuple[str, ...] = ()
    delimiter = ","
    #: What else decides how the file is read.
    layout: Sequence[Any] = ()

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.path, self._limit = path, limit
        try:
            self._file = path.open("rb")
            status = os.fstat(self._file.fileno())
        except FileNotFoundError:
            raise UserError(f"There is no file '{path}'.") from None
        except OSError as error:
            raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
        stamp = [FORMAT, str(path.resolve()), status.st_size, status.st_mtime_ns, limit, *self.layout]
        name = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:24]
        ends = atomic.cache_root() / "tables" / f"{name}.ends"
        facts = ends.with_suffix(".json")  # written last: with it all is there
        if not facts.is_file():
            self._look_through(ends, facts)
        content = atomic.read_json(facts, _FACTS)
        self.columns, self.sha256, self.options, self._first, self.left_out = (
            content[key] for key in ("columns", "sha256", "options", "first", "left_out")
        )
        if self.left_out:
            log.warning("%d rows of '%s' hold no caption and are left out", self.left_out, path)
        self._ends = np.memmap(ends, "<u8", "r")

    def record(self, row: dict[str, str], where: int | str) -> Record | None:
        """A checked record of a row; None for one that is left out. Raises UserError."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        start, end = int(self._ends[k - 1]) if k else self._first, int(self._ends[k])
        data = os.pread(self._file.fileno(), end - start, start)
        if len(data) < end - start:
            raise UserError(
                f"'{self.path}' has become shorter while it was read; start again with the whole file."
            )
        record = self.record(parse(self.columns, data, self.delimiter), f"row {k + 1}")
        assert record is not None, "rows that are left out are in no table"
        return record

    def _look_through(self, ends: Path, facts: Path) -> None:
        """Checks the rows and writes where each ends, and what is to be known of them all."""
        rows = Records(self.path, self.needed, self.delimiter)
        noted, options, first, left_out = array("Q"), set[int](), 0, 0
        for row in rows:
            record = self.record(row.cells, row.line)
            if record is None:
                left_out += 1
                continue
            if isinstance(record, Question):
                options.add(len(record.options))
            first = first if noted else row.start
            noted.append(row.end)
            if len(noted) == self._limit:
                break
        atomic.write_bytes(ends, np.frombuffer(noted, np.uint64).astype("<u8").tobytes())
        if not noted:
            raise UserError(f"'{self.path}' has {left_out} rows and a caption in none of them.")
        content = {"sha256": rows.sha256, "columns": rows.columns, "options": sorted(options)}
        atomic.write_json(facts, {**content, "first": first, "left_out": left_out})


class Captions(Table[RetrievalItem]):
    """Pictures with one caption or a list of them per row; what `*_neg_captions.csv` lost is left out.
    captions None: the first column of `official.CAPTIONS` that is there."""

    def __init__(
        self,
        path: Path,
        limit: int | None = None,
        *,
        image: str = "filepath",
        captions: str | None = None,
        delimiter: str = ",",
    ) -> None:
        self.needed, self.layout = (image,), (image, captions, delimiter)
        self.delimiter, self._image, self._captions = delimiter, image, captions
        super().__init__(path, limit)

    def record(self, row: dict[str, str], where: int | str) -> RetrievalItem | None:
        line = f"{self.path}, line {where}"
        column = official.caption_column(list(row), self.path, self._captions)
        image = official.cell(row, self._image, self.path, where)
        texts = official.caption_texts(row[column], column, f"{line}, {column}")
        if not texts:
            return None
        item = RetrievalItem(id=row.get("id") or f"line {where}", image=image, captions=texts)
        check_items([item], line)
        return item


class Questions(Table[Question]):
    needed = ("correct_answer", "caption_0", "caption_1", "image_path")

    def record(self, row: dict[str, str], where: int | str) -> Question:
        line = f"{self.path}, line {where}"
        texts = official.option_texts(row)
        question = Question(
            id=row.get("id") or f"line {where}",
            image=official.cell(row, "image_path", self.path, where),
            options=tuple(Option(text) for text in texts),
            correct=official.correct_index(row["correct_answer"], len(texts), f"{line}, correct_answer"),
        )
        check_questions([question], line)
        return question
