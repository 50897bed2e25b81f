"""NegCap and NegMCQ as files too long for memory: all rows are checked at the start, which notes where each
ends (8 bytes a row); a row is read when it is wanted."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from nein.datasets.negbench import official
from nein.datasets.negbench.official import Records, parse
from nein.datasets.negbench.records import Option, Question, RetrievalItem, check_items, check_questions
from nein.engine.errors import UserError

log = logging.getLogger(__name__)
Record = TypeVar("Record", RetrievalItem, Question)


class Table(Sequence[Record], Generic[Record]):
    """The rows (the first `limit`) of a file of captions or of questions; threads may share one.

    sha256   Over the rows. `options`: the numbers of options that occur among questions.

    A row for which `record` gives None is left out and counted (`left_out`). Raises UserError, naming file
    and line, for the first row that cannot be used.
    """

    needed: tuple[str, ...] = ()
    delimiter = ","

    def __init__(self, path: Path, limit: int | None = None) -> None:
        rows = Records(path, self.needed, self.delimiter)
        self.path, self.left_out, self._first, self._ends = path, 0, 0, array("Q")
        self.options = set[int]()
        for row in rows:
            record = self.record(row.cells, row.line)
            if record is None:
                self.left_out += 1
                continue
            if isinstance(record, Question):
                self.options.add(len(record.options))
            self._first = self._first if self._ends else row.start
            self._ends.append(row.end)
            if len(self._ends) == limit:
                break
        if not self._ends:
            raise UserError(f"'{path}' has {self.left_out} rows and a caption in none of them.")
        if self.left_out:
            log.warning("%d rows of '%s' hold no caption and are left out", self.left_out, path)
        self.columns, self.sha256, self._file = rows.columns, rows.sha256, path.open("rb")

    def record(self, row: dict[str, str], where: int | str) -> Record | None:
        """A checked record of a row; None for one that is left out. Raises UserError."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        start, end = self._ends[k - 1] if k else self._first, self._ends[k]
        data = os.pread(self._file.fileno(), end - start, start)
        if len(data) < end - start:
            raise UserError(
                f"'{self.path}' has become shorter while it was read; start again with the whole file."
            )
        return self.record(parse(self.columns, data, self.delimiter), f"row {k + 1}")


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
        self.needed, self.delimiter, self._image, self._captions = (image,), delimiter, image, captions
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
