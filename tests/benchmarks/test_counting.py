"""A benchmark of one module, one YAML file and one line in the table of commands gets everything else."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nein import cli
from nein.engine.executors.threads import Threads
from tests.benchmarks import counting
from tests.helpers import commands, killing


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("counting") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cli.COMMANDS, "counting", counting.COMMAND)
        with pytest.raises(SystemExit, match="0"):
            cli.main(["counting", "--out", str(out)])
    return out


def results(out: Path) -> dict[str, bytes]:
    """Every file whose bytes must not depend on when and how often the command was given."""
    files = [*out.glob("*.*"), *out.glob("*/answers/*/*.jsonl"), *out.glob("*/figures.csv")]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def test_the_module_is_small() -> None:
    text = Path(counting.__file__).read_text()
    assert len(text.splitlines()) <= 80


def test_table_csv_page_and_resumable_folder_come_by_themselves(whole: Path) -> None:
    assert "| nano:negvqa" in (whole / "table.md").read_text()
    with (whole / "figures.csv").open(newline="") as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"affirmed", "denied"}
    assert all(int(row["n"]) + int(row["unscored"]) == 48 for row in rows.values())
    page = (whole / "report.html").read_text()
    assert "Accuracy" in page
    assert not re.search(r"(?:src|href)=\"https?:", page)
    assert len(list(whole.glob("*/answers/*/*.jsonl"))) == 6


def test_the_figures_are_those_of_the_rows(whole: Path) -> None:
    values = [
        row["value"]
        for path in sorted(whole.glob("*/answers/*/*.jsonl"))
        for row in map(json.loads, path.read_text().splitlines())
        if row["variant"] == "affirmed" and row["value"] is not None
    ]
    with (whole / "figures.csv").open(newline="") as file:
        [shown] = [row for row in csv.DictReader(file) if row["variant"] == "affirmed"]
    assert float(shown["value"]) == pytest.approx(sum(values) / len(values))


def test_a_killed_command_goes_on_to_the_same_bytes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "counting", counting.COMMAND)
    line = ["counting", "--out", str(tmp_path / "killed")]
    assert killing.run(cli.main, line, killing.File("*/answers/*", 2, "torn")) == killing.KILLED
    # The other thread may be at the first block still.
    assert len(list(tmp_path.glob("killed/*/answers/*/*.jsonl"))) <= 1
    assert commands.exit_code(*line) == 0
    assert results(tmp_path / "killed") == results(whole)


def test_a_limit_counts_the_first_and_may_grow(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "counting", counting.COMMAND)
    out = str(tmp_path / "out")
    for limit, n in ((["--limit", "11"], 11), ([], 48)):
        with pytest.raises(SystemExit, match="0"):
            cli.main(["counting", "--out", out, *limit])
        with (tmp_path / "out" / "figures.csv").open(newline="") as file:
            assert {int(row["n"]) + int(row["unscored"]) for row in csv.DictReader(file)} == {n}
    assert results(tmp_path / "out") == results(whole)


def test_what_is_complete_stays_so_while_a_second_command_finds_nothing_to_do(whole: Path) -> None:
    """The first command may be writing its report of finished runs just then."""
    seen = []

    class Watching(Threads):
        def compute(self, plan: Any) -> list[int]:
            seen.extend(json.loads(path.read_text())["status"] for path in whole.glob("*/manifest.json"))
            return super().compute(plan)

    config = counting.CountingConfig.of(out=whole, device="cpu")
    counting.COUNTING(config, Watching("cpu"))
    assert seen == ["complete"]
