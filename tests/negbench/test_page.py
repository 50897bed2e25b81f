"""The cards of a NegBench page: picture, captions, truth, and what every model chose, in the order it saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from nein.benchmarks.negbench.report import Questions
from nein.datasets.negbench import loading
from nein.datasets.negbench.loading import DataSet


@pytest.fixture
def data() -> DataSet:
    [made] = loading.load("nano", scenes=8)
    return made


@dataclass
class Run:
    """A model that takes the last caption shown of every question; `changes` of the first row."""

    data: DataSet
    changes: dict[str, Any] = field(default_factory=dict)
    folder: ClassVar[Any] = SimpleNamespace(path=Path("run"))

    @property
    def tasks(self) -> list[Any]:
        return [task for task in self.data.tasks if task.name.endswith("/mcq")]

    def rows(self, task: Any) -> list[dict[str, Any]]:
        rows = []
        for question in task.questions:
            shown = [3, 1, 0, 2]
            shares = [float(k == shown[-1]) for k in range(4)]
            credit = shares[question.correct]
            rows.append({"id": question.id, "shown": shown, "shares": shares, "credit": credit, "reason": ""})
        rows[0] |= self.changes
        return rows


def test_a_card_says_what_was_offered_chosen_and_right(data: DataSet) -> None:
    tied = {"shares": [0.5, 0.5, 0, 0], "credit": 0.5, "scores": [1.25, 1.25, 0.0, -1.0]}
    mute = {"shares": None, "credit": None, "reason": "no letter", "answer": "Hm."}
    runs: Any = {"sure": [Run(data)], "tied": [Run(data, tied)], "mute": [Run(data, mute)]}
    shown = Questions.of(runs)
    asked = list(shown.asked.values())
    described = shown.described()
    assert described.ids[0] == f"nano/mcq.templated/{asked[0].question.id}"
    options = [option.text for option in asked[0].question.options]
    right = asked[0].question.correct
    assert described.titles[0] == options[right]
    assert {entry for of in described.facets["Chosen"][:1] for entry in of} >= {"none"}
    assert [values[0][0] for values in described.values] == [float(right == 2), 0.5, None]
    detail = next(shown.details())
    assert detail.lines[right] == f"{options[right]} (right)"
    assert isinstance(detail.pictures[0][1], str)
    sure, both, none = detail.said
    assert sure.cells[0].text == options[2]
    assert sure.cells[0].mark == ("right" if right == 2 else "wrong")
    assert [row[0] for row in sure.rows] == [
        f"{a}: {options[k]}" for a, k in zip("ABCD", (3, 1, 0, 2), strict=True)
    ]
    assert both.cells[0].mark == "none"
    assert both.rows[2][2:] == ("50 %", "1.250")
    assert (none.cells[0].aside, none.line) == ("no letter", "Hm.")


def test_of_many_questions_some_are_drawn_and_what_a_model_was_not_asked_is_empty(data: DataSet) -> None:
    other = Run(data)
    other.rows = lambda task: []
    shown = Questions.of({"a": [Run(data)], "b": [other]}, limit=3)
    assert len(shown.asked) == 3
    assert all(shown.described().values[1][0][k] is None for k in range(3))
