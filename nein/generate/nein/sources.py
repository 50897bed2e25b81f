"""Captioned images from a COCO captions JSON, a JSONL file, or the nano world; what is wrong with each is
kept.

An unusable image stays in the list with its problem, so that it is counted and reported, and so that shards
do not shift when it is mended. The same file listed twice is one image with all its captions; another file
with the same stem is left out, because the stem names the sample.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nein.engine import atomic
from nein.engine.errors import UserError

NO_CAPTION = "no caption"
SAME_NAME = "another image has this name"
BAD_NAME = "the file name is not a plain name"
IMAGE_KEYS = ("image", "file_name", "filename", "filepath")
CAPTION_KEYS = ("captions", "caption", "text")
NANO_SPLIT = "build"  # scenes of their own: no model was trained or judged on them


@dataclass(frozen=True)
class Source:
    """One image.

    id        Its official name without ending: `COCO_<12 digits>` for a file of COCO, else the file's stem.
    captions  White space made single; empty ones left out.
    problem   Why it cannot be used, known before the file is opened; empty if nothing is.
    """

    id: str
    path: Path
    captions: tuple[str, ...]
    problem: str = ""

    @property
    def sample_stem(self) -> str:
        """Beginning of the names of its samples: "NeIn_000000000009" for "COCO_000000000009"."""
        return f"NeIn_{self.id.removeprefix('COCO_')}"


@dataclass(frozen=True)
class SourceSet:
    """All images in the order of the list. `notes` counts what was odd about the list itself."""

    sources: tuple[Source, ...]
    origin: dict[str, Any]
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def sha256(self) -> str:
        """Over names and captions, not pixels, which are pinned one by one in the records."""
        digest = hashlib.sha256()
        for source in self.sources:
            row = [source.id, source.path.name, list(source.captions), source.problem]
            digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        return digest.hexdigest()


def load(source: str, images: str | None, *, scenes: int, out: Path) -> SourceSet:
    """Reads a list of captioned images.

    source  "nano" (drawn below `out`), a `.json` file of COCO captions, a `.jsonl` file, or a folder with
            one.
            A line of a JSONL file has `image` (or `file_name`) and `captions` (a list) or `caption` (or
            `text`).
    images  Folder of the files; by default the folder of the list.

    Raises UserError for a list that cannot be read, and when not one of the images is there.
    """
    if source == "nano":
        return _nano(out, scenes)
    path = Path(source)
    if path.is_dir():
        lists = sorted(path.glob("*.jsonl"))
        if len(lists) != 1:
            found = ", ".join(p.name for p in lists) or "none"
            raise UserError(
                f"'{path}' must hold exactly one .jsonl file ({found} found); name it with --source."
            )
        path = lists[0]
    if not path.is_file():
        raise UserError(
            f"--source '{source}' is neither nano, a .json or .jsonl file, nor a folder with a .jsonl."
        )
    folder = Path(images) if images else path.parent
    if not folder.is_dir():
        raise UserError(f"--images '{folder}' is not a folder.")
    rows = list(captioned_lines(path)) if path.suffix == ".jsonl" else _coco(path)
    listed = _collect(
        rows, folder, {"kind": "jsonl" if path.suffix == ".jsonl" else "coco", "list": path.name}
    )
    if not any(s.path.is_file() for s in listed.sources if not s.problem):
        first = listed.sources[0].path if listed.sources else folder
        raise UserError(
            f"None of the {len(listed.sources)} images of '{path}' is there ('{first}'); give --images."
        )
    return listed


def _collect(rows: Iterable[tuple[str, list[str]]], folder: Path, origin: Mapping[str, Any]) -> SourceSet:
    """Sources from (file name, captions) pairs, merged by file, checked for names."""
    captions: dict[str, list[str]] = {}
    notes: Counter[str] = Counter()
    for name, texts in rows:
        notes["image listed again; captions added"] += name in captions
        captions.setdefault(name, []).extend(texts)
    sources, taken = [], set[str]()
    for name, texts in captions.items():
        stem = official_stem(Path(name).stem)
        clean = tuple(dict.fromkeys(text for raw in texts if (text := " ".join(raw.split()))))
        key = stem.removeprefix("COCO_")
        problem = ""
        if (
            not re.fullmatch(r"[\w-][\w .,+()-]*", stem)
            or Path(name).is_absolute()
            or ".." in Path(name).parts
        ):
            problem = BAD_NAME
        elif key in taken:
            problem = SAME_NAME
        elif not clean:
            problem = NO_CAPTION
        taken.add(key)
        sources.append(Source(stem, folder / name, clean, problem))
    return SourceSet(tuple(sources), dict(origin), +notes)


def official_stem(stem: str) -> str:
    """NeIn's name for a file of COCO: the split is left out ("COCO_train2014_000000000009" ->
    "COCO_000000000009", "000000000009" likewise); other stems stay."""
    match = re.fullmatch(r"(?:COCO_(?:(?:train|val|test)\d{4}_)?)?(\d{12})", stem)
    return f"COCO_{match.group(1)}" if match else stem


def _coco(path: Path) -> list[tuple[str, list[str]]]:
    content = atomic.read_json(path)
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key), list) for key in ("images", "annotations")
    ):
        raise UserError(
            f"'{path}' is no COCO captions file: it must hold the lists 'images' and 'annotations'."
        )
    texts: dict[Any, list[str]] = {}
    for row in content["annotations"]:
        if not isinstance(row, dict) or "image_id" not in row:
            raise UserError(f"'{path}' has an annotation without 'image_id': {row!r:.80}")
        if isinstance(row.get("caption"), str):
            texts.setdefault(row["image_id"], []).append(row["caption"])
    rows = []
    for row in content["images"]:
        if not isinstance(row, dict) or not isinstance(row.get("file_name"), str) or "id" not in row:
            raise UserError(f"'{path}' has an image without 'id' or 'file_name': {row!r:.80}")
        rows.append((row["file_name"], texts.get(row["id"], [])))
    return rows


def captioned_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(image, captions) of every line of a JSONL file, read as it is asked for.

    Raises UserError for a file that cannot be read and a line that is not such a record.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _captioned_line(line, f"'{path}', line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' cannot be read ({error}).") from None


def _captioned_line(line: str, where: str) -> tuple[str, list[str]]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON: {error}.") from None
    name = next((row[k] for k in IMAGE_KEYS if k in row), None) if isinstance(row, dict) else None
    if not isinstance(name, str) or not name:
        raise UserError(f"{where} names no image; it needs one of: {', '.join(IMAGE_KEYS)}.")
    said: Any = next((row[k] for k in CAPTION_KEYS if row.get(k) is not None), [])
    said = [said] if isinstance(said, str) else said
    if not isinstance(said, list):
        raise UserError(f"{where}: captions must be a text or a list of texts, not {said!r:.40}.")
    return name, [text for text in said if isinstance(text, str)]


def _nano(out: Path, scenes: int) -> SourceSet:
    """Scenes drawn below `out`, with a COCO captions file, which is written last."""
    from nein.engine.images import write_png
    from nein.nano.captions import captions
    from nein.nano.data import source_scene, world_version
    from nein.nano.scenes import render, rng_for

    folder = out / "source"
    listing = folder / "captions.json"
    names = [f"COCO_{index + 1:012d}.png" for index in range(scenes)]
    if not listing.is_file() or len(atomic.read_json(listing)["images"]) < scenes:
        annotations: list[dict[str, Any]] = []
        for index, name in enumerate(names):
            scene = source_scene(NANO_SPLIT, index)
            if not (folder / name).is_file():
                write_png(folder / name, render(scene))
            for text in captions(scene, rng_for(NANO_SPLIT, index, "captions")):
                annotations.append({"id": len(annotations) + 1, "image_id": index + 1, "caption": text})
        images = [{"id": index + 1, "file_name": name} for index, name in enumerate(names)]
        atomic.write_json(listing, {"images": images, "annotations": annotations})
    rows = _coco(listing)[:scenes]
    return _collect(rows, folder, {"kind": "nano", "scenes": scenes, "world": world_version()})
