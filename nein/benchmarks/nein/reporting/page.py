"""The page: one HTML file that opens from disk, with side-car scripts beside it only beyond a size budget.

Everything that came from data is text: the template escapes it, the JSON blocks cannot end their element, the
script makes nodes and never markup. The content-security policy allows the page's own script and style by
their hashes, pictures as data, and nothing from any network.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from nein.benchmarks.nein.reporting.collect import Run
from nein.benchmarks.nein.reporting.plots import Plot
from nein.benchmarks.nein.reporting.sample_browser import Browser, script_json
from nein.benchmarks.nein.reporting.sections import Table
from nein.engine import atomic

MARKER = "chunk of a nein report"


@dataclass
class Group:
    """A section of the page: its tables below its plots."""

    key: str
    title: str
    tables: list[Table]
    plots: list[Plot] = field(default_factory=list)


@dataclass(frozen=True)
class Written:
    """What `write` left on disk: bytes of the page, number and bytes of side-car files."""

    page: int
    files: int
    beside: int


def write(
    path: Path,
    *,
    title: str,
    subtitle: str,
    groups: Sequence[Group],
    notes: Sequence[str],
    runs: Sequence[Run],
    browser: Browser,
    side: int,
    budget: int,
) -> Written:
    """Writes the page to `path`. Chunks stay inside while they total at most `budget` bytes; beyond it all of
    them become files in `<path without its end>-data/`, a folder that holds nothing else and is emptied
    first.

    side: longer side of a thumbnail in pixels; 0 for a page without pictures.
    """
    folder = path.with_name(f"{path.stem}-data")
    kept: list[str] = []
    count = total = beside = 0
    outside = False
    _clear(folder)
    for number, chunk in enumerate(browser.chunks(side)):
        text = script_json(chunk)
        kept.append(text)
        count, total = number + 1, total + len(text.encode())
        outside = outside or total > budget
        if outside:
            for at, waiting in enumerate(kept, start=count - len(kept)):
                data = f"// {MARKER}\nneinChunk({at},{waiting});\n".encode()
                beside += len(data)
                atomic.make_folder(folder)
                (folder / f"{at:05d}.js").write_bytes(data)
            kept = []
    index = {**browser.index(), "folder": folder.name}
    shown = [] if outside else kept
    css, script = _read("report.css"), _read("report.js")
    html = _environment().get_template("report.html.j2").render(
        policy=policy(script, css, outside),
        css=Markup(css),
        script=Markup(script),
        title=title,
        subtitle=subtitle,
        groups=[
            {
                "key": group.key,
                "title": group.title,
                "tables": group.tables,
                "plots": [{"title": plot.title, "uri": _uri(plot)} for plot in group.plots],
            }
            for group in groups
        ],
        notes=notes,
        browser_note=browser.note,
        index=Markup(script_json(index)),
        chunks=[Markup(text) for text in shown],
        settings=[{"label": run.label, "text": setting(run)} for run in runs],
    )  # fmt: skip
    data = html.encode("utf-8")
    atomic.write_bytes(path, data)
    return Written(len(data), count if outside else 0, beside)


def policy(script: str, css: str, outside: bool) -> str:
    """The content-security policy. `outside`: also scripts from the page's own folder, for the side-car
    files."""
    beside = " 'self' file:" if outside else ""
    return (
        f"default-src 'none'; script-src '{_sha(script)}'{beside}; style-src '{_sha(css)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def setting(run: Run) -> str:
    """The resolved configuration, models and versions of a run as JSON, without folders of the machine."""
    manifest = run.manifest
    facts = {
        "editor": run.directory.editor,
        "track": run.track,
        "config": manifest.get("config", {}),
        "data": manifest.get("data", {}),
        "models": manifest.get("models", {}),
        "counts": manifest.get("counts", {}),
        "invocations": [
            {key: value for key, value in invocation.items() if key != "command"}
            for invocation in manifest.get("invocations", [])
        ],
    }
    return json.dumps(without_folders(facts), indent=1, ensure_ascii=False)


def without_folders(value: Any) -> Any:
    """The same structure with absolute paths cut to their last part: a report is published, a home is not."""
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    if isinstance(value, str) and (value.startswith(("/", "~", "\\\\")) or value[1:3] in (":\\", ":/")):
        return "…/" + value.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return value


def _clear(folder: Path) -> None:
    """Removes the side-car files of an earlier report; a folder that holds anything else is left alone."""
    if not folder.is_dir():
        return
    files = list(folder.iterdir())
    if all(file.suffix == ".js" and file.stem.isdigit() for file in files):
        shutil.rmtree(folder)


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def _read(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _sha(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def _uri(plot: Plot) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(plot.encode("svg")).decode()
