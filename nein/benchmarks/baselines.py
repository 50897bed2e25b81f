"""What a model gets right by the text alone (a grey picture), and by the picture alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nein.engine.folder import Blocks

BASELINES = TEXT_ONLY, PICTURE_ONLY = "text only", "picture only"
#: The score less that of "text only", on the same questions, paired.
GAIN = "gain over text"
SIDE, LEVEL = 224, 128
#: Of the baselines on bars of accuracy, and what a caption says of them.
MARKS = {TEXT_ONLY: "D", PICTURE_ONLY: "o"}
MARKED = "white marks: the same without the picture (diamond) and without the text (circle)"


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
