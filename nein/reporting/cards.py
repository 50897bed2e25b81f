"""The samples of a page: an index of every sample, and chunks with pictures and details.

The index is enough to search, filter and order. Chunks that exceed the page's budget become script files
beside it, which a browser loads from disk without a server.
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
    """What one member said: text, a fainter remark, and whether it was "right", "wrong" or "none" of both."""

    text: str
    aside: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Member:
    """A model, or a run of an editor.

    names  In lines, below its picture; without any, the label.
    peer   Whether it counts where members disagree: not under another instruction, say.
    """

    label: str
    names: Sequence[str] = ()
    peer: bool = True


@dataclass(frozen=True)
class Measure:
    """What samples are filtered and ordered by: a number for every member and sample.

    scale, digits  Values are shown times `scale`, with `digits` after the point.
    badge          Its short name and what 1 and 0 mean: ("VQA", "removed", "still there").
    """

    name: str
    title: str
    higher_is_better: bool = True
    scale: float = 100.0
    digits: int = 1
    badge: tuple[str, str, str] | None = None


@dataclass(frozen=True)
class CardReply:
    """What there is of one member about one sample: `cells` on the card, below `Samples.heads`; in the dialog
    a `line` and `rows`, below `Samples.columns`, of texts or of what a script makes texts of.

    size, boxes  Of its picture, width and height; what a detector found there: (label, x0, y0, x1, y1).
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

    facets    Name -> the entries that it can be filtered by.
    values    [member][measure]: a number, None (unscored), or words where the measure is not asked.
    pictures  With their names; `lines` of text; `said` of every member, None for nothing: in the dialog.
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
    """What all samples of a page have in common.

    chosen   The measure that is chosen at first.
    rivals   Two measures that ought to agree, and the words for samples where they do not.
    spread   The words for samples where members disagree.
    words    Names of a sample, a member and a measure.
    heads, columns   Above the cells of cards and of the dialog's tables.
    boxes    Whether replies have some, which are drawn when asked for.
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


def browser(
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
    beside which chunks lie that total more than `budget` bytes; None: all are inside."""

    def values() -> dict[str, Any]:
        index = list[Card]()
        chunks = _chunks(cards(), index)
        inside = page.store(out, chunks, budget) if out else [Markup(chunk.decode()) for chunk in chunks]
        facts = {**vars(samples), "chosen": samples.chosen or next((m.name for m in samples.measures), "")}
        facts |= {f"{key}s": [getattr(card, key) for card in index] for key in ("id", "title", "aside")}
        facts |= {"values": [card.values for card in index], "facets": _facets(index), "chunk": CHUNK}
        facts["folder"] = page.beside(out).name if out else ""
        given = {"note": note, "boxes": samples.boxes, "index": page.script_json(facts)}
        return {**given, "chunks": inside, "outside": bool(index) and not inside}

    return Part("cards", title, values, scripts)


def _chunks(cards: Iterable[Card], index: list[Card]) -> Iterator[bytes]:
    """Details by `CHUNK`, as JSON; a chunk is a megabyte, and no more is held. index: gets of every card all
    that is needed to search, filter and order."""
    coming = iter(cards)
    while part := [*itertools.islice(coming, CHUNK)]:
        index += [replace(card, pictures=(), lines=(), said=()) for card in part]
        details = []
        for card in part:  # of what was said nothing that is empty
            said = [
                reply and {key: value for key, value in vars(reply).items() if value} for reply in card.said
            ]
            details.append({"pictures": card.pictures, "lines": card.lines, "said": said})
        yield page.script_bytes(details)


def _facets(cards: Sequence[Card]) -> list[dict[str, Any]]:
    """Of every facet its entries, and of every card the places of its own among them."""
    facets = []
    for name in dict.fromkeys(name for card in cards for name, entries in card.facets.items() if entries):
        of_cards = [card.facets.get(name, ()) for card in cards]
        places = {entry: place for place, entry in enumerate(dict.fromkeys(itertools.chain(*of_cards)))}
        chosen = [[places[entry] for entry in of_card] for of_card in of_cards]
        facets.append({"name": name, "entries": [*places], "of": chosen})
    return facets


def drawn(ids: Sequence[str], limit: int) -> list[str]:
    """At most `limit` of the ids, in their order: those whose hash is smallest, so that a sample keeps its
    place when there are more."""
    chosen = set(sorted(ids, key=lambda identity: sample_seed(0, identity))[:limit])
    return [identity for identity in ids if identity in chosen]


#: A picture as a data URI, or why there is none.
Thumbnail = str | dict[str, str]
#: Samples whose files are read ahead.
_AHEAD = 64


def of_picture(picture: np.ndarray, side: int, quality: int = 75) -> Thumbnail:
    """A picture, (H, W, 3) uint8, shrunk until its longer side is at most `side` pixels."""
    return _uri(images.thumbnail(picture, side, quality))


def of_file(path: Path, side: int) -> Thumbnail:
    """The picture of a file, shrunk in the same way."""
    try:
        return _uri(images.thumbnail_of(path, side))
    except images.ImageError as error:
        return {"none": str(error).rpartition(": ")[2]}


def _uri(data: bytes) -> str:
    kind = "webp" if data.startswith(b"RIFF") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def of_samples(samples: Iterable[Sequence[str | dict[str, str]]], side: int) -> Iterator[list[Thumbnail]]:
    """The pictures of every sample, in order, read from files by threads; side 0: none."""
    coming = iter(samples)
    with ThreadPoolExecutor(machine.cores()) as pool:
        while part := [*itertools.islice(coming, _AHEAD)]:
            places = dict.fromkeys(p for sample in part for p in sample if side and isinstance(p, str))
            read = pool.map(lambda path: of_file(Path(path), side), places)
            thumbnails = dict(zip(places, read, strict=True))
            for sample in part:
                yield [thumbnails[p] if isinstance(p, str) else p for p in sample] if side else []
