"""A report of one frame: Markdown, CSV, LaTeX, plots, and a page, one HTML file that opens from disk.

Data are text: the templates escape them, JSON blocks cannot end their element, scripts make nodes and never
markup. The page's content-security policy allows its own script and style by their hashes, images as data,
and no network.
"""

from __future__ import annotations

import base64
import functools
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

TEMPLATES = Path(__file__).parent / "templates"
#: A screen, less the line "Results: OUT".
LINES, COLUMNS = 24, 100


@dataclass(frozen=True)
class Section:
    """Tables and plots of one topic of a report; those without estimates do not appear."""

    key: str
    title: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()


class Shown(NamedTuple):
    """A section with its tables and drawn plots."""

    section: Section
    sheets: Sequence[Sheet]
    drawings: Sequence[tuple[Plot, Mapping[str, bytes]]]


@dataclass(frozen=True)
class Part:
    """A part of the page with a template of its own: `name`.html.j2, .css and .js of `TEMPLATES`.

    values   Makes the values of its template, as `<name>.<entry>`; `outside`: its script loads other files.
    scripts  Further scripts after its own.
    """

    name: str
    title: str
    values: Callable[[], Mapping[str, Any]]
    scripts: Sequence[Path] = ()


@dataclass(frozen=True)
class Page:
    """The content of a report besides the estimates of its runs.

    notes     Sentences on how to read it.
    findings  Sentences: the first, on everything, is above the first plot.
    parts     Are between the first plot and the others.
    links     Other pages in its folder: (file name, title).
    stamp     Text below every plot.
    figures   Further estimates: differences between runs, or published ones.
    frame     All estimates (default: those of the runs and `figures`).
    sections, headline   Of the report, and the tables that the command prints, two of which open the page
                         (default: the benchmark's).
    """

    title: str
    subtitle: str = ""
    notes: Sequence[str] = ()
    findings: Sequence[str] = ()
    parts: Sequence[Part] = ()
    links: Sequence[tuple[str, str]] = ()
    stamp: str = ""
    figures: Sequence[pd.DataFrame] = ()
    frame: pd.DataFrame | None = None
    sections: Sequence[Section] | None = None
    headline: Sequence[Table] | None = None


