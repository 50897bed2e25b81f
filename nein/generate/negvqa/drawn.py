"""Four-choice questions about scenes of the miniature world: the rehearsal of a VQA file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nein.engine import atomic, images
from nein.nano import data
from nein.nano.draw import CATEGORIES, PALETTE
from nein.nano.questions import Question, iter_questions
from nein.nano.scenes import Scene, render, rng_for

SPLIT = "build"  # scenes of their own: no model was trained or judged on them
FILE = "choices.jsonl"
NUMBERS = ("1", "2", "3", "4", "5", "6")


def folder(count: int, parent: Path | None = None) -> Path:
    """A folder with `count` drawn questions in VMCBench's layout (`FILE`, two to four options), made on first
    use; below `parent`, or in the user's cache."""

    def draw(draft: Path) -> None:
        atomic.write_lines(draft / FILE, _rows(draft, count))

    return data.drawn(f"choices-{count}", draw, proof=FILE, parent=parent)


def _rows(root: Path, count: int) -> Iterator[dict[str, Any]]:
    """A row per question, once its picture is there."""
    for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count)):
        name = f"{index:05d}.png"
        if not (root / name).exists():  # up to four questions are about one scene
            images.write_png(root / name, render(scene))
        rng = rng_for(SPLIT, number, "choices")
        options = [question.right, question.wrong]
        spare = sorted(_wrong(scene, question) - set(options))
        options += rng.sample(spare, min(2, len(spare)))
        rng.shuffle(options)
        yield {
            "index": str(number),
            "image": name,
            "category": question.kind,
            "question": question.question,
            "answer": "ABCD"[options.index(question.right)],
            **dict(zip("ABCD", options, strict=False)),
        }


def _wrong(scene: Scene, question: Question) -> set[str]:
    """Further answers that are wrong whatever the question is exactly."""
    if question.right in PALETTE:
        return set(PALETTE)
    if question.right in NUMBERS:
        return set(NUMBERS)
    if question.right in CATEGORIES:
        return {category for category in CATEGORIES if category not in scene.categories}
    return set()  # left or right, top or bottom
