"""The scripts of `benchmarks/` run, at the smallest sizes their options allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from nein.benchmarks.nein.config import ReportConfig
from nein.benchmarks.nein.reporting import command
from nein.reporting import figures as frames
from tests.helpers import commands


def test_the_runs_that_the_benchmark_of_the_report_makes_up_are_runs(tmp_path: Path) -> None:
    runs = report.make(tmp_path, 12, editors=2, side=8)
    page = tmp_path / "report.html"
    command.report(ReportConfig.parse([str(runs), "-o", str(page), "--formats", "html,csv"]))
    text = page.read_text(encoding="utf-8")
    assert "editor-0" in text
    assert "editor-1" in text
    assert "thing 11" in text
    figures = frames.read(page.with_suffix(".csv"))
    compared = frames.pick(figures, task="comparisons", metric="fid", statistic="difference")
    assert compared is not None
    assert compared["low"] < compared["high"]
    files = sorted(path.name for path in report.as_before(runs, tmp_path / "old").glob("editor-0/negative/*"))
    assert files == ["corpus.json", "edits.jsonl", "features", "images", "manifest.json", "scores.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("editing --images 2 --batch-size 2 --steps 2", "largest difference               0 of 255"),
        ("executors --blocks 8 --limit 4 --sizes 50", "files equal byte by byte: yes"),
        ("finetune --steps 4 --batch-size 2", "making the features once"),
        ("image_metrics --limit 2 --tiny", "values equal to 1e-4: yes"),
        ("judges --limit 2 --tiny", "every decision equal: yes"),
        ("negbench --scenes 8 --width 64 --layers 1", "6 figures equal"),
        ("retrieval --width 64 --sizes 300x40 --memory 400", "every value equal"),
    ],
)
def test_a_benchmark_runs_and_both_sides_agree(line: str, printed: str) -> None:
    name, *options = line.split()
    done = commands.in_a_process(*options, script=(f"benchmarks/{name}.py",))
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