def write(out: Path, figures: pd.DataFrame, page: Page, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes the parts `formats` of the report; returns the files. Equal estimates give equal bytes.

    out  A folder: OUT/table.md, figures.csv, tables/<table>.tex, <plot>.png, .svg and .pdf, report.html. Or a
         page X.html, with X.md, X.csv, X-tables/<table>.tex, X-<plot>.png, .svg and .pdf beside it.
    """
    is_page = out.suffix in (".html", ".htm")
    folder, before = (out.parent, f"{out.stem}-") if is_page else (out, "")
    kinds = tuple(plots.KINDS) if "plots" in formats else ("svg",) if "html" in formats else ()
    shown = []
    for section in page.sections or ():
        drawn = plots.drawings(section.plots, figures, page.stamp, kinds)
        shown.append(Shown(section, tables.make_sheets(section.tables, figures), drawn))
    sheets = [sheet for part in shown for sheet in part.sheets]
    files: dict[Path, str | bytes] = {}
    if "md" in formats:
        notes, findings = filter(None, [page.subtitle, *page.notes]), dict.fromkeys(page.findings)
        text = tables.format_markdown(sheets, page.title, [*notes], [*findings])
        files[out.with_suffix(".md") if is_page else out / "table.md"] = text
    if "csv" in formats:
        files[out.with_suffix(".csv") if is_page else out / "figures.csv"] = frames.to_csv(figures)
    for sheet in sheets if "tex" in formats else ():
        file = folder / f"{before}tables" / f"{sheet.key}.tex"
        files[file] = tables.format_latex(sheet)
        files[file.with_stem(f"{sheet.key}-compact")] = tables.format_latex(sheet, compact=True)
    if "plots" in formats:
        for plot, images in (drawing for part in shown for drawing in part.drawings):
            for kind, data in images.items():
                files[folder / f"{before}{plot.key.replace('_', '-')}.{kind}"] = data
    if "html" in formats:
        answer = tables.make_sheets(page.headline, figures)[:2] if page.headline else sheets[:1]
        files[out if is_page else out / "report.html"] = render(page, shown, answer)
    for path, content in files.items():
        atomic.make_folder(path.parent)
        atomic.write_bytes(path, content.encode() if isinstance(content, str) else content)
    return list(files)


def format_headline(
    figures: pd.DataFrame, table_list: Sequence[Table], texts: Sequence[str] = (), last: Sequence[str] = ()
) -> str:
    """The last output of a command, on one screen: the first tables, of long ones the first rows; then
    sentences; then the lines `last`."""
    wrap = functools.partial(textwrap.wrap, width=COLUMNS, break_long_words=False, break_on_hyphens=False)
    lines = [line for text in texts for line in wrap(text)]
    sentences = [*lines, *([""] if lines and last else []), *last]
    room, printed = LINES - len(sentences), []
    sheets = tables.make_sheets(table_list, figures)[: max(1, room // 6)]
    for index, sheet in enumerate(sheets):
        printed.append(tables.format_plain(sheet, max(1, room // (len(sheets) - index) - 4)))
        room -= printed[-1].count("\n") + 2  # and an empty line
    return "\n\n".join([*printed, "\n".join(sentences)] if sentences else printed) + "\n"


def list_files(out: Path, files: Sequence[Path], notes: int) -> list[str]:
    """Lines with the names of all files of a report to OUT."""
    names = [file.name for file in files if file.suffix in (".md", ".csv")]
    names += dict.fromkeys(f"{file.parent.name}/*.tex" for file in files if file.suffix == ".tex")
    also = f" and {notes} note{'s' * (notes > 1)}" if notes else ""
    lines = [f"All tables{also}: {', '.join(names)}"] if names else []
    if drawn := [file.stem for file in files if file.suffix == ".pdf"]:
        lines += textwrap.wrap(f"Plots (.pdf, .svg, .png): {', '.join(drawn)}", COLUMNS)
    if page := next((file for file in files if file.suffix in (".html", ".htm")), None):
        sizes = [file.stat().st_size for file in chunk_folder(page).glob("*.js")]
        more = f" with {len(sizes)} files beside it ({sum(sizes) / 2**20:.1f} MiB)" if sizes else ""
        return [*lines, f"Report: {page} ({page.stat().st_size / 2**20:.1f} MiB){more}"]
    return [*lines, f"Report: {out.parent}" if out.suffix else f"One page: nein report {out} -o report.html"]


# --- the page ------------------------------------------------------------------------------


def render(page: Page, drawn_sections: Sequence[Shown] = (), answer: Sequence[Sheet] = ()) -> str:
    """The page as HTML. answer: the open tables at its top."""
    figures = []
    for plot, files in (drawing for item in drawn_sections for drawing in item.drawings):
        width = re.search(rb'width="([\d.]+)pt"', files["svg"])
        wide = width is not None and float(width[1]) > 72 * plots.COLUMN
        image = f"data:image/svg+xml;base64,{base64.b64encode(files['svg']).decode()}"
        figures.append({"title": plot.title, "image": image, "wide": wide})
    sections = []
    for item in drawn_sections:
        sheets = [sheet for sheet in item.sheets if not sheet.is_constant()]
        # Without samples below it, the page is its tables: those that its top does not show are open.
        is_open = not page.parts and not {sheet.key for sheet in sheets} <= {sheet.key for sheet in answer}
        sections += [(item.section, sheets, is_open)] if sheets else []
    names = ["page", *(part.name for part in page.parts)]
    css = "".join(_read(TEMPLATES / f"{name}.css") for name in names)
    script = "".join(_read(TEMPLATES / f"{name}.js") for name in names)
    script += "".join(_read(file) for part in page.parts for file in part.scripts)
    values = {part.name: part.values() for part in page.parts}
    extra_source = " 'self' file:" if any(entries.get("outside") for entries in values.values()) else ""
    policy = f"default-src 'none'; script-src '{_sha(script)}'{extra_source}; style-src '{_sha(css)}'; "
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
        answer=answer,
        figures=figures,
        sections=sections,
        **values,
    )


def script_json(value: Any) -> Markup:
    return Markup(script_bytes(value).decode())


def script_bytes(value: Any) -> bytes:
    """JSON for a script element, without characters that could end it or open a comment."""
    from pydantic_core import to_json

    text = to_json(value, inf_nan_mode="null")
    for char in "<>&\u2028\u2029":
        text = text.replace(char.encode(), f"\\u{ord(char):04x}".encode())
    return text


def write_chunks(page: Path, chunks: Iterable[bytes], budget: int) -> list[Markup]:
    """Chunks of `script_bytes` inside the page; none if they exceed `budget` bytes: then all become scripts
    `neinChunk(number, value)` in a folder of the page, which is emptied first unless it holds other files."""
    folder = chunk_folder(page)
    if folder.is_dir() and all(file.suffix == ".js" and file.stem.isdigit() for file in folder.iterdir()):
        shutil.rmtree(folder)
    waiting: list[tuple[int, bytes]] = []
    total = 0
    for number, chunk in enumerate(chunks):
        waiting.append((number, chunk))
        total += len(chunk)
        if total > budget:
            atomic.make_folder(folder)
            for index, text in waiting:
                data = b"// chunk of a nein report\nneinChunk(%d,%b);\n" % (index, text)
                (folder / f"{index:05d}.js").write_bytes(data)
            waiting = []
    return [Markup(text.decode()) for _, text in waiting]


def chunk_folder(page: Path) -> Path:
    return page.with_name(f"{page.stem}-data")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _sha(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
