"""Options of `nein rewriters`, which measures what rewriters make of negative instructions."""

from __future__ import annotations

from dataclasses import dataclass

from nein.config.groups import Limit, Output, Preset, RuntimeOptions
from nein.config.options import Names, option
from nein.loading.errors import UserError
from nein.loading.references import Need


@dataclass(kw_only=True)
class RewritersConfig(Preset, Limit, RuntimeOptions, Output):
    """The rewriters to measure, and the data set that holds the instructions."""

    presets = "rewriters/"  # folder of configs/ with the files of --preset
    default_out = "runs/rewriters-PRESET"
    rewriter: Names = option(("rule",), "rule, llm:MODEL, flux2:MODEL, flux3:MODEL, FILE.py:FUNCTION", "Main")
    data: str = option("nano", "nano, a folder in NeIn's layout, or hub:OWNER/NAME", "Data")
    split: str = option("val", "split of the data", "Data")

    def check(self) -> None:
        if self.preset == "paper" and self.data == "nano":
            raise UserError("The paper preset needs NeIn's data: --data FOLDER or --data hub:OWNER/NAME.")

    def needs(self) -> list[Need]:
        from nein.models.needs import rewriter_needs
        from nein.models.references import split_label

        references = [split_label(rewriter)[1] for rewriter in self.rewriter]
        return [need for reference in references for need in rewriter_needs(reference)]
