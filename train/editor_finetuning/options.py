"""Define and check the options of an editor's fine-tuning (`train/finetune_ip2p.py`).

Precedence: command line > `--config FILE` > `--recipe NAME` (`configs/train/NAME.yaml`) > default.
An `option` changes the trained weights, so a resumed run must keep it; a `setting` does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config.options import DrawnCount, Names, UnitInterval
from nein.loading.errors import UserError
from nein.loading.references import Need
from nein.train.options import BelowOne, Learning, option, setting

if TYPE_CHECKING:
    from nein.benchmarks.nein.config import EvalConfig

RECIPES = ("nein-ip2p", "nein-magicbrush", "nano", "nano-varied", "lora")
NANO_RECIPES = ("nano", "nano-varied")
# A command line with none of these gets --recipe nano.
BASE_OPTIONS = ("--recipe", "--config", "--base", "--data")


@dataclass(kw_only=True)
class TuneConfig(Learning):
    """Options of `train/finetune_ip2p.py`; field names are the keys of a configuration file."""

    PROG = "train/finetune_ip2p.py"
    DESCRIPTION = "Fine-tune an instruction editor on NeIn, so that it understands what should be absent."
    MEMORY_ADVICE = (
        "lower --micro-batch (the result changes by rounding only), or use --gradient-checkpointing or "
        "--precision bf16"
    )
    CARD_OPTIONS = "trainable batch_size learning_rate schedule dropout ema precision seed".split()
    # How the command line finds its recipes: in configs/train/, named by --recipe.
    presets = "train/"
    preset_option = "recipe"
    preset_names = RECIPES
    default_preset = None
    epilog = "Recipes and their sources: configs/train/*.yaml."

    recipe: str | None = setting(
        None, f"{', '.join(RECIPES)}; nano where no --base, --data and --config is given", "Main"
    )
    base: str = option("nano:ip2p", "editor: nano:NAME, OWNER/NAME[@REVISION], or a folder", "Main")
    trainable: Literal["all", "transformer", "cross_attention", "lora"] = option(
        "all", "UNet weights to train; cross_attention: text layers only", "Main"
    )
    lora_rank: PositiveInt = option(16, "rank of the LoRA matrices", "Main")
    lora_alpha: PositiveFloat | None = option(None, "LoRA scale (default: the rank)", "Main")
    lora_dropout: NonNegativeFloat = option(0.0, "dropout inside LoRA", "Main")
    lora_targets: Names = option(["to_q", "to_k", "to_v", "to_out.0"], "layers with LoRA", "Main")

    data: str = option("nano", "nano, nano:WORLD, a NeIn folder, or hub:OWNER/NAME[@REVISION]", "Data")
    split: str = option("train", "split of the data", "Data")
    columns: dict[str, str] = option({}, "renamed fields: --columns.T_negative NAME", "Data")
    limit: PositiveInt | None = option(None, "only the first N samples", "Data")
    nano_sources: DrawnCount = option(2000, "scenes drawn for --data nano", "Data")
    resolution: PositiveInt = option(256, "resize images to a square of this side", "Data")
    target_align: Literal["r64_fit", "none"] = option(
        "r64_fit", "r64_fit: crop the target as the sample was cropped", "Data"
    )
    align_resolution: PositiveInt = option(512, "resolution at which the samples were cropped", "Data")
    flip: UnitInterval = option(0.5, "fraction of pairs mirrored", "Data")
    mix_affirmative: Annotated[float, Field(ge=0, le=0.99)] = option(
        0.0, "fraction of affirmative pairs (add, remove)", "Data"
    )
    affirmative_pairs: DrawnCount = option(4000, "affirmative pairs drawn for --data nano", "Data")
    hold_out_objects: Names = option([], "objects to leave out", "Data")
    hold_out_templates: Names = option([], "negative templates (0 to 12) to leave out", "Data")
    exclude: Names = option([], "ids of samples to leave out", "Data")

    feature_dtype: Literal["float32", "float16", "bfloat16"] = option(
        "float16", "dtype of the features", "Features"
    )
    feature_block: PositiveInt = setting(256, "pairs per file of features", "Features")

    batch_size: PositiveInt = option(64, "pairs per optimizer step, over all processes", "Optimization")
    micro_batch: PositiveInt | None = setting(None, "pairs per forward and process", "Optimization")
    dropout: Annotated[float, Field(ge=0, le=1 / 3)] = option(
        0.05, "probability of dropping text, image, and both (each)", "Optimization"
    )
    ema: BelowOne = option(0.9999, "decay of the averaged weights; 0 is none", "Optimization")
    snr_gamma: PositiveFloat | None = option(None, "Min-SNR weighting; 5 is common", "Optimization")
    changed_weight: PositiveFloat = option(1.0, "loss weight of the edited region", "Optimization")

    gradient_checkpointing: bool = setting(False, "use less memory and a third more time", "Machine")

    validate_every: NonNegativeInt = setting(0, "steps between validations; 0: none", "Logging")
    validation_data: str = setting("nano", "data of the validation, as --data", "Logging")
    validation_split: str = setting("dev", "split of the validation", "Logging")
    validation_samples: PositiveInt = setting(32, "number of validation samples", "Logging")
    validation_metrics: Names = setting(
        ["l1", "removal_vqa", "retention_vqa"], "validation metrics (nein list metrics)", "Logging"
    )
    validation_preset: Literal["nano", "paper"] = setting("nano", "preset of nein eval to use", "Logging")

    trackers: Names = setting(["tensorboard"], "tensorboard, wandb, trackio, ... or none", "Logging")

    out: str = "runs/finetune"

    def check(self) -> None:
        if self.recipe not in (None, *NANO_RECIPES) and self.data.partition(":")[0] == "nano":
            raise UserError(
                f"The recipe '{self.recipe}' needs NeIn's data: --data FOLDER (with train.json, "
                "coco_for_train/ and nein_train/), or --data hub:OWNER/NAME."
            )
        if self.micro_batch is not None and self.batch_size % self.micro_batch:
            raise UserError(
                f"--batch-size {self.batch_size} is not a multiple of --micro-batch {self.micro_batch}; "
                "pass a --micro-batch that divides it."
            )
        for number in self.hold_out_templates:
            if not re.fullmatch(r"[0-9]|1[0-2]", number):
                raise UserError(f"--hold-out-templates has '{number}'; templates are numbered 0 to 12.")
        if self.validate_every:
            self.build_validation()

    def build_validation(self, **options: Any) -> EvalConfig:
        """The options of `nein eval` for a validation; `options` are added. Raises UserError."""
        from nein.benchmarks.nein.config import EvalConfig

        return EvalConfig.create(
            preset=self.validation_preset,
            data=self.validation_data,
            split=self.validation_split,
            limit=self.validation_samples,
            metrics=self.validation_metrics,
            out=str(self.out_dir / "validation"),
            **options,
        )

    def needs(self) -> list[Need]:
        """Models and data that `nein fetch` downloads: base, training data, judges of the validation."""
        from nein.models import needs, references

        base = Need.parse(references.resolve(self.base))
        judges = self.build_validation(stages=["score"]).needs() if self.validate_every else []
        return [*([base] if base else []), *needs.data_needs(self.data), *judges]

    @classmethod
    def parse_line(cls, argv: Sequence[str]) -> tuple[Any, bool]:
        if not any(argument.partition("=")[0] in BASE_OPTIONS for argument in argv):
            argv = ["--recipe", "nano", *argv]
        return super().parse_line(argv)
