"""Write the nano world to disk as a NeIn data set, in the layout of https://github.com/tanbuinhat/NeIn.

    ROOT/val.json                 array of {COCO, T_original, T_negative, T_generated, NeIn}
    ROOT/coco_for_val/<COCO>.png  the source images (the object is absent; the target of the edit)
    ROOT/nein_val/<NeIn>.png      the samples (the object was added)
    ROOT/instances.json           COCO instance annotations (boxes, areas) of source images and samples

For the splits "train" and "dev" the three names carry the split instead of `val`. In this order: patterns of
negative sentences, samples, cache folders, writing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from nein.engine import atomic
from nein.loading.errors import UserError, unknown
from nein.nano import scenes
from nein.nano.scenes import CATEGORIES, NANO, SIZE, Scene, World, box, place, render, rng_for, sample_scene
from nein.nano.sentences import TABLES, write_captions
from nein.wording import families
from nein.wording.families import NEGATIVE_TEMPLATES

# --- patterns of negative sentences ----------------------------------------------------------------------
#: Templates that the fine-tuning of the nano editors leaves out: 1 "does not have any" (0 is "doesn't have
#: any"), 5 "is without" (11 is "A scene without"), 10 "is missing from".
HELD_OUT_TEMPLATES = (1, 5, 10)
_TAUGHT = tuple(text for k, text in enumerate(NEGATIVE_TEMPLATES) if k not in HELD_OUT_TEMPLATES)
_FURTHER = TABLES["negatives"]  # patterns that are not NeIn's
#: Wording of a world (see `scenes`) -> patterns: {S} the object, {a S} with its article, {S+} its plural.
NEGATIVES: dict[str, tuple[str, ...]] = {
    scenes.ALL: NEGATIVE_TEMPLATES,
    scenes.TAUGHT: _TAUGHT,
    scenes.VARIED: (*_TAUGHT, *_FURTHER["varied"]),
    scenes.UNSEEN: (NEGATIVE_TEMPLATES[1], NEGATIVE_TEMPLATES[5], *_FURTHER["unseen"]),
    scenes.NEGATOR: (NEGATIVE_TEMPLATES[10], *_FURTHER["negator"]),
}


# --- samples ---------------------------------------------------------------------------------------------
MAX_SAMPLES = 5  # per source image


@dataclass(frozen=True)
class NanoSample:
    """A row of the annotation file, and its scenes: `object` is in `sample` and not in `source`."""

    coco: str  # stem of the source image
    nein: str  # stem of the sample
    caption: str  # of the source
    negative: str  # denies the object
    generated: str  # "Add a dog."
    object: str
    template: int | None  # number of `negative` in `NEGATIVE_TEMPLATES`; None: it is not one of them
    source: Scene
    sample: Scene


def source_scene(split: str, index: int, world: World = NANO) -> Scene:
    """A scene of one to three objects, so that there is room for another."""
    rng = rng_for(split, index)
    return sample_scene(rng, rng.choice((1, 2, 2, 3, 3)), world.pool)


def iter_samples(split: str, sources: int, world: World = NANO) -> Iterator[NanoSample]:
    """Yield the samples of the first `sources` source scenes, up to five each, in order."""
    patterns = NEGATIVES[world.wording]
    for index in range(sources):
        source = source_scene(split, index, world)
        captions = write_captions(source, rng_for(split, index, "captions"))
        rng = rng_for(split, index, "nein")
        most = rng.choice((3, 4, 4, 5))  # samples of this source
        absent = [name for name in CATEGORIES if name in world.named and name not in source.categories]
        own_patterns = rng.sample(patterns, min(MAX_SAMPLES, len(patterns)))
        number = 0  # of the sample within its source, from 1
        for category in rng.sample(absent, min(MAX_SAMPLES, len(absent))):
            if number == most:
                break
            item = place(rng, category, source.items)
            if item is None:
                continue
            negative = fill_pattern(own_patterns[number % len(own_patterns)], category)
            number += 1
            yield NanoSample(
                coco=f"COCO_{index + 1:012d}",
                nein=f"NeIn_{index + 1:012d}_{number}",
                caption=captions[number - 1],
                negative=negative,
                generated=families.write_addition(category),
                object=category,
                template=families.find_template(negative, category),
                source=source,
                sample=source.add(item),
            )


def fill_pattern(pattern: str, category: str) -> str:
    """The sentence of a pattern of `NEGATIVES` about an object, with the grammar of NeIn's own sentences."""
    return families.fill_template(pattern, {"S": category}, "paper")


