"""Options of the commands that serve every benchmark: report, compare, export, leaderboard, data show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from nein.config.groups import Page, Runs
from nein.config.options import Names, Options, argument, option
from nein.loading.errors import UserError


@dataclass(kw_only=True)
class LeaderboardConfig(Runs):
    """The options of `nein leaderboard`."""

    out: Path = option(Path("leaderboard"), "folder of index.html and figures.csv", "Output")


@dataclass(kw_only=True)
class ReportConfig(Runs, Page):
    """The options of `nein report`."""


@dataclass(kw_only=True)
class Comparing(Options):
    """Options of paired comparisons, which reports have, too."""

    family: Literal["metric", "all"] = option(
        "metric", "correct p within one metric, or over the whole table", "Tests"
    )
    baseline: str | None = option(None, "compare every run with this one: EDITOR or EDITOR/TRACK", "Tests")


@dataclass(kw_only=True)
class CompareConfig(Runs, Comparing):
    """The options of `nein compare`."""

    metrics: Names = option([], "only these metrics", "Main")
    format: Literal["text", "md", "csv", "tex"] = option(
        "text", "text: one screen; md, csv, tex: every row", "Output"
    )
    fail_if_worse: NonNegativeFloat | None = option(
        None, "exit 3 if a run is worse than --baseline by more (95 % interval)", "Tests", value="POINTS"
    )

    def check(self) -> None:
        if self.fail_if_worse is not None and self.baseline is None:
            raise UserError("--fail-if-worse needs a --baseline; pass the run to compare with.")


@dataclass(kw_only=True)
class DataPageConfig(Options):
    """The options of `nein data show`."""

    data: str = argument(
        "DATA", "as --data of the command that evaluates: nano, folder, file, hub:OWNER/NAME"
    )
    benchmark: Literal["nein", "negbench", "negvqa"] | None = option(
        None, "whose data (default: negvqa of a .jsonl file, negbench of a .csv file, else nein)", "Main"
    )
    split: str | None = option(None, "split of the data (default: the benchmark's)", "Data")
    images: str | None = option(None, "image folder (negbench, negvqa)", "Data")
    shown: NonNegativeInt = option(200, "samples shown, drawn at random", "Output")
    out: Path = option(Path("data.html"), "page to write", "Output")


@dataclass(kw_only=True)
class ExportConfig(Runs):
    """The options of `nein export`."""

    out: Path = option(Path("export"), "folder to write", "Output")
    format: Literal["csv", "vlmevalkit", "lmms-eval", "inspect"] = option(
        "csv", "csv: scores and figures; else the questions of a run, as a task of that harness", "Output"
    )
    data: str | None = option(None, "where the questions of the run are, if not those of nano", "Data")
    images: Path | None = option(None, "folder of their images", "Data")
