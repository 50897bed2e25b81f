"""Formats estimates as text, and pivots the frame of estimates into tables: for a terminal, Markdown, LaTeX.

Parts: estimates as text; cells; `Table`, a pivot to make, and `Sheet`, its text; formats of a sheet. The unit
alone decides the digits, so an estimate looks the same in every table, caption and badge. Rows and columns
without an estimate do not appear, so a table fits runs with few metrics and with many.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from nein.reporting import figures as frames
from nein.reporting.figures import UNITS, Figure

DASH = "–"  # a cell without an estimate
Interval = Literal["ends", "reach", "none"]  # as `format_estimate` takes it
#: Makes the text of a cell from the estimates that belong to it, at least one.
Show = Callable[[Sequence[Figure]], str]
Names = Mapping[str, str] | Callable[[str], str]  # entry of the frame -> text to show


# --- estimates as text ---------------------------------------------------------------------
def format_number(value: float | None, unit: str, *, digits: int | None = None, sign: bool = False) -> str:
    """A value in its unit: "88.4"; with `sign`: "+88.4". digits: after the point; None: those of the unit."""
    if value is None:
        return DASH
    scale, unit_digits = UNITS[unit]
    digits = unit_digits if digits is None else digits
    shown = round(scale * value, digits) + 0.0  # -0.0 becomes 0.0
    return f"{shown:{'+' if sign else ''}.{digits}f}"


def format_estimate(figure: Figure | None, *, interval: Interval = "ends", digits: int | None = None) -> str:
    """An estimate with its interval: "ends": [low, high]; "reach": ± if it looks symmetric, else [ ]."""
    if figure is None or figure["value"] is None:
        return DASH
    unit, low, high = figure["unit"], figure.get("low"), figure.get("high")
    value = format_number(figure["value"], unit, digits=digits)
    if low is None or high is None or interval == "none":
        return value
    # Half a unit of the last digit shown, in the unit of the data.
    half_a_digit = 0.5 * 10 ** -(UNITS[unit].digits if digits is None else digits) / UNITS[unit].scale
    if interval == "reach" and abs(figure["value"] - (low + high) / 2) < half_a_digit:
        return f"{value} ± {format_number((high - low) / 2, unit, digits=digits)}"
    return f"{value} [{format_number(low, unit, digits=digits)}, {format_number(high, unit, digits=digits)}]"


def describe_widest(gaps: pd.DataFrame, *, quantity: str, change: str, models: str = "models") -> str | None:
    """A sentence on the widest and the smallest gap of several models (rows of `figures.gap`); None without
    gaps. quantity: what falls, "accuracy"; change: of the input, "a question becomes its negation"."""
    measured = [row for row in frames.records(gaps, statistic="gap") if row["value"] is not None]
    if not measured:
        return None
    measured.sort(key=lambda row: -row["value"])
    widest = measured[0]
    entries = {"model": widest["model"], "source": widest.get("source", "")}
    before = format_estimate(frames.pick(gaps, **entries, statistic="affirmed"), interval="none")
    after = format_estimate(frames.pick(gaps, **entries, statistic="negated"), interval="none")
    loss = f"{quantity} goes from {before} % to {after} % when {change}: "
    loss += f"a gap of {format_estimate(widest)} points"
    if len(measured) == 1:
        return f"With {widest['model']}, {loss}."
    sentence = f"Of {len(measured)} {models}, {widest['model']} loses most: {loss}"
    # A model that fails before the change, too, has no gap and no merit: it had less to lose than the widest.
    able = []
    for row in measured[1:]:
        entries = {"model": row["model"], "source": row.get("source", ""), "statistic": "affirmed"}
        if (affirmed := frames.pick(gaps, **entries)) and affirmed["value"] >= widest["value"]:
            able.append(row)
    if able:
        sentence += f"; {able[-1]['model']} loses least: {format_estimate(able[-1])}"
    return f"{sentence}."


# --- cells: each function is a `Show`, or returns one ----------------------------------------
def estimate(interval: Interval = "ends", digits: int | None = None) -> Show:
    """Shows the first estimate: "88.4 [87.1, 89.6]"."""
    return lambda figures: format_estimate(figures[0], interval=interval, digits=digits)


def value(digits: int | None = None) -> Show:
    """Shows the first estimate without its interval: "88.4"."""
    return estimate("none", digits)


def count(column: str = "n") -> Show:
    """Shows a column of counts: one number, "48", or a range, "46-48"."""

    def show(figures: Sequence[Figure]) -> str:
        counts = sorted({figure[column] for figure in figures if figure[column] is not None})
        ends = counts if len(counts) < 2 else [counts[0], counts[-1]]
        return "-".join(f"{end:.10g}" for end in ends)

    return show


def count_scored(figures: Sequence[Figure]) -> str:
    """Shows the scored samples, of all samples: "46-48 of 48"; without the latter for published estimates."""
    totals = {figure["n"] + figure["unscored"] for figure in figures if figure["unscored"] is not None}
    return f"{count()(figures)} of {max(totals):.10g}" if totals else count()(figures)


def p_value(column: str = "p") -> Show:
    """Shows "0.012"; for the column "p" the smallest possible p, if it is 0.05 or more."""

    def show(figures: Sequence[Figure]) -> str:
        p = figures[0].get(column)
        minimum = figures[0].get("p_least") if column == "p" else None
        if minimum is not None and minimum >= 0.05:
            return f"never below {minimum:.2g} here"
        if p is None:
            return DASH
        return "< 0.001" if p < 0.001 else f"{p:.3f}"

    return show


def entry(column: str) -> Show:
    """Shows a text column of the first estimate."""
    return lambda figures: str(figures[0].get(column, ""))


# --- tables --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    """A column of the frame whose entries name the rows of a table."""

    column: str
    title: str | None = None  # None: the name of the column
    names: Names = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A column of a table, or several: one for every entry of a column of the frame (`by`)."""

    title: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)  # selects the estimates of a cell in its row
    show: Show = field(default_factory=estimate)
    by: str = ""  # column of the frame; "": one column
    names: Names = field(default_factory=dict)  # of the entries of `by`
    order: Sequence[str] = ()  # entries of `by` that come first; others follow as they appear

    def expand(self, figures: Sequence[Figure]) -> Iterator[Column]:
        """Yields one column for every entry of `by`; without it, this column."""
        if not self.by:
            yield self
            return
        entries = [figure.get(self.by, "") for figure in figures if frames.matches(figure, **self.where)]
        first = [name for name in self.order if name in entries]
        for name in dict.fromkeys([*first, *entries]):
            if name != "":
                where = {**self.where, self.by: name}
                yield replace(self, title=_find_name(self.names, name), where=where, by="")


