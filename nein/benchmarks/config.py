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

    out: Path = option(Path("leaderboard"), "folder of index.html and figures.csv", "Output")


@dataclass(kw_only=True)
class ReportConfig(Runs, Page):
    """Which runs, and where their report goes."""


@dataclass(kw_only=True)
class Comparing(Options):
    """Which runs are compared, and for what p is corrected."""

    family: Literal["metric", "all"] = option(
        "metric", "correct p within one metric, or over the whole table", "Tests"
    )
    baseline: str | None = option(None, "compare every run with this one: EDITOR or EDITOR/TRACK", "Tests")


@dataclass(kw_only=True)
class CompareConfig(Runs, Comparing):
    """What is compared."""

    metrics: Names = option([], "only these metrics", "Main")
    format: Literal["text", "md", "csv", "tex"] = option(
        "text", "text: one screen; md, csv, tex: every row", "Output"
    )


@dataclass(kw_only=True)
class ExportConfig(Runs):
    """What is written, and where to."""

    out: Path = option(Path("export"), "folder to write", "Output")
