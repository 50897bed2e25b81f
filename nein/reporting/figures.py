"""The tidy frame of figures: a pandas DataFrame with one row per figure, which every table and plot reads.

A row says what the figure is of in columns of text, then what it is in columns of numbers:

benchmark, model, task, metric, variant   What it is of; a benchmark adds columns of its own (category, kind).
n, unscored           Values that entered, and samples that have none: counted, never zero.
value, low, high      The figure and its 95 % interval, in the unit of the data, not scaled.
standard_error, clusters   As in `nein.statistics.Estimate`.
p, p_holm, ...        Of a difference: its tests (`TESTS`).
unit                  How it is shown (`nein.reporting.format.UNITS`).
reasons               Why samples are unscored: JSON, reason -> how many.

Text that is not there is "", a number that is not there NaN. A figure that says two things is two rows (a gap
and a ratio, a clustered interval and a normal one), so that no table needs to know more columns than these.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.statistics import Estimate

LEADING = ("benchmark", "model", "task", "metric", "variant")
COUNTS = ("n", "unscored", "clusters", "needed")
TESTS = ("p", "p_holm", "p_least", "detectable")
ESTIMATE = ("value", "low", "high", "standard_error")
TRAILING = (
    "n", "unscored", *ESTIMATE, "clusters", *TESTS, "needed", "unit", "reasons",
)  # fmt: skip
NUMBERS = (*ESTIMATE, *TESTS, *COUNTS)
_FORMULA = ("=", "+", "-", "@", "|", "\t", "\r")

#: A row of the frame as plain values: None where there is no number.
Figure = Mapping[str, Any]


def figure(
    estimate: Estimate | None,
    *,
    unit: str,
    unscored: int = 0,
    reasons: Mapping[str, int] | None = None,
    **what: Any,
) -> dict[str, Any]:
    """A row from an estimate, or from None where nothing was scored.

    what  The columns that say what it is of (`model`, `metric`, ...) and, of a difference, its tests.
    """
    numbers = estimate.as_dict() if estimate else {**dict.fromkeys(ESTIMATE), "n": 0, "clusters": 0}
    row = {**what, **numbers, "unscored": unscored, "unit": unit}
    return {**row, "reasons": dict(reasons)} if reasons else row


def number(value: float | None, *, unit: str, n: int | None = None, **what: Any) -> dict[str, Any]:
    """A row of a figure that has no interval: a count, a share of what is known, a printed number."""
    return {**what, "value": value, "n": n, "unit": unit}


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a frame with its columns in order and of one type each."""
    given = list(rows)
    names = dict.fromkeys(name for row in given for name in row)
    return _tidy({name: [row.get(name) for row in given] for name in names}, len(given))


