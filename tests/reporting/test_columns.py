"""Rows of scores as columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from nein.reporting.columns import Collected, of_rows

ROWS: list[dict[str, Any]] = [
    {"id": "b", "kind": "x", "value": 1.0},
    {"id": "a", "kind": None, "value": None},
    {"id": "b", "kind": "y", "value": 0.5},
    {"id": "c", "value": 0.0},
]


def test_rows_are_chosen_by_their_names_and_by_having_none() -> None:
    scores = of_rows(ROWS, ["id", "kind"])
    assert len(scores) == 4
    assert scores.where(id="b").value.tolist() == [1.0, 0.5]
    assert scores.where(id="b", kind="y").value.tolist() == [0.5]
    assert len(scores.where(kind=None)) == 2
    assert len(scores.where(kind="z")) == len(of_rows([], ["kind"]).where(kind="x")) == 0
    assert list(scores.of_each("kind")) == ["x", None, "y", None]
    assert scores.scored.distinct("id") == ["b", "c"]


def test_names_come_in_the_order_in_which_they_appear_among_the_rows_chosen() -> None:
    scores = of_rows(ROWS, ["id", "kind"])
    assert scores.distinct("id") == ["b", "a", "c"]
    assert scores.distinct("kind") == ["x", "y"]
    assert scores.of(np.array([False, True, True, False])).distinct("id") == ["a", "b"]
    assert scores.clusters("id") == [0, 1, 0, 2]


def test_values_are_found_by_name() -> None:
    values = of_rows(ROWS, ["id"]).where(id="c").values_by("id")
    np.testing.assert_array_equal(values, [np.nan, np.nan, 0.0])


def test_rows_pass_by_unchanged() -> None:
    made = Collected(["id"])
    assert list(made.passing(ROWS)) == ROWS
    assert list(made.passing(ROWS[:1])) == ROWS[:1]
    assert made.scores().clusters("id") == [0, 1, 0, 2, 0]
