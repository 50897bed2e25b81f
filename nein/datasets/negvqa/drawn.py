"""NegVQA over the miniature world: questions about drawn scenes, each with its negation and two options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nein.engine import atomic, images
from nein.nano import data
from nein.nano.questions import KINDS, iter_questions
from nein.nano.scenes import render, rng_for
from nein.nano.worlds import NANO, World

SPLIT = "val"
FILE = "questions.jsonl"


def folder(count: int, parent: Path | None = None, world: World = NANO) -> Path:
    """A folder with `count` drawn questions in NegVQA's layout (`FILE`, images/), made on first use; below
    `parent`, or in the user's cache."""
    name = f"negvqa-{world.name.replace(':', '-')}-{count}"
    return data.drawn(name, lambda draft: write(draft, count, world), proof=FILE, parent=parent)


def write(root: Path, count: int, world: World = NANO) -> None:
    """Draws the questions and their pictures. Options are in random order, each letter right for half of the
    questions of a kind."""
    atomic.write_lines(root / FILE, _rows(root, count, world))


def _rows(root: Path, count: int, world: World) -> Iterator[dict[str, Any]]:
    """A row per question, once its picture is there."""
    asked = dict.fromkeys(KINDS, 0)
    for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count, world)):
        name = f"images/{index:05d}.png"
        if not (root / name).exists():  # up to four questions are about one scene
            images.write_png(root / name, render(scene, world.style))
        # Pairs of questions of a kind get one right "A" and one right "B", in random order.
        pair, place = divmod(asked[question.kind], 2)
        asked[question.kind] += 1
        first = rng_for(SPLIT, pair, f"letters/{question.kind}").random() < 0.5
        right = "AB"[first ^ place]
        options = [question.right, question.wrong]
        yield {
            "index": number,
            "image": name,
            "category": question.kind,
            "original_question": question.question,
            "negated_question": question.negated,
            **dict(zip("AB", options if right == "A" else options[::-1], strict=True)),
            "original_answer": right,
            "negated_answer": "AB"[right == "A"],
        }
