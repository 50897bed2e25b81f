"""Estimates as text, and tables: pivots of the frame of estimates, written by pandas.

Only the unit decides the digits, so that an estimate looks the same in every table, caption and badge. Rows
and columns without an estimate do not appear, so that a table fits runs with few metrics and with many.
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

DASH = "–"
Interval = Literal["ends", "reach", "none"]
#: What a cell shows of the figures that belong to it, at least one.
Show = Callable[[Sequence[Figure]], str]
Names = Mapping[str, str] | Callable[[str], str]


def number(value: float | None, unit: str, *, digits: int | None = None, sign: bool = False) -> str:
    """ "88.4"; with `sign` "+88.4"."""
    if value is None:
        return DASH
    scale, usual = UNITS[unit]
    digits = usual if digits is None else digits
    return f"{round(scale * value, digits) + 0.0:{'+' if sign else ''}.{digits}f}"  # no "-0.0"


def text(figure: Figure | None, *, interval: Interval = "ends", digits: int | None = None) -> str:
    """An estimate with its interval. "ends": [low, high]; "reach": ±, if both ends are equally far at the
    shown digits, else the ends."""
    if figure is None or figure["value"] is None:
        return DASH
    unit, low, high = figure["unit"], figure.get("low"), figure.get("high")
    value = number(figure["value"], unit, digits=digits)
    if low is None or high is None or interval == "none":
        return value
    half_a_digit = 0.5 * 10 ** -(UNITS[unit].digits if digits is None else digits) / UNITS[unit].scale
    if interval == "reach" and abs(figure["value"] - (low + high) / 2) < half_a_digit:
        return f"{value} ± {number((high - low) / 2, unit, digits=digits)}"
    return f"{value} [{number(low, unit, digits=digits)}, {number(high, unit, digits=digits)}]"


def heading(title: str, higher_is_better: bool) -> str:
    """The title with its arrow: ↑ higher is better, ↓ lower is better."""
    return f"{title} {'↑' if higher_is_better else '↓'}"


def widest(gaps: pd.DataFrame, *, quantity: str, change: str, models: str = "models") -> str | None:
    """A sentence on the widest and the smallest gap of several models (rows of `figures.gap`); None without
    gaps. quantity, change: "accuracy", "a question becomes its negation"."""
    measured = [row for row in frames.records(gaps, statistic="gap") if row["value"] is not None]
    if not measured:
        return None
    measured.sort(key=lambda row: -row["value"])
    first, last = measured[0], measured[-1]
    entries = {"model": first["model"], "source": first.get("source", "")}
    ends = [frames.pick(gaps, **entries, statistic=end) for end in ("affirmed", "negated")]
    shares = " to ".join(f"{text(end, interval='none')} %" for end in ends)
    loss = f"{quantity} goes from {shares} when {change}: a gap of {text(first)} points"
    if len(measured) == 1:
        return f"With {first['model']}, {loss}."
    most = f"Of {len(measured)} {models}, {first['model']} loses most: {loss}"
    return f"{most}; {last['model']} loses least: {text(last)}."


# --- what a cell shows ---------------------------------------------------------------------


def estimate(interval: Interval = "ends", digits: int | None = None) -> Show:
    """Shows the first estimate: "88.4 [87.1, 89.6]"."""
    return lambda figures: text(figures[0], interval=interval, digits=digits)


def value(digits: int | None = None) -> Show:
    """Shows the first estimate without its interval: "88.4"."""
    return estimate("none", digits)


def count(column: str = "n") -> Show:
    """Shows a column of counts: the common count, or their range: "48", "46-48"."""

    def show(figures: Sequence[Figure]) -> str:
        ends = sorted({figure[column] for figure in figures if figure[column] is not None})
        return "-".join(f"{end:.10g}" for end in dict.fromkeys((*ends[:1], *ends[-1:])))

    return show


def count_scored(figures: Sequence[Figure]) -> str:
    """The range of scored samples, of all samples: "46-48 of 48"; for published estimates their samples."""
    totals = {figure["n"] + figure["unscored"] for figure in figures if figure["unscored"] is not None}
    return f"{count()(figures)} of {max(totals):.10g}" if totals else count()(figures)


def p_value(column: str = "p") -> Show:
    """Shows "0.012"; for the column "p" the smallest possible p, if it is 0.05 or more."""

    def show(figures: Sequence[Figure]) -> str:
        p, least = figures[0].get(column), figures[0].get("p_least") if column == "p" else None
        if least is not None and least >= 0.05:
            return f"never below {least:.2g} here"
        return DASH if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"

    return show


def entry(column: str) -> Show:
    """Shows a text column of the first estimate."""
    return lambda figures: str(figures[0].get(column, ""))


# --- tables --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A column of the frame whose entries name the rows. names: entry -> its text."""

    column: str
    title: str | None = None
    names: Names = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """Shows the estimates of a row with the entries `where`, by `show`; with `by`, a column for every entry
    of that column of the frame: those of `order` first, then as they appear."""

    title: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    show: Show = field(default_factory=estimate)
    by: str = ""
    names: Names = field(default_factory=dict)
    order: Sequence[str] = ()

    def each(self, figures: Sequence[Figure]) -> Iterator[Column]:
        """One for every entry of `by`."""
        if not self.by:
            yield self
            return
        entries = dict.fromkeys(
            figure.get(self.by, "") for figure in figures if frames.matches(figure, **self.where)
        )
        for name in dict.fromkeys((*(name for name in self.order if name in entries), *entries)):
            if name != "":
                where = {**self.where, self.by: name}
                yield replace(self, title=_name(self.names, name), where=where, by="")


