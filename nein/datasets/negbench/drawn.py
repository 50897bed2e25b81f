"""NegBench over the miniature world: retrieval and multiple choice about drawn scenes, drawn from seeds.

Three splits of scenes that never meet: "train" (fine-tuning), "dev" (choosing a recipe), "val" (evaluation).
Objects come from the scenes, absent objects from the co-occurrence of the split, captions from
`nein.nano.captions`. All of it is labelled as nano: figures on it say nothing about the published sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from nein.datasets.negbench import official
from nein.datasets.negbench.concepts import Concepts, with_negatives
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.records import (
    ChoiceTask,
    Question,
    RetrievalItem,
    RetrievalTask,
)
from nein.datasets.negbench.sentences import (
    evaluation_questions,
    retrieval_items,
    training_captions,
    training_question,
)
from nein.engine.errors import unknown
from nein.engine.images import ImageError, write_png
from nein.nano.captions import captions
from nein.nano.data import world_version
from nein.nano.scenes import SPLITS, Scene, render, rng_for, sample_scene

#: Scenes per split when none are asked for.
SCENES = {"train": 12_000, "dev": 500, "val": 1_000}
CAPTIONS = 2  # per scene, of the five that are drawn


def scene(split: str, index: int) -> Scene:
    """The `index`-th scene of a split: one to four objects, mostly two or three."""
    rng = rng_for(split, index, "negbench")
    return sample_scene(rng, rng.choice((1, 2, 2, 3, 3, 4)))


def reference(split: str, index: int) -> str:
    """The name of a scene's picture: "nano/val/000012.png"."""
    return f"nano/{split}/{index:06d}.png"


def picture(name: str) -> np.ndarray:
    """The scene of a reference as (64, 64, 3) uint8 RGB. Raises ImageError for a name that is none."""
    parts = name.split("/")
    if len(parts) != 3 or parts[0] != "nano" or parts[1] not in SPLITS or not parts[2][:-4].isdigit():
        raise ImageError(f"{name}: this is not the name of a scene, such as {reference('val', 0)}")
    return render(scene(parts[1], int(parts[2][:-4])))


@lru_cache(maxsize=4)
def concepts(split: str, scenes: int) -> tuple[Concepts, ...]:
    """The scenes of a split as images with captions, the objects in them, and three absent ones."""
    if split not in SPLITS:
        raise unknown("nano split", split, SPLITS)
    return tuple(with_negatives(list(_images(split, scenes))))


def _images(split: str, scenes: int) -> Iterator[Concepts]:
    for index in range(scenes):
        drawn = scene(split, index)
        sentences = captions(drawn, rng_for(split, index, "negbench captions"))
        yield Concepts(f"{split}-{index:06d}", reference(split, index), tuple(sentences), drawn.categories)


def retrieval(split: str = "val", scenes: int | None = None, seed: int = 0) -> RetrievalTask:
    """Retrieval over a split: every scene with its captions, original and negated by prefix or suffix."""
    scenes = scenes or SCENES[split]
    pairs = [p for c in concepts(split, scenes) if (p := retrieval_items(c, seed, captions=CAPTIONS))]
    return RetrievalTask(
        "nano/retrieval",
        tuple(original for original, _ in pairs),
        tuple(negated for _, negated in pairs),
        Drawn(picture),
        origin=_origin(split, scenes, seed),
    )


def choice(split: str = "val", scenes: int | None = None, seed: int = 0) -> ChoiceTask:
    """Multiple choice over a split: up to three questions per scene that shows two things."""
    scenes = scenes or SCENES[split]
    questions = [q for c in concepts(split, scenes) for q in evaluation_questions(c, seed)]
    return ChoiceTask("nano/mcq", tuple(questions), Drawn(picture), origin=_origin(split, scenes, seed))


def negcap(split: str = "train", scenes: int | None = None, seed: int = 0) -> tuple[RetrievalItem, ...]:
    """Training captions that negate: three per scene, the counterpart of CC12M-NegCap."""
    items = (training_captions(image, seed) for image in _all(split, scenes))
    return tuple(item for item in items if item is not None)


def negmcq(split: str = "train", scenes: int | None = None, seed: int = 0) -> tuple[Question, ...]:
    """Training questions, one per scene with shuffled options: the counterpart of CC12M-NegMCQ."""
    questions = (training_question(image, seed) for image in _all(split, scenes))
    return tuple(question for question in questions if question is not None)


def write(folder: Path, split: str, scenes: int | None = None, seed: int = 0) -> list[Path]:
    """Writes a split's pictures and its files in the official layout into `folder`; returns the files.

    For "train" these are `negcap.csv` and `negmcq.csv`, else `retrieval.csv`, `negated_retrieval.csv` and
    `mcq.csv`. Pictures that are there already are left alone.
    """
    scenes = scenes or SCENES[split]
    for image in concepts(split, scenes):
        if not (folder / image.path).exists():
            write_png(folder / image.path, picture(image.path))
    if split == "train":
        official.write_captions(folder / "negcap.csv", negcap(split, scenes, seed))
        official.write_training_questions(folder / "negmcq.csv", negmcq(split, scenes, seed))
        return [folder / "negcap.csv", folder / "negmcq.csv"]
    task = retrieval(split, scenes, seed)
    official.write_retrieval(folder / "retrieval.csv", task.original)
    official.write_retrieval(folder / "negated_retrieval.csv", task.negated)
    official.write_questions(folder / "mcq.csv", choice(split, scenes, seed).questions)
    return [folder / f"{name}.csv" for name in ("retrieval", "negated_retrieval", "mcq")]


def _all(split: str, scenes: int | None) -> tuple[Concepts, ...]:
    return concepts(split, scenes or SCENES.get(split, 1))


def _origin(split: str, scenes: int, seed: int) -> dict[str, object]:
    return {"kind": "nano", "split": split, "scenes": scenes, "seed": seed, "world": world_version()}
