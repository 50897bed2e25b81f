"""What benchmarks and reports hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from nein.engine.folder import Folder

if TYPE_CHECKING:
    import pandas as pd

    from nein.engine.stages import Stage
    from nein.reporting.scores import ScoreTable

FIGURES, SCORES = "figures.csv", "scores.csv"


@dataclass(frozen=True)
class Run:
    """One folder of results: a model on a data set.

    folder    Below the command's OUT.
    name      In progress and tables.
    identity  Decides its rows: another value of any key is another run.
    stages    In order: a stage reads what those before it have written.
    facts     For the manifest, of the latest command; "preset", "protocol", "reference" (of the model) and
              "data" (`name`, `sha256`) are shown by every command.
    outputs   Output -> identity, if it may differ from the folder's (a metric, say).
    partial   The command asks for a part of what makes a run complete.
    scores    Its table of scores, from what the command has read; None: the benchmark's.
    """

    folder: str
    name: str
    identity: Mapping[str, Any]
    stages: tuple[Stage, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    partial: bool = False
    scores: Callable[[Folder], ScoreTable] | None = None


@dataclass(frozen=True)
class Finished:
    """A finished run, by its name in tables. run, scores: those of the command at hand, if it is one."""

    folder: Folder
    name: str
    figures: pd.DataFrame
    run: Run | None = None
    scores: ScoreTable | None = None

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self.folder.manifest()


class Printed(NamedTuple):
    """A figure that authors print, for `nein reproduce`.

    row    Of their table, with a model; `of`: the columns and entries of our figure.
    value  In the unit of the frame of figures (shares, not per cent).
    whole  Depends on how many samples there are (FID, recall): not comparable with a part.
    """

    row: str
    of: Mapping[str, str]
    value: float
    unit: str
    n: int | None = None
    whole: bool = False
