"""Makes the part of a page that shows samples: cards to search, filter and order, with images and details.

Parts: what a caller describes; the part: an index of all samples, and chunks of images and details;
thumbnails. Chunks beyond the budget of the page become script files, which a browser loads without a server.
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
from nein.reporting import page as pages

# --- members, measures, cards ----------------------------------------------------------------
Thumbnail = str | dict[str, str]  # an image as a data URI, or {"none": why there is none}
Source = str | dict[str, str]  # the path of an image, or {"none": why there is none}


class Cell(NamedTuple):
    """The answer of one member, as a card shows it."""

    text: str
    aside: str = ""  # a fainter remark
    mark: str = ""  # style of the cell: "right", "wrong", "none" (no answer), or "" for plain text


@dataclass(frozen=True)
class Member:
    """A model, or a run of an editor."""

    label: str
    names: Sequence[str] = ()  # lines below its image; empty: the label
    peer: bool = True  # whether it counts in disagreements: not if it had another instruction than the others


@dataclass(frozen=True)
class Measure:
    """A number per member and sample, to filter and order samples."""

    name: str
    title: str
    higher_is_better: bool = True
    scale: float = 100.0  # values are shown times this
    digits: int = 1  # after the point
    badge: tuple[str, str, str] | None = None  # name, words for 1 and for 0: "VQA", "removed", "still there"


@dataclass(frozen=True)
class CardReply:
    """The reply of one member to one sample; an empty field is left out of the page."""

    picture: Thumbnail | None = None
    size: Sequence[int] = ()  # (width, height) of its image, in pixels
    boxes: Sequence[Sequence[Any]] = ()  # of a detector: (label, x0, y0, x1, y1), in pixels
    cells: Sequence[Cell] = ()  # on the card, below `Samples.heads`
    line: str = ""  # in the dialog that a click on the card opens
    rows: Sequence[Sequence[Any]] = ()  # there, below `Samples.columns`: texts, or values for a script


@dataclass(frozen=True)
class Card:
    """A sample, and the replies of all members to it."""

    id: str
    title: str
    aside: str = ""  # a fainter line below the title
    facets: Mapping[str, Sequence[str]] = field(default_factory=dict)  # name -> entries, to filter samples
    # [member][measure]: a number, None (unscored), or words if the measure does not apply.
    values: Sequence[Sequence[float | str | None]] = ()
    pictures: Sequence[tuple[str, Thumbnail]] = ()  # of the sample: (name, image)
    lines: Sequence[str] = ()  # further text in the dialog
    said: Sequence[CardReply | None] = ()  # the reply of each member; None: it has none


@dataclass(frozen=True)
class Samples:
    """What all cards of a page have in common."""

    members: Sequence[Member]
    measures: Sequence[Measure]
    chosen: str = ""  # name of the measure that is chosen at first; "": the first one
    # Names of two measures that should agree, and the text of a button: the samples where they differ.
    rivals: tuple[str, str, str] | None = None
    spread: str = "Models disagree"  # text of a button that shows the samples where members disagree
    words: tuple[str, str, str] = ("samples", "Model", "Measure")  # for samples, a member, a measure
    heads: Sequence[str] = ()  # titles of the cells of cards
    columns: Sequence[str] = ()  # titles of the dialog's tables
    page: int = 12  # cards that are shown at once
    boxes: bool = False  # whether replies have boxes, which are drawn on demand


# --- the part of the page --------------------------------------------------------------------
CHUNK = 32  # cards per chunk, about a megabyte


def make_browser(
    samples: Samples,
    cards: Callable[[], Iterable[Card]],
    *,
    title: str = "Samples",
    note: str = "",
    out: Path | None = None,
    budget: int = 0,
    scripts: Sequence[Path] = (),
) -> pages.Part:
    """The part of a page that shows samples. cards: gives them in order; out: file of the page (None: all
    chunks are inside); budget: bytes of chunks inside; scripts: show the values of `CardReply.rows`."""

    def make_values() -> dict[str, Any]:
        index = list[Card]()  # filled while chunks are read
        chunks = _encode_chunks(cards(), index)
        if out:
            inside = pages.write_chunks(out, chunks, budget)
        else:
            inside = [Markup(chunk.decode()) for chunk in chunks]
        facts = {
            **vars(samples),
            "chosen": samples.chosen or (samples.measures[0].name if samples.measures else ""),
            "ids": [card.id for card in index],
            "titles": [card.title for card in index],
            "asides": [card.aside for card in index],
            "values": [card.values for card in index],
            "facets": _list_facets(index),
            "chunk": CHUNK,
            "folder": pages.chunk_folder(out).name if out else "",
        }
        values = {"note": note, "boxes": samples.boxes, "index": pages.script_json(facts)}
        return {**values, "chunks": inside, "outside": bool(index) and not inside}

    return pages.Part("cards", title, make_values, scripts)


def _encode_chunks(cards: Iterable[Card], index: list[Card]) -> Iterator[bytes]:
    """Yields the details of `CHUNK` cards at a time, as JSON; appends the cards without them to `index`."""
    remaining = iter(cards)
    while part := [*itertools.islice(remaining, CHUNK)]:
        index += [replace(card, pictures=(), lines=(), said=()) for card in part]
        details = []
        for card in part:
            replies = []
            for reply in card.said:
                fields = vars(reply).items() if reply else ()
                replies.append({key: value for key, value in fields if value} if reply else None)
            details.append({"pictures": card.pictures, "lines": card.lines, "said": replies})
        yield pages.script_bytes(details)


def _list_facets(cards: Sequence[Card]) -> list[dict[str, Any]]:
    """Every facet with its entries and, per card, the indices of its entries ("of")."""
    facets = []
    for name in dict.fromkeys(name for card in cards for name, entries in card.facets.items() if entries):
        indices: dict[str, int] = {}  # entry -> its index, in order of appearance
        of_cards = []
        for card in cards:
            entries = card.facets.get(name, ())
            of_cards.append([indices.setdefault(entry, len(indices)) for entry in entries])
        facets.append({"name": name, "entries": [*indices], "of": of_cards})
    return facets


def choose_ids(ids: Sequence[str], limit: int) -> list[str]:
    """At most `limit` ids, in order: those of smallest hash, so that a larger limit keeps them."""
    chosen = set(sorted(ids, key=lambda sample_id: sample_seed(0, sample_id))[:limit])
    return [sample_id for sample_id in ids if sample_id in chosen]


# --- thumbnails ------------------------------------------------------------------------------
def make_thumbnail(image: np.ndarray, side: int, quality: int = 75) -> Thumbnail:
    """The thumbnail of an image, (H, W, 3) uint8, with sides of at most `side` pixels."""
    return _encode_uri(images.encode_thumbnail(image, side, quality))


def read_thumbnail(path: Path, side: int) -> Thumbnail:
    """The thumbnail of an image file."""
    try:
        return _encode_uri(images.read_thumbnail(path, side))
    except images.ImageError as error:
        return {"none": str(error).rpartition(": ")[2]}  # without the path


def _encode_uri(data: bytes) -> str:
    kind = "webp" if data.startswith(b"RIFF") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


_AHEAD = 64  # samples whose files are read together


def read_thumbnails(samples: Iterable[Sequence[Source]], side: int) -> Iterator[list[Thumbnail]]:
    """Yields the thumbnails of each sample; threads read the files. side: pixels; 0: an empty list each."""
    if not side:
        yield from ([] for _ in samples)
        return
    remaining = iter(samples)
    with ThreadPoolExecutor(machine.count_cores()) as pool:
        while part := [*itertools.islice(remaining, _AHEAD)]:
            paths = dict.fromkeys(path for sample in part for path in sample if isinstance(path, str))
            read = pool.map(lambda path: read_thumbnail(Path(path), side), paths)
            thumbnails = dict(zip(paths, read, strict=True))
            for sample in part:
                yield [thumbnails[path] if isinstance(path, str) else path for path in sample]
