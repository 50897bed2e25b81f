"""Judges of edits as wholes: (source, edit, instruction) in, a reward out; and which of two edits is better.

load_reward("editscore:owner/name")      EditScore's questions to an image-text model (arXiv:2509.23909)
load_reward("editreward:FOLDER")         EditReward's heads on Qwen2.5-VL (arXiv:2509.26346)
load_reward("pairwise:owner/name")       any model of multiple choice, asked which of two edits obeys
load_reward("matching:FOLDER")           a BLIP that reads the picture before and the edit side by side
rank(judge, source, edits, instruction)  a value for each of several edits of one picture
"""

from __future__ import annotations

import pkgutil
from typing import Any

from nein.loading.errors import choose
from nein.loading.references import located
from nein.metrics.base import MetricError
from nein.metrics.rewards.base import RewardJudge, rank

#: How a reference begins -> what loads, and what checks, the rest of it.
REWARDS: dict[str, tuple[str, str]] = {
    "editscore": ("nein.metrics.rewards.editscore:load", "nein.metrics.rewards.editscore:check"),
    "editreward": ("nein.metrics.rewards.editreward:load", "nein.metrics.rewards.editreward:check"),
    "pairwise": ("nein.metrics.rewards.pairwise:load", "nein.metrics.rewards.base:check_chat"),
    "matching": ("nein.metrics.judges.blip:load_matching", "nein.metrics.judges.blip:check_matching"),
}


def split(reference: str) -> tuple[str, str]:
    """(kind, model) of "editscore:owner/name". Raises MetricError for another kind, or none."""
    kind, _, model = reference.partition(":")
    if not model:
        raise MetricError(
            f"'{reference}' is no reward; expected {', '.join(f'{one}:MODEL' for one in REWARDS)}."
        )
    return choose("kind of reward", kind, REWARDS), model


def check_reward(reference: str) -> None:
    """Looks at a reference and loads nothing. Raises MetricError, one sentence."""
    kind, model = split(reference)
    pkgutil.resolve_name(REWARDS[kind][1])(located(model))


def load_reward(
    reference: str, *, revision: str | None = None, device: str = "cpu", dtype: str = "float32",
    **options: Any,
) -> RewardJudge:  # fmt: skip
    """A judge of edits by "KIND:MODEL". options: editscore: `protocol`, `passes`, `reduction`, `temperature`.

    Raises MetricError, one sentence, for what cannot be loaded.
    """
    kind, model = split(reference)
    load = pkgutil.resolve_name(REWARDS[kind][0])
    made: RewardJudge = load(located(model), revision=revision, device=device, dtype=dtype, **options)
    return made


__all__ = ["REWARDS", "RewardJudge", "check_reward", "load_reward", "rank", "split"]
