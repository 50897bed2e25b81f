"""The tidy frame of figures: a pandas DataFrame with one row per figure, which every table and plot reads.

benchmark, model, task, metric, variant   What it is of; a benchmark adds columns of its own (category, kind).
n, unscored           Values that entered, and samples that have none: counted, never zero.
value, low, high      The figure and its 95 % interval, in the unit of the data, not scaled.
standard_error, clusters   As in `nein.statistics.Estimate`.
p, p_holm, ...        Of a difference: its tests (`TESTS`).
unit                  How it is shown (`UNITS`).
reasons               Why samples are unscored: JSON, reason -> how many.

Text that is not there is "", a number NaN. A figure that says two things (a gap and a ratio) is two rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nein.engine import atomic
from nein.loading.errors import UserError
from nein.statistics import Estimate

LEADING = ("benchmark", "model", "task", "metric", "variant")
COUNTS = ("n", "unscored", "clusters", "needed")
TESTS = ("p", "p_holm", "p_least", "detectable")
ESTIMATE = ("value", "low", "high", "standard_error")
TRAILING = ("n", "unscored", *ESTIMATE, "clusters", *TESTS, "needed", "unit", "reasons")
NUMBERS = (*ESTIMATE, *TESTS, *COUNTS)
_FORMULA = r"=+\-@|\t\r"


class Unit(NamedTuple):
    """Values are shown times `scale`, with `digits` after the point."""

    scale: float
    digits: int


#: "%": per cent of a share; "points": a difference of shares; "": a number as it is; "count": whole.
UNITS = {"%": Unit(100.0, 1), "points": Unit(100.0, 1), "": Unit(1.0, 2), "count": Unit(1.0, 0)}
#: A row of the frame as plain values: None where there is no number.
Figure = dict[str, Any]


def figure(estimate: Estimate | None, *, unit: str, unscored: int = 0, **what: Any) -> Figure:
    """A row from an estimate, or from None where nothing was scored. what: the columns that say what it is of
    (`model`, `metric`, ...), `reasons`, and, of a difference, its tests."""
    numbers = asdict(estimate) if estimate else {**dict.fromkeys(ESTIMATE), "n": 0, "clusters": 0}
    return {**what, **numbers, "unscored": unscored, "unit": unit}


def number(value: float | None, *, unit: str, n: int | None = None, **what: Any) -> Figure:
    """A row of a figure without an interval: a count, a printed number."""
    return {**what, "value": value, "n": n, "unit": unit}


def gap(affirmed: float | None, negated: float | None, lost: Figure, **what: Any) -> Iterator[Figure]:
    """Three rows of a negation gap, the one figure that all benchmarks have: statistic "affirmed", "negated"
    (shares) and "gap" (`lost`, points)."""
    for statistic, value in (("affirmed", affirmed), ("negated", negated)):
        yield {**what, "statistic": statistic, "value": value, "n": lost.get("n"), "unit": "%"}
    numbers = {name: lost.get(name) for name in (*ESTIMATE, "n", "unscored")}
    yield {**what, **numbers, "statistic": "gap", "unit": "points"}


def frame(rows: Iterable[Mapping[str, Any]], **what: Any) -> pd.DataFrame:
    """The rows as a frame with its columns in order and of one type each. what: entries of all rows."""
    given = [{**row, **what} for row in rows]
    return _tidy(pd.DataFrame(given, dtype=object))


def concat(frames: Iterable[pd.DataFrame], **what: Any) -> pd.DataFrame:
    """The frames below each other; columns that one of them lacks are empty there. what: as of `label`."""
    given = [frame.astype(object) for frame in frames if len(frame)]
    return _tidy((pd.concat(given, ignore_index=True) if given else pd.DataFrame()).assign(**what))


def label(figures: pd.DataFrame, **what: Any) -> pd.DataFrame:
    """The figures with further columns, an entry for all rows or for each: `label(frame, model="ip2p")`."""
    return _tidy(figures.assign(**what))


def _tidy(figures: pd.DataFrame) -> pd.DataFrame:
    """Columns in order: what a figure is of, then its numbers. Counts are Int64 where all are whole."""
    dimensions = [name for name in figures if name not in (*LEADING, *TRAILING)]
    needed = ("metric", "n", "unscored", *ESTIMATE, "clusters", "unit")
    order = [name for name in (*LEADING, *dimensions, *TRAILING) if name in figures or name in needed]
    columns: dict[str, Any] = {}
    for name, column in figures.reindex(columns=order).items():
        if name not in NUMBERS:
            columns[str(name)] = np.array([*map(_text, column.tolist())], dtype=object)
            continue
        values = column.astype("Float64").to_numpy(float, na_value=np.nan)
        whole = name in COUNTS and bool((np.isnan(values) | (values % 1 == 0)).all())
        columns[str(name)] = pd.array(values, "Int64") if whole else values
    return pd.DataFrame(columns, index=figures.index)


def _text(entry: Any) -> str:
    if isinstance(entry, Mapping):
        return json.dumps(entry, ensure_ascii=False)
    return "" if entry is None or entry is pd.NA or entry != entry else str(entry)


def select(figures: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """The figures with these entries; a tuple or list stands for any of its members, a column that the frame
    lacks is empty."""
    mask = np.ones(len(figures), dtype=bool)
    for name, wanted in where.items():
        values = wanted if isinstance(wanted, tuple | list) else (wanted,)
        column = figures[name] if name in figures else pd.Series("", index=figures.index, dtype=object)
        mask &= column.isin(values).to_numpy()
    return figures[mask]


def matches(figure: Figure, **where: Any) -> bool:
    """Whether `select` would take this row."""
    return all(
        figure.get(name, "") in (wanted if isinstance(wanted, tuple | list) else (wanted,))
        for name, wanted in where.items()
    )


def records(figures: pd.DataFrame, **where: Any) -> list[Figure]:
    """The rows, those of `select`, as plain dicts in order: None for no number, int for whole counts."""
    figures = select(figures, **where) if where else figures
    names = [*figures.columns]
    columns = (
        [None if entry is pd.NA or entry != entry else entry for entry in figures[name].tolist()]
        for name in names
    )
    return [dict(zip(names, entries, strict=True)) for entries in zip(*columns, strict=True)]


def pick(figures: pd.DataFrame, **where: Any) -> Figure | None:
    """The first such figure as a plain dict, or None."""
    first = select(figures, **where).head(1)
    return records(first)[0] if len(first) else None


def values(figures: pd.DataFrame, column: str, order: Sequence[str] = ()) -> list[str]:
    """The distinct entries of a column of text, without "": those of `order` first, then as they appear."""
    entries = [name for name in figures[column].unique() if name != ""] if column in figures else []
    return [*(name for name in order if name in entries), *(name for name in entries if name not in order)]


def reasons(row: Figure) -> dict[str, int]:
    """Why samples are unscored, the commonest first."""
    text = row.get("reasons")
    return json.loads(text) if text else {}


def to_csv(figures: pd.DataFrame) -> str:
    """One line per figure, numbers to the last digit; columns without any entry are left out. Text that a
    spreadsheet would run as a formula gets a "'" in front, which `read_csv` takes off again."""
    text = [name for name in figures.columns if name not in NUMBERS]
    table = figures.assign(**{name: figures[name].map(harmless) for name in text})
    empty = [name for name in text if not (table[name] != "").any()]
    empty += [name for name in (*TESTS, "needed") if name in table and table[name].isna().all()]
    return table.drop(columns=empty).to_csv(index=False, lineterminator="\n")


def harmless(cell: Any) -> Any:
    """A cell of a table that no spreadsheet runs."""
    return f"'{cell}" if isinstance(cell, str) and re.match(f"[{_FORMULA}]", cell) else cell


def as_written(cell: str) -> str:
    """What `harmless` was given."""
    return re.sub(f"^'(?=[{_FORMULA}])", "", cell)


def write(path: Path, figures: pd.DataFrame) -> None:
    atomic.write_text(path, to_csv(figures))


def read(path: Path) -> pd.DataFrame:
    """The frame that `write` wrote. Raises UserError where the file cannot be read."""
    try:
        cells = pd.read_csv(path, dtype=str, keep_default_na=False)
        if lacking := [name for name in ("n", "unscored", "value") if name not in cells]:
            raise ValueError(f"there is no column '{lacking[0]}'")
        for name in cells.columns:
            is_number = name in NUMBERS
            cells[name] = (
                pd.to_numeric(cells[name].replace("", None)) if is_number else cells[name].map(as_written)
            )
        figures = _tidy(cells)
        if "unit" in cells and (odd := set(figures["unit"]) - set(UNITS)):
            raise ValueError(f"there is no unit '{min(odd)}'")
        return figures
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist.") from None
    except (OSError, pd.errors.ParserError, ValueError) as error:
        raise UserError(f"'{path}' holds no figures ({error}).") from None
