"""The nano world on disk: a NeIn data set in the official layout, with COCO captions and instances beside it.

    ROOT/val.json                 array of {COCO, T_original, T_negative, T_generated, NeIn}
    ROOT/coco_for_val/<COCO>.png  the source images (the object is absent; the target of the edit)
    ROOT/nein_val/<NeIn>.png      the samples (the object was added)
    ROOT/captions.json            COCO caption annotations of the source images, five each
    ROOT/instances.json           COCO instance annotations (boxes, areas) of source images and samples

For the splits "train" and "dev" the three names carry the split instead of `val`. Layout and field names:
https://github.com/tanbuinhat/NeIn.
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

from nein.engine import user_cache
from nein.nano.captions import captions
from nein.nano.draw import CATEGORIES, SIZE
from nein.nano.scenes import SPLITS, Item, Scene, box, place, render, rng_for, sample_scene
from nein.wording.templates import NEGATIVE_TEMPLATES, indefinite, negative_sentence

#: Source images per split when none are asked for; "val" gives about 560 samples.
DEFAULT_SOURCES = {"train": 2000, "dev": 60, "val": 140}
MAX_SAMPLES = 5


@dataclass(frozen=True)
class NanoSample:
    """One quadruple with the truth behind it."""

    coco: str
    nein: str
    caption: str
    negative: str
    generated: str
    object: str
    template: int
    source: Scene
    sample: Scene


def source_scene(split: str, index: int) -> Scene:
    """The `index`-th source scene of a split: one to three objects, so that there is room for another."""
    rng = rng_for(split, index)
    return sample_scene(rng, rng.choice((1, 2, 2, 3, 3)))


def iter_samples(split: str, sources: int) -> Iterator[NanoSample]:
    """The NeIn quadruples of the first `sources` source scenes, up to five each, in order."""
    for index in range(sources):
        source = source_scene(split, index)
        coco = f"COCO_{index + 1:012d}"
        sentences = captions(source, rng_for(split, index, "captions"))
        rng = rng_for(split, index, "nein")
        count = rng.choice((3, 4, 4, 5))
        absent = [c for c in CATEGORIES if c not in source.categories]
        templates = rng.sample(range(len(NEGATIVE_TEMPLATES)), MAX_SAMPLES)
        k = 0
        for category in rng.sample(absent, MAX_SAMPLES):
            item = place(rng, category, source.items)
            if item is None or k == count:
                continue
            template = templates[k]
            k += 1
            yield NanoSample(
                coco=coco,
                nein=f"NeIn_{index + 1:012d}_{k}",
                caption=sentences[k - 1],
                negative=negative_sentence(template, category),
                generated=f"Add {indefinite(category)}.",
                object=category,
                template=template,
                source=source,
                sample=source.with_item(item),
            )


@lru_cache(maxsize=1)
def world_version() -> str:
    """A short hash of the code that draws and describes, so that a changed world gets a new cache folder."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for name in ("draw.py", "scenes.py", "captions.py", "data.py", "questions.py"):
        digest.update((here / name).read_bytes())
    digest.update((here.parent / "wording" / "templates.py").read_bytes())
    return digest.hexdigest()[:10]


def ensure(
    split: str = "val", sources: int | None = None, root: str | os.PathLike[str] | None = None
) -> Path:
    """The folder of a split, drawn on first use (seconds) and never half-written.

    root  Parent folder; default: in the user's cache.

    Raises ValueError for an unknown split or a count below 1.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown nano split {split!r}; choose one of {', '.join(SPLITS)}")
    sources = DEFAULT_SOURCES[split] if sources is None else sources
    if sources < 1:
        raise ValueError(f"the number of source images must be at least 1, not {sources}")
    return drawn(
        f"nano-{split}-{sources}",
        lambda draft: write(draft, split, sources),
        proof=f"{split}.json",
        parent=None if root is None else Path(root),
    )


def drawn(name: str, draw: Callable[[Path], None], *, proof: str, parent: Path | None = None) -> Path:
    """The folder `name` of drawn data, which `draw` fills on first use, once for each version of the world.

    proof   The file that `draw` writes last.
    parent  Where the folder lies; default: in the user's cache.
    """
    target = (parent or user_cache.root() / "data") / f"{name}-{world_version()}"
    return user_cache.made_once(target, draw, proof)


def write(root: Path, split: str, sources: int) -> None:
    """Draw `sources` source scenes of `split` and their samples into `root` in the official layout."""
    source_dir, sample_dir = root / f"coco_for_{split}", root / f"nein_{split}"
    source_dir.mkdir(parents=True)
    sample_dir.mkdir()
    records: list[dict[str, str]] = []
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    instances: list[dict[str, object]] = []
    category_ids = {name: i + 1 for i, name in enumerate(CATEGORIES)}

    def add_image(name: str, folder: str, scene: Scene) -> int:
        image_id = len(images) + 1
        images.append({"id": image_id, "file_name": f"{folder}/{name}.png", "width": SIZE, "height": SIZE})
        for item in scene.items:
            instances.append(_instance(len(instances) + 1, image_id, category_ids[item.category], item))
        Image.fromarray(render(scene)).save(root / folder / f"{name}.png", compress_level=1)
        return image_id

    for index in range(sources):
        source = source_scene(split, index)
        image_id = add_image(f"COCO_{index + 1:012d}", source_dir.name, source)
        for sentence in captions(source, rng_for(split, index, "captions")):
            annotations.append({"id": len(annotations) + 1, "image_id": image_id, "caption": sentence})
    for sample in iter_samples(split, sources):
        add_image(sample.nein, sample_dir.name, sample.sample)
        records.append(
            {
                "COCO": sample.coco,
                "T_original": sample.caption,
                "T_negative": sample.negative,
                "T_generated": sample.generated,
                "NeIn": sample.nein,
            }
        )
    categories = [{"id": i, "name": name} for name, i in category_ids.items()]
    info = {"description": "nein nano world: drawn scenes", "split": split, "version": world_version()}
    files = {
        "captions.json": {"info": info, "images": images, "annotations": annotations},
        "instances.json": {
            "info": info,
            "images": images,
            "annotations": instances,
            "categories": categories,
        },
        f"{split}.json": records,  # last: its presence says the folder is complete
    }
    for name, content in files.items():
        (root / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _instance(instance_id: int, image_id: int, category_id: int, item: Item) -> dict[str, object]:
    x0, y0, x1, y1 = box(item)
    return {
        "id": instance_id,
        "image_id": image_id,
        "category_id": category_id,
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": (x1 - x0) * (y1 - y0),
        "iscrowd": 0,
    }
