"""Everything that decides a built set of negated questions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from nein.config.groups import Budget, Limit, OnDevice, Output, Preset, Seed
from nein.config.options import DrawnCount, Options, Paths, argument, option
from nein.loading.references import Need, is_served
from nein.models.llm import LlmOptions


@dataclass(kw_only=True)
class ConversionConfig(Preset, Limit, Seed, OnDevice, Budget, Output):
    """Field names are the keys of a configuration file."""

    presets = "negvqa/generate-"
    default_out = "runs/negvqa-generate-PRESET"
    counted = "questions"
    seed: NonNegativeInt = 1234
    source: str = option("nano", "questions: nano, hub:OWNER/NAME, .jsonl, .json, .csv, .tsv", "Main")
    images: str | None = option(None, "image folder (default: beside the file)", "Main")
    split: str = option("dev", "split of a hub data set", "Source")
    columns: dict[str, str] = option({}, "map field names: --columns.question prompt", "Source")
    questions: DrawnCount = option(200, "number of questions to draw for --source nano", "Main")
    letters: Literal["balanced", "notebook"] = option("balanced", "notebook: as the paper", "Method")
    sheet: PositiveInt = option(100, "random items on the sheet for human review", "Output")
    llm: LlmOptions = field(default_factory=LlmOptions)

    @property
    def place(self) -> str:
        """Where questions are negated (`nein.engine.stages.Model`); drawn ones are as they were drawn."""
        if self.llm.model is None:
            return "host"
        return "remote" if is_served(self.llm.model) else "device"

    def needs(self) -> list[Need]:
        from nein.models import needs

        model = needs.of_model("llm", self.llm.model) if self.llm.model else []
        return [*model, *needs.of_data(self.source)]

    def check(self) -> None:
        if self.llm.model or self.source != "nano":
            self.llm.check(f"--source {self.source}")


@dataclass(kw_only=True)
class CheckConfig(Options):
    """The labels of a check sheet."""

    files: Paths = argument("FILE.csv", "files saved from the check sheet, one per reviewer")
    out: Path | None = option(None, "write the figures to this CSV file", "Output")