# --- cache folders ---------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def world_version() -> str:
    """Hash of the files that decide scenes and sentences: a changed world gets a new cache folder."""
    folder = Path(__file__).parent
    names = "drawings.json wordings.json scenes.py sentences.py data.py"
    files = [*(folder / name for name in names.split()), folder.parent / "wording" / "families.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:10]


#: Split -> number of its source images; those of "val" give about 560 samples.
DEFAULT_SOURCES = {"train": 2000, "dev": 60, "val": 140}


def ensure_data_set(
    split: str = "val",
    sources: int | None = None,  # number of source images; None: `DEFAULT_SOURCES`
    root: str | os.PathLike[str] | None = None,
    world: World = NANO,
) -> Path:
    """The folder of a split below `root` (default: the cache), drawn on first use. Raises UserError."""
    if split not in scenes.SPLITS:
        raise unknown("nano split", split, scenes.SPLITS)
    count = DEFAULT_SOURCES[split] if sources is None else sources
    if count < 1:
        raise UserError(f"The number of source images must be at least 1, not {count}.")
    name = f"{world.name.replace(':', '-')}-{split}-{count}"
    parent = None if root is None else Path(root)
    draw = functools.partial(write_data_set, split=split, sources=count, world=world)
    return draw_once(name, draw, proof=f"{split}.json", parent=parent)


def draw_once(name: str, draw: Callable[[Path], None], *, proof: str, parent: Path | None = None) -> Path:
    """The folder `name` below `parent` (default: the user's cache), filled by `draw` on first use, once per
    version of the world. proof: the file that `draw` writes last; it shows that the folder is complete."""
    target = (parent or atomic.cache_root() / "data") / f"{name}-{world_version()}"
    return atomic.make_once(target, draw, proof)


# --- writing ---------------------------------------------------------------------------------------------
FIELDS = ("COCO", "T_original", "T_negative", "T_generated", "NeIn")  # of a row of the annotation file


def write_data_set(root: Path, split: str, sources: int, world: World = NANO) -> None:
    """Write `sources` source scenes of `split` and their samples in the official layout."""
    samples = list(iter_samples(split, sources, world))
    scene_by_file: dict[str, Scene] = {}
    for index in range(sources):
        name = f"coco_for_{split}/COCO_{index + 1:012d}.png"
        scene_by_file[name] = source_scene(split, index, world)
    for sample in samples:
        scene_by_file[f"nein_{split}/{sample.nein}.png"] = sample.sample
    # Images, and COCO's instance annotations.
    images, instances = list[dict[str, object]](), list[dict[str, object]]()
    for image_id, (name, scene) in enumerate(scene_by_file.items(), start=1):
        images.append({"id": image_id, "file_name": name, "width": SIZE, "height": SIZE})
        for item in scene.items:
            x0, y0, x1, y1 = box(item, world.style)
            category_id = CATEGORIES.index(item.category) + 1
            entry = {"id": len(instances) + 1, "image_id": image_id, "category_id": category_id}
            width, height = x1 - x0, y1 - y0
            instances.append({**entry, "bbox": [x0, y0, width, height], "area": width * height, "iscrowd": 0})
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(render(scene, world.style)).save(root / name, compress_level=1)
    rows = [(s.coco, s.caption, s.negative, s.generated, s.nein) for s in samples]
    records = [dict(zip(FIELDS, row, strict=True)) for row in rows]
    categories = [{"id": number, "name": name} for number, name in enumerate(CATEGORIES, 1)]
    info = {"description": "nein nano world: drawn scenes", "split": split, "version": world_version()}
    annotations = {"info": info, "images": images, "annotations": instances, "categories": categories}
    # The split's file is written last: it shows that the folder is complete.
    for name, content in (("instances", annotations), (split, records)):
        (root / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
