"""Options of commands that are of all benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nein.config.groups import Page, Runs
from nein.config.options import Names, Options, option


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
    format: Literal["md", "csv", "tex"] = option("md", "how to print it", "Output")
