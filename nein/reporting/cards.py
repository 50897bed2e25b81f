"""The samples of a page: an index of every sample, and chunks with pictures and details.

The index is enough to search, filter and order. Chunks are part of the page while they fit into its budget;
beyond it they become script files beside the page, which a browser loads from disk without a server.
"""

from __future__ import annotations

import binascii
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from nein.engine import images, processes
from nein.engine.blocks import sample_seed
from nein.reporting import page
from nein.reporting.page import TEMPLATES, Part, Stored

CHUNK = 32
PAGE = 12
_AS_THEY_ARE = ("values", "rivals", "spread", "words", "heads", "columns", "page")


@dataclass(frozen=True)
class Cell:
    """What one member said: text, a fainter remark, and whether it was "right", "wrong" or "none" of both."""

    text: str
    aside: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Member:
    """Who is asked about every sample: a model, or a run of an editor.

    names  In lines, below its picture.
    peer   Whether it counts where members are said to disagree: not under another instruction, say.
    """

    label: str
    names: Sequence[str] = ()
    peer: bool = True


@dataclass(frozen=True)
class Measure:
    """What samples are filtered and ordered by: a number for every member and sample.

    scale, digits  Values are shown times `scale`, with `digits` after the point.
    badge          Its short name and what 1 and 0 mean, ("VQA", "removed", "still there"): a badge of every
                   member.
    """

    name: str
    title: str
    higher_is_better: bool = True
    scale: float = 100.0
    digits: int = 1
    badge: tuple[str, str, str] | None = None


@dataclass(frozen=True)
class Said:
    """What there is of one member about one sample.

    cells  On the card, below `Samples.heads`.     line  Above its table in the dialog.
    rows   That table, below `Samples.columns`: texts, or what a script of the page makes texts of.
    """

    picture: Thumbnail | None = None
    cells: Sequence[Cell] = ()
    line: str = ""
    rows: Sequence[Sequence[Any]] = ()


@dataclass(frozen=True)
class Detail:
    """What is shown of one sample: pictures with their names, lines of text, and what every member says, in
    their order; None where a member knows nothing of it."""

    pictures: Sequence[tuple[str, Thumbnail]] = ()
    lines: Sequence[str] = ()
    said: Sequence[Said | None] = ()


@dataclass(frozen=True)
class Samples:
    """All that the cards of a page know, but for the chunks, column by column.

    facets   Name -> per sample the entries it can be filtered by.
    values   [member][measure][sample]: a number, None (unscored), or words where the measure is not asked.
    chosen   The measure that is chosen at first.
    rivals   Two measures that ought to agree, and the words for samples where they do not.
    spread   The words for samples where members disagree.
    words    What a sample, a member and a measure is called.
    heads, columns   Above the cells of cards and of the dialog's tables.
    """

    ids: Sequence[str]
    titles: Sequence[str]
    asides: Sequence[str] = ()
    facets: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    members: Sequence[Member] = ()
    measures: Sequence[Measure] = ()
    values: Sequence[Sequence[Sequence[float | str | None]]] = ()
    chosen: str = ""
    rivals: tuple[str, str, str] | None = None
    spread: str = "Models disagree"
    words: tuple[str, str, str] = ("samples", "Model", "Measure")
    heads: Sequence[str] = ()
    columns: Sequence[str] = ()
    page: int = PAGE

    def index(self) -> dict[str, Any]:
        """JSON-serialisable: everything but the chunks."""
        return {
            "id": list(self.ids),
            "title": list(self.titles),
            "aside": list(self.asides or ("",) * len(self.ids)),
            "facets": [_facet(name, entries) for name, entries in self.facets.items()],
            "members": [{**vars(m), "names": list(m.names or [m.label])} for m in self.members],
            "measures": [{**vars(m), "higher": m.higher_is_better} for m in self.measures],
            "chosen": self.chosen or next((m.name for m in self.measures), ""),
            "chunk": CHUNK,
            **{key: getattr(self, key) for key in _AS_THEY_ARE},
        }