def _find_name(names: Names, name: str) -> str:
    return names(name) if callable(names) else names.get(name, name)


COUNTS = (Column("scored", show=count_scored),)  # the last columns of many tables


@dataclass(frozen=True)
class Table:
    """A pivot to make of the frame."""

    key: str  # anchor in the page, file name
    title: str
    rows: Sequence[Row]  # columns of the frame that name a row, from left to right
    columns: Sequence[Column]
    where: Mapping[str, Any] | None = None  # entries for `figures.select`; None: the task `key`
    note: str = ""

    def sheet(self, frame: pd.DataFrame) -> Sheet:
        """The table's text, from the frame of estimates."""
        where = {"task": self.key} if self.where is None else self.where
        selected = frames.records(frame, **where)
        groups: dict[tuple[str, ...], list[Figure]] = {}  # entries that name a row -> its estimates
        for figure in selected:
            groups.setdefault(tuple(figure.get(row.column, "") for row in self.rows), []).append(figure)
        # (title, cells) of the columns that name a row, then of the others.
        columns = []
        for index, row in enumerate(self.rows):
            title = row.column if row.title is None else row.title
            columns.append((title, [_find_name(row.names, key[index]) for key in groups]))
        name_count = sum(any(cells) for _, cells in columns)  # those that are not dropped below
        for column in itertools.chain.from_iterable(part.expand(selected) for part in self.columns):
            cells = []
            for group in groups.values():
                figures = [figure for figure in group if frames.matches(figure, **column.where)]
                cells.append(column.show(figures) if figures else DASH)
            columns.append((column.title, cells))
        # Drop empty columns.
        columns = [(title, cells) for title, cells in columns if {*cells} - {"", DASH}]
        rows = [[*row] for row in zip(*(cells for _, cells in columns), strict=True)]  # columns to rows
        titles = [title for title, _ in columns]
        return Sheet(self.key, self.title, titles, rows, note=self.note, names=name_count)


#: A cell of numbers: "88.4 [87.1, 89.6]", "< 0.001", "–", or nothing.
_NUMBER = re.compile(rf"^(?:{DASH}|(?:[+-]|< )?\d[^A-Za-z]*|)$")


