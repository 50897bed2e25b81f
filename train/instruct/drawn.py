"""Affirmative pairs of the miniature world, drawn by the rules its editors first learned from."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from nein.nano.captions import names, plural
from nein.nano.data import world_version
from nein.nano.scenes import rng_for
from train.instruct.pairs import Example, mentions
from train.nano.editors import RECIPES
from train.nano.instructions import Pair, sample_pair
from train.nano.pool import _pair_images


class DrawnPictures:
    """`count` affirmative pairs: the mixture and the style of the base editor's own recipe.

    hold_out  Objects that no instruction may name, under any of their names.
    """

    def __init__(self, count: int, base: str, hold_out: tuple[str, ...] = ()) -> None:
        name = base.removeprefix("nano:")
        self._recipe = name if name in RECIPES else "ip2p"
        self._style = RECIPES[self._recipe].style
        self._version = world_version()
        words = [word for noun in hold_out for form in names(noun) for word in (form, plural(form))]
        weights = RECIPES[self._recipe].weights
        self._pairs: list[tuple[Pair, Any]] = []
        for index in range(count):
            rng = rng_for("train", index, f"affirmative/{self._recipe}")
            pair = sample_pair(rng, weights)
            while mentions(pair.instruction, words):
                pair = sample_pair(rng, weights)
            self._pairs.append((pair, rng.getstate()))
        self.groups = [count]

    def describe(self) -> dict[str, Any]:
        weights = RECIPES[self._recipe].weights
        return {"pairs": len(self), "kinds": dict(weights), "style": self._style, "recipe": self._recipe}

    def examples(self, first: int) -> list[Example]:
        """One example per pair; pairs are numbered from `first`."""
        return [
            Example(self.name(index), first + index, False, pair.instruction)
            for index, (pair, _) in enumerate(self._pairs)
        ]

    def __len__(self) -> int:
        return len(self._pairs)

    def name(self, index: int) -> str:
        return f"affirmative_{index + 1:06d}"

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        pair, state = self._pairs[index]
        rng = rng_for("train", index, "pictures")
        rng.setstate(state)
        return _pair_images(pair, rng, self._style)

    def signature(self, index: int) -> str:
        return f"{self._version}/{self._recipe}/{self._style}/{hash_of(self._pairs[index][0])}"

    def content(self, index: int) -> str:
        return hashlib.sha256(self.signature(index).encode()).hexdigest()


def hash_of(pair: Pair) -> str:
    """16 hex digits over the scenes and the effect of a pair."""
    return hashlib.sha256(repr((pair.source, pair.target, pair.effect)).encode()).hexdigest()[:16]