def browser(
    make: Callable[[], tuple[Samples, Iterable[Detail]]],
    *,
    title: str = "Samples",
    note: str = "",
    out: Path | None = None,
    budget: int = 0,
    scripts: Sequence[Path] = (),
) -> Part:
    """The part of a page that shows samples.

    make  The samples, and the details of every one, in order; called when the page is made. Details are read
          once, and never all at a time where they leave the page.
    out   The page, beside which chunks lie that total more than `budget` bytes; None: all are inside.
    """

    def values() -> dict[str, Any]:
        samples, details = make()
        chunks = _chunks(details)
        stored = page.store(out, chunks, budget) if out else Stored([Markup(c.decode()) for c in chunks])
        index = {**samples.index(), "folder": page.beside(out).name if out else ""}
        shown = {"index": page.script_json(index), "chunks": stored.inside}
        return {"note": note, **shown, "outside": bool(stored.files)}

    return Part("cards", title, TEMPLATES, values, scripts)


def drawn(ids: Sequence[str], limit: int) -> list[str]:
    """At most `limit` of the ids, in their order: those whose hash is smallest, so that a sample keeps its
    place when there are more."""
    chosen = set(sorted(ids, key=lambda identity: sample_seed(0, identity))[:limit])
    return [identity for identity in ids if identity in chosen]


def _facet(name: str, entries: Sequence[Sequence[str]]) -> dict[str, Any]:
    place = {entry: at for at, entry in enumerate(dict.fromkeys(itertools.chain.from_iterable(entries)))}
    return {"name": name, "entries": list(place), "of": [[place[e] for e in several] for several in entries]}


def _chunks(details: Iterable[Detail]) -> Iterator[bytes]:
    """Details by `CHUNK`, as JSON; each is written when it comes, since a chunk of them is a megabyte."""
    written = (page.script_bytes({**vars(one), "said": [*map(_said, one.said)]}) for one in details)
    while chunk := [*itertools.islice(written, CHUNK)]:
        yield b"[%b]" % b",".join(chunk)


def _said(said: Said | None) -> dict[str, Any] | None:
    """Without what is empty."""
    if said is None:
        return None
    cells = [[cell.text, cell.aside, cell.mark] for cell in said.cells]
    return {key: value for key, value in {**vars(said), "cells": cells}.items() if value}


#: A picture as base64 JPEG, or why there is none.
Thumbnail = str | dict[str, str]
#: A file; or why there is none, which stays as it is.
Place = str | dict[str, str]
#: Samples whose files are read ahead.
_AHEAD = 64


def of_picture(picture: np.ndarray, side: int) -> Thumbnail:
    """A picture, (H, W, 3) uint8, shrunk until its longer side is at most `side` pixels."""
    return _text(images.thumbnail(picture, side))


def of_file(path: Path, side: int) -> Thumbnail:
    """The picture of a file, shrunk in the same way; or why there is none."""
    try:
        return _text(images.thumbnail_of(path, side))
    except images.ImageError as error:
        return {"none": str(error).rpartition(": ")[2]}


def of_samples(samples: Iterable[Sequence[Place]], side: int) -> Iterator[list[Thumbnail]]:
    """The pictures of every sample, in order, read by threads; side 0: none."""
    coming = iter(samples)
    with ThreadPoolExecutor(processes.cores()) as pool:
        while part := [*itertools.islice(coming, _AHEAD)]:
            places = dict.fromkeys(p for sample in part for p in sample if side and isinstance(p, str))
            made = dict(zip(places, pool.map(lambda place: of_file(Path(place), side), places), strict=True))
            for sample in part:
                yield [made[p] if isinstance(p, str) else p for p in sample] if side else []


def _text(jpeg: bytes) -> str:
    return binascii.b2a_base64(jpeg, newline=False).decode("ascii")
