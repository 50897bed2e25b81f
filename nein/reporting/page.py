"""The page: one HTML file that opens from disk and asks no network.

Data are text: the templates escape them, JSON blocks cannot end their element, scripts make nodes and never
markup. The content-security policy allows the page's own script and style by their hashes, pictures as data,
and no network.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup

from nein.engine import atomic
from nein.reporting.plots import Plot
from nein.reporting.tables import Sheet, Table

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Section:
    """What belongs together in a report; parts without figures do not appear."""

    key: str
    title: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()


class Shown(NamedTuple):
    """A section of some figures: its plots among the page's figures, its tables below its title."""

    section: Section
    sheets: Sequence[Sheet]
    drawings: Sequence[tuple[Plot, Mapping[str, bytes]]]


@dataclass(frozen=True)
class Part:
    """A part of the page with a template of its own: `name`.html.j2, .css and .js in `folder`.

    values   For its template, as `<name>.<entry>`; `outside`: its script loads files beside the page.
    scripts  Further ones, behind its own.
    """

    name: str
    title: str
    folder: Path
    values: Callable[[], Mapping[str, Any]]
    scripts: Sequence[Path] = ()


@dataclass(frozen=True)
class Page:
    """What a report says besides the figures of its runs.

    notes     How to read it, in sentences.
    findings  In sentences: the first is about everything and stands above the first plot.
    parts     Stand between the first plot and the others.
    settings  Name of a run -> its configuration, as `setting` writes it.
    stamp     What every plot says wherever it is shown.
    figures   Further ones: differences between runs, or what is printed.
    frame     All figures, if not those of the runs, below each other, and `figures`.
    sections, headline   Those of the report, and what the command prints, if others than the benchmark's.
    """

    title: str
    subtitle: str = ""
    notes: Sequence[str] = ()
    findings: Sequence[str] = ()
    parts: Sequence[Part] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    stamp: str = ""
    figures: Sequence[pd.DataFrame] = ()
    frame: pd.DataFrame | None = None
    sections: Sequence[Section] | None = None
    headline: Sequence[Table] | None = None


def render(page: Page, shown: Sequence[Shown] = ()) -> str:
    drawings = []
    for plot, files in (drawing for item in shown for drawing in item.drawings):
        image = base64.b64encode(files["svg"]).decode()
        drawings.append({"title": plot.title, "image": f"data:image/svg+xml;base64,{image}"})
    values = {part.name: part.values() for part in page.parts}
    places = [TEMPLATES / "page", *(part.folder / part.name for part in page.parts)]
    css = "".join(_read(place.with_suffix(".css")) for place in places)
    scripts = [
        *(place.with_suffix(".js") for place in places),
        *(file for part in page.parts for file in part.scripts),
    ]
    script = "".join(map(_read, scripts))
    folders = jinja2.FileSystemLoader([*dict.fromkeys(place.parent for place in places)])
    environment = jinja2.Environment(
        loader=folders,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    given: dict[str, Any] = {"css": Markup(css), "script": Markup(script), "page": page, **values}
    given["policy"] = policy(script, css, any(entries.get("outside") for entries in values.values()))
    given |= {"findings": [*dict.fromkeys(page.findings)], "lead": drawings[:1], "drawings": drawings[1:]}
    given["sections"] = [item for item in shown if item.sheets]
    return environment.get_template("page.html.j2").render(given)


def policy(script: str, css: str, outside: bool) -> str:
    """The content-security policy. `outside`: also scripts from the page's own folder."""
    beside = " 'self' file:" if outside else ""
    return (
        f"default-src 'none'; script-src '{_sha(script)}'{beside}; style-src '{_sha(css)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(value: Any) -> Markup:
    return Markup(script_bytes(value).decode())


def script_bytes(value: Any) -> bytes:
    """JSON that can stand inside a script element: no character that could end it or open a comment."""
    from pydantic_core import to_json

    text = to_json(value, inf_nan_mode="null")
    for char in "<>&\u2028\u2029":
        text = text.replace(char.encode(), f"\\u{ord(char):04x}".encode())
    return text


def setting(facts: Mapping[str, Any]) -> str:
    """A configuration as JSON, without folders of the machine."""
    return json.dumps(without_folders(facts), indent=1, ensure_ascii=False)


def without_folders(value: Any) -> Any:
    """The same structure with absolute paths cut to their last part."""
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    if isinstance(value, str) and (value.startswith(("/", "~", "\\\\")) or value[1:3] in (":\\", ":/")):
        return "…/" + value.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return value


def store(page: Path, chunks: Iterable[bytes], budget: int) -> list[Markup]:
    """Chunks of `script_bytes` for inside of the page; none if they total more than `budget` bytes: then all
    become scripts `neinChunk(number, value)` beside it, in a folder that is emptied first unless it holds
    anything else."""
    folder = beside(page)
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


def beside(page: Path) -> Path:
    """The folder of a page's chunks."""
    return page.with_name(f"{page.stem}-data")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _sha(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
