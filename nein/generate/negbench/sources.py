"""Where images, captions and objects come from: COCO, VOC2007, captions, medical tables, the nano world; and
the list of them on disk, cut into shards once, so that a worker reads its own shard only."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nein.datasets import coco
from nein.datasets.negbench.concepts import ROW, Concepts, with_negatives
from nein.datasets.negbench.media import VIDEO_SUFFIXES
from nein.datasets.negbench.medical import TABLES
from nein.engine import atomic
from nein.engine.answers import Unique
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.generate.negbench.config import BuildConfig

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
NO_CAPTION = "no caption"
NO_OBJECT = "no annotated object"
BAD_FILE = "the annotation cannot be read"
BAD_TEXT = "the caption cannot be read"
BAD_NAME = "the name of the file is no text"


def load(config: BuildConfig) -> Iterator[Concepts]:
    """The images of `config.source`, in order. Raises UserError for a source that cannot be read."""
    readers: dict[str, Callable[[BuildConfig], Iterator[Concepts]]] = {
        "nano": _nano, "coco": _coco, "voc": _voc, "captions": _captioned, "pairs": _pairs,
        **dict.fromkeys(TABLES, lambda given: TABLES[given.source](Path(str(given.instances)), given.absent)),
    }  # fmt: skip
    return readers[config.source](config)


def root(config: BuildConfig) -> Path | None:
    """The folder that the images' paths are relative to; None for pictures that are drawn or made."""
    if config.source in ("nano", "pairs") and config.captions is None:
        return None
    if config.images is not None:
        folder = Path(config.images)
    elif config.source == "voc":
        folder = Path(str(config.instances)) / "JPEGImages"
    else:
        given = Path(str(config.captions or config.instances))
        folder = given if given.is_dir() else given.parent
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}' with images; name it with --images.")
    return folder


def _nano(config: BuildConfig) -> Iterator[Concepts]:
    from nein.datasets.negbench import drawn

    yield from drawn.concepts(config.split, config.scenes)


def _coco(config: BuildConfig) -> Iterator[Concepts]:
    """COCO's JSON files; an image without a caption yields questions only."""
    listed = coco.read(
        captions=None if config.captions is None else Path(config.captions),
        instances=None if config.instances is None else Path(config.instances),
    )
    images = []
    for picture in listed.pictures:
        captions = tuple(dict.fromkeys(text for raw in picture.captions if (text := _clean(raw))))
        objects = tuple(dict.fromkeys(_clean(instance.category) for instance in picture.objects))
        path, problem = _name(picture.file_name)
        if config.concepts == "annotations" and not objects:
            problem = problem or NO_OBJECT
        elif config.concepts == "llm" and not captions:
            problem = problem or NO_CAPTION
        images.append(Concepts(Path(path).stem, path, captions, objects, problem=problem))
    if config.concepts == "llm":
        yield from images
    else:
        yield from with_negatives(images, config.absent, screened=config.protocol == "fixed")


def _voc(config: BuildConfig) -> Iterator[Concepts]:
    """PASCAL VOC's XML files. Objects marked difficult are neither asked about nor taken for absent."""
    folder = Path(str(config.instances))
    annotations = folder / "Annotations"
    if not annotations.is_dir():
        raise UserError(f"'{folder}' has no folder Annotations; give VOC2007's folder as --instances.")
    if config.image_set is not None:
        listing = folder / "ImageSets" / "Main" / f"{config.image_set}.txt"
        if not listing.is_file():
            raise UserError(f"There is no list '{listing}'; see --image-set.")
        stems = [line.split()[0] for line in atomic.read_text_lines(listing) if line.strip()]
    else:
        stems = sorted(path.stem for path in annotations.glob("*.xml"))
    yield from with_negatives([_voc_image(annotations / f"{stem}.xml") for stem in stems], config.absent)


def _voc_image(path: Path) -> Concepts:
    try:
        tree = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError, ValueError, LookupError):  # the last two: an unknown encoding
        return Concepts(path.stem, f"{path.stem}.jpg", problem=BAD_FILE)
    sure, unsure = dict[str, None](), dict[str, None]()
    for entry in tree.iter("object"):
        name = (entry.findtext("name") or "").strip()
        if name:
            (unsure if (entry.findtext("difficult") or "0").strip() == "1" else sure)[name] = None
    return Concepts(
        path.stem,
        (tree.findtext("filename") or f"{path.stem}.jpg").strip(),
        positives=tuple(sure),
        unsure=tuple(name for name in unsure if name not in sure),
        problem="" if sure else NO_OBJECT,
    )


