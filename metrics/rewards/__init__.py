"""Judges of edits as wholes: (source, edit, instruction) in, a reward out; which of two edits is better; a
rank of several. `metrics.load_reward` loads one.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nein.loading.errors import isolated, reason
from nein.metrics.base import Described, Images, MetricError, Score, check_images


class RewardJudge(Described, ABC):
    """Says how good edits are, each (H, W, 3) uint8, given the picture before and the instruction.

    compares  It is asked about two edits at a time: `score` compares with the picture as it was, and several
              edits are ranked by comparisons with each other.
    """

    compares = False

    def __init__(self, model: Any) -> None:
        self.model = model

    @abstractmethod
    def score(self, sources: Images, edits: Images, instructions: Sequence[str]) -> list[Score]:
        """One per edit, higher is better; the scale is the judge's own. None with a reason: unscored."""

    def prefer(
        self, sources: Images, first: Images, second: Images, instructions: Sequence[str]
    ) -> list[Score]:
        """One per pair: 1 where the first has the higher score, 0 the second, 0.5 neither; None: unscored."""
        n, scores = len(sources), []
        both = self.score([*sources, *sources], [*first, *second], [*instructions, *instructions])
        for one, other in zip(both[:n], both[n:], strict=True):
            detail = {"scores": [one.value, other.value]}
            if one.value is None or other.value is None:
                which, lacking = ("first", one) if one.value is None else ("second", other)
                scores.append(Score(None, f"the {which} edit: {lacking.reason}", detail))
            else:
                value = 0.5 if one.value == other.value else float(one.value > other.value)
                scores.append(Score(value, f"{one.value:.4g} and {other.value:.4g}", detail))
        return scores

    def usage(self) -> dict[str, Any]:
        return getattr(self.model, "usage", dict)()

    def stop(self) -> None:
        """Ends all waiting of a model behind an endpoint."""
        getattr(self.model, "stop", lambda: None)()


def rank(judge: RewardJudge, source: np.ndarray, edits: Images, instruction: str) -> list[Score]:
    """A value per edit of one picture; of a judge that compares, its mean preference over all others."""
    if not judge.compares:
        return each(lambda rows: judge.score([source] * len(rows), rows, [instruction] * len(rows)), edits)
    pairs = list(itertools.combinations(range(len(edits)), 2))

    def compare(rows: Sequence[tuple[int, int]]) -> list[Score]:
        first, second = ([edits[index] for index in column] for column in zip(*rows, strict=True))
        return judge.prefer([source] * len(rows), first, second, [instruction] * len(rows))

    votes = each(compare, pairs)
    wins: list[list[float]] = [[] for _ in edits]
    for (i, k), vote in zip(pairs, votes, strict=True):
        if vote.value is not None:
            wins[i].append(vote.value)
            wins[k].append(1 - vote.value)
    why = next((vote.reason for vote in votes if vote.value is None), "there is nothing to compare it with")
    return [
        Score(sum(row) / len(row), f"of {len(row)} comparisons") if row else Score(None, why) for row in wins
    ]


def each(work: Callable[[Sequence[Any]], Iterable[Score]], items: Sequence[Any]) -> list[Score]:
    """A score per item; where `work` raises, only the culprit is unscored, with the reason."""
    return isolated(work, items, lambda error: Score(None, reason(error)))


def check_edits(pictures: Sequence[Images], instructions: Sequence[str]) -> None:
    """Raises MetricError unless there are as many pictures of every kind as instructions, all in order."""
    for row in pictures:
        if len(row) != len(instructions):
            raise MetricError(f"{len(row)} pictures but {len(instructions)} instructions were given.")
        check_images(row, row, "pictures")
    for sentence in instructions:
        if not isinstance(sentence, str) or not sentence.strip():
            raise MetricError(f"The instruction is {sentence!r}; expected a sentence.")
