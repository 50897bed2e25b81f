"""The samples of a page: an index of all samples, and chunks with images and details.

The index is enough to search, filter and order. Chunks that exceed the budget of the page become script
files, which a browser loads from disk without a server.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from nein.engine import images, machine
from nein.engine.folder import sample_seed
from nein.reporting import page
from nein.reporting.page import Part

CHUNK = 32


class Cell(NamedTuple):
    """The answer of one member: text, a fainter remark, and its mark, "right", "wrong" or "none"."""

    text: str
    aside: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Member:
    """A model, or a run of an editor.

    names  Lines below its image (default: the label).
    peer   Whether it counts in disagreements; not with another instruction, say.
    """

    label: str
    names: Sequence[str] = ()
    peer: bool = True


@dataclass(frozen=True)
class Measure:
    """A number per member and sample, to filter and order samples.

    scale, digits  Values are shown times `scale`, with `digits` after the point.
    badge          Its short name, and words for 1 and 0: ("VQA", "removed", "still there").
    """

    name: str
    title: str
    higher_is_better: bool = True
    scale: float = 100.0
    digits: int = 1
    badge: tuple[str, str, str] | None = None


@dataclass(frozen=True)
class CardReply:
    """The reply of one member to one sample: `cells` on the card, below `Samples.heads`; in the dialog a
    `line` and `rows`, below `Samples.columns`, of texts or values that a script formats.

    size, boxes  (width, height) of its image; boxes of a detector: (label, x0, y0, x1, y1).
    """

    picture: Thumbnail | None = None
    size: Sequence[int] = ()
    boxes: Sequence[Sequence[Any]] = ()
    cells: Sequence[Cell] = ()
    line: str = ""
    rows: Sequence[Sequence[Any]] = ()


@dataclass(frozen=True)
class Card:
    """A sample.

    facets    Name -> entries, to filter samples.
    values    [member][measure]: a number, None (unscored), or words if the measure does not apply.
    pictures, lines, said   In the dialog: (name, image), text, and a reply per member (or None).
    """

    id: str
    title: str
    aside: str = ""
    facets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    values: Sequence[Sequence[float | str | None]] = ()
    pictures: Sequence[tuple[str, Thumbnail]] = ()
    lines: Sequence[str] = ()
    said: Sequence[CardReply | None] = ()


@dataclass(frozen=True)
class Samples:
    """Settings of all samples of a page.

    chosen   The measure that is chosen at first.
    rivals   Two measures that should agree, and the words for samples where they do not.
    spread   The words for samples where members disagree.
    words    Names of a sample, a member and a measure.
    heads, columns   Heads of the cells of cards, and of the dialog's tables.
    boxes    Whether replies have boxes, which are drawn on demand.
    """

    members: Sequence[Member]
    measures: Sequence[Measure]
    chosen: str = ""
    rivals: tuple[str, str, str] | None = None
    spread: str = "Models disagree"
    words: tuple[str, str, str] = ("samples", "Model", "Measure")
    heads: Sequence[str] = ()
    columns: Sequence[str] = ()
    page: int = 12
    boxes: bool = False


def make_browser(
    samples: Samples,
    cards: Callable[[], Iterable[Card]],
    *,
    title: str = "Samples",
    note: str = "",
    out: Path | None = None,
    budget: int = 0,
    scripts: Sequence[Path] = (),
) -> Part:
    """The part of a page that shows samples. cards: in order, read when the page is made; out: the page,
    whose chunks are files if they exceed `budget` bytes; None: all are inside."""

    def make_values() -> dict[str, Any]:
        index = list[Card]()
        chunks = _chunks(cards(), index)
        inside = (
            page.write_chunks(out, chunks, budget) if out else [Markup(chunk.decode()) for chunk in chunks]
        )
        facts = {**vars(samples), "chosen": samples.chosen or next((m.name for m in samples.measures), "")}
        facts |= {f"{key}s": [getattr(card, key) for card in index] for key in ("id", "title", "aside")}
        facts |= {"values": [card.values for card in index], "facets": _facets(index), "chunk": CHUNK}
        facts["folder"] = page.chunk_folder(out).name if out else ""
        values = {"note": note, "boxes": samples.boxes, "index": page.script_json(facts)}
        return {**values, "chunks": inside, "outside": bool(index) and not inside}

    return Part("cards", title, make_values, scripts)


def _chunks(cards: Iterable[Card], index: list[Card]) -> Iterator[bytes]:
    """Details of `CHUNK` cards at a time, as JSON (about a megabyte). index: gets the fields of every card
    for search, filters and order."""
    coming = iter(cards)
    while part := [*itertools.islice(coming, CHUNK)]:
        index += [replace(card, pictures=(), lines=(), said=()) for card in part]
        details = []
        for card in part:  # replies without empty fields
            replies = [
                reply and {key: value for key, value in vars(reply).items() if value} for reply in card.said
            ]
            details.append({"pictures": card.pictures, "lines": card.lines, "said": replies})
        yield page.script_bytes(details)


def _facets(cards: Sequence[Card]) -> list[dict[str, Any]]:
    """Every facet with its entries and, per card, the indices of its entries ("of")."""
    facets = []
    for name in dict.fromkeys(name for card in cards for name, entries in card.facets.items() if entries):
        of_cards = [card.facets.get(name, ()) for card in cards]
        indices = {entry: place for place, entry in enumerate(dict.fromkeys(itertools.chain(*of_cards)))}
        chosen = [[indices[entry] for entry in of_card] for of_card in of_cards]
        facets.append({"name": name, "entries": [*indices], "of": chosen})
    return facets


def choose_ids(ids: Sequence[str], limit: int) -> list[str]:
    """At most `limit` ids, in order: those of smallest hash, so that a larger limit keeps them."""
    chosen = set(sorted(ids, key=lambda identity: sample_seed(0, identity))[:limit])
    return [identity for identity in ids if identity in chosen]


Thumbnail = str | dict[str, str]  # an image as a data URI, or {"none": why there is none}
_AHEAD = 64  # samples whose files are read in advance


def make_thumbnail(picture: np.ndarray, side: int, quality: int = 75) -> Thumbnail:
    """The thumbnail of an image, (H, W, 3) uint8, with sides of at most `side` pixels."""
    return _uri(images.encode_thumbnail(picture, side, quality))


def read_thumbnail(path: Path, side: int) -> Thumbnail:
    try:
        return _uri(images.read_thumbnail(path, side))
    except images.ImageError as error:
        return {"none": str(error).rpartition(": ")[2]}


def _uri(data: bytes) -> str:
    kind = "webp" if data.startswith(b"RIFF") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def read_thumbnails(
    samples: Iterable[Sequence[str | dict[str, str]]], side: int
) -> Iterator[list[Thumbnail]]:
    """The thumbnails of every sample, in order; threads read the files. side 0: none."""
    coming = iter(samples)
    with ThreadPoolExecutor(machine.count_cores()) as pool:
        while part := [*itertools.islice(coming, _AHEAD)]:
            paths = dict.fromkeys(p for sample in part for p in sample if side and isinstance(p, str))
            read = pool.map(lambda path: read_thumbnail(Path(path), side), paths)
            thumbnails = dict(zip(paths, read, strict=True))
            for sample in part:
                yield [thumbnails[p] if isinstance(p, str) else p for p in sample] if side else []
