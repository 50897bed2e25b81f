"""Options of commands that are of all benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nein.config.groups import Page, Runs
from nein.config.options import Names, Options, option
from nein.engine.errors import UserError


@dataclass(kw_only=True)
class LeaderboardConfig(Runs):
    """What is shown, and where it is written."""

    out: Path = option(Path("leaderboard"), "folder of index.html and of pages of the runs", "Output")


@dataclass(kw_only=True)
class ReportConfig(Runs, Page):
    """Which runs, and where their report goes."""


@dataclass(kw_only=True)
class Comparing(Options):
    """Which runs are compared, and for what p is corrected."""

    family: Literal["metric", "all"] = option(
        "metric", "p is corrected for the comparisons of one metric, or for all of the table", "Tests"
    )
    baseline: str | None = option(
        None, "compare every run with this one only: its editor, or EDITOR/TRACK", "Tests"
    )


@dataclass(kw_only=True)
class CompareConfig(Runs, Comparing):
    """What is compared."""

    metrics: Names = option([], "only these metrics", "What")
    format: Literal["text", "md", "csv", "tex"] = option(
        "text", "text: the first rows, on one screen; md, csv, tex: everything", "Output"
    )


@dataclass(kw_only=True)
class ExportConfig(Runs):
    """What is written, and where to."""

    format: Literal["every-eval-ever", "hf", "csv", "parquet", "bundle"] = option(
        "every-eval-ever", "one of every-eval-ever, hf, csv, parquet, bundle", "What"
    )
    out: Path = option(Path("export"), "folder to write", "Output")
    dataset: str | None = option(
        None, "hf: the benchmark's data set on the hub, OWNER/NAME, if not the run's own", "Hub"
    )

    def check(self) -> None:
        if self.format != "hf" and self.dataset:
            raise UserError("--dataset is for --format hf.")
