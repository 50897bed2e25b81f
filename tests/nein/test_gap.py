from __future__ import annotations

from typing import Any

import pytest

from nein import statistics
from nein.benchmarks.nein import figures
from nein.benchmarks.nein.records import TEMPLATES
from nein.reporting.scores import ScoreTable
from tests.helpers import runs

METRIC = "removal_vqa"


def run(values: list[float | None], templates: list[int | None]) -> ScoreTable:
    edits = [
        {"id": f"s{i}", "source_id": f"c{i // 2}", "template": template}
        for i, template in enumerate(templates)
    ]
    rows = [
        {"id": edit["id"], "metric": METRIC, "value": value, "reason": ""}
        for edit, value in zip(edits, values, strict=True)
    ]
    return runs.table(edits, rows)


def gaps(told: ScoreTable, denied: ScoreTable) -> list[dict[str, Any]]:
    return [row for row in figures.gap(told, denied, METRIC) if row["task"] == "gap_by_template"]


def test_pairs_are_grouped_by_the_negative_template_with_clustered_intervals():
    denied = run([0.0, 0.0, 1.0, 0.0, None, 0.0], [4, 4, 1, 1, 1, 1])
    one, four = gaps(run([1.0, 0.0, 1.0, 1.0, 1.0, 1.0], [None] * 6), denied)
    names = [TEMPLATES[number] for number in (1, 4)]
    assert [(row["group"], row["n"]) for row in (one, four)] == [(names[0], 3), (names[1], 2)]
    assert one["value"] == pytest.approx(2 / 3)
    expected = statistics.bounded_mean([0.0, 1.0, 1.0], ["c1", "c1", "c2"], -1.0, 1.0)
    assert (one["low"], one["high"]) == pytest.approx((expected.low, expected.high))
    assert four["value"] == 0.5
    assert four["low"] < -0.5  # one source image says next to nothing
    assert four["high"] == 1.0


def test_the_sign_is_affirmative_minus_negative():
    [found] = gaps(run([0.0] * 6, [None] * 6), run([1.0] * 6, [4] * 6))
    assert found["value"] == found["low"] == -1.0
    assert found["high"] > -1.0


def test_sentences_of_another_form_come_last_and_unpaired_ones_not_at_all():
    denied = run([0.0, 1.0, 1.0, 1.0], [None, None, 3, 5])
    found = gaps(run([1.0, 1.0, 1.0], [None] * 3), denied)
    assert [row["group"] for row in found] == [TEMPLATES[3], "another sentence"]
