"""The page: one HTML file that opens from disk and asks no network.

Data are text: the templates escape them, JSON blocks cannot end their element, scripts make nodes and never
markup. The content-security policy allows the page's own script and style by their hashes, pictures as data,
and no network.
"""

from __future__ import annotations

import base64
import colorsys
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from nein.engine import atomic
from nein.reporting.plots import ON_BAR, Drawing, Plot
from nein.reporting.tables import Sheet, Table

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Section:
    """What belongs together in a report; parts without figures do not appear."""

    key: str
    title: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Shown:
    """A section of some figures: its plots among the page's figures, its tables below its title."""

    section: Section
    sheets: Sequence[Sheet]
    drawings: Sequence[Drawing]


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
    svgs = ((d.plot.title, base64.b64encode(themed(d.svg)).decode()) for item in shown for d in item.drawings)
    drawings = [{"title": title, "image": f"data:image/svg+xml;base64,{svg}"} for title, svg in svgs]
    parts, findings = page.parts, list(dict.fromkeys(page.findings))
    values = {part.name: part.values() for part in parts}
    folders = [(TEMPLATES, "page"), *((part.folder, part.name) for part in parts)]
    css, script = (
        "".join(_read(folder / f"{name}.{end}") for folder, name in folders) for end in ("css", "js")
    )
    script += "".join(_read(path) for part in parts for path in part.scripts)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(list(dict.fromkeys(folder for folder, _ in folders))), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.j2").render(
        policy=policy(script, css, any(entries.get("outside") for entries in values.values())),
        css=Markup(css), script=Markup(script), page=page, findings=findings, lead=drawings[:1],
        drawings=drawings[1:], sections=[item for item in shown if item.sheets], **values,
    )  # fmt: skip


_COLOUR = re.compile(rb"(fill|stroke): (?!%b)(#[0-9a-f]{6})\b" % ON_BAR.encode())


def themed(svg: bytes) -> bytes:
    """The drawing with colours that follow the reader's scheme: on a dark page greys are turned over and dark
    colours made lighter; what is written on bars stays."""
    colours = sorted({match.group(2).decode() for match in _COLOUR.finditer(svg)})
    light = "".join(f"--{colour[1:]}:{colour};" for colour in colours)
    dark = "".join(f"--{colour[1:]}:{at_night(colour)};" for colour in colours)
    style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    svg = _COLOUR.sub(lambda match: b"%b: var(--%b)" % (match[1], match[2][1:]), svg)
    return svg.replace(b"</svg>", style.encode() + b"</svg>")


def at_night(colour: str) -> str:
    """The colour, "#rrggbb", in place of another one on a dark page."""
    rgb = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(*rgb)
    grey = saturation < 0.4 and not 0.2 < lightness < 0.7
    turned = 0.075 + 0.9 * (1 - lightness) if grey else max(lightness, 0.66)
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, turned, saturation))


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
    waiting: list[bytes] = []
    files, total = False, 0
    for number, chunk in enumerate(chunks):
        waiting.append(chunk)
        total += len(chunk)
        if files or total > budget:
            for index, text in enumerate(waiting, start=number + 1 - len(waiting)):
                data = b"// chunk of a nein report\nneinChunk(%d,%b);\n" % (index, text)
                atomic.make_folder(folder)
                (folder / f"{index:05d}.js").write_bytes(data)
            waiting, files = [], True
    return [Markup(text.decode()) for text in waiting]


def beside(page: Path) -> Path:
    """The folder of a page's chunks."""
    return page.with_name(f"{page.stem}-data")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _sha(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
