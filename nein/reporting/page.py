"""The page: one HTML file that opens from disk and asks no network.

One skeleton, one jinja environment, one policy. Everything that came from data is text: the templates escape
it, JSON blocks cannot end their element, scripts make nodes and never markup. The content-security policy
allows the page's own script and style by their hashes, pictures as data, and nothing from any network.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from nein.engine import atomic
from nein.reporting.plots import Drawing
from nein.reporting.tables import Sheet

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "chunk of a nein report"


@dataclass(frozen=True)
class Shown:
    """A section as it is shown: its tables below its plots."""

    key: str
    title: str
    sheets: Sequence[Sheet] = ()
    drawings: Sequence[Drawing] = ()


@dataclass(frozen=True)
class Browser:
    """A part of the page that shows samples: `name`.html.j2, .css and .js in `folder`.

    values   What its template reads, as `browser.<entry>`.
    outside  Whether its script loads files that lie beside the page (`store`).
    """

    name: str
    title: str
    folder: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    outside: bool = False


def render(
    *,
    title: str,
    subtitle: str = "",
    notes: Sequence[str] = (),
    sections: Sequence[Shown] = (),
    browser: Browser | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """The page as text. settings: name of a run -> its configuration, as `setting` writes it."""
    return document(
        TEMPLATES,
        "page",
        with_parts=[(browser.folder, browser.name)] if browser else [],
        outside=bool(browser and browser.outside),
        title=title,
        subtitle=subtitle,
        notes=notes,
        sections=[
            {
                "key": section.key,
                "title": section.title,
                "sheets": section.sheets,
                "drawings": [{"title": d.title, "uri": uri(d.svg, "svg+xml")} for d in section.drawings],
            }
            for section in sections
        ],
        browser={**browser.values, "name": browser.name, "title": browser.title} if browser else None,
        settings=settings or {},
    )


def document(
    folder: Path,
    name: str,
    *,
    with_parts: Sequence[tuple[Path, str]] = (),
    outside: bool = False,
    **values: Any,
) -> str:
    """A page from the template `name`.html.j2 in `folder`, with the styles and scripts (`name`.css, .js) of
    itself and of its parts, (folder, name) each, put in and allowed by the policy.

    outside  Whether scripts from the page's own folder may run too.
    """
    places = [(folder, name), *with_parts]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([place for place, _ in places]), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    css, script = ("".join(_read(place / f"{part}.{end}") for place, part in places) for end in ("css", "js"))
    return environment.get_template(f"{name}.html.j2").render(
        policy=policy(script, css, outside), css=Markup(css), script=Markup(script), **values
    )


def policy(script: str, css: str, outside: bool) -> str:
    """The content-security policy. `outside`: also scripts from the page's own folder."""
    beside = " 'self' file:" if outside else ""
    return (
        f"default-src 'none'; script-src '{_sha(script)}'{beside}; style-src '{_sha(css)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: no character that could end it or open a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def uri(data: bytes, kind: str) -> str:
    """A picture as an address of its own: `kind` is the subtype, "webp" say."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def thumbnail(picture: np.ndarray, side: int, *, quality: int = 80) -> bytes:
    """WebP of a picture, (H, W, 3) uint8, shrunk until its longer side is at most `side` pixels."""
    image = Image.fromarray(picture)
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", quality=quality, method=2)
    return buffer.getvalue()


def setting(facts: Mapping[str, Any]) -> str:
    """A configuration as JSON, without folders of the machine: a report is published, a home is not."""
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


# --- data beside the page ------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """Where the chunks of a browser went: into the page (`inside`), or into `files` files of `size` bytes."""

    inside: list[Markup]
    files: int = 0
    size: int = 0


def store(page: Path, chunks: Iterable[Any], budget: int) -> Stored:
    """Keeps chunks, JSON-serialisable, for the page while they total at most `budget` bytes; beyond it all of
    them become scripts `neinChunk(number, value)` in `<page without its end>-data/`, a folder that holds
    nothing else and is emptied first.
    """
    folder = beside(page)
    _clear(folder)
    waiting: list[Markup] = []
    files = size = total = 0
    for number, chunk in enumerate(chunks):
        waiting.append(script_json(chunk))
        total += len(waiting[-1].encode())
        if files or total > budget:
            for place, text in enumerate(waiting, start=number + 1 - len(waiting)):
                data = f"// {MARKER}\nneinChunk({place},{text});\n".encode()
                atomic.make_folder(folder)
                (folder / f"{place:05d}.js").write_bytes(data)
                files, size = files + 1, size + len(data)
            waiting = []
    return Stored(waiting, files, size)


def beside(page: Path) -> Path:
    """The folder of a page's chunks."""
    return page.with_name(f"{page.stem}-data")


def _clear(folder: Path) -> None:
    """Removes the chunks of an earlier page; a folder that holds anything else is left alone."""
    if folder.is_dir() and all(file.suffix == ".js" and file.stem.isdigit() for file in folder.iterdir()):
        shutil.rmtree(folder)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _sha(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
