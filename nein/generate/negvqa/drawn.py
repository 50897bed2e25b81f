"""Four-choice questions about scenes of the miniature world: the rehearsal of a VQA file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nein.datasets.nein import loading
from nein.engine import images
from nein.nano.draw import CATEGORIES, PALETTE
from nein.nano.questions import Question, iter_questions
from nein.nano.scenes import Scene, render, rng_for

SPLIT = "build"  # scenes of their own: no model was trained or judged on them
NUMBERS = ("1", "2", "3", "4", "5", "6")


def draw(count: int, cache: Path | None = None) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the pictures, and `count` records in VMCBench's layout (two to four options)."""
    from nein.nano.data import world_version

    folder = (cache or loading.default_cache()) / f"choices-{world_version()}"
    records = []
    for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count)):
        name = f"{index:05d}.png"
        if not (folder / name).exists():
            images.write_png(folder / name, render(scene))
        rng = rng_for(SPLIT, number, "choices")
        options = [question.right, question.wrong]
        spare = sorted(_wrong(scene, question) - set(options))
        options += rng.sample(spare, min(2, len(spare)))
        rng.shuffle(options)
        records.append(
            {
                "index": str(number),
                "image": name,
                "category": question.kind,
                "question": question.question,
                "answer": "ABCD"[options.index(question.right)],
                **dict(zip("ABCD", options, strict=False)),
            }
        )
    return folder, records


def _wrong(scene: Scene, question: Question) -> set[str]:
    """Further answers that are wrong whatever the question is exactly."""
    if question.right in PALETTE:
        return set(PALETTE)
    if question.right in NUMBERS:
        return set(NUMBERS)
    if question.right in CATEGORIES:
        return {category for category in CATEGORIES if category not in scene.categories}
    return set()  # left or right, top or bottom
