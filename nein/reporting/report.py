"""All parts of a report beside each other: Markdown, CSV, LaTeX, plots and a page, from one frame."""

from __future__ import annotations

import itertools
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
    """Writes the parts of the report named by `formats`; returns the files. Equal figures give equal bytes.

    subtitle, notes, findings  How to read it, in a line and in sentences; what was found, in sentences, the
                               first of them about everything.
    parts  Of the page: its samples, say (`cards.browser`).
    stamp  What every plot has to say wherever it is shown.
    out  A folder: OUT/table.md, figures.csv, table.tex, <plot>.png and .svg, report.html. Or a page X.html,
         with X.md, X.csv, X.tex, X-<plot>.png and .svg beside it.
    """
    sheets = [tables.sheets(section.tables, figures) for section in sections]
    drawn = [
        [one for plot in section.plots if (one := plots.draw(plot, figures, stamp))] for section in sections
    ]
    every = [sheet for sheets_of in sheets for sheet in sheets_of]
    said, findings = [*([subtitle] if subtitle else []), *notes], list(dict.fromkeys(findings))
    files: dict[Path, str | bytes] = {}
    if "md" in formats:
        files[_place(out, "table.md")] = tables.markdown(every, title, said, findings)
    if "csv" in formats:
        files[_place(out, "figures.csv")] = frames.to_csv(figures)
    if "tex" in formats:
        files[_place(out, "table.tex")] = tables.latex(every, title)
    if "plots" in formats:
        for drawing in itertools.chain.from_iterable(drawn):
            name = drawing.key.replace("_", "-")
            files[_place(out, f"{name}.png", part=True)] = drawing.png
            files[_place(out, f"{name}.svg", part=True)] = drawing.svg
    if "html" in formats:
        shown = [
            page.Shown(section.key, section.title, sheets_of, drawings)
            for section, sheets_of, drawings in zip(sections, sheets, drawn, strict=True)
            if sheets_of or drawings
        ]
        files[_place(out, "report.html")] = page.render(
            title=title, subtitle=subtitle, findings=findings, notes=notes, sections=shown, parts=parts,
            settings=settings,
        )  # fmt: skip
    for path, content in files.items():
        atomic.write_bytes(path, content.encode() if isinstance(content, str) else content)
    return list(files)


def headline(figures: pd.DataFrame, shown: Sequence[Table]) -> str:
    """What a command prints when it ends: some of the tables, as plain text."""
    return "\n\n".join(tables.plain(sheet) for sheet in tables.sheets(shown, figures)) + "\n"


def _place(out: Path, name: str, part: bool = False) -> Path:
    if out.suffix not in (".html", ".htm"):
        return out / name
    if name == "report.html":
        return out
    return out.with_name(f"{out.stem}-{name}") if part else out.with_suffix(Path(name).suffix)