def concat(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """The frames below each other; columns that one of them lacks are empty there."""
    given = [frame for frame in frames if len(frame)]
    columns: dict[str, list[Any]] = {name: [] for frame in given for name in frame.columns}
    for frame in given:
        for name, entries in columns.items():
            entries += frame[name].tolist() if name in frame else [None] * len(frame)
    return _tidy(columns, sum(map(len, given)))


def label(figures: pd.DataFrame, **what: Any) -> pd.DataFrame:
    """The same figures with further columns: `label(frame, benchmark="nein", model="ip2p")`. An entry holds
    for all rows, or there is one for each."""
    labelled = figures.assign(**what)
    tidy = _tidy({name: labelled[name].tolist() for name in labelled.columns}, len(labelled))
    return tidy.set_axis(figures.index)


def _tidy(columns: Mapping[str, Sequence[Any]], rows: int) -> pd.DataFrame:
    """Columns in order: what a figure is of, then its numbers. Counts are integers where all are whole."""
    dimensions = [name for name in columns if name not in (*LEADING, *TRAILING)]
    needed = ("metric", "n", "unscored", *ESTIMATE, "clusters", "unit")
    order = [name for name in (*LEADING, *dimensions, *TRAILING) if name in columns or name in needed]
    nothing = [None] * rows
    made = {
        name: (_numbers if name in NUMBERS else _texts)(columns.get(name, nothing), name) for name in order
    }
    return pd.DataFrame(made, index=pd.RangeIndex(rows), copy=False)


def _numbers(entries: Sequence[Any], name: str) -> Any:
    """Float64 with NaN where there is none; counts that are all whole as Int64."""
    values = np.array([None if entry is pd.NA else entry for entry in entries], dtype=np.float64)
    absent = np.isnan(values)
    if name not in COUNTS or (values[~absent] % 1 != 0).any():
        return values
    return pd.arrays.IntegerArray(np.where(absent, 0, values).astype(np.int64), absent)


def _texts(entries: Sequence[Any], name: str) -> pd.Series:
    return pd.Series([entry if type(entry) is str else _text(entry) for entry in entries], dtype=object)


def _text(entry: Any) -> str:
    if isinstance(entry, Mapping):
        return json.dumps(entry, ensure_ascii=False)
    return "" if entry is None or entry is pd.NA or entry != entry else str(entry)


# --- looking up ----------------------------------------------------------------------------


def select(figures: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """The figures whose columns have the given values; a tuple or list stands for any of its members. A
    column that the frame lacks is empty."""
    mask = np.ones(len(figures), dtype=bool)
    for name, wanted in where.items():
        values = wanted if isinstance(wanted, tuple | list) else (wanted,)
        column = figures[name] if name in figures else pd.Series("", index=figures.index, dtype=object)
        mask &= column.isin(values).to_numpy()
    return figures[mask]


def records(figures: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain dicts, in order: None where there is no number, int for whole counts."""
    columns = {name: _plain(figures[name]) for name in figures.columns}
    return [dict(zip(columns, entries, strict=True)) for entries in zip(*columns.values(), strict=True)]


def _plain(column: pd.Series) -> list[Any]:
    entries = column.tolist()
    if pd.api.types.is_numeric_dtype(column):
        return [None if entry is pd.NA or entry != entry else entry for entry in entries]
    return entries


def pick(figures: pd.DataFrame, **where: Any) -> dict[str, Any] | None:
    """The first such figure as a plain dict, or None."""
    first = select(figures, **where).head(1)
    return records(first)[0] if len(first) else None


def values(figures: pd.DataFrame, column: str, order: Sequence[str] = ()) -> list[str]:
    """The distinct entries of a column of text, without "": those of `order` first, then as they appear."""
    there = [name for name in figures[column].unique() if name != ""] if column in figures else []
    return [*(name for name in order if name in there), *(name for name in there if name not in order)]


def reasons(row: Figure) -> dict[str, int]:
    """Why samples are unscored, the commonest first."""
    text = row.get("reasons")
    return json.loads(text) if text else {}


# --- files ---------------------------------------------------------------------------------


def to_csv(figures: pd.DataFrame) -> str:
    """One line per figure, numbers to the last digit.

    A spreadsheet runs a cell that begins like a formula, so such text gets a "'" in front, which `read_csv`
    takes off again. Columns without any entry are left out.
    """
    text = [name for name in figures.columns if name not in NUMBERS]
    shown = figures.assign(**{name: figures[name].map(harmless) for name in text})
    empty = [name for name in text if not (shown[name] != "").any()]
    empty += [name for name in (*TESTS, "needed") if name in shown and shown[name].isna().all()]
    return shown.drop(columns=empty).to_csv(index=False, lineterminator="\n")


def harmless(cell: Any) -> Any:
    """A cell of a table that no spreadsheet runs."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def write(path: Path, figures: pd.DataFrame) -> None:
    atomic.write_text(path, to_csv(figures))


def read(path: Path) -> pd.DataFrame:
    """The frame that `write` wrote. Raises UserError where the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        head = text.partition("\n")[0].split(",")
        if lacking := [name for name in ("n", "unscored", "value") if name not in head]:
            raise ValueError(f"there is no column '{lacking[0]}'")
        return read_csv(text)
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist.") from None
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, ValueError) as error:
        raise UserError(f"'{path}' holds no figures ({error}).") from None


def read_csv(text: str) -> pd.DataFrame:
    """The frame of `to_csv`'s text."""
    cells = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    columns = {name: cells[name].tolist() for name in cells.columns}
    for name, entries in columns.items():
        if name in NUMBERS:
            columns[name] = [float(cell) if cell else None for cell in entries]
        else:
            columns[name] = [
                cell[1:] if cell[:1] == "'" and cell[1:2] in _FORMULA else cell for cell in entries
            ]
    return _tidy(columns, len(cells))
