"""All parts of a report beside each other: Markdown, CSV, LaTeX, plots and a page, from one frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from nein.config.groups import FORMATS
from nein.engine import atomic
from nein.reporting import figures as frames
from nein.reporting import plots, tables
from nein.reporting.page import Page, Shown, render
from nein.reporting.tables import Table


def write(out: Path, figures: pd.DataFrame, page: Page, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes the parts of the report named by `formats`; returns the files. Equal figures give equal bytes.

    out  A folder: OUT/table.md, figures.csv, table.tex, <plot>.png and .svg, report.html. Or a page X.html,
         with X.md, X.csv, X.tex, X-<plot>.png and .svg beside it.
    """
    shown = [
        Shown(one, tables.sheets(one.tables, figures), plots.drawings(one.plots, figures, page.stamp))
        for one in page.sections or ()
    ]
    sheets = [sheet for one in shown for sheet in one.sheets]
    files: dict[Path, str | bytes] = {}
    if "md" in formats:
        notes, findings = filter(None, [page.subtitle, *page.notes]), dict.fromkeys(page.findings)
        files[_place(out, "table.md")] = tables.markdown(sheets, page.title, [*notes], [*findings])
    if "csv" in formats:
        files[_place(out, "figures.csv")] = frames.to_csv(figures)
    if "tex" in formats:
        files[_place(out, "table.tex")] = tables.latex(sheets, page.title)
    if "plots" in formats:
        for drawing in (drawing for one in shown for drawing in one.drawings):
            name = drawing.plot.key.replace("_", "-")
            files[_place(out, f"{name}.png", part=True)] = drawing.png
            files[_place(out, f"{name}.svg", part=True)] = drawing.svg
    if "html" in formats:
        files[_place(out, "report.html")] = render(page, shown)
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
