"""Choices: order by the question's seed, ties shared, and the released convention by name."""

from __future__ import annotations

from dataclasses import replace

from nein.benchmarks.negbench import asking
from tests.negbench.conftest import questions


def test_the_order_depends_on_seed_and_question_alone() -> None:
    asked = questions(30)
    orders = [asking.order(question, 0) for question in asked]
    assert orders == [asking.order(question, 0) for question in asked]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len({tuple(order) for order in orders}) > 8
    assert orders != [asking.order(question, 1) for question in asked]
    first = [order.index(0) for order in orders]
    assert set(first) == {0, 1, 2, 3}  # the right one stands anywhere


def test_the_released_order_is_the_files() -> None:
    (question,) = questions(1)
    assert asking.order(question, 0, "paper") == [0, 1, 2, 3]
    # The released code moves nothing: where a file has the right option elsewhere, ties do not help it.
    moved = replace(question, correct=2)
    assert asking.order(moved, 0, "paper") == [0, 1, 2, 3]
    assert asking.shares([1.0] * 4, asking.order(moved, 0, "paper"), "paper")[moved.correct] == 0.0


def test_ties_are_shared_or_go_to_the_first_shown() -> None:
    scores = [1.0, 3.0, 3.0, 0.0]
    assert asking.shares(scores, [0, 1, 2, 3]).tolist() == [0, 0.5, 0.5, 0]
    assert asking.shares(scores, [3, 2, 1, 0], "paper").tolist() == [0, 0, 1, 0]
    assert asking.shares([0, 5, 1, 2], [3, 2, 1, 0]).tolist() == [0, 1, 0, 0]
