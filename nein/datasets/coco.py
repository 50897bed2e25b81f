"""COCO's annotation files: which pictures there are, what their captions say, which objects they show.

The format: https://cocodataset.org/#format-data. Of entries the keys named here are needed, others ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import NotRequired, TypedDict

from nein.engine import atomic
from nein.engine.errors import UserError

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Instance:
    """One annotated object, or (`crowd`) a region that holds many of a category. box: x, y, width, height in
    pixels. polygons: the lists of `segmentation`; a run-length mask has none."""

    category: str
    box: Box | None = None
    polygons: tuple[Any, ...] = ()
    crowd: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture of a list, with what the list says about it. file_name: relative to `folder`."""

    file_name: str
    captions: tuple[str, ...] = ()
    objects: tuple[Instance, ...] = ()
    folder: Path = Path()

    @property
    def path(self) -> Path:
        return self.folder / self.file_name

    @property
    def stem(self) -> str:
        return Path(self.file_name).stem

    @property
    def categories(self) -> set[str]:
        """Of everything that is there, crowds included."""
        return {instance.category for instance in self.objects}


@dataclass(frozen=True)
class Annotations:
    """The pictures of a file in its order, and the names of all its categories."""

    pictures: tuple[Picture, ...]
    categories: tuple[str, ...]


_ID = int | float | str


class _Image(TypedDict):
    id: _ID
    file_name: str


class _Category(TypedDict):
    id: _ID
    name: str


class _Captions(TypedDict):
    annotations: list[_Captioned]


class _Captioned(TypedDict):
    image_id: _ID


class _Listing(_Captions):
    images: list[_Image]
    categories: NotRequired[list[_Category]]


class _Seen(_Captioned):
    category_id: _ID


class _Instances(TypedDict):
    images: list[_Image]
    categories: NotRequired[list[_Category]]
    annotations: list[_Seen]


def read(
    *, captions: Path | None = None, instances: Path | None = None, folder: Path | None = None
) -> Annotations:
    """Reads a caption file, an instance file, or both; the pictures are those of the instance file then.
    folder: of the pictures, by default that of the list. Raises UserError naming file and entry."""
    listing = instances or captions
    assert listing is not None, "a caption file or an instance file"
    content = _content(listing, _Instances if instances else _Listing)
    names = {_key(entry["id"]): entry["name"] for entry in content.get("categories", ())}
    files: dict[str, str] = {}
    for entry in content["images"]:
        if (other := files.setdefault(_key(entry["id"]), entry["file_name"])) != entry["file_name"]:
            raise UserError(
                f"'{listing}' gives '{other}' and '{entry['file_name']}' one id, {entry['id']}; use two."
            )
    texts: dict[str, list[str]] = {key: [] for key in files}
    seen: dict[str, list[Instance]] = {key: [] for key in files}
    if captions is not None:
        for entry in (_content(captions, _Captions) if instances else content)["annotations"]:
            if isinstance(entry.get("caption"), str) and (key := _key(entry["image_id"])) in files:
                texts[key].append(entry["caption"])
    for entry in content["annotations"] if instances else ():
        if (category := names.get(_key(entry["category_id"]))) is None:
            raise UserError(
                f"'{instances}': an annotation names the unknown category {entry['category_id']}."
            )
        polygons = entry.get("segmentation")
        polygons = tuple(polygons) if isinstance(polygons, list) else ()
        instance = Instance(category, _box(entry.get("bbox"), listing), polygons, bool(entry.get("iscrowd")))
        if (key := _key(entry["image_id"])) in files:
            seen[key].append(instance)
    home = folder or listing.parent
    pictures = [Picture(name, tuple(texts[key]), tuple(seen[key]), home) for key, name in files.items()]
    return Annotations(tuple(pictures), tuple(dict.fromkeys(names.values())))


def _key(identifier: float | str) -> str:
    """One id for 1, 1.0 and "1"."""
    whole = isinstance(identifier, float) and identifier.is_integer()
    return str(int(identifier) if whole else identifier)


def _content(path: Path, kind: type) -> Any:
    content = atomic.read_json(path)
    atomic.check(content, kind, f"'{path}' is not a COCO file")
    return content


def _box(given: Any, path: Path) -> Box | None:
    try:
        x, y, width, height = map(float, given if given is not None else (0, 0, 0, 0))
    except (TypeError, ValueError):
        raise UserError(f"'{path}' has an object whose 'bbox' is not four numbers: {given!r:.80}") from None
    return None if given is None else (x, y, width, height)


IMAGE_KEYS = ("image", "file_name", "filename", "filepath")
CAPTION_KEYS = ("captions", "caption", "text")


def iter_pictures(path: Path) -> Iterator[Picture]:
    """The picture of every line; file names are relative to the list's folder. Raises UserError."""
    for number, row in atomic.iter_lines(path):
        where = f"'{path}', line {number},"
        name = image_of(row)
        if not name:
            raise UserError(f"{where} names no image; it needs one of: {', '.join(IMAGE_KEYS)}.")
        yield Picture(name, captions_of(row, where), folder=path.parent)


def image_of(row: Mapping[str, Any]) -> str | None:
    """The file name in a record, or None."""
    name = next((row[key] for key in IMAGE_KEYS if key in row), None)
    return name if isinstance(name, str) else None


def captions_of(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The captions in a record: a text, or those of a list that are texts. `where` names it in messages."""
    captions: Any = next((row[key] for key in CAPTION_KEYS if row.get(key) is not None), [])
    if isinstance(captions, str):
        return (captions,)
    if not isinstance(captions, list):
        raise UserError(f"{where} has captions that must be a text or a list of texts, not {captions!r:.40}.")
    return tuple(text for text in captions if isinstance(text, str))
