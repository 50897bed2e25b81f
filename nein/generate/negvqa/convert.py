"""From many options to two: which wrong option stays, and which letter is right."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from nein.engine.blocks import sample_seed
from nein.generate.negvqa.sources import Choice


def wrong_option(item: Choice, seed: int) -> str:
    """One of the wrong options that differ from the right one, drawn with the item's own seed."""
    rng = np.random.default_rng(sample_seed(seed, f"wrong/{item.id}"))
    return item.wrong[int(rng.integers(len(item.wrong)))]


def letters(items: Sequence[Choice], seed: int, rule: str) -> list[str]:
    """The letter, A or B, that is right for each original question (the other is right for the negated one).

    rule  "balanced": in every subset as many A as B, or one more of either; which items get which depends on
          their ids and the seed, not on their order. "drawn": each by itself, as in the paper, so that a
          share of A far from one half can happen.
    """
    if rule == "drawn":
        return ["AB"[sample_seed(seed, f"letter/{item.id}") >> 62] for item in items]
    subsets: dict[str, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        subsets[item.subset].append(place)
    drawn = [""] * len(items)
    for subset, places in subsets.items():
        first = sample_seed(seed, f"letters/{subset}") >> 62
        ranked = sorted(places, key=lambda place: sample_seed(seed, f"letter/{items[place].id}"))
        for rank, place in enumerate(ranked):
            drawn[place] = "AB"[(rank + first) % 2]
    return drawn


def notebook(items: Sequence[Choice], seed: int) -> tuple[dict[str, str], list[str]]:
    """(id -> wrong option, letters) of negated questions in file order, by the one random sequence of the
    authors' notebook. Source: https://github.com/yuhui-zh15/NegVQA (0e4218b), add_negation.ipynb."""
    rng = random.Random(seed)
    wrong, drawn = {}, []
    for item in items:
        others = [text for place, text in enumerate(item.options) if place != item.right]
        [wrong[item.id]] = rng.sample(others, 1)
        order = [0, 1]
        rng.shuffle(order)
        drawn.append("AB"[order.index(0)])
    return wrong, drawn


def record(item: Choice, picture: str, negated: str, wrong: str, letter: str) -> dict[str, Any]:
    """One line of NegVQA's layout: two options, and both questions with the letters that are right."""
    options = (item.answer, wrong) if letter == "A" else (wrong, item.answer)
    return {
        "index": item.id, "image": picture, "category": item.subset,
        "original_question": item.question, "negated_question": negated,
        "A": options[0], "B": options[1],
        "original_answer": letter, "negated_answer": "B" if letter == "A" else "A",
    }  # fmt: skip


def chosen(ids: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` of the ids at random for the check sheet (all, if fewer), whatever their order.

    In random order, so that whoever stops early has checked a random sample too.
    """
    ranked = sorted(ids, key=lambda identity: sample_seed(seed, f"sheet/{identity}"))
    return ranked[:count]
