"""Where data that are made begin: lists of captioned images, tables of questions, names of objects."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from nein.datasets import coco
from nein.datasets.negbench.media import PICTURE_SUFFIXES
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.loading.references import expanded

Record = TypeVar("Record")

NO_CAPTION = "no caption"
BAD_NAME = "the file name is not a plain name"


@dataclass(frozen=True)
class Listing(Generic[Record]):
    """The records of a source in order. One that cannot be used stays with its problem: it is counted, and no
    shard shifts when it is mended.

    origin  What they are of, for the manifest; notes: what was odd about the list, counted.
    """

    records: Sequence[Record]
    origin: Mapping[str, Any]
    notes: Mapping[str, int] = field(default_factory=dict)

    def sha256(self) -> str:
        """Over everything that the list says; of a file its name, and not its pixels."""
        digest = hashlib.sha256()
        for record in self.records:
            facts: Any = {name: getattr(record, name) for name in record.__dataclass_fields__}  # type: ignore[attr-defined]
            digest.update(json.dumps(facts, default=lambda path: path.name).encode() + b"\n")
        return digest.hexdigest()


def image_folder(given: str | None, beside: Path) -> Path:
    """The folder of `--images`, else the one beside the list. Raises UserError."""
    folder = expanded(given) if given else beside
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}' with images; name it with --images.")
    return folder


def captioned(path: Path, suffixes: Iterable[str] = PICTURE_SUFFIXES) -> Iterator[coco.Picture]:
    """Captioned images, as a stream where the list is none of COCO's. Raises UserError.

    path      COCO captions JSON; a JSONL file, whose lines have `image` and `captions` or the like; a folder
              with one; or a folder with X.txt beside X.jpg at any depth, as img2dataset writes CC12M.
    suffixes  Of the images of such a folder.
    """
    lists = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if len(lists) > 1:
        names = ", ".join(file.name for file in lists)
        raise UserError(f"'{path}' must hold one .jsonl file at most, not {names}; name the one to take.")
    if not lists:
        yield from _beside_texts(path, tuple(suffixes))
    elif lists[0].suffix == ".jsonl" and lists[0].is_file():
        yield from coco.iter_pictures(lists[0])
    elif path.suffix == ".json" and path.is_file():
        yield from coco.read(captions=path).pictures
    else:
        raise UserError(f"'{path}' is neither a .json or .jsonl file nor a folder that is there.")


def _beside_texts(folder: Path, suffixes: tuple[str, ...]) -> Iterator[coco.Picture]:
    def unreadable(error: OSError) -> None:
        raise UserError(f"The folder '{error.filename}' cannot be read ({error.strerror}).")

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()
        for path in sorted(Path(parent, name) for name in names if name.lower().endswith(suffixes)):
            try:
                text = path.with_suffix(".txt").read_text(encoding="utf-8", errors="replace")
            except OSError:
                text = ""  # none, or none that can be read: the image has no caption
            yield coco.Picture(path.relative_to(folder).as_posix(), (text,), folder=folder)


def clean(texts: Iterable[str]) -> tuple[str, ...]:
    """Distinct captions: white space made single, halves of characters, as JSON may spell them, replaced."""
    single = (" ".join(text.split()).encode("utf-8", "replace").decode() for text in texts)
    return tuple(dict.fromkeys(filter(None, single)))


def read_table(file: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a .csv, .tsv, .json (a list) or .jsonl file. Raises UserError."""
    if file.suffix in (".csv", ".tsv"):
        csv.field_size_limit(1 << 30)  # pictures in base64
        try:
            with file.open(encoding="utf-8", newline="") as opened:
                yield from csv.DictReader(opened, delimiter="\t" if file.suffix == ".tsv" else ",")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"'{file}' cannot be read as a table: {error}.") from None
    elif file.suffix == ".json":
        rows = atomic.read_json(file)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"'{file}' must hold a list of objects, one per question.")
        yield from rows
    else:
        yield from (row for _, row in atomic.iter_lines(file))


#: The 80 categories of COCO (Lin et al., arXiv:1405.0312), in its order and spelling.
COCO: tuple[str, ...] = tuple(
    (
        "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,"
        "parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,"
        "handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,"
        "surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,"
        "broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,dining table,toilet,tv,laptop,"
        "mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,book,clock,vase,scissors,"
        "teddy bear,hair drier,toothbrush"
    ).split(",")
)