def _captioned(config: BuildConfig) -> Iterator[Concepts]:
    """Captioned images: COCO captions JSON, a JSONL file, or a folder with X.txt beside X.jpg at any depth
    (as img2dataset writes CC12M). The last two are read as a stream."""
    path = Path(str(config.captions))
    if path.is_dir():
        yield from _folder(path, (*SUFFIXES, *VIDEO_SUFFIXES) if config.thing == "video" else SUFFIXES)
    elif path.suffix == ".jsonl" and path.is_file():
        for picture in coco.iter_pictures(path):
            yield _captions_of(picture.file_name, picture.captions)
    elif path.suffix == ".json" and path.is_file():
        yield from _coco(config)
    else:
        raise UserError(f"--captions '{path}' is neither a .json or .jsonl file nor a folder that is there.")


def _folder(folder: Path, endings: tuple[str, ...]) -> Iterator[Concepts]:
    def unreadable(error: OSError) -> None:
        raise UserError(f"The folder '{error.filename}' cannot be read ({error.strerror}).")

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()
        texts = {Path(name).stem for name in names if name.endswith(".txt")}
        for name in sorted(names):
            if not name.lower().endswith(endings):
                continue
            path = Path(parent, name).relative_to(folder)
            caption, problem = "", ""
            if path.stem in texts:
                try:
                    caption = Path(parent, f"{path.stem}.txt").read_text(encoding="utf-8", errors="replace")
                except OSError as error:
                    problem = f"{BAD_TEXT}: {error.strerror or error}"
            yield _captions_of(path.as_posix(), [caption], problem)


def _captions_of(name: str, texts: Sequence[str], problem: str = "") -> Concepts:
    captions = tuple(dict.fromkeys(clean for text in texts if (clean := _clean(text))))
    name, odd = _name(name)
    problem = odd or problem or ("" if captions else NO_CAPTION)
    return Concepts(str(Path(name).with_suffix("")), name, captions, problem=problem)


def _clean(text: str) -> str:
    """White space made single; halves of characters, as JSON may spell them, replaced."""
    return " ".join(text.split()).encode("utf-8", "replace").decode()


def _name(name: str) -> tuple[str, str]:
    """(the name of a file as it can be written, what is wrong with it)."""
    written = name.encode("utf-8", "backslashreplace").decode()
    return (name, "") if written == name and Path(name).name else (written or "?", BAD_NAME)


def _pairs(config: BuildConfig) -> Iterator[Concepts]:
    """What pairs start from: captioned pictures for an editor, numbers for a model that draws."""
    if not config.edits:
        for index in range(config.scenes):
            yield Concepts(f"pair-{index:06d}", "")
    elif config.captions is not None:
        yield from (_coco if config.instances is not None else _captioned)(config)
    else:
        yield from _nano(config)


LIST = "list"  # OUT/list/000000.jsonl: an image a line; list.json, written last: the list as a whole
_FILE = {"count": int, "shard_size": int, "sha256": str, "notes": {}, "origin": str}


@dataclass(frozen=True)
class Listing:
    """A list on disk. sha256: over ids, paths, captions and objects, not over pixels; origin: what it was
    made from."""

    count: int
    shard_size: int
    sha256: str
    notes: dict[str, int]
    origin: str = ""


def members(folder: Folder, shard: int) -> list[Concepts]:
    """The images of a shard."""
    return [Concepts.of(row) for row in folder.read(LIST, shard, ROW)]


def write_list(
    folder: Folder | None, images: Iterable[Concepts], shard_size: int, origin: str = ""
) -> Listing:
    """Writes the list over what is there; without a folder, says only what would be written. Memory holds one
    shard. Raises UserError for a list without an image."""
    digest, names, notes, count = hashlib.sha256(), Unique(), Counter[str](), 0
    shard: list[dict[str, Any]] = []

    def flush() -> None:
        if folder is not None:
            folder.write(LIST, (count - 1) // shard_size, shard)
        shard.clear()

    for image in images:
        if not names.add(image.id):
            notes["listed twice, left out the second time"] += 1
            continue
        notes.update({f"unusable: {image.problem}": 1} if image.problem else {})
        shard.append(image.row())
        digest.update(json.dumps(shard[-1], ensure_ascii=False).encode() + b"\n")
        count += 1
        if count % shard_size == 0:
            flush()
    if shard:
        flush()
    if not count:
        raise UserError("The source lists no image; there is nothing to build from.")
    listing = Listing(count, shard_size, digest.hexdigest(), dict(notes), origin)
    if folder is not None:
        atomic.write_json(folder.path / LIST / "list.json", asdict(listing))
    return listing


def read_list(folder: Folder) -> Listing | None:
    """The list that `write_list` left, or None."""
    path = folder.path / LIST / "list.json"
    if not path.is_file():
        return None
    content = atomic.read_json(path, _FILE)
    return Listing(**{name: content[name] for name in _FILE})