@dataclass(frozen=True)
class Sheet:
    """The text of a table."""

    key: str
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    names: int = 1  # how many columns, from the left, name a row

    def find_numbers(self) -> list[bool]:
        """Whether each column holds numbers, which are right-aligned."""
        columns = [*zip(*self.rows, strict=True)]
        return [all(map(_NUMBER.match, cells)) and {*cells} != {DASH} for cells in columns]

    def is_constant(self) -> bool:
        """Whether several rows have the same numbers, without intervals."""
        contents = {tuple(row[self.names :]) for row in self.rows}
        if len(self.rows) < 2 or len(contents) > 1:
            return False
        return all(re.fullmatch(r"[\d.]+", cell) for cell in contents.pop())

    def find_best(self) -> set[tuple[int, int]]:
        """(row, column) of the best numbers below ↑ or ↓, among rows that differ in the first name alone."""
        result: set[tuple[int, int]] = set()
        groups = pd.Series(range(len(self.rows))).groupby([str(row[1 : self.names]) for row in self.rows])
        for column, (title, is_number) in enumerate(zip(self.columns, self.find_numbers(), strict=True)):
            if not is_number or title[-1:] not in "↑↓":
                continue
            for _, members in groups:
                cells = pd.Series({row: self.rows[row][column].partition(" ")[0] for row in members})
                values = pd.to_numeric(cells, errors="coerce").dropna()
                best = values.max() if title[-1] == "↑" else values.min()
                if values.nunique() > 1:
                    result |= {(row, column) for row in values.index[values == best]}
        return result


def make_sheets(tables: Iterable[Table], frame: pd.DataFrame) -> list[Sheet]:
    """The sheets that have a row."""
    return [sheet for table in tables if (sheet := table.sheet(frame)).rows]


# --- formats of a sheet ----------------------------------------------------------------------
def format_plain(sheet: Sheet, lines: int) -> str:
    """A sheet for a terminal: its title above the table, which has at most `lines` rows."""
    count = len(sheet.rows) if len(sheet.rows) <= lines else lines - 1  # one line says how many are left out
    end = f"\n... {len(sheet.rows) - count} rows more" if count < len(sheet.rows) else ""
    return f"{sheet.title}\n{format_rows(sheet.rows[:count], sheet.columns, 'simple')}{end}"


def format_markdown(
    sheets: Iterable[Sheet], title: str, notes: Sequence[str] = (), findings: Sequence[str] = ()
) -> str:
    """All sheets under headings, then the findings, then the notes."""
    parts = [f"# {title}"]
    for sheet in sheets:
        rows = [[*map(escape_markdown, row)] for row in sheet.rows]
        parts += [f"## {sheet.title}", format_rows(rows, [*map(escape_markdown, sheet.columns)])]
        parts += [sheet.note] if sheet.note else []
    parts += ["\n".join(f"- {sentence}" for sentence in findings)] if findings else []
    return "\n\n".join([*parts, *(f"Note: {note}" for note in notes)]) + "\n"


def format_rows(rows: Sequence[Sequence[Any]], heads: Sequence[str], form: str = "pipe") -> str:
    """Cells as a table: for Markdown ("pipe") or a terminal ("simple"). They are not escaped here."""
    frame = pd.DataFrame(list(rows), columns=list(heads), dtype=object)
    return frame.to_markdown(tablefmt=form, index=False, disable_numparse=True)


_INTERVAL = re.compile(r" (?:± [\d.]+|\[[^]]*\])")  # " ± 1.3" or " [87.1, 89.6]"


def format_latex(sheet: Sheet, compact: bool = False) -> str:
    """A sheet as a LaTeX `table`, above 40 rows a `longtable`; the best are bold. compact: no intervals."""
    is_number, best = sheet.find_numbers(), sheet.find_best()
    rows = []
    for index, row in enumerate(sheet.rows):
        cells = []
        for column, cell in enumerate(row):
            cell = escape_latex(_INTERVAL.sub("", cell) if compact and is_number[column] else cell)
            if is_number[column]:
                cell = re.sub(r"(?<!\d)-(?=\d)", "$-$", cell)  # a minus, not the hyphen of a range
            cells.append(rf"\textbf{{{cell}}}" if (index, column) in best else cell)
        rows.append(cells)
    table = pd.DataFrame(rows, columns=[*map(escape_latex, sheet.columns)]).to_latex(
        index=False,
        escape=False,
        column_format="".join("r" if right else "l" for right in is_number),
        caption=escape_latex(f"{sheet.title}. {sheet.note}".strip()),
        label=f"tab:nein-{sheet.key.replace('_', '-')}",
        longtable=len(sheet.rows) > 40,
    )
    return f"% Needs \\usepackage{{booktabs,longtable}} and UTF-8.\n{table}"


_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    | {"↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "×": r"$\times$", "<": r"$<$", ">": r"$>$"}
)


def escape_latex(text: str) -> str:
    return re.sub(r'"([^"]*)"', r"``\1''", _one_line(text).translate(_LATEX))


def escape_markdown(text: str) -> str:
    text = _one_line(text).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("<", "&lt;").replace("](", "]\\(")


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() or c.isspace() else "�" for c in str(text)).split())
