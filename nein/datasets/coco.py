"""Read COCO's annotation files: images with their captions and objects; also images with captions in JSONL.

The format: https://cocodataset.org/#format-data. Entries need the keys named here; other keys are ignored.
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
    """One annotated object, or a region of several."""

    category: str
    box: Box | None = None  # x, y, width, height in pixels
    polygons: tuple[Any, ...] = ()  # lists x, y, x, y, ... in pixels
    crowd: bool = False  # whether it is a region of several objects


@dataclass(frozen=True)
class CaptionedImage:
    """An image of an annotation file, with its captions and objects."""

    file_name: str  # relative to `folder`
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
    """The images of a file in its order, and the names of all its categories."""

    images: tuple[CaptionedImage, ...]
    categories: tuple[str, ...]


# What the entries of the two kinds of files must have.
_ID = int | str
_IMAGE: Any = record({"id": _ID, "file_name": str})
_CATEGORY: Any = record({"id": _ID, "name": str})
_CAPTION: Any = record({"image_id": _ID})
_OBJECT: Any = record({"image_id": _ID, "category_id": _ID, "bbox": NotRequired[Box]})
_CAPTIONS = record({"annotations": list[_CAPTION], "images": list[_IMAGE]})
_INSTANCES = record({"annotations": list[_OBJECT], "categories": list[_CATEGORY], "images": list[_IMAGE]})


def read(
    *, captions: Path | None = None, instances: Path | None = None, folder: Path | None = None
) -> Annotations:
    """Read a caption file, an instance file, or both; then the instance file lists the images. folder: of the
    images (default: that of the file that lists them). Raises UserError with file and entry."""
    listing = instances or captions
    assert listing is not None, "pass a caption file or an instance file"
    caption_file: Row = atomic.read_json(captions, _CAPTIONS) if captions else {}
    instance_file: Row = atomic.read_json(instances, _INSTANCES) if instances else {}
    files: dict[Any, str] = {}  # image id -> file name
    for entry in (instance_file or caption_file)["images"]:
        name, key = entry["file_name"], entry["id"]
        other = files.setdefault(key, name)
        if other != name:
            raise UserError(f"'{listing}' gives '{other}' and '{name}' the same id, {key}; make ids unique.")
    texts: dict[Any, list[str]] = {key: [] for key in files}  # by image id, as `objects`
    objects: dict[Any, list[Instance]] = {key: [] for key in files}
    for entry in caption_file.get("annotations", ()):
        if isinstance(entry.get("caption"), str) and entry["image_id"] in files:
            texts[entry["image_id"]].append(entry["caption"])
    categories = {entry["id"]: entry["name"] for entry in instance_file.get("categories", ())}  # id -> name
    for entry in instance_file.get("annotations", ()):
        category = categories.get(entry["category_id"])
        if category is None:
            number = entry["category_id"]
            raise UserError(f"'{instances}': an annotation names the unknown category {number}.")
        shape = entry.get("segmentation")  # polygons; of a crowd a run-length mask, which is not read
        polygons = tuple(shape) if isinstance(shape, list) else ()
        if entry["image_id"] in files:
            is_crowd = bool(entry.get("iscrowd"))
            objects[entry["image_id"]].append(Instance(category, entry.get("bbox"), polygons, is_crowd))
    images = []
    for key, name in files.items():
        images.append(CaptionedImage(name, tuple(texts[key]), tuple(objects[key]), folder or listing.parent))
    return Annotations(tuple(images), tuple(dict.fromkeys(categories.values())))


def iter_images(path: Path) -> Iterator[CaptionedImage]:
    """Images of a JSONL file with `image`, relative to the file, and `captions`. Raises UserError."""
    for number, row in atomic.iter_lines(path):
        name, captions = row.get("image"), row.get("captions", [])
        if not (name and isinstance(name, str)):
            raise UserError(f"'{path}', line {number}, names no image; add the field 'image'.")
        texts = [captions] if isinstance(captions, str) else captions
        if not isinstance(texts, list):
            problem = f"must be a text or a list of texts, not {captions!r:.40}"
            raise UserError(f"'{path}', line {number}, has captions that {problem}.")
        yield CaptionedImage(name, tuple(text for text in texts if isinstance(text, str)), folder=path.parent)
