"""The captioned images that NeIn is made of, and the categories that may be asked for about them.

A file listed twice is one image with all its captions; another file with the same stem is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nein.datasets import coco
from nein.engine import atomic
from nein.engine.folder import Row
from nein.engine.images import write_png
from nein.generate import maker
from nein.generate.config import BuildConfig
from nein.generate.maker import BAD_NAME, COCO, NO_CAPTION, Listing
from nein.loading.errors import UserError
from nein.loading.references import expanded
from nein.wording import families

SAME_NAME = "another image has this name"
NANO_SPLIT = "build"  # scenes of their own: no model was trained or judged on them


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


def load(config: BuildConfig) -> Listing[Source]:
    """The images of `--source`. Raises UserError for a list that cannot be read, and when not one of the
    images is there."""
    if config.source == "nano":
        return _nano(config.scenes)
    path = expanded(config.source or "")
    if not path.exists():
        raise UserError(f"--source '{path}' is neither nano, a .json or .jsonl file, nor a folder.")
    folder = maker.image_folder(config.images, path if path.is_dir() else path.parent)
    found = _listing(maker.captioned(path), folder, {"kind": "list", "list": path.name})
    if not any(source.path.is_file() for source in found.records if not source.problem):
        first = found.records[0].path if found.records else folder
        raise UserError(
            f"None of the {len(found.records)} images of '{path}' is there ('{first}'); give --images."
        )
    return found


def _listing(pictures: Iterable[coco.Picture], folder: Path, origin: Row) -> Listing[Source]:
    captions: dict[str, list[str]] = {}
    again = 0
    for picture in pictures:
        again += picture.file_name in captions
        captions.setdefault(picture.file_name, []).extend(picture.captions)
    records, taken = [], set[str]()
    for name, texts in captions.items():
        # NeIn's name for a file of COCO leaves the split out: "COCO_train2014_000000000009".
        stem = re.sub(r"^(?:COCO_(?:(?:train|val|test)\d{4}_)?)?(\d{12})$", r"COCO_\1", Path(name).stem)
        said, key = maker.clean(texts), stem.removeprefix("COCO_")
        problem = "" if said else NO_CAPTION
        outside = Path(name).is_absolute() or ".." in Path(name).parts
        if outside or not re.fullmatch(r"[\w-][\w .,+()-]*", stem):
            problem = BAD_NAME
        elif key in taken:
            problem = SAME_NAME
        taken.add(key)
        records.append(Source(stem, folder / name, said, problem))
    return Listing(records, origin, {"image listed again; captions added": again} if again else {})


def _nano(scenes: int) -> Listing[Source]:
    """Scenes drawn on first use."""
    from nein.nano import data
    from nein.nano.scenes import render, rng_for
    from nein.nano.sentences import captions

    names = [f"COCO_{index + 1:012d}.png" for index in range(scenes)]
    drawn = [data.source_scene(NANO_SPLIT, index) for index in range(scenes)]

    def draw(draft: Path) -> None:
        for name, scene in zip(names, drawn, strict=True):
            write_png(draft / name, render(scene))

    folder = data.drawn(f"captioned-{scenes}", draw, proof=names[-1])
    texts = [captions(scene, rng_for(NANO_SPLIT, k, "captions")) for k, scene in enumerate(drawn)]
    pictures = [coco.Picture(name, tuple(said)) for name, said in zip(names, texts, strict=True)]
    return _listing(pictures, folder, {"kind": "nano", "scenes": scenes, "world": data.world_version()})


def categories(name: str, queried: int) -> tuple[str, ...]:
    """ "coco", "nano", or the lines of a text file. Raises UserError, also for fewer than `queried`."""
    from nein.nano.scenes import CATEGORIES

    names = {"coco": COCO, "nano": CATEGORIES}.get(name, ())
    if not names:
        if not Path(name).exists():
            raise UserError(f"--objects is '{name}'; it must be coco, nano or a text file.")
        lines = atomic.read_text_lines(Path(name))
        names = tuple(dict.fromkeys(families.bare(line) for line in lines if line.strip()))
    if len(names) < queried:
        raise UserError(
            f"--queried asks for {queried} categories per image, but '{name}' has {len(names)}; lower it."
        )
    return names
