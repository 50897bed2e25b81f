"""The best of several edits, chosen by a judge: several times the work."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from nein import editors
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.loading.digests import json_digest
from nein.metrics.base import Score
from nein.metrics.rewards import RewardJudge, rank
from nein.models import rewards

#: `best-of:N:JUDGE` is the arm.
PREFIX = "best-of:"
MOST = 64


def parse(arm: str) -> tuple[int, str]:
    """(candidates, judge) of "best-of:4:removal". Raises UserError for another form."""
    count, _, judge = arm.removeprefix(PREFIX).partition(":")
    if not (count.isascii() and count.isdigit() and 2 <= int(count) <= MOST) or not judge:
        raise UserError(
            f"'{arm}' is no arm; expected {PREFIX}N:JUDGE, N from 2 to {MOST} and JUDGE one of "
            f"{', '.join(rewards.FORMS)}."
        )
    return int(count), judge


def check(arm: str) -> None:
    """Raises UserError or MetricError for one that cannot be; loads nothing."""
    rewards.check(parse(arm)[1])


def asks_the_run(arm: str) -> bool:
    """Whether the judge that chooses is the run's own judge of Removal."""
    return arm.startswith(PREFIX) and parse(arm)[1] == rewards.REMOVAL


class Best:
    """An `editors.Editor`: another one that edits every request `count` times, of which a judge chooses one.

    Candidate 1 is the edit of the editor as it is. The candidates of a sample are judged together and apart
    from all other samples: no batch and no order changes a choice. Of equals the first is taken. A candidate
    that cannot be judged is counted; where none can be, the sample has no edit. The note has all scores.
    """

    def __init__(self, editor: editors.Editor, judge: RewardJudge, count: int, arm: str) -> None:
        self.name = f"{editor.name}+{arm}"
        self._editor, self._judge, self._count, self._arm = editor, judge, count, arm
        self.paid, self.seeded = getattr(editor, "paid", False), getattr(editor, "seeded", True)
        self._facts = {"arm": "best-of", "candidates": count, "judge": judge.fingerprint}
        self._took = {"edits": 0, "judged": 0, "unscored": 0}
        self._seconds = 0.0

    def describe(self) -> dict[str, Any]:
        return {**self._editor.describe(), "mended": {**self._judge.describe(), **self._facts}}

    @property
    def fingerprint(self) -> str:
        return json_digest({"editor": self._editor.fingerprint, "mended": self._facts})

    def usage(self) -> dict[str, Any]:
        """How many edits were made, how many of them were judged or could not be, and the judge's time."""
        return {**self._took, "judge_seconds": round(self._seconds, 1), **self._judge.usage()}

    def stop(self) -> None:
        """Of a judge behind an endpoint: ends all waiting."""
        self._judge.stop()

    def edit(self, requests: Sequence[editors.EditRequest]) -> list[editors.EditResult]:
        made = [
            self._editor.edit([dataclasses.replace(one, seed=seed_of(one, k)) for one in requests])
            for k in range(self._count)
        ]
        self._took["edits"] += self._count * len(requests)
        return [self._chosen(one, [row[i] for row in made]) for i, one in enumerate(requests)]

    def _chosen(
        self, request: editors.EditRequest, results: Sequence[editors.EditResult]
    ) -> editors.EditResult:
        pictures = {k: one.image for k, one in enumerate(results) if one.image is not None}
        if not pictures:
            return results[0]
        start = time.perf_counter()
        said = rank(self._judge, request.image, list(pictures.values()), request.instruction)
        self._seconds += time.perf_counter() - start
        scores: dict[int, Score] = dict(zip(pictures, said, strict=True))
        values = {k: one.value for k, one in scores.items() if one.value is not None}
        self._took["judged"] += len(values)
        self._took["unscored"] += len(scores) - len(values)
        if not values:
            why = next(iter(scores.values())).reason
            return editors.EditResult(request.id, None, f"none of {len(scores)} edits could be judged: {why}")
        best = max(values, key=lambda k: values[k])  # the first of equals
        shown = ", ".join(f"{values[k]:.4g}" if k in values else "unscored" for k in range(len(results)))
        note = f"{self._arm}: candidate {best + 1} of {len(results)} ({shown})"
        return dataclasses.replace(results[best], note="; ".join(filter(None, (note, results[best].note))))


def seed_of(request: editors.EditRequest, candidate: int) -> int:
    """Of candidate 0 the sample's own seed, of others one that follows from it and the sample's id."""
    return request.seed if candidate == 0 else sample_seed(int(request.seed), request.id, candidate)
