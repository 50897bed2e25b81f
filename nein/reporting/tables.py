"""A table is a pivot of the frame of figures, written by pandas.

Rows and columns without a figure do not appear, so that a table serves runs with few metrics and many.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from nein.reporting import figures as frames
from nein.reporting import format
from nein.reporting.figures import Figure

#: What a cell shows of the figures that belong to it, at least one.
Show = Callable[[Sequence[Figure]], str]
Names = Mapping[str, str] | Callable[[str], str]


def estimate(interval: format.Interval = "ends", digits: int | None = None) -> Show:
    """The first figure: "88.4 [87.1, 89.6]"."""
    return lambda figures: format.text(figures[0], interval=interval, digits=digits)


def value(digits: int | None = None) -> Show:
    """The first figure without its interval: "88.4"."""
    return lambda figures: format.number(figures[0]["value"], figures[0]["unit"], digits=digits)


def count(column: str = "n") -> Show:
    """A column of counts: what the figures share, or the range."""
    return lambda figures: format.counts(figures, column)


def p_value(column: str = "p") -> Show:
    """p, with the least that was possible where that is no small one."""
    least = "p_least" if column == "p" else ""
    return lambda figures: format.p_value(figures[0].get(column), figures[0].get(least))


def entry(column: str) -> Show:
    """A column of text, of the first figure."""
    return lambda figures: str(figures[0].get(column, ""))


@dataclass(frozen=True)
class Row:
    """A column of the frame whose entries name the rows. `names`: how an entry is shown, if otherwise."""

    column: str
    title: str | None = None
    names: Names = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """Those of a row's figures that have the entries `where`, shown by `show`; with `by` such a column for
    every entry of that column of the frame: those of `order` first, then as they appear.

    higher_is_better  Which of several models is the best one; None where none is; a function of the entry.
    link              Column of the frame with the address that the cell leads to on a page.
    """

    title: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    show: Show = field(default_factory=estimate)
    higher_is_better: bool | Callable[[str], bool | None] | None = None
    link: str = ""
    by: str = ""
    names: Names = field(default_factory=dict)
    order: Sequence[str] = ()

    def each(self, figures: pd.DataFrame) -> Iterator[Column]:
        """One for every entry of `by`."""
        if not self.by:
            yield self
            return
        better = self.higher_is_better
        for entry in frames.values(frames.select(figures, **self.where), self.by, self.order):
            is_better = better(entry) if callable(better) else better
            where = {**self.where, self.by: entry}
            yield Column(_name(self.names, entry), where, self.show, is_better, self.link)


def _name(names: Names, entry: str) -> str:
    return names(entry) if callable(names) else names.get(entry, entry)


_NUMBER = re.compile(rf"^(?:{format.DASH}|(?:[+-]|< )?\d[^A-Za-z]*|)$")
COUNTS = (Column("n", show=count("n")), Column("unscored", show=count("unscored")))


@dataclass(frozen=True)
class Table:
    """key: anchor name; rows: the columns of the frame that name a row, from left to right; where: the
    figures that the table is about, as `figures.select` takes them, by default those of the task `key`."""

    key: str
    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    where: Mapping[str, Any] | None = None
    note: str = ""

    def sheet(self, figures: pd.DataFrame) -> Sheet:
        figures = frames.select(figures, **({"task": self.key} if self.where is None else self.where))
        lines: dict[tuple[str, ...], list[Figure]] = {}
        for figure in frames.records(figures):
            lines.setdefault(tuple(figure.get(row.column, "") for row in self.rows), []).append(figure)
        heads = [row.column if row.title is None else row.title for row in self.rows]
        cells = [
            [_name(row.names, entry) for row, entry in zip(self.rows, key, strict=True)] for key in lines
        ]
        best: set[tuple[int, int]] = set()
        links: dict[tuple[int, int], str] = {}
        for column in itertools.chain.from_iterable(part.each(figures) for part in self.columns):
            chosen = [[figure for figure in row if _fits(figure, column.where)] for row in lines.values()]
            if not any(chosen):
                continue
            at, first = len(heads), [members[0] if members else {} for members in chosen]
            heads.append(column.title)
            for line, members in zip(cells, chosen, strict=True):
                line.append(column.show(members) if members else format.DASH)
            if column.higher_is_better is not None:
                best |= {(row, at) for row in self._best(bool(column.higher_is_better), [*lines], first)}
            links |= {(row, at): str(f[column.link]) for row, f in enumerate(first) if f.get(column.link)}
        return Sheet(self.key, self.title, heads, cells, self.note, frozenset(best), links)

    def _best(self, higher: bool, keys: Sequence[tuple[str, ...]], figures: Sequence[Figure]) -> list[int]:
        """The rows with the best of several models measured here that differ in nothing else; values that
        look the same are equally good."""
        groups: dict[tuple[str, ...], list[tuple[float, int]]] = {}
        others = [index for index, row in enumerate(self.rows) if row.column != "model"]
        for number, (key, figure) in enumerate(zip(keys, figures, strict=True)):
            unfit = figure.get("source") == "printed" or figure.get("refused") or len(others) == len(key)
            if figure.get("value") is not None and not unfit:
                printed = float(format.number(figure["value"], figure["unit"])) * (1 if higher else -1)
                groups.setdefault(tuple(key[index] for index in others), []).append((printed, number))
        several = (group for group in groups.values() if len(group) > 1)
        return [number for group in several for printed, number in group if printed == max(group)[0]]


def _fits(figure: Figure, where: Mapping[str, Any]) -> bool:
    given = ((figure.get(name, ""), wanted) for name, wanted in where.items())
    return all(
        entry in (wanted if isinstance(wanted, tuple | list) else (wanted,)) for entry, wanted in given
    )


@dataclass(frozen=True)
class Sheet:
    """A table as text. best: (row, column) of the best values; links: (row, column) -> address on a page."""

    key: str
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    best: frozenset[tuple[int, int]] = frozenset()
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def numbers(self) -> list[bool]:
        """Whether a column holds numbers, which stand at the right: "88.4 [87.1, 89.6]", "–"."""
        return [
            all(_NUMBER.match(cell) for cell in cells) and any(cell != format.DASH for cell in cells)
            for cells in zip(*self.rows, strict=True)
        ]


def sheets(tables: Iterable[Table], figures: pd.DataFrame) -> list[Sheet]:
    """Those of the tables that have a row."""
    return [sheet for table in tables if (sheet := table.sheet(figures)).rows]


_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    | {"↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "×": r"$\times$", "<": r"$<$", ">": r"$>$"}
)


def plain(sheet: Sheet, lines: int) -> str:
    """For a terminal: the title above the table, whose rows take at most so many lines."""
    fit = len(sheet.rows) if len(sheet.rows) <= lines else lines - 1
    more = f"\n... {len(sheet.rows) - fit} rows more" if fit < len(sheet.rows) else ""
    return f"{sheet.title}\n{pipes(sheet.rows[:fit], sheet.columns, 'simple')}{more}"


def markdown(
    sheets: Iterable[Sheet], title: str, notes: Sequence[str] = (), findings: Sequence[str] = ()
) -> str:
    """All sheets under headings, then what was found in sentences, then notes on how to read it."""
    parts = [f"# {title}"]
    for sheet in sheets:
        rows = [[*map(markdown_cell, row)] for row in sheet.rows]
        parts += [f"## {sheet.title}", pipes(rows, [*map(markdown_cell, sheet.columns)])]
        parts += [sheet.note] if sheet.note else []
    parts += ["\n".join(f"- {sentence}" for sentence in findings)] if findings else []
    return "\n\n".join([*parts, *(f"Note: {note}" for note in notes)]) + "\n"


def pipes(rows: Sequence[Sequence[Any]], heads: Sequence[str], form: str = "pipe") -> str:
    """A table of cells as they are, for Markdown or, "simple", for a terminal."""
    frame = pd.DataFrame(list(rows), columns=list(heads), dtype=object)
    return frame.to_markdown(tablefmt=form, index=False, disable_numparse=True)


def latex(sheets: Iterable[Sheet], title: str) -> str:
    """One `table` environment each, for \\usepackage{booktabs}; long tables go over pages with longtable."""
    parts = [f"% {_one_line(title)}", r"% Needs \usepackage{booktabs,longtable} and UTF-8."]
    for sheet in sheets:
        frame = pd.DataFrame(sheet.rows, columns=[*map(latex_text, sheet.columns)]).map(latex_text)
        how: Any = {"caption": latex_text(f"{sheet.title}. {sheet.note}".strip()), "escape": False}
        how |= {"label": f"tab:nein-{sheet.key.replace('_', '-')}", "longtable": len(sheet.rows) > 40}
        parts.append(frame.to_latex(index=False, column_format="l" * len(sheet.columns), **how).rstrip())
    return "\n\n".join(parts) + "\n"


def latex_text(text: str) -> str:
    return re.sub(r'"([^"]*)"', r"``\1''", _one_line(text).translate(_LATEX))


def markdown_cell(text: str) -> str:
    """Text that stays one cell and no markup."""
    text = _one_line(text).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("<", "&lt;").replace("](", "]\\(")


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() or c.isspace() else "�" for c in str(text)).split())
