"""All parts of a report beside each other: Markdown, CSV, LaTeX, plots and a page, from one frame.

`write` is what a benchmark calls that has figures and specifications; it decides nothing about their content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nein.engine import atomic
from nein.reporting import figures as frames
from nein.reporting import page, plots, tables
from nein.reporting.page import Part
from nein.reporting.plots import Plot
from nein.reporting.tables import Table

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
    """
    sheets = [sheet for section in sections for sheet in tables.sheets(section.tables, figures)]
    written: dict[Path, bytes] = {}
    if "md" in formats:
        said = [subtitle] if subtitle else []
        written[_place(out, "table.md")] = tables.markdown(sheets, title, [*said, *notes], findings).encode()
    if "csv" in formats:
        written[_place(out, "figures.csv")] = frames.to_csv(figures).encode()
    if "tex" in formats:
        written[_place(out, "table.tex")] = tables.latex(sheets, title).encode()
    drawn = {}
    if {"html", "plots"} & {*formats}:
        drawn = {section.key: plots.drawings(section.plots, figures, stamp) for section in sections}
    if "plots" in formats:
        for drawing in (drawing for drawings in drawn.values() for drawing in drawings):
            for kind, data in (("png", drawing.png), ("svg", drawing.svg)):
                written[_place(out, f"{drawing.key.replace('_', '-')}.{kind}", part=True)] = data
    if "html" in formats:
        shown = [
            page.Shown(section.key, section.title, sheets_of, drawn[section.key])
            for section in sections
            if (sheets_of := tables.sheets(section.tables, figures)) or drawn[section.key]
        ]
        written[_place(out, "report.html")] = page.render(
            title=title,
            subtitle=subtitle,
            findings=findings,
            notes=notes,
            sections=shown,
            parts=parts,
            settings=settings,
        ).encode()
    for path, data in written.items():
        atomic.write_bytes(path, data)
    return list(written)


def headline(figures: pd.DataFrame, shown: Sequence[Table]) -> str:
    """What a command prints when it ends: some of the tables, as plain text."""
    return "\n\n".join(tables.plain(sheet) for sheet in tables.sheets(shown, figures)) + "\n"


def _place(out: Path, name: str, part: bool = False) -> Path:
    if out.suffix not in (".html", ".htm"):
        return out / name
    if name == "report.html":
        return out
    return out.with_name(f"{out.stem}-{name}") if part else out.with_suffix(Path(name).suffix)
