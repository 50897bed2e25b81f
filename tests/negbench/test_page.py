"""The cards of a NegBench page: picture, captions, truth, and what every model chose, in the order it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nein.benchmarks.negbench.folder import ResultsDir, samples
from nein.benchmarks.negbench.page import Questions, Results
from nein.datasets.negbench import loading
from nein.datasets.negbench.loading import DataSet
from nein.engine import atomic
from tests.negbench.conftest import evaluate


@pytest.fixture
def data() -> DataSet:
    [made] = loading.load("nano", scenes=8)
    return made


def results(root: Path, model: str, data: DataSet, **changes: Any) -> Results:
    """A model that takes the last caption shown of every question of mcq.templated; `changes` of the first
    row."""
    folder = ResultsDir(root / model / data.name, "results")
    atomic.write_json(
        folder.path / "manifest.json", {"identity": {}, "data": {"records_sha256": data.sha256}}
    )
    [task] = [task for task in data.tasks if task.name.endswith("/mcq") and task.variant == "templated"]
    rows = []
    for question in task.questions:  # type: ignore[union-attr]
        shown = [3, 1, 0, 2]
        shares = [float(k == shown[-1]) for k in range(4)]
        credit = shares[question.correct]
        rows.append({"id": question.id, "shown": shown, "shares": shares, "credit": credit, "reason": ""})
    rows[0] |= changes
    atomic.write_lines(samples(folder, "mcq.templated"), rows)
    return Results(folder, model, ["mcq.templated"])


def test_a_card_says_what_was_offered_chosen_and_right(tmp_path: Path, data: DataSet) -> None:
    tied = {"shares": [0.5, 0.5, 0, 0], "credit": 0.5, "scores": [1.25, 1.25, 0.0, -1.0]}
    mute = {"shares": None, "credit": None, "reason": "no letter", "answer": "Hm."}
    runs = [
        results(tmp_path, name, data, **row) for name, row in (("sure", {}), ("tied", tied), ("mute", mute))
    ]
    shown = Questions.of(runs, [data])
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
    assert sure is not None
    assert both is not None
    assert none is not None
    assert sure.cells[0].text == options[2]
    assert sure.cells[0].mark == ("right" if right == 2 else "wrong")
    assert [row[0] for row in sure.rows] == [
        f"{a}: {options[k]}" for a, k in zip("ABCD", (3, 1, 0, 2), strict=True)
    ]
    assert both.cells[0].mark == "none"
    assert both.rows[2][2:] == ("50 %", "1.250")
    assert (none.cells[0].aside, none.line) == ("no letter", "Hm.")


def test_questions_of_other_data_are_left_out_and_many_are_drawn(tmp_path: Path, data: DataSet) -> None:
    [other] = loading.load("nano", scenes=9)
    runs = [results(tmp_path, "a", data), results(tmp_path / "x", "b", other)]
    shown = Questions.of(runs, [data], limit=3)
    assert len(shown.asked) == 3
    assert all(shown.described().values[1][0][k] is None for k in range(3))


def test_the_plots_beside_a_page_are_pictures(tmp_path: Path) -> None:
    evaluate(tmp_path, "nano", None, "--model", "random", "--scenes", "8", page=True)
    for name in ("recall.png", "mcq.png", "choices.png"):
        with Image.open(tmp_path / "out" / name) as picture:
            colours = picture.convert("RGB").getcolors(2**24)
            assert min(picture.size) > 200
        assert len(colours) > 20