def _name(names: Names, name: str) -> str:
    return names(name) if callable(names) else names.get(name, name)


COUNTS = (Column("scored", show=count_scored),)


@dataclass(frozen=True)
class Table:
    """A pivot. key: anchor and file name; rows: the columns of the frame that name a row, from left to right;
    where: entries for `figures.select` (default: the task `key`)."""

    key: str
    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    where: Mapping[str, Any] | None = None
    note: str = ""

    def sheet(self, figures: pd.DataFrame) -> Sheet:
        where = {"task": self.key} if self.where is None else self.where
        chosen = frames.records(figures, **where)
        # What names a row -> its figures.
        rows_of: dict[tuple[str, ...], list[Figure]] = {}
        for figure in chosen:
            rows_of.setdefault(tuple(figure.get(row.column, "") for row in self.rows), []).append(figure)
        columns = [
            (row.column if row.title is None else row.title, [_name(row.names, key[k]) for key in rows_of])
            for k, row in enumerate(self.rows)
        ]
        names = sum(any(cells) for _, cells in columns)
        for column in itertools.chain.from_iterable(part.each(chosen) for part in self.columns):
            cells = [
                [figure for figure in row if frames.matches(figure, **column.where)]
                for row in rows_of.values()
            ]
            columns.append((column.title, [column.show(some) if some else DASH for some in cells]))
        columns = [(title, cells) for title, cells in columns if {*cells} - {"", DASH}]
        rows = [[*row] for row in zip(*(cells for _, cells in columns), strict=True)]
        return Sheet(self.key, self.title, [title for title, _ in columns], rows, self.note, names)


_NUMBER = re.compile(rf"^(?:{DASH}|(?:[+-]|< )?\d[^A-Za-z]*|)$")
_INTERVAL = re.compile(r" (?:± [\d.]+|\[[^]]*\])")


@dataclass(frozen=True)
class Sheet:
    """A table as text. names: the number of columns, from the left, that name a row."""

    key: str
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    names: int = 1

    def numbers(self) -> list[bool]:
        """Whether each column holds numbers, which are right-aligned: "88.4 [87.1, 89.6]", "–"."""
        columns = [*zip(*self.rows, strict=True)]
        return [all(map(_NUMBER.match, cells)) and {*cells} != {DASH} for cells in columns]

    def is_constant(self) -> bool:
        """Whether several rows have the same numbers, without intervals."""
        contents = {tuple(row[self.names :]) for row in self.rows}
        return (
            len(self.rows) > 1
            and len(contents) == 1
            and all(re.fullmatch(r"[\d.]+", cell) for cell in contents.pop())
        )

    def best(self) -> set[tuple[int, int]]:
        """(row, column) of the best numbers below ↑ and ↓, among rows that differ in the first name alone."""
        result: set[tuple[int, int]] = set()
        groups = pd.Series(range(len(self.rows))).groupby([str(row[1 : self.names]) for row in self.rows])
        for column, (title, is_number) in enumerate(zip(self.columns, self.numbers(), strict=True)):
            if not is_number or title[-1:] not in "↑↓":
                continue
            for _, members in groups:
                cells = pd.Series({place: self.rows[place][column].partition(" ")[0] for place in members})
                values = pd.to_numeric(cells, errors="coerce").dropna()
                best = values.max() if title[-1] == "↑" else values.min()
                if values.nunique() > 1:
                    result |= {(place, column) for place in values.index[values == best]}
        return result


