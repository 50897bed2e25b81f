"""Writes a report of one frame: Markdown, CSV, LaTeX, plots, and a page, one HTML file that opens from disk.

Parts: the content of a report; its files, and what a command prints; the HTML page; its chunks of data.
Data cannot become markup: templates escape them, JSON cannot end its element, and scripts make nodes alone.
A content-security policy allows the page's script and style by their hashes, images as data, and no network.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup

from nein.config.groups import FORMATS
from nein.engine import atomic
from nein.reporting import figures as frames
from nein.reporting import plots, tables
from nein.reporting.plots import Plot
from nein.reporting.tables import Sheet, Table


# --- content ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Section:
    """Tables and plots of one topic of a report; those without estimates do not appear."""

    key: str
    title: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Part:
    """A part of the page with a template of its own: <name>.html.j2, .css and .js in `TEMPLATES`."""

    name: str
    title: str
    # Makes the values of its template, <name>.<key> there. "outside" is true if scripts load other files.
    values: Callable[[], Mapping[str, Any]]
    scripts: Sequence[Path] = ()  # which follow its own


@dataclass(frozen=True)
class Page:
    """The content of a report besides the estimates of its runs. None: as the benchmark has it."""

    title: str
    subtitle: str = ""
    notes: Sequence[str] = ()  # sentences on how to read it
    findings: Sequence[str] = ()  # sentences: the first is the main result, above the first plot
    parts: Sequence[Part] = ()  # between the first plot and the others
    links: Sequence[tuple[str, str]] = ()  # other pages in its folder: (file name, title)
    stamp: str = ""  # text below every plot
    figures: Sequence[pd.DataFrame] = ()  # further estimates: differences between runs, or published ones
    frame: pd.DataFrame | None = None  # all estimates; None: those of the runs and `figures`
    sections: Sequence[Section] | None = None
    headline: Sequence[Table] | None = None  # printed by the command; the first two open the page


class FilledSection(NamedTuple):
    """A section with its tables as text and its plots as files: kind of file -> content."""

    section: Section
    sheets: Sequence[Sheet]
    drawings: Sequence[tuple[Plot, Mapping[str, bytes]]]


# --- files, and what a command prints --------------------------------------------------------
def write(out: Path, figures: pd.DataFrame, page: Page, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes the parts `formats` of the report; returns the files. Equal estimates give equal bytes.

    out  A folder: OUT/table.md, figures.csv, tables/<table>.tex, <plot>.png, .svg and .pdf, report.html. Or a
         page X.html, with X.md, X.csv, X-tables/<table>.tex, X-<plot>.png, .svg and .pdf beside it.
    """
    is_page = out.suffix in (".html", ".htm")
    folder, prefix = (out.parent, f"{out.stem}-") if is_page else (out, "")
    # Tables and plots.
    page_kinds = ["svg"] if "html" in formats else []
    kinds = [*plots.FILE_KINDS] if "plots" in formats else page_kinds
    sections = []
    for section in page.sections or ():
        drawn = plots.draw_all(section.plots, figures, page.stamp, kinds)
        sections.append(FilledSection(section, tables.make_sheets(section.tables, figures), drawn))
    sheets = [sheet for section in sections for sheet in section.sheets]
    # The content of every file.
    files: dict[Path, str | bytes] = {}
    if "md" in formats:
        notes = [note for note in (page.subtitle, *page.notes) if note]
        text = tables.format_markdown(sheets, page.title, notes, [*dict.fromkeys(page.findings)])
        files[out.with_suffix(".md") if is_page else out / "table.md"] = text
    if "csv" in formats:
        files[out.with_suffix(".csv") if is_page else out / "figures.csv"] = frames.to_csv(figures)
    for sheet in sheets if "tex" in formats else ():
        file = folder / f"{prefix}tables" / f"{sheet.key}.tex"
        files[file] = tables.format_latex(sheet)
        files[file.with_stem(f"{sheet.key}-compact")] = tables.format_latex(sheet, compact=True)
    if "plots" in formats:
        for plot, images in (drawing for section in sections for drawing in section.drawings):
            for kind, data in images.items():
                files[folder / f"{prefix}{plot.key.replace('_', '-')}.{kind}"] = data
    if "html" in formats:
        top = tables.make_sheets(page.headline, figures)[:2] if page.headline else sheets[:1]
        files[out if is_page else out / "report.html"] = render(page, sections, top)
    for path, content in files.items():
        atomic.make_folder(path.parent)
        atomic.write_bytes(path, content.encode() if isinstance(content, str) else content)
    return list(files)


LINES, COLUMNS = 24, 100  # of a screen, without the line "Results: OUT"


