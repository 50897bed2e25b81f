"""Everything that decides a built set of negated questions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from nein.config.groups import Budget, Limit, OnDevice, Output, Preset, Seed
from nein.config.options import Options, Paths, argument, option
from nein.engine.errors import UserError
from nein.engine.store import Need
from nein.models.llm import LlmOptions


@dataclass(kw_only=True)
class ConversionConfig(Preset, Limit, Seed, OnDevice, Budget, Output):
    """Field names are the keys of a configuration file."""

    presets = "negvqa/generate-"
    default_out = "runs/negvqa-generate-PRESET"
    counted = "questions"
    seed: NonNegativeInt = 1234
    source: str = option(
        "nano",
        "nano, hub:OWNER/NAME[@REVISION], or a .jsonl, .json, .csv or .tsv file in VMCBench's layout",
        "Source",
    )
    images: str | None = option(None, "folder of the pictures, if not beside the file", "Source")
    split: str = option("dev", "split of a data set on the hub", "Source")
    columns: dict[str, str] = option(
        {}, "fields by other names: --columns.question prompt --columns.A option_a", "Source"
    )
    questions: PositiveInt = option(200, "questions drawn for --source nano", "Source")
    negator: Literal["rules", "llm"] = option(
        "rules", "rules: offline, refuses what it does not cover; llm: the language model below", "How"
    )
    instruction: Literal["ours", "paper"] = option(
        "ours", "what a language model is told: our instruction, with both answers, or the paper's", "How"
    )
    letters: Literal["balanced", "drawn", "notebook"] = option(
        "balanced",
        "balanced: as many A as B in every subset; drawn: one by one, as in the paper; notebook: letters and "
        "wrong answers by the random sequence of the authors' notebook",
        "How",
    )
    sheet: PositiveInt = option(100, "random items on the sheet that a person checks", "Output")
    llm: LlmOptions = field(default_factory=LlmOptions)

    def needs(self) -> list[Need]:
        from nein.models import needs

        model = needs.of_model("llm", self.llm.model) if self.negator == "llm" else needs.english()
        return [*model, *needs.of_data(self.source)]

    def check(self) -> None:
        if self.negator == "rules" and self.llm.model is not None and self.preset != "paper":
            raise UserError("--llm.model is given but --negator is rules; add --negator llm.")
        if self.negator == "llm":
            self.llm.check("--negator llm")


@dataclass(kw_only=True)
class CheckConfig(Options):
    """The exported ticks of a check sheet."""

    files: Paths = argument("FILE.json", "what the sheet exports, one file per person who checked")
    out: Path | None = option(None, "also write the figures to this JSON file", "Output")
