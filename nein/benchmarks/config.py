"""Options of commands that are of all benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nein.config.groups import Runs
from nein.config.options import option


@dataclass(kw_only=True)
class LeaderboardConfig(Runs):
    """What is shown, and where it is written."""

    out: Path = option(Path("leaderboard"), "folder of index.html and of pages of the runs", "Output")
