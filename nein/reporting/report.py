"""All parts of a report beside each other: Markdown, CSV, LaTeX, plots and a page, from one frame."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from nein.config.groups import FORMATS
from nein.engine import atomic
from nein.reporting import figures as frames
from nein.reporting import plots, tables
from nein.reporting.page import Page, Shown, beside, render
from nein.reporting.tables import Table


def write(out: Path, figures: pd.DataFrame, page: Page, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes the parts of the report named by `formats`; returns the files. Equal figures give equal bytes.

    out  A folder: OUT/table.md, figures.csv, table.tex, <plot>.png and .svg, report.html. Or a page X.html,
         with X.md, X.csv, X.tex, X-<plot>.png and .svg beside it.
    """
    kinds = ("png", "svg") if "plots" in formats else ("svg",) if "html" in formats else ()
    parts = [
        Shown(
            section,
            tables.sheets(section.tables, figures),
            plots.drawings(section.plots, figures, page.stamp, kinds),
        )
        for section in page.sections or ()
    ]
    sheets = [sheet for part in parts for sheet in part.sheets]
    files: dict[Path, str | bytes] = {}
    if "md" in formats:
        notes, findings = filter(None, [page.subtitle, *page.notes]), dict.fromkeys(page.findings)
        files[_place(out, "table.md")] = tables.markdown(sheets, page.title, [*notes], [*findings])
    if "csv" in formats:
        files[_place(out, "figures.csv")] = frames.to_csv(figures)
    if "tex" in formats:
        files[_place(out, "table.tex")] = tables.latex(sheets, page.title)
    if "plots" in formats:
        for plot, drawn in (drawing for part in parts for drawing in part.drawings):
            for kind, data in drawn.items():
                files[_place(out, f"{plot.key.replace('_', '-')}.{kind}", part=True)] = data
    if "html" in formats:
        files[_place(out, "report.html")] = render(page, parts)
    for path, content in files.items():
        atomic.write_bytes(path, content.encode() if isinstance(content, str) else content)
    return list(files)


#: A screen, less the line "Results: OUT".
LINES, COLUMNS = 24, 100


def headline(
    figures: pd.DataFrame, shown: Sequence[Table], texts: Sequence[str] = (), last: Sequence[str] = ()
) -> str:
    """What a command prints when it ends, on one screen: the first tables that have rows, of long ones the
    first rows; then sentences; then the lines `last`."""
    wrap = functools.partial(textwrap.wrap, width=COLUMNS, break_long_words=False, break_on_hyphens=False)
    sentences = [*(line for text in texts for line in wrap(text)), *(["", *last] if last else [])]
    room, printed = LINES - len(sentences), []
    sheets = tables.sheets(shown, figures)[: max(1, room // 6)]
    for index, sheet in enumerate(sheets):
        printed.append(tables.plain(sheet, max(1, room // (len(sheets) - index) - 4)))
        room -= printed[-1].count("\n") + 2  # and an empty line
    return "\n\n".join([*printed, "\n".join(sentences)] if sentences else printed) + "\n"


def places(out: Path, files: Sequence[Path], notes: int) -> list[str]:
    """Where the rest of a report to OUT is, in lines."""
    names = ", ".join(file.name for file in files if file.suffix in (".md", ".csv", ".tex"))
    also = f" and {notes} note{'s' * (notes > 1)}" if notes else ""
    lines = [f"All tables{also}: {names}"] if names else []
    page = _place(out, "report.html")
    if page in files:
        sizes = [file.stat().st_size for file in beside(page).glob("*.js")]
        more = f" with {len(sizes)} files beside it ({sum(sizes) / 2**20:.1f} MiB)" if sizes else ""
        return [*lines, f"Report: {page} ({page.stat().st_size / 2**20:.1f} MiB){more}"]
    return [*lines, f"Report: {out.parent}" if page == out else f"One page: nein report {out} -o report.html"]


def _place(out: Path, name: str, part: bool = False) -> Path:
    if out.suffix not in (".html", ".htm"):
        return out / name
    if name == "report.html":
        return out
    return out.with_name(f"{out.stem}-{name}") if part else out.with_suffix(Path(name).suffix)
