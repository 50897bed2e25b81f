"""All rows of runs as tables for other programs: CSV and parquet, one table per name of rows."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting import figures as frames

FIGURES = "figures"
#: Rows of a parquet file that are written at a time.
CHUNK = 4096


#: Of a table, for every run: its label, and what reads its rows anew.
Sources: TypeAlias = Sequence[tuple[str, Callable[[], Iterable[Mapping[str, Any]]]]]


def write(
    tables: Mapping[str, Sources], figures: Mapping[str, pd.DataFrame], out: Path, kind: str
) -> list[Path]:
    """OUT/<name>.csv or .parquet: the rows of that name of all runs below each other, and their figures; the
    column "run" says whose they are. What is a list or a mapping in a row is JSON text. Rows are read twice,
    for the columns and for the rows, and never held."""
    for name, sources in tables.items():
        _write(sources, out / f"{name}.{kind}")
    if figures:
        together = [frame.assign(run=label)[["run", *frame]] for label, frame in figures.items()]
        _write_figures(pd.concat(together, ignore_index=True), out / f"{FIGURES}.{kind}")
    return [out / f"{name}.{kind}" for name in (*tables, *([FIGURES] if figures else []))]


def _rows(sources: Sources) -> Iterator[dict[str, Any]]:
    for label, read in sources:
        for row in read():
            yield {"run": label, **{key: _cell(value) for key, value in row.items()}}


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, set[type]]:
    """Column -> the types of its values, in the order in which columns first occur; a float without a
    fraction is an int."""
    columns: dict[str, set[type]] = {}
    for row in rows:
        for key, value in row.items():
            types = columns.setdefault(key, set())
            if value is not None:
                types.add(int if isinstance(value, float) and value.is_integer() else type(value))
    return columns


def _write(files: Sources, path: Path) -> None:
    columns = _columns(_rows(files))
    if path.suffix == ".csv":
        with atomic.writing(path) as file:
            text = io.TextIOWrapper(file, "utf-8", newline="")
            table = csv.DictWriter(text, list(columns), lineterminator="\n")
            table.writeheader()
            for row in _rows(files):
                table.writerow({key: frames.harmless(value) for key, value in row.items()})
            text.detach()  # which writes what it still holds, and leaves the file open
        return
    pyarrow = _pyarrow()
    schema = pyarrow.schema({name: _arrow(types) for name, types in columns.items()})
    with atomic.writing(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as table:
        rows = _rows(files)
        while chunk := list(itertools.islice(rows, CHUNK)):
            arrays = [
                pyarrow.array([_as(row.get(field.name), field.type) for row in chunk], field.type)
                for field in schema
            ]
            table.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _arrow(types: set[type]) -> Any:
    """The type of a column: text where its values are of several kinds."""
    pyarrow = _pyarrow()
    plain = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    if len(types) < 2:
        return plain[next(iter(types))] if types else pyarrow.null()
    return pyarrow.float64() if types == {int, float} else pyarrow.string()


def _as(value: Any, kind: Any) -> Any:
    if value is None or kind not in ("int64", "string"):
        return value
    return int(value) if kind == "int64" else str(value)


def _write_figures(figures: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".csv":
        atomic.write_text(path, figures.map(frames.harmless).to_csv(index=False, lineterminator="\n"))
        return
    _pyarrow()
    with atomic.writing(path) as file:
        figures.convert_dtypes().to_parquet(file, index=False)


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError("--format parquet needs the package pyarrow: pip install 'nein[hub]'.") from None
    return pyarrow
