"""Options of `nein generators`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import PositiveInt

from nein.config.groups import Limit, Output, Preset, RuntimeOptions, Seed
from nein.config.options import Names, Paths, option
from nein.loading.errors import UserError
from nein.loading.references import Need, expand_user


@dataclass(kw_only=True)
class GeneratorsConfig(Preset, Limit, Seed, RuntimeOptions, Output):
    """The generators, their prompts, and the judges of their images."""

    presets = "generators/"  # folder of configs/ with the files of --preset
    default_out = "runs/generators-PRESET"
    counted = "prompts"  # what --limit counts
    generator: Names = option(
        ("nano:sd",), "FOLDER of images, diffusers:MODEL, openai:URL#MODEL, FILE.py:FUNCTION", "Main"
    )
    prompts: str = option("nano", "nano, CSV (prompt,wanted,forbidden), UniGenBench's, SpaceVLM's", "Main")
    samples: PositiveInt = option(1, "images of each prompt", "Data")
    judge: str = option("nano:llava", "VQA judge; also openai:URL#MODEL; none", "Main")
    detector: str = option("nano:owlv2", "open-vocabulary detector; none", "Main")
    calibration: Paths = option([], "folders of nein calibrate, for corrected estimates", "Main")
    generator_options: dict[str, Any] = option({}, "--generator-options.steps 20, .size 512x512", "Method")

    @property
    def judges(self) -> dict[str, str]:
        """Kind -> reference of the judges that are asked."""
        both = {"vqa": self.judge, "ovd": self.detector}
        return {kind: reference for kind, reference in both.items() if reference != "none"}

    def check(self) -> None:
        if not self.judges:
            raise UserError("--judge and --detector are both none; leave out one of them.")
        if self.preset == "paper" and self.prompts == "nano":
            raise UserError("The paper preset needs prompts: --prompts FILE, a .csv or SpaceVLM's .json.")

    def needs(self) -> list[Need]:
        from nein.editors.text_to_image import find_pipeline
        from nein.models.needs import model_needs
        from nein.models.references import split_label

        generators = [split_label(generator)[1] for generator in self.generator]
        pipelines = [find_pipeline(name) for name in generators if not expand_user(name).is_dir()]
        needs = [Need.parse(pipeline) for pipeline in pipelines if pipeline]
        needs += [need for kind, judge in self.judges.items() for need in model_needs(kind, judge)]
        return [need for need in needs if need]
