"""The records of a CSV file one after the other, with the place of each: any can be read again alone."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nein.engine.errors import UserError, near_match

LIMIT = 10_000_000  # characters a cell may hold


@dataclass(frozen=True)
class Row:
    """A record: the line it ends in, its cells by column, its first byte and the one behind it."""

    line: int
    cells: dict[str, str]
    start: int
    end: int


class Records:
    """The records of a file with the columns `needed`, read as they are asked for.

    delimiter  What separates the cells: "," or a tab.

    Raises UserError, naming file and line, for what is no such file. `sha256` is over everything read so far.
    """

    def __init__(self, path: Path, needed: Sequence[str], delimiter: str = ",") -> None:
        self.path, self.needed, self.delimiter = path, needed, delimiter
        self.columns: list[str] = []
        self._digest = hashlib.sha256()
        self._place = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[Row]:
        csv.field_size_limit(LIMIT)
        try:
            with self.path.open("rb") as raw:
                self._place = len(codecs.BOM_UTF8) if raw.read(3) == codecs.BOM_UTF8 else 0
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                yield from self._records(file)
        except FileNotFoundError:
            raise UserError(f"There is no file '{self.path}'.") from None
        except UnicodeDecodeError as error:
            raise UserError(
                f"'{self.path}' is not UTF-8 text ({error.reason} after byte {self._place})."
            ) from None
        except OSError as error:
            raise UserError(f"'{self.path}' cannot be read: {error.strerror or error}.") from None

    def _records(self, file: IO[str]) -> Iterator[Row]:
        reader = csv.reader(self._lines(file), strict=True, delimiter=self.delimiter)
        any_record = False
        try:
            self.columns = next(reader, [])
            self._check()
            start = self._place
            for cells in reader:
                if cells:  # a blank line is no record
                    if len(cells) != len(self.columns):
                        more = "more" if len(cells) > len(self.columns) else "fewer"
                        raise UserError(
                            f"'{self.path}', line {reader.line_num}: the row has {more} cells than the "
                            f"header's {len(self.columns)}."
                        )
                    any_record = True
                    row = dict(zip(self.columns, cells, strict=True))
                    yield Row(reader.line_num, row, start, self._place)
                start = self._place
        except csv.Error as error:
            raise UserError(f"'{self.path}' is not valid CSV: {error} at line {reader.line_num}.") from None
        if not any_record:
            raise UserError(f"'{self.path}' has a header and no rows.")

    def _lines(self, file: IO[str]) -> Iterator[str]:
        for line in file:
            data = line.encode()
            self._digest.update(data)
            self._place += len(data)
            yield line

    def _check(self) -> None:
        missing = [name for name in self.needed if name not in self.columns]
        if missing:
            near = near_match(missing[0], self.columns)
            guess = f" (is '{near}' meant?)" if near else ""
            raise UserError(
                f"'{self.path}' has no column '{missing[0]}'{guess}; it needs {', '.join(self.needed)} "
                f"and has {', '.join(self.columns) or 'none'}."
            )


def parse(columns: Sequence[str], data: bytes, delimiter: str = ",") -> dict[str, str]:
    """The cells of a record read again from its bytes, which may begin with other records."""
    text = io.StringIO(data.decode(), newline="")
    *_, cells = (cells for cells in csv.reader(text, strict=True, delimiter=delimiter) if cells)
    return dict(zip(columns, cells, strict=True))
