"""What a model gets right by the text alone (a grey picture), and by the picture alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nein.engine.blocks import Blocks
from nein.reporting.plots import Mark

BASELINES = TEXT_ONLY, PICTURE_ONLY = "text only", "picture only"
#: The score less that of "text only", on the same questions, paired.
GAIN = "gain over text"
SIDE, LEVEL = 224, 128
#: What `marks` are, in the caption of a plot.
MARKED = "white marks: the same without the picture (diamond) and without the text (circle)"


def marks(column: str, **where: Any) -> tuple[Mark, ...]:
    """The baselines (figures `where`) on bars of accuracy; column: whose entry says which bar of a place."""
    return tuple(
        Mark({"metric": name, **where}, column, name, marker)
        for name, marker in zip(BASELINES, "Do", strict=True)
    )


def grey() -> np.ndarray:
    """A picture that says nothing: (H, W, 3) uint8."""
    return np.full((SIDE, SIDE, 3), LEVEL, np.uint8)


def spread(blocks: Blocks, most: int) -> Blocks:
    """As many of the blocks, evenly spread, as hold `most` records."""
    numbers, count = blocks.numbers, -(-most // blocks.size)
    if len(numbers) <= count:
        return blocks
    taken = {numbers[k * len(numbers) // count] for k in range(count)}
    return replace(blocks, wanted=[index for index in blocks.wanted if index // blocks.size in taken])
