"""Choices: order by the question's seed, ties shared, and the released convention by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nein.benchmarks.negbench import asking
from nein.datasets.negbench.records import Question
from tests.negbench.conftest import questions


def accuracy(scorer: str, protocol: str, asked: tuple[Question, ...]) -> float:
    rng = np.random.default_rng(0)
    credit = []
    for question in asked:
        scores = np.zeros(4) if scorer == "constant" else rng.standard_normal(4)
        shown = asking.order(question, 0, protocol)
        credit.append(asking.shares(scores, shown, protocol)[question.correct])
    return float(np.mean(credit))


def test_a_constant_scorer_is_at_chance_and_always_right_by_the_released_convention() -> None:
    asked = questions(40)
    assert accuracy("constant", "fixed", asked) == pytest.approx(0.25)
    assert accuracy("constant", "paper", asked) == 1.0


def test_a_random_scorer_is_near_chance_either_way() -> None:
    asked = questions(600)
    assert accuracy("random", "fixed", asked) == pytest.approx(0.25, abs=0.06)
    assert accuracy("random", "paper", asked) == pytest.approx(0.25, abs=0.06)


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
