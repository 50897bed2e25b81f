"""Write the nano world to disk as a NeIn data set, in the layout of https://github.com/tanbuinhat/NeIn.

    ROOT/val.json                 array of {COCO, T_original, T_negative, T_generated, NeIn}
    ROOT/coco_for_val/<COCO>.png  the source images (the object is absent; the target of the edit)
    ROOT/nein_val/<NeIn>.png      the samples (the object was added)
    ROOT/instances.json           COCO instance annotations (boxes, areas) of source images and samples

For the splits "train" and "dev" the three names carry the split instead of `val`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import Image

from nein.engine import atomic
from nein.loading.errors import UserError, unknown
from nein.nano import scenes
from nein.nano.scenes import CATEGORIES, NANO, SIZE, Scene, World, box, place, render, rng_for, sample_scene
from nein.nano.sentences import write_captions
from nein.wording import families
from nein.wording.families import NEGATIVE_TEMPLATES

DEFAULT_SOURCES = {"train": 2000, "dev": 60, "val": 140}  # source images of a split; "val": about 560 samples
MAX_SAMPLES = 5  # per source image
FIELDS = ("COCO", "T_original", "T_negative", "T_generated", "NeIn")  # of an annotation file
#: Templates that the fine-tuning of the nano editors leaves out: 1 "does not have any" (0 is "doesn't have
#: any"), 5 "is without" (11 is "A scene without"), 10 "is missing from".
HELD_OUT_TEMPLATES = (1, 5, 10)
_TAUGHT = tuple(text for k, text in enumerate(NEGATIVE_TEMPLATES) if k not in HELD_OUT_TEMPLATES)
#: Wording -> negative sentences: {S} the object, {a S} with its article, {S+} its plural.
NEGATIVES: dict[str, tuple[str, ...]] = {
    scenes.ALL: NEGATIVE_TEMPLATES,
    scenes.TAUGHT: _TAUGHT,
    scenes.VARIED: (
        *_TAUGHT,
        "No {S} at all.",
        "There isn't any {S}.",
        "The picture has no {S}.",
        "You cannot see {a S}.",
        "A photo without any {S+}.",
        "There must not be {a S}.",
        "{S} does not appear.",
        "I do not want {a S}.",
        "The scene contains no {S}.",
        "Not even one {S}.",
    ),
    scenes.UNSEEN: (
        NEGATIVE_TEMPLATES[1],
        NEGATIVE_TEMPLATES[5],
        "There is no {S} here.",
        "This picture does not show {a S}.",
        "We see no {S} in this place.",
        "This is not a view with {a S}.",
    ),
    scenes.NEGATOR: (
        NEGATIVE_TEMPLATES[10],
        "The image is free of {S+}.",
        "The scene is devoid of {S+}.",
        "{S} is absent from the image.",
    ),
}


@dataclass(frozen=True)
class NanoSample:
    """A row of the annotation file, and its scenes: `object` is in `sample` and not in `source`."""

    coco: str  # stems of the two images
    nein: str
    caption: str
    negative: str
    generated: str
    object: str
    template: int | None
    source: Scene
    sample: Scene


def source_scene(split: str, index: int, world: World = NANO) -> Scene:
    """A scene of one to three objects, so that there is room for another."""
    rng = rng_for(split, index)
    return sample_scene(rng, rng.choice((1, 2, 2, 3, 3)), world.pool)


def iter_samples(split: str, sources: int, world: World = NANO) -> Iterator[NanoSample]:
    """Samples of the first `sources` source scenes, up to five each, in order."""
    wordings = NEGATIVES[world.wording]
    for index in range(sources):
        source = source_scene(split, index, world)
        coco = f"COCO_{index + 1:012d}"
        sentences = write_captions(source, rng_for(split, index, "captions"))
        rng = rng_for(split, index, "nein")
        count = rng.choice((3, 4, 4, 5))
        absent = [name for name in CATEGORIES if name in world.named and name not in source.categories]
        templates = rng.sample(range(len(wordings)), min(MAX_SAMPLES, len(wordings)))
        k = 0  # samples of this source so far
        for category in rng.sample(absent, min(MAX_SAMPLES, len(absent))):
            item = place(rng, category, source.items)
            if item is None or k == count:
                continue
            negative = fill_wording(wordings[templates[k % len(templates)]], category)
            k += 1
            yield NanoSample(
                coco=coco,
                nein=f"NeIn_{index + 1:012d}_{k}",
                caption=sentences[k - 1],
                negative=negative,
                generated=families.write_addition(category),
                object=category,
                template=families.find_template(negative, category),
                source=source,
                sample=source.add(item),
            )


def fill_wording(wording: str, category: str) -> str:
    """The sentence of a wording of `NEGATIVES` about an object."""
    return families.fill_template(wording, {"S": category}, "paper")


@lru_cache(maxsize=1)
def world_version() -> str:
    """Hash of the code that draws and describes scenes: a changed world gets a new cache folder."""
    folder = Path(__file__).parent
    names = "drawings.json wordings.json scenes.py sentences.py data.py"
    files = [*(folder / name for name in names.split()), folder.parent / "wording" / "families.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:10]


def ensure(
    split: str = "val",
    sources: int | None = None,
    root: str | os.PathLike[str] | None = None,
    world: World = NANO,
) -> Path:
    """The folder of a split below `root` (default: the cache), drawn on first use. Raises UserError."""
    if split not in scenes.SPLITS:
        raise unknown("nano split", split, scenes.SPLITS)
    count = DEFAULT_SOURCES[split] if sources is None else sources
    if count < 1:
        raise UserError(f"The number of source images must be at least 1, not {count}.")
    name, parent = f"{world.name.replace(':', '-')}-{split}-{count}", None if root is None else Path(root)
    return draw_once(name, lambda to: write(to, split, count, world), proof=f"{split}.json", parent=parent)


def draw_once(name: str, draw: Callable[[Path], None], *, proof: str, parent: Path | None = None) -> Path:
    """The folder `name` below `parent` (default: the user's cache), filled by `draw` on first use, once per
    version of the world. proof: the file that `draw` writes last; it shows that the folder is complete."""
    target = (parent or atomic.cache_root() / "data") / f"{name}-{world_version()}"
    return atomic.make_once(target, draw, proof)


def write(root: Path, split: str, sources: int, world: World = NANO) -> None:
    """Write `sources` source scenes of `split` and their samples in the official layout."""
    samples = list(iter_samples(split, sources, world))
    drawn_sources = [source_scene(split, index, world) for index in range(sources)]
    drawn_scenes = {f"coco_for_{split}/COCO_{k:012d}.png": scene for k, scene in enumerate(drawn_sources, 1)}
    drawn_scenes |= {f"nein_{split}/{sample.nein}.png": sample.sample for sample in samples}
    # Images, and COCO's instance annotations.
    images, instances = list[dict[str, object]](), list[dict[str, object]]()
    for image_id, (name, scene) in enumerate(drawn_scenes.items(), start=1):
        images.append({"id": image_id, "file_name": name, "width": SIZE, "height": SIZE})
        for item in scene.items:
            x0, y0, x1, y1 = box(item, world.style)
            number, bounds = len(instances) + 1, [x0, y0, x1 - x0, y1 - y0]
            category_id = CATEGORIES.index(item.category) + 1
            entry = {"id": number, "image_id": image_id, "category_id": category_id, "bbox": bounds}
            instances.append({**entry, "area": (x1 - x0) * (y1 - y0), "iscrowd": 0})
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(render(scene, world.style)).save(root / name, compress_level=1)
    values = [(one.coco, one.caption, one.negative, one.generated, one.nein) for one in samples]
    records = [dict(zip(FIELDS, row, strict=True)) for row in values]
    categories = [{"id": number, "name": name} for number, name in enumerate(CATEGORIES, 1)]
    info = {"description": "nein nano world: drawn scenes", "split": split, "version": world_version()}
    truth = {"info": info, "images": images, "annotations": instances, "categories": categories}
    # The last file shows that the folder is complete.
    for name, value in (("instances", truth), (split, records)):
        (root / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
