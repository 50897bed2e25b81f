"""Multiple choice: which option a model takes, given a score per option.

| quirk | `protocol="paper"` | `protocol="fixed"` |
|---|---|---|
| order | the file's: in nearly all released files the right option first | by the seed of the question |
| ties | the first of the best, so a model that scores all alike is always right | shared evenly |
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from nein.datasets.negbench.records import Question
from nein.engine.seeds import sample_seed
from nein.loading.errors import choose

PROTOCOLS = ("fixed", "paper")


def order(question: Question, seed: int, protocol: str = "fixed") -> list[int]:
    """The options' indices in the order in which they are shown.

    "fixed": a permutation that depends on run seed and question id only. "paper": as the file has them, which
    is what the released code compares them in.
    """
    choose("protocol", protocol, PROTOCOLS)
    places = list(range(len(question.options)))
    if protocol == "paper":
        return places
    random.Random(sample_seed(seed, question.id)).shuffle(places)
    return places


def shares(scores: Sequence[float] | np.ndarray, shown: Sequence[int], protocol: str = "fixed") -> np.ndarray:
    """How a choice falls on the options: (C,) float64 in the data's order, adding up to 1.

    scores  (C,) finite, in the data's order; `shown` the order of `order`.

    "fixed": every option with the highest score gets an equal share, so the credit of the right one is its
    expected accuracy under random tie-breaking. "paper": the first of them as shown gets all (what
    `torch.argmax` is documented to do).
    """
    choose("protocol", protocol, PROTOCOLS)
    x = np.asarray(scores, dtype=np.float64)
    assert np.isfinite(x).all(), scores
    credit = np.zeros(len(x))
    if protocol == "paper":
        credit[shown[int(np.argmax(x[list(shown)]))]] = 1.0
        return credit
    top = x == x.max()
    credit[top] = 1.0 / top.sum()
    return credit
