"""All parts of a report beside each other: Markdown, CSV, LaTeX, plots and a page, from one frame.

`write` is what a benchmark calls that has figures and specifications; it decides nothing about their content.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nein.engine import atomic
from nein.reporting import figures as frames
from nein.reporting import page, plots, record, tables
from nein.reporting.page import Part
from nein.reporting.plots import Drawing, Plot
from nein.reporting.tables import Sheet, Table

FORMATS = ("html", "md", "csv", "tex", "plots")


@dataclass(frozen=True)
class Section:
    """What belongs together in a report; parts without figures do not appear."""

    key: str
    title: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()


def write(
    out: Path,
    figures: pd.DataFrame,
    *,
    title: str,
    sections: Sequence[Section],
    subtitle: str = "",
    notes: Sequence[str] = (),
    findings: Sequence[str] = (),
    parts: Sequence[Part] = (),
    settings: Mapping[str, str] | None = None,
    formats: Sequence[str] = FORMATS,
    stamp: str = "",
) -> list[Path]:
    """Writes the parts of the report named by `formats`; returns the files.

    subtitle, notes, findings  How to read it, in a line and in sentences; what was found, in sentences, the
                               first of them about everything. Of the page, the first plot stands beside it.
    parts  Of the page: its samples, say (`cards.browser`).
    stamp  What every plot has to say wherever it is shown.
    out  A folder: OUT/table.md, figures.csv, table.tex, <plot>.png and .svg, report.html. Or a page X.html,
         with X.md, X.csv, X.tex, X-<plot>.png and .svg beside it.

    Unless it is finished, a file is what it was before (`atomic.writing`); equal figures give equal bytes.
    Files that would be made of the same again stay as they are (`nein.reporting.record`).
    """
    sheets = [tables.sheets(section.tables, figures) for section in sections]
    drawn = [plots.drawings(section.plots, figures, stamp) for section in sections]
    every = [sheet for sheets_of in sheets for sheet in sheets_of]
    said = [*([subtitle] if subtitle else []), *notes]
    csv = frames.to_csv(figures)

    def whole_page() -> str:
        shown = [
            page.Shown(section.key, section.title, sheets_of, drawings)
            for section, sheets_of, drawings in zip(sections, sheets, drawn, strict=True)
            if sheets_of or drawings
        ]
        return page.render(
            title=title,
            subtitle=subtitle,
            findings=findings,
            notes=notes,
            sections=shown,
            parts=parts,
            settings=settings,
        )

    makers: dict[Path, Callable[[], bytes]] = {}
    if "md" in formats:
        makers[_place(out, "table.md")] = lambda: tables.markdown(every, title, said, findings).encode()
    if "csv" in formats:
        makers[_place(out, "figures.csv")] = csv.encode
    if "tex" in formats:
        makers[_place(out, "table.tex")] = lambda: tables.latex(every, title).encode()
    if "plots" in formats:
        for drawing in itertools.chain.from_iterable(drawn):
            for kind in ("png", "svg"):
                path = _place(out, f"{drawing.key.replace('_', '-')}.{kind}", part=True)
                makers[path] = functools.partial(getattr, drawing, kind)
    if "html" in formats:
        makers[_place(out, "report.html")] = lambda: whole_page().encode()
    outline = [[section.key, section.title] for section in sections]
    words = [title, subtitle, list(notes), list(findings), dict(settings or {}), outline]
    asked = parts if "html" in formats else ()
    made_of = _digest(every, itertools.chain.from_iterable(drawn), asked, csv, words)
    made = record.Record(_place(out, ".made_of.json"))
    if made_of is None or not made.holds(made_of, makers):
        for path, make in makers.items():
            atomic.write_bytes(path, make())
        made.write(made_of, makers)
    return list(makers)


def _digest(
    every: Sequence[Sheet], drawn: Iterable[Drawing], parts: Sequence[Part], *others: Any
) -> str | None:
    """Of all that decides the files; None where a part does not know what decides it."""
    if any(part.made_of is None for part in parts):
        return None
    printed = [[sheet.key, sheet.title, sheet.columns, sheet.rows, sheet.note] for sheet in every]
    best = [[sorted(sheet.best), sorted(sheet.links.items())] for sheet in every]
    plotted = [[repr(d.plot), d.plot.shown(d.figures).to_csv(), d.stamp] for d in drawn]
    asked = [[part.name, part.title, part.made_of] for part in parts]
    return record.digest([record.code(), printed, best, plotted, asked, *others])


def headline(figures: pd.DataFrame, shown: Sequence[Table]) -> str:
    """What a command prints when it ends: some of the tables, as plain text."""
    return "\n\n".join(tables.plain(sheet) for sheet in tables.sheets(shown, figures)) + "\n"


def _place(out: Path, name: str, part: bool = False) -> Path:
    if out.suffix not in (".html", ".htm"):
        return out / name
    if name.startswith("."):
        return out.with_name(f".{out.stem}{name}")
    if name == "report.html":
        return out
    return out.with_name(f"{out.stem}-{name}") if part else out.with_suffix(Path(name).suffix)
