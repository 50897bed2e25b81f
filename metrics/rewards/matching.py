"""A BLIP whose text encoder reads two pictures: how well the one before and the edit fit what was told.

The text encoder is shown the vision tower's states of the edit, one per patch, and their differences from
those before. The reward is the difference of the matching head's logits. A checkpoint says `pictures: 2` in
its configuration, and was trained so, as `nano:reward` was (research/nano/reward.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nein.metrics.base import Score
from nein.metrics.judges import blip
from nein.metrics.judges.base import check_finite
from nein.metrics.loading import check_folder, exact, fingerprint, split_reference
from nein.metrics.rewards.base import SingleJudge


class Matching(SingleJudge):
    """Rewards without a bound, higher is better."""

    def __init__(self, model: blip.BlipMatcher) -> None:
        super().__init__(model)
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {**self.model.describe(), "kind": "matching"}

    def one(self, source: np.ndarray, edit: np.ndarray, instruction: str) -> Score:
        with exact():
            before, after = self.model.look([source, edit])
            no, yes = self.model.decide(joined(before, after)[None], [instruction])[0].tolist()
        check_finite(no, yes)
        return Score(yes - no, f"{yes:.3f} that it fits, {no:.3f} that it does not")


def joined(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """(..., 1 + patches, D) twice -> (..., 2 + 2 * patches, D): the edit, then what changed."""
    return torch.cat([after, after - before], -2)


def check(reference: str) -> None:
    """Checks a reference, loads nothing. Raises MetricError."""
    check_folder(split_reference(reference, None)[0])


def load(path_or_id: str, *, revision: str | None, device: str, dtype: str) -> Matching:
    """From a folder or the hub. Raises MetricError."""
    return Matching(blip.load(path_or_id, revision=revision, device=device, dtype=dtype, pictures=2))
