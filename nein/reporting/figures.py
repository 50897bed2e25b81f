"""The tidy frame of estimates: a pandas DataFrame with one row per estimate, for all tables and plots.

Parts: rows; frames of them; queries; figures.csv. The columns:

benchmark, model, task, metric, variant   Its dimensions; a benchmark adds its own (category, kind).
n, unscored           Number of samples with a value; and without one, which never count as 0.
value, low, high      The estimate and its 95 % interval, in the unit of the data: a share is 0.5, not 50.
standard_error, clusters   See `nein.statistics.Estimate`.
p, p_least, detectable, needed   Test of a difference: see `nein.statistics.estimates.PairedTest`.
p_holm                p, corrected for the number of tests.
unit                  How tables show it: a key of `UNITS`.
reasons               Why samples are unscored: JSON, reason -> number.

Missing text is "", a missing number NaN.
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

# Columns, in the order of figures.csv: LEADING, a benchmark's own dimensions, TRAILING.
LEADING = ("benchmark", "model", "task", "metric", "variant")
COUNTS = ("n", "unscored", "clusters", "needed")
TESTS = ("p", "p_holm", "p_least", "detectable")
ESTIMATE = ("value", "low", "high", "standard_error")
TRAILING = ("n", "unscored", *ESTIMATE, "clusters", *TESTS, "needed", "unit", "reasons")
NUMBERS = (*ESTIMATE, *TESTS, *COUNTS)


class Unit(NamedTuple):
    """How values are shown: times `scale`, with `digits` after the point."""

    scale: float
    digits: int


#: "%": a share, as per cent; "points": a difference of shares; "": any other number; "count": a whole number.
UNITS = {"%": Unit(100.0, 1), "points": Unit(100.0, 1), "": Unit(1.0, 2), "count": Unit(1.0, 0)}
#: A row of the frame, as column -> value: None for a missing number.
Figure = dict[str, Any]


# --- rows ------------------------------------------------------------------------------------
def figure(estimate: Estimate | None, *, unit: str, unscored: int = 0, **labels: Any) -> Figure:
    """A row of an estimate; None: nothing was scored. labels: its other columns."""
    numbers = asdict(estimate) if estimate else {**dict.fromkeys(ESTIMATE), "n": 0, "clusters": 0}
    return {**labels, **numbers, "unscored": unscored, "unit": unit}


def number(value: float | None, *, unit: str, n: int | None = None, **labels: Any) -> Figure:
    """A row without an interval: a count, a published number."""
    return {**labels, "value": value, "n": n, "unit": unit}


def gap(affirmed: float | None, negated: float | None, difference: Figure, **labels: Any) -> Iterator[Figure]:
    """The rows of a negation gap: statistic "affirmed", "negated" (shares), "gap" (their difference)."""
    for statistic, value in (("affirmed", affirmed), ("negated", negated)):
        yield {**labels, "statistic": statistic, "value": value, "n": difference.get("n"), "unit": "%"}
    numbers = {name: difference.get(name) for name in (*ESTIMATE, "n", "unscored")}
    yield {**labels, **numbers, "statistic": "gap", "unit": "points"}


def read_reasons(row: Figure) -> dict[str, int]:
    """Reason -> number of unscored samples, the commonest first."""
    return json.loads(row.get("reasons") or "{}")


# --- frames ----------------------------------------------------------------------------------
def frame(rows: Iterable[Mapping[str, Any]], **labels: Any) -> pd.DataFrame:
    """The rows as a frame with ordered, typed columns. labels: columns with one entry for all rows."""
    return _tidy(pd.DataFrame([{**row, **labels} for row in rows], dtype=object))


def concat(frames: Iterable[pd.DataFrame], **labels: Any) -> pd.DataFrame:
    """The frames in one; a column that one of them lacks is empty there. labels: as in `with_columns`."""
    parts = [frame.astype(object) for frame in frames if len(frame)]
    return _tidy((pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()).assign(**labels))


def with_columns(figures: pd.DataFrame, **labels: Any) -> pd.DataFrame:
    """The estimates with further columns: one entry for all rows (`model="ip2p"`), or one per row."""
    return _tidy(figures.assign(**labels))


def _tidy(figures: pd.DataFrame) -> pd.DataFrame:
    """The columns in order and of one type each: text, float64, or Int64 for counts that are all whole."""
    dimensions = [name for name in figures if name not in (*LEADING, *TRAILING)]
    required = ("metric", "n", "unscored", *ESTIMATE, "clusters", "unit")
    order = [name for name in (*LEADING, *dimensions, *TRAILING) if name in figures or name in required]
    columns: dict[str, Any] = {}
    for name, column in figures.reindex(columns=order).items():
        if name not in NUMBERS:
            columns[str(name)] = np.array([_format_entry(entry) for entry in column.tolist()], dtype=object)
            continue
        values = column.astype("Float64").to_numpy(float, na_value=np.nan)
        is_whole = name in COUNTS and bool((np.isnan(values) | (values % 1 == 0)).all())
        columns[str(name)] = pd.array(values, "Int64") if is_whole else values
    return pd.DataFrame(columns, index=figures.index)


def _format_entry(entry: Any) -> str:
    if isinstance(entry, Mapping):  # reasons
        return json.dumps(entry, ensure_ascii=False)
    return "" if entry is None or entry is pd.NA or entry != entry else str(entry)  # NaN != NaN


# --- queries ---------------------------------------------------------------------------------
def select(figures: pd.DataFrame, **entries: Any) -> pd.DataFrame:
    """The estimates with these entries; a tuple or list allows any member, a missing column is empty."""
    mask = np.ones(len(figures), dtype=bool)
    for name, entry in entries.items():
        values = entry if isinstance(entry, tuple | list) else (entry,)
        column = figures[name] if name in figures else pd.Series("", index=figures.index, dtype=object)
        mask &= column.isin(values).to_numpy()
    return figures[mask]


def matches(figure: Figure, **entries: Any) -> bool:
    """Whether `select` would take this row."""
    for name, entry in entries.items():
        if figure.get(name, "") not in (entry if isinstance(entry, tuple | list) else (entry,)):
            return False
    return True


def records(figures: pd.DataFrame, **query: Any) -> list[Figure]:
    """The rows of `select` as plain dicts, in order: None for a missing number, int for whole counts."""
    figures = select(figures, **query) if query else figures
    columns = []
    for name in figures.columns:
        entries = figures[name].tolist()  # a missing number is pd.NA, or NaN: not equal to itself
        columns.append([None if entry is pd.NA or entry != entry else entry for entry in entries])
    return [dict(zip(figures.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def pick(figures: pd.DataFrame, **entries: Any) -> Figure | None:
    """The first row of `select` as a plain dict, or None."""
    first = select(figures, **entries).head(1)
    return records(first)[0] if len(first) else None


def list_entries(figures: pd.DataFrame, column: str, order: Sequence[str] = ()) -> list[str]:
    """The distinct entries of a text column, without "": those of `order` first, then as they appear."""
    entries = [name for name in figures[column].unique() if name != ""] if column in figures else []
    return [*(name for name in order if name in entries), *(name for name in entries if name not in order)]


# --- figures.csv -----------------------------------------------------------------------------
def to_csv(figures: pd.DataFrame) -> str:
    """One line per estimate, numbers to the last digit, without empty columns. Text that a spreadsheet would
    run as a formula gets a "'" in front, which `read` removes."""
    text = [name for name in figures.columns if name not in NUMBERS]
    table = figures.assign(**{name: figures[name].map(escape_formula) for name in text})
    empty = [name for name in text if not (table[name] != "").any()]
    empty += [name for name in (*TESTS, "needed") if name in table and table[name].isna().all()]
    return table.drop(columns=empty).to_csv(index=False, lineterminator="\n")


_FORMULA = r"=+\-@|\t\r"  # how a cell begins that a spreadsheet runs


def escape_formula(cell: Any) -> Any:
    """A cell that no spreadsheet runs as a formula."""
    return f"'{cell}" if isinstance(cell, str) and re.match(f"[{_FORMULA}]", cell) else cell


def unescape_formula(cell: str) -> str:
    """The inverse of `escape_formula`."""
    return re.sub(f"^'(?=[{_FORMULA}])", "", cell)


def write(path: Path, figures: pd.DataFrame) -> None:
    atomic.write_text(path, to_csv(figures))


def read(path: Path) -> pd.DataFrame:
    """The frame that `write` wrote. Raises UserError for a file that is missing or damaged."""
    try:
        cells = pd.read_csv(path, dtype=str, keep_default_na=False)
        if missing := [name for name in ("n", "unscored", "value") if name not in cells]:
            raise ValueError(f"there is no column '{missing[0]}'")
        for name in cells.columns:
            if name in NUMBERS:
                cells[name] = pd.to_numeric(cells[name].replace("", None))
            else:
                cells[name] = cells[name].map(unescape_formula)
        figures = _tidy(cells)
        unknown_units = set(cells["unit"]) - set(UNITS) if "unit" in cells else set()
        if unknown_units:
            raise ValueError(f"there is no unit '{min(unknown_units)}'")
        return figures
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist.") from None
    except (OSError, pd.errors.ParserError, ValueError) as error:
        raise UserError(f"'{path}' holds no figures ({error}).") from None