def format_headline(
    figures: pd.DataFrame, given: Sequence[Table], texts: Sequence[str] = (), last: Sequence[str] = ()
) -> str:
    """A command's last output, on one screen: the first rows of the first tables, sentences, lines `last`."""
    lines = []
    for text in texts:
        lines += textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
    if lines and last:
        lines.append("")
    lines += last
    blocks, room = [], LINES - len(lines)  # room: lines left for tables
    sheets = tables.make_sheets(given, figures)[: max(1, room // 6)]  # 6: a table with a row or two
    for index, sheet in enumerate(sheets):
        rows = room // (len(sheets) - index) - 4  # without title, head, rule and the line "... more"
        blocks.append(tables.format_plain(sheet, max(1, rows)))
        room -= blocks[-1].count("\n") + 2  # and an empty line
    blocks += ["\n".join(lines)] if lines else []
    return "\n\n".join(blocks) + "\n"


def list_files(out: Path, files: Sequence[Path], notes: int) -> list[str]:
    """Lines with the names of all files of a report to OUT."""
    names = [file.name for file in files if file.suffix in (".md", ".csv")]
    names += dict.fromkeys(f"{file.parent.name}/*.tex" for file in files if file.suffix == ".tex")
    also = {0: "", 1: " and 1 note"}.get(notes, f" and {notes} notes")
    lines = [f"All tables{also}: {', '.join(names)}"] if names else []
    if drawn := [file.stem for file in files if file.suffix == ".pdf"]:
        lines += textwrap.wrap(f"Plots (.pdf, .svg, .png): {', '.join(drawn)}", COLUMNS)
    if report := next((file for file in files if file.suffix in (".html", ".htm")), None):
        sizes = [file.stat().st_size for file in chunk_folder(report).glob("*.js")]
        more = f" with {len(sizes)} files beside it ({sum(sizes) / 2**20:.1f} MiB)" if sizes else ""
        return [*lines, f"Report: {report} ({report.stat().st_size / 2**20:.1f} MiB){more}"]
    return [*lines, f"Report: {out.parent}" if out.suffix else f"One page: nein report {out} -o report.html"]


# --- the HTML page ---------------------------------------------------------------------------
TEMPLATES = Path(__file__).parent / "templates"


def render(page: Page, filled: Sequence[FilledSection] = (), top: Sequence[Sheet] = ()) -> str:
    """The page as HTML. top: the open tables at its top."""
    # Plots; those of several panels are shown wide.
    drawings = []
    for plot, files in (drawing for section in filled for drawing in section.drawings):
        width = re.search(rb'width="([\d.]+)pt"', files["svg"])
        wide = width is not None and float(width[1]) > 72 * plots.COLUMN  # points, 72 to an inch
        image = f"data:image/svg+xml;base64,{base64.b64encode(files['svg']).decode()}"
        drawings.append({"title": plot.title, "image": image, "wide": wide})
    # Tables. A page without samples opens those that its top does not show.
    sections = []
    for section, sheets, _ in filled:
        sheets = [sheet for sheet in sheets if not sheet.is_constant()]
        is_open = not page.parts and not {sheet.key for sheet in sheets} <= {sheet.key for sheet in top}
        sections += [(section, sheets, is_open)] if sheets else []
    # Style and scripts, which the policy allows by their hashes.
    names = ["page", *(part.name for part in page.parts)]
    css = "".join(_read_text(TEMPLATES / f"{name}.css") for name in names)
    script = "".join(_read_text(TEMPLATES / f"{name}.js") for name in names)
    script += "".join(_read_text(file) for part in page.parts for file in part.scripts)
    values = {part.name: part.values() for part in page.parts}
    extra_source = " 'self' file:" if any(entries.get("outside") for entries in values.values()) else ""
    policy = f"default-src 'none'; script-src '{_hash(script)}'{extra_source}; style-src '{_hash(css)}'; "
    policy += "img-src data:; base-uri 'none'; form-action 'none'"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        css=Markup(css),
        script=Markup(script),
        policy=policy,
        page=page,
        findings=[*dict.fromkeys(page.findings)],
        answer=top,
        figures=drawings,
        sections=sections,
        **values,
    )


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


# --- data of the page ------------------------------------------------------------------------
def script_json(value: Any) -> Markup:
    """A value as `script_bytes`, for a template."""
    return Markup(script_bytes(value).decode())


def script_bytes(value: Any) -> bytes:
    """JSON for a script element, without characters that could end it or open a comment."""
    from pydantic_core import to_json

    text = to_json(value, inf_nan_mode="null")
    for char in "<>&\u2028\u2029":
        text = text.replace(char.encode(), f"\\u{ord(char):04x}".encode())
    return text


def write_chunks(page_file: Path, chunks: Iterable[bytes], budget: int) -> list[Markup]:
    """Chunks of `script_bytes` to embed in the page. If they exceed `budget` bytes, none: all become scripts
    `neinChunk(number, value)` in a folder of the page, which is emptied first unless it holds other files."""
    folder = chunk_folder(page_file)
    if folder.is_dir() and all(file.suffix == ".js" and file.stem.isdigit() for file in folder.iterdir()):
        shutil.rmtree(folder)
    waiting: list[tuple[int, bytes]] = []
    total = 0
    for number, chunk in enumerate(chunks):
        waiting.append((number, chunk))
        total += len(chunk)
        if total > budget:  # from here on, every chunk becomes a file
            atomic.make_folder(folder)
            for index, text in waiting:
                data = b"// chunk of a nein report\nneinChunk(%d,%b);\n" % (index, text)
                (folder / f"{index:05d}.js").write_bytes(data)
            waiting = []
    return [Markup(text.decode()) for _, text in waiting]


def chunk_folder(page_file: Path) -> Path:
    """The folder of a page's chunks."""
    return page_file.with_name(f"{page_file.stem}-data")
