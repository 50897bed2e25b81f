"""What a command will take is worked out from a few blocks, and compared with what it took."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from nein.engine.blocks import Blocks
from nein.engine.executors import cost_estimate
from nein.engine.folder import Folder
from nein.engine.stages import Model, Stage, Step
from tests.helpers import commands


def slow_steps(path: Path, blocks: int, pause: float) -> list[Step]:
    """Two stages; the second reads the blocks of the first and multiplies matrices."""
    import torch

    folder = Folder(path)
    matrix = torch.ones(8, 16)

    def pausing(model: Any, number: int, missing: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
        time.sleep(pause)
        return {"first": [{"id": number}]}

    def multiplying(model: Any, rows: Any, missing: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
        model @ model.T
        return {"second": rows}

    def lost(number: int, reason: str, missing: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
        return {output: [] for output in missing}

    model = Model("matrix", lambda: matrix, lambda loaded: {})
    whole = Blocks.first(blocks, 1)
    first = Stage("first", ("first",), whole, lambda number: number, pausing, lost)
    read = lambda number: folder.read("first", number)  # noqa: E731
    second = Stage("second", ("second",), whole, read, multiplying, lost, model, depends_on="first")
    return [Step(folder, first, "slow"), Step(folder, second, "slow")]


def test_a_few_blocks_tell_what_those_that_are_lacking_will_take(tmp_path: Path) -> None:
    aside, steps = slow_steps(tmp_path / "aside", 1000, 0.02), slow_steps(tmp_path / "run", 50, 0.02)
    for one in (aside, steps):
        one[0].folder.open({}, {}, overwrite=False)
    steps[0].folder.write("first", 1, [{"id": 1}])
    for number in range(50):
        steps[0].folder.write("second", number, [])
    first, second = cost_estimate.forecasts(steps, aside, "cpu", 2, seconds=0.2)
    assert 0.01 <= first.block  # two sleep side by side; writing a block takes its time
    assert (first.operations, second.operations) == (0, 2 * 8 * 16 * 8)
    assert len(aside[0].folder.done("first")) < 1000
    assert (first.blocks, second.blocks, second.seconds) == (49, 0, 0)  # what is done is not planned
    assert first.seconds == first.loading + 49 * first.block
    text = cost_estimate.table(cost_estimate.record([first, second], "cuda", 2))
    assert "slow: first" in text
    assert "GPU hours of cuda" in text


def test_an_evaluation_is_planned_before_and_compared_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["eval", "--editor", "identity", "--metrics", "l1", "--control", "none", "--limit", "8",
            "--batch-size", "4", "--device", "cpu", "--out", str(tmp_path / "out")]  # fmt: skip
    planned_run = commands.outcome(capsys, *line, "--plan")
    assert planned_run.code == 0
    assert "identity/negative: edit" in planned_run.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["plan.json"]
    planned = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert planned["blocks"] == 4

    done = commands.outcome(capsys, *line)
    assert done.code == 0
    assert "Planned" in done.stderr
    compared = Folder(tmp_path / "out" / "identity" / "negative").manifest()["plan"]
    assert compared["planned_seconds"] == planned["seconds"]
    assert compared["seconds"] > 0


def test_attention_is_counted_on_a_cpu_too() -> None:
    import torch

    query = torch.zeros(2, 4, 30, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert cost_estimate.count_operations(lambda: attend(query, query, query)) == 4 * 2 * 4 * 30 * 30 * 8