def sheets(tables: Iterable[Table], figures: pd.DataFrame) -> list[Sheet]:
    return [sheet for table in tables if (sheet := table.sheet(figures)).rows]


# --- tables as files -----------------------------------------------------------------------

_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    | {"↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "×": r"$\times$", "<": r"$<$", ">": r"$>$"}
)


def plain(sheet: Sheet, lines: int) -> str:
    """The text for a terminal: the title above the table, with at most `lines` rows."""
    fit = len(sheet.rows) if len(sheet.rows) <= lines else lines - 1
    more = f"\n... {len(sheet.rows) - fit} rows more" if fit < len(sheet.rows) else ""
    return f"{sheet.title}\n{pipes(sheet.rows[:fit], sheet.columns, 'simple')}{more}"


def markdown(
    sheets: Iterable[Sheet], title: str, notes: Sequence[str] = (), findings: Sequence[str] = ()
) -> str:
    """All sheets under headings, then the findings, then notes."""
    parts = [f"# {title}"]
    for sheet in sheets:
        rows = [[*map(markdown_cell, row)] for row in sheet.rows]
        parts += [f"## {sheet.title}", pipes(rows, [*map(markdown_cell, sheet.columns)])]
        parts += [sheet.note] if sheet.note else []
    parts += ["\n".join(f"- {sentence}" for sentence in findings)] if findings else []
    return "\n\n".join([*parts, *(f"Note: {note}" for note in notes)]) + "\n"


def pipes(rows: Sequence[Sequence[Any]], heads: Sequence[str], form: str = "pipe") -> str:
    """A table of unchanged cells, for Markdown or, "simple", for a terminal."""
    frame = pd.DataFrame(list(rows), columns=list(heads), dtype=object)
    return frame.to_markdown(tablefmt=form, index=False, disable_numparse=True)


def latex(sheet: Sheet, compact: bool = False) -> str:
    """A `table` for \\usepackage{booktabs}, above 40 rows a `longtable`: numbers are right-aligned, the best
    bold. compact: without intervals."""
    numbers, best, rows = sheet.numbers(), sheet.best(), []
    for place, row in enumerate(sheet.rows):
        cells = []
        for column, cell in enumerate(row):
            text = latex_text(_INTERVAL.sub("", cell) if compact and numbers[column] else cell)
            if numbers[column]:
                text = re.sub(r"(?<!\d)-(?=\d)", "$-$", text)  # a minus, not the hyphen of a range
            cells.append(rf"\textbf{{{text}}}" if (place, column) in best else text)
        rows.append(cells)
    text = pd.DataFrame(rows, columns=[*map(latex_text, sheet.columns)]).to_latex(
        index=False,
        escape=False,
        column_format="".join("r" if is_number else "l" for is_number in numbers),
        caption=latex_text(f"{sheet.title}. {sheet.note}".strip()),
        label=f"tab:nein-{sheet.key.replace('_', '-')}",
        longtable=len(sheet.rows) > 40,
    )
    return f"% Needs \\usepackage{{booktabs,longtable}} and UTF-8.\n{text}"


def latex_text(text: str) -> str:
    return re.sub(r'"([^"]*)"', r"``\1''", _one_line(text).translate(_LATEX))


def markdown_cell(text: str) -> str:
    text = _one_line(text).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("<", "&lt;").replace("](", "]\\(")


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() or c.isspace() else "�" for c in str(text)).split())
