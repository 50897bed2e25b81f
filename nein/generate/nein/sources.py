"""Captioned images, and lists of categories that may be asked for about them.

Images come from a COCO captions JSON, a JSONL file, or the nano world, each with what is wrong.

An unusable image stays in the list with its problem: it is counted, and shards do not shift when it is
mended. A file listed twice is one image with all its captions; another file with the same stem is left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nein.datasets import coco
from nein.engine import atomic
from nein.engine.errors import UserError, shortlist
from nein.engine.images import write_png
from nein.wording import nouns

NO_CAPTION = "no caption"
SAME_NAME = "another image has this name"
BAD_NAME = "the file name is not a plain name"
NANO_SPLIT = "build"  # scenes of their own: no model was trained or judged on them
CAPTIONS = "captions.json"


@dataclass(frozen=True)
class Source:
    """One image.

    id       Its official name without ending: `COCO_<12 digits>` for a file of COCO, else the file's stem.
    problem  Why it cannot be used, known before the file is opened.
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


def load(source: str, images: str | None, scenes: int) -> SourceSet:
    """Reads a list of captioned images.

    source  "nano" (`scenes` are drawn), a `.json` file of COCO captions, a `.jsonl` file, or a folder that
            holds one. A line of a JSONL file has `image` (or `file_name`) and `captions` (a list) or
            `caption` (or `text`).
    images  Folder of the files; by default the folder of the list.

    Raises UserError for a list that cannot be read, and when not one of the images is there.
    """
    if source == "nano":
        return _nano(scenes)
    path = Path(source)
    if path.is_dir():
        lists = sorted(path.glob("*.jsonl"))
        if len(lists) != 1:
            names = ", ".join(p.name for p in lists) or "none"
            raise UserError(
                f"'{path}' must hold exactly one .jsonl file ({names} found); name it with --source."
            )
        path = lists[0]
    if not path.is_file():
        raise UserError(
            f"--source '{source}' is neither nano, a .json or .jsonl file, nor a folder with a .jsonl."
        )
    folder = Path(images) if images else path.parent
    if not folder.is_dir():
        raise UserError(f"--images '{folder}' is not a folder.")
    kind = "jsonl" if path.suffix == ".jsonl" else "coco"
    pictures = coco.iter_pictures(path) if kind == "jsonl" else coco.read(captions=path).pictures
    listed = _collect(pictures, folder, {"kind": kind, "list": path.name})
    if not any(s.path.is_file() for s in listed.sources if not s.problem):
        first = listed.sources[0].path if listed.sources else folder
        raise UserError(
            f"None of the {len(listed.sources)} images of '{path}' is there ('{first}'); give --images."
        )
    return listed


def _collect(pictures: Iterable[coco.Picture], folder: Path, origin: Mapping[str, Any]) -> SourceSet:
    captions: dict[str, list[str]] = {}
    notes: Counter[str] = Counter()
    for picture in pictures:
        notes["image listed again; captions added"] += picture.file_name in captions
        captions.setdefault(picture.file_name, []).extend(picture.captions)
    sources, taken = [], set[str]()
    for name, texts in captions.items():
        stem = official_stem(Path(name).stem)
        clean = tuple(dict.fromkeys(text for raw in texts if (text := " ".join(raw.split()))))
        key, problem = stem.removeprefix("COCO_"), "" if clean else NO_CAPTION
        outside = Path(name).is_absolute() or ".." in Path(name).parts
        if outside or not re.fullmatch(r"[\w-][\w .,+()-]*", stem):
            problem = BAD_NAME
        elif key in taken:
            problem = SAME_NAME
        taken.add(key)
        sources.append(Source(stem, folder / name, clean, problem))
    return SourceSet(tuple(sources), dict(origin), +notes)


def official_stem(stem: str) -> str:
    """NeIn's name for a file of COCO: the split is left out ("COCO_train2014_000000000009" ->
    "COCO_000000000009", "000000000009" likewise); other stems stay."""
    match = re.fullmatch(r"(?:COCO_(?:(?:train|val|test)\d{4}_)?)?(\d{12})", stem)
    return f"COCO_{match.group(1)}" if match else stem


def _nano(scenes: int) -> SourceSet:
    """Scenes drawn on first use, with a COCO captions file."""
    from nein.nano import data
    from nein.nano.scenes import render, rng_for
    from nein.nano.sentences import captions

    def draw(draft: Path) -> None:
        images, annotations = [], []
        for index in range(scenes):
            scene, name = data.source_scene(NANO_SPLIT, index), f"COCO_{index + 1:012d}.png"
            write_png(draft / name, render(scene))
            images.append({"id": index + 1, "file_name": name})
            texts = captions(scene, rng_for(NANO_SPLIT, index, "captions"))
            annotations += [{"image_id": index + 1, "caption": text} for text in texts]
        atomic.write_json(draft / CAPTIONS, {"images": images, "annotations": annotations})

    folder = data.drawn(f"captioned-{scenes}", draw, proof=CAPTIONS)
    pictures = coco.read(captions=folder / CAPTIONS).pictures
    return _collect(pictures, folder, {"kind": "nano", "scenes": scenes, "world": data.world_version()})


#: The 80 categories of COCO (Lin et al., arXiv:1405.0312), in its order and spelling.
COCO: tuple[str, ...] = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple",
    "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard",
    "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors",
    "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip


def categories(name: str, queried: int) -> tuple[str, ...]:
    """ "coco", "nano", or the lines of a text file. Raises UserError, also for fewer than `queried`."""
    if name == "coco":
        names = COCO
    elif name == "nano":
        from nein.nano.draw import CATEGORIES

        names = CATEGORIES
    else:
        if not Path(name).exists():
            raise UserError(f"--objects is '{name}'; it must be coco, nano or a text file.")
        lines = atomic.read_text_lines(Path(name))
        names = tuple(dict.fromkeys(nouns.bare(line) for line in lines if line.strip()))
        if strange := [repr(text) for text in names if not re.fullmatch(r"(?:[^\W_]|[-' ])+", text)]:
            raise UserError(f"'{name}' must hold one plain name per line, not {shortlist(strange, 3)}.")
    if len(names) < queried:
        raise UserError(
            f"--queried asks for {queried} categories per image, but '{name}' has {len(names)}; lower it."
        )
    return names
