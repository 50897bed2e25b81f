from __future__ import annotations

from typing import Any

import pytest

from nein import statistics
from nein.benchmarks.nein import negation_gap


def rows(values: list[float | None], template: int | None = 4) -> list[dict[str, Any]]:
    return [
        {"id": f"s{i}", "value": v, "template": template, "source_id": f"c{i // 2}"}
        for i, v in enumerate(values)
    ]


def test_pairs_are_grouped_by_the_negative_template_with_clustered_intervals() -> None:
    negative = rows([0.0, 0.0, 1.0, 0.0, None, 0.0], 4)
    for row in negative[2:]:
        row["template"] = 1
    affirmative = rows([1.0, 0.0, 1.0, 1.0, 1.0, 1.0], None)
    found = negation_gap.gap_by_template(negative, affirmative)
    assert [(g.template, g.n) for g in found] == [(1, 3), (4, 2)]
    assert found[0].estimate == pytest.approx(2 / 3)
    expected = statistics.bounded_mean([0.0, 1.0, 1.0], ["c1", "c1", "c2"], -1.0, 1.0)
    assert expected is not None
    assert (found[0].low, found[0].high) == (expected.low, expected.high)
    assert found[1].estimate == 0.5
    # One source image: Markov's inequality, 0.975 of the way from the value to either end of [-1, 1].
    assert (found[1].low, found[1].high) == pytest.approx((-1 + 1.5 * 0.025, 1 - 0.5 * 0.025))


def test_the_sign_is_affirmative_minus_negative() -> None:
    [found] = negation_gap.gap_by_template(rows([1.0] * 6), rows([0.0] * 6))
    assert found.estimate == -1.0
    assert found.low == -1.0
    assert found.high is not None
    assert found.high > -1.0


def test_sentences_of_another_form_come_last_and_unpaired_ones_not_at_all() -> None:
    negative = [*rows([0.0, 1.0], None), {"id": "x", "value": 1.0, "template": 3, "source_id": "c9"}]
    assert [g.template for g in negation_gap.gap_by_template(negative, rows([1.0, 1.0]))] == [None]


def test_a_template_is_named_by_its_sentence() -> None:
    assert negation_gap.template_name(4) == "No X in the image."
    assert negation_gap.template_name(None) == "another sentence"
