"""COCO's annotation files: images, captions, objects.

The format: https://cocodataset.org/#format-data. Of entries the keys named here are needed, others ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import NotRequired

from nein.engine import atomic
from nein.engine.atomic import Row, record
from nein.loading.errors import UserError

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Instance:
    """One annotated object, or a region of several (`crowd`). box: x, y, width, height in pixels."""

    category: str
    box: Box | None = None
    polygons: tuple[Any, ...] = ()
    crowd: bool = False


@dataclass(frozen=True)
class CaptionedImage:
    """An image of a list, with what the list says about it. file_name: relative to `folder`."""

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
        """The categories of all objects, crowds included."""
        return {instance.category for instance in self.objects}


@dataclass(frozen=True)
class Annotations:
    """The pictures of a file in its order, and the names of all its categories."""

    images: tuple[CaptionedImage, ...]
    categories: tuple[str, ...]


_ID = int | str
_IMAGE: Any = record({"id": _ID, "file_name": str})
_CATEGORY: Any = record({"id": _ID, "name": str})
_CAPTION: Any = record({"image_id": _ID})
_BOX = NotRequired[tuple[float, float, float, float]]
_OBJECT: Any = record({"image_id": _ID, "category_id": _ID, "bbox": _BOX})
_CAPTIONS = record({"annotations": list[_CAPTION], "images": list[_IMAGE]})
_INSTANCES = record({"annotations": list[_OBJECT], "categories": list[_CATEGORY], "images": list[_IMAGE]})


def read(
    *, captions: Path | None = None, instances: Path | None = None, folder: Path | None = None
) -> Annotations:
    """Reads captions, instances (which then list the images), or both. folder: of the images, by default the
    list's. Raises UserError naming file and entry."""
    listing = instances or captions
    assert listing is not None, "a caption file or an instance file"
    caption_file: Row = atomic.read_json(captions, _CAPTIONS) if captions else {}
    instance_file: Row = atomic.read_json(instances, _INSTANCES) if instances else {}
    files: dict[Any, str] = {}
    for entry in (instance_file or caption_file)["images"]:
        if (other := files.setdefault(entry["id"], entry["file_name"])) != entry["file_name"]:
            couple = f"'{other}' and '{entry['file_name']}'"
            raise UserError(f"'{listing}' gives {couple} the same id, {entry['id']}; ids must be unique.")
    texts: dict[Any, list[str]] = {key: [] for key in files}
    objects: dict[Any, list[Instance]] = {key: [] for key in files}
    for entry in caption_file.get("annotations", ()):
        if isinstance(entry.get("caption"), str) and entry["image_id"] in files:
            texts[entry["image_id"]].append(entry["caption"])
    names = {entry["id"]: entry["name"] for entry in instance_file.get("categories", ())}
    for entry in instance_file.get("annotations", ()):
        if (category := names.get(entry["category_id"])) is None:
            unknown = f"the unknown category {entry['category_id']}"
            raise UserError(f"'{instances}': an annotation names {unknown}.")
        polygons = entry.get("segmentation")
        polygons = tuple(polygons) if isinstance(polygons, list) else ()
        if entry["image_id"] in files:
            is_crowd = bool(entry.get("iscrowd"))
            objects[entry["image_id"]].append(Instance(category, entry.get("bbox"), polygons, is_crowd))
    home = folder or listing.parent
    images = [
        CaptionedImage(name, tuple(texts[key]), tuple(objects[key]), home) for key, name in files.items()
    ]
    return Annotations(tuple(images), tuple(dict.fromkeys(names.values())))


def iter_images(path: Path) -> Iterator[CaptionedImage]:
    """The images of a JSONL file with `image`, relative to the file, and `captions`. Raises UserError."""
    for number, row in atomic.iter_lines(path):
        name, captions = row.get("image"), row.get("captions", [])
        if not (name and isinstance(name, str)):
            raise UserError(f"'{path}', line {number}, names no image; add the field 'image'.")
        texts = [captions] if isinstance(captions, str) else captions
        if not isinstance(texts, list):
            problem = f"must be a text or a list of texts, not {captions!r:.40}"
            raise UserError(f"'{path}', line {number}, has captions that {problem}.")
        yield CaptionedImage(name, tuple(text for text in texts if isinstance(text, str)), folder=path.parent)
