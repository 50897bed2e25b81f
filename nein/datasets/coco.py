"""COCO's annotation files: which pictures there are, what their captions say, which objects they show.

The format: https://cocodataset.org/#format-data. A file is read as a whole; of its entries those keys are
needed that are named here, all others are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.engine import atomic
from nein.engine.errors import UserError

Box = tuple[float, float, float, float]
Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Instance:
    """One annotated object, or (`crowd`) a region that holds many of a category.

    box       (x, y, width, height) in pixels; None where the file has none.
    polygons  The lists of `segmentation`; empty where there are none, or a run-length mask instead.
    """

    category: str
    box: Box | None = None
    polygons: tuple[Any, ...] = ()
    crowd: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture of a list, with what the list says about it.

    file_name  As the list has it: relative to `folder`.
    captions   As they stand there, in its order.
    """

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


def read(
    *, captions: Path | None = None, instances: Path | None = None, folder: Path | None = None
) -> Annotations:
    """Reads a caption file, an instance file, or both; the pictures are those of the instance file then.

    folder  Where the pictures are; beside the file that lists them by default. They are not looked for.

    Raises UserError naming the file and the entry that is wrong.
    """
    listing = instances or captions
    assert listing is not None, "a caption file or an instance file"
    content = _content(listing)
    names: dict[float | str, str] = {}
    for entry in _entries({"categories": [], **content}, "categories", listing):
        if not isinstance(entry.get("name"), str):
            raise UserError(f"'{listing}' has a category without 'name': {entry!r:.80}")
        names[_id(entry, "id", listing)] = entry["name"]
    said: dict[float | str, list[str]] = {}
    if captions is not None:
        for entry in _entries(content if instances is None else _content(captions), "annotations", captions):
            number = _id(entry, "image_id", captions)
            if isinstance(entry.get("caption"), str):
                said.setdefault(number, []).append(entry["caption"])
    shown: dict[float | str, list[Instance]] = {}
    if instances is not None:
        for entry in _entries(content, "annotations", instances):
            instance = _instance(entry, names, instances)
            shown.setdefault(_id(entry, "image_id", instances), []).append(instance)
    pictures = []
    for entry in _entries(content, "images", listing):
        if not isinstance(entry.get("file_name"), str) or "id" not in entry:
            raise UserError(f"'{listing}' has an image without 'id' or 'file_name': {entry!r:.80}")
        number = _id(entry, "id", listing)
        pictures.append(
            Picture(
                entry["file_name"],
                tuple(said.get(number, ())),
                tuple(shown.get(number, ())),
                listing.parent if folder is None else folder,
            )
        )
    return Annotations(tuple(pictures), tuple(dict.fromkeys(names.values())))


def _instance(entry: Entry, names: Mapping[float | str, str], path: Path) -> Instance:
    category = names.get(_id(entry, "category_id", path))
    if category is None:
        raise UserError(f"'{path}': an annotation names the unknown category {entry.get('category_id')}.")
    box, polygons = entry.get("bbox"), entry.get("segmentation")
    if box is not None:
        try:
            x, y, width, height = (float(value) for value in box)
        except (TypeError, ValueError):
            raise UserError(f"'{path}' has an object whose 'bbox' is not four numbers: {box!r:.80}") from None
        box = (x, y, width, height)
    shape = tuple(polygons) if isinstance(polygons, list) else ()
    return Instance(category, box, shape, bool(entry.get("iscrowd")))


def _content(path: Path) -> dict[str, Any]:
    content = atomic.read_json(path)
    if not isinstance(content, dict):
        raise UserError(
            f"'{path}' is no COCO file: it must hold a JSON object with the lists 'images' and 'annotations'."
        )
    return content


def _entries(content: Entry, key: str, path: Path) -> list[dict[str, Any]]:
    entries = content.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"'{path}' is no COCO file: it must hold a list of objects '{key}'.")
    return entries


def _id(entry: Entry, key: str, path: Path) -> float | str:
    value = entry.get(key)
    if not isinstance(value, int | float | str):
        raise UserError(
            f"'{path}' has an entry without '{key}', or one that is no number or text: {entry!r:.80}"
        )
    return value
