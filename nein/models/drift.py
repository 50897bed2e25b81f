"""Does a judge behind an address answer at the end of a run as at its start? A few known questions tell."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from nein.loading import batches
from nein.loading.errors import UnavailableError
from nein.loading.service import NoAnswer
from nein.metrics.base import parse_yes_no
from nein.metrics.judges.base import Answer, template
from nein.nano.data import source_scene
from nein.nano.scenes import CATEGORIES, render

#: Drawn pictures, each with a question about something that is there and one about something that is not.
PICTURES = 4

Verdicts = list[tuple[bool | None, bool]]


class Watched:
    """A judge that is asked the known questions before its first question, and again where `usage` is taken:
    then it has `known`: how many were asked, how many verdicts flipped, and how many were right each time.
    Not in batches, whose answers all come at the end."""

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self._first = threading.Lock()
        self._before: Verdicts | None = None
        self._known: dict[str, int] = {}
        self._over = batches.current() is not None or not PICTURES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        with self._first:
            if self._before is None:
                self._before = self._verdicts()
            self._known = {}
        return self._judge.ask(images, questions)

    def usage(self) -> dict[str, Any]:
        if self._before and not self._known and (after := self._verdicts()):
            pairs = list(zip(self._before, after, strict=True))
            self._known = {
                "asked": len(pairs),
                "flipped": sum(one[0] != other[0] for one, other in pairs),
                "right_before": sum(verdict == truth for verdict, truth in self._before),
                "right_after": sum(verdict == truth for verdict, truth in after),
            }
        return {**self._judge.usage(), **({"known": self._known} if self._known else {})}

    def stop(self) -> None:
        self._over = True
        self._judge.stop()

    def _verdicts(self) -> Verdicts:
        """(verdict, truth) of every known question; none where they are not asked or not all answered."""
        if self._over:
            return []
        scenes = [source_scene("dev", index) for index in range(PICTURES)]
        others = ([word for word in CATEGORIES if word not in scene.categories] for scene in scenes)
        absent = [words[5 * index] for index, words in enumerate(others)]
        words = [(scene.categories[0], word) for scene, word in zip(scenes, absent, strict=True)]
        ask = template(self._judge.template).ask_presence
        try:
            rows = self._judge.ask([render(scene) for scene in scenes], [[*map(ask, two)] for two in words])
        except (NoAnswer, UnavailableError):
            return []
        return [
            (parse_yes_no(answer.text), truth)
            for row in rows
            for answer, truth in zip(row, (True, False), strict=True)
        ]
