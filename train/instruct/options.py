"""The options of a fine-tuning run and the one order in which they are put together.

Precedence: command line > `--config FILE` > `--recipe NAME` (`configs/train/NAME.yaml`) > default. A command
line that names no recipe, file, base or data is of the recipe "nano". Imports nothing heavy, so that `--help`
is immediate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config import options
from nein.config.groups import Limit, OnDevice
from nein.config.options import Names, Options, argument, read
from nein.engine.errors import UserError, unknown
from nein.engine.store import Need
from nein.train.options import Learning, option

COMMAND = "train/finetune_ip2p.py"
RECIPES = ("nein-ip2p", "nein-magicbrush", "nano", "nano-varied", "lora")
NANO_RECIPES = ("nano", "nano-varied")
#: A command line that has one of these says what is trained on what; another one is of the recipe "nano".
SAYS_WHAT = ("--recipe", "--config", "--base", "--data")


@dataclass(kw_only=True)
class TuneConfig(Learning):
    """Everything that decides a fine-tuning run. Field names are the keys of a configuration file."""

    presets = "train/"
    preset_option = "recipe"
    preset_names = RECIPES
    default_preset = None
    epilog = "Recipes and their sources: configs/train/*.yaml."

    recipe: str | None = option(
        None,
        f"a file of configs/train: {', '.join(RECIPES)}; nano where no --base, --data and --config is given",
        "What",
        decides=False,
    )
    base: str = option(
        "nano:ip2p",
        "editor to start from: nano:NAME, OWNER/NAME[@REVISION], a folder, or an LDM .ckpt/.safetensors",
        "What",
    )
    base_config: str = option(
        "timbrooks/instruct-pix2pix", "configuration that belongs to an LDM checkpoint: id or folder", "What"
    )
    trainable: Literal["all", "transformer", "cross_attention", "lora"] = option(
        "all",
        "which weights of the UNet learn: all, its transformer blocks, what reads the sentence, or LoRA",
        "What",
    )
    lora_rank: PositiveInt = option(16, "rank of the LoRA matrices", "What")
    lora_alpha: PositiveFloat | None = option(None, "scale of LoRA; default: the rank", "What")
    lora_dropout: NonNegativeFloat = option(0.0, "dropout inside LoRA", "What")
    lora_targets: Names = option(
        ["to_q", "to_k", "to_v", "to_out.0"], "layers of the UNet that get LoRA", "What"
    )

    data: str = option(
        "nano",
        "nano, nano:WORLD, a folder in NeIn's layout, hub:OWNER/NAME[@REVISION], or shards:FOLDER_OR_URL",
        "Data",
    )
    split: str = option("train", "which split of the data", "Data")
    annotations: str | None = option(None, "annotation file, if not DATA/<split>.json", "Data")
    source_images: str | None = option(None, "folder of COCO images, if not in DATA", "Data")
    nein_images: str | None = option(None, "folder of NeIn images, if not in DATA", "Data")
    columns: dict[str, str] = option({}, "renamed fields: --columns.T_negative NAME", "Data")
    limit: PositiveInt | None = option(None, "only the first N samples", "Data")
    nano_sources: PositiveInt = option(2000, "scenes drawn for --data nano", "Data")
    resolution: PositiveInt = option(256, "pictures are squashed to a square of this side", "Data")
    target_align: Literal["r64_fit", "none"] = option(
        "r64_fit", "r64_fit: cut the target as the sample was cut; none: squash both as they are", "Data"
    )
    align_resolution: PositiveInt = option(512, "resolution at which the samples were cut", "Data")
    flip: NonNegativeFloat = option(0.5, "share of pairs mirrored, input and target alike", "Data")
    mix_affirmative: NonNegativeFloat = option(
        0.0, "share of affirmative pairs (add, remove, ...) in what is seen", "Data"
    )
    affirmative_pairs: PositiveInt = option(4000, "affirmative pairs drawn for --data nano", "Data")
    hold_out_objects: Names = option([], "objects that no instruction may name", "Data")
    hold_out_templates: Names = option([], "negative templates (0 to 12) left out", "Data")
    exclude: Names = option([], "ids of samples left out", "Data")
    unreadable: Literal["stop", "skip"] = option(
        "stop", "a picture that cannot be decoded: stop, or take the next pair in its place", "Data"
    )

    precompute: bool = option(
        False,
        "store VAE and text features once and learn from them (makes what is missing)",
        "Features",
        negatable=True,
    )
    precompute_only: bool = option(
        False, "make the features and stop", "Features", decides=False, negatable=True
    )
    features: str | None = option(
        None, "folder of features; default: the user's cache", "Features", decides=False
    )
    feature_dtype: Literal["float32", "float16", "bfloat16"] = option(
        "float16", "number type of stored features", "Features"
    )
    feature_block: PositiveInt = option(256, "pairs per file of features", "Features", decides=False)

    batch_size: PositiveInt = option(64, "pairs per optimiser step, over all processes", "Optimisation")
    micro_batch: PositiveInt | None = option(
        None, "pairs per forward and process; the rest is accumulated", "Optimisation", decides=False
    )
    optimizer: Literal["adamw", "adamw8bit"] = option(
        "adamw", "adamw8bit needs the package bitsandbytes", "Optimisation"
    )
    dropout: NonNegativeFloat = option(
        0.05, "p: text dropped in p, picture in p, both in p of the pairs", "Optimisation"
    )
    ema: NonNegativeFloat = option(0.9999, "decay of the averaged weights; 0 is none", "Optimisation")
    snr_gamma: PositiveFloat | None = option(
        None, "Min-SNR weighting of the loss; 5 is usual", "Optimisation"
    )
    changed_weight: PositiveFloat = option(
        1.0, "weight in the loss of what the edit changes; 1 as published", "Optimisation"
    )

    gradient_checkpointing: bool = option(
        False, "less memory, a third more time", "Machine", decides=False, negatable=True
    )

    validate_every: NonNegativeInt = option(
        0, "steps between validations; 0 is none", "Watching", decides=False
    )
    validation_data: str = option("nano", "data of the validation, as --data", "Watching", decides=False)
    validation_split: str = option("dev", "split of the validation", "Watching", decides=False)
    validation_samples: PositiveInt = option(32, "how many samples", "Watching", decides=False)
    validation_metrics: Names = option(
        ["l1", "removal_vqa", "retention_vqa"], "metrics of nein eval", "Watching", decides=False
    )
    validation_preset: Literal["nano", "paper"] = option(
        "nano", "judges, encoders and sampler of this preset of nein eval", "Watching", decides=False
    )

    trackers: Names = option(
        ["tensorboard"], "tensorboard, wandb, trackio, ... or none", "Watching", decides=False
    )

    out: str = "runs/finetune"
    push: str | None = option(None, "hub id OWNER/NAME to upload the result to", "Files", decides=False)

    def needs(self) -> list[Need]:
        from nein.models import needs

        file = Path(self.base).expanduser().is_file()
        base = needs.of_settings(self.base_config) if file else needs.of_pipeline(self.base)
        return [*base, *needs.of_data(self.data), *(self._judged() if self.validate_every else [])]

    def _judged(self) -> list[Need]:
        from nein.benchmarks.nein.config import EvalConfig

        preset, data, asked = self.validation_preset, self.validation_data, self.validation_metrics
        return EvalConfig.of(preset=preset, data=data, metrics=asked, stages=["score"]).needs()


@dataclass(kw_only=True)
class ReportConfig(Limit, OnDevice):
    """What `train.instruct.report` compares."""

    before: str = argument("BEFORE", "the editor as it was: name, folder or hub id")
    after: Names = argument("AFTER", "what became of it, by one recipe or several")
    preset: Literal["nano", "paper"] = options.option(
        "nano", "judges, encoders and sampler of this preset of nein eval", "How"
    )
    data: str = options.option("nano", "as in nein eval", "Data")
    split: str = options.option("val", "which split of the data", "Data")
    out: str = options.option("runs/finetune-report", "folder of the report", "Output")

    @property
    def out_dir(self) -> Path:
        return Path(self.out)

    def needs(self) -> list[Need]:
        from nein.benchmarks.nein.config import EvalConfig

        return EvalConfig.of(preset=self.preset, data=self.data, editor=[self.before, *self.after]).needs()


@dataclass(kw_only=True)
class ShardsConfig(Options):
    """What `train.instruct.shards` writes, and where."""

    data: str = argument("DATA", "nano, a folder in NeIn's layout, or hub:OWNER/NAME")
    out: Path = argument("OUT", "folder of the shards")
    split: str = options.option("train", "which split of the data")
    per_shard: PositiveInt = options.option(1000, "samples per shard")


def parse(argv: Sequence[str]) -> tuple[TuneConfig, bool]:
    """The checked options of a command line, and whether `--dry-run` was given.

    Raises UserError for anything wrong with them; prints and raises SystemExit(0) for `--help`.
    """
    if not any(word.partition("=")[0] in SAYS_WHAT for word in argv):
        argv = ["--recipe", "nano", *argv]
    config, dry_run = read(
        TuneConfig,
        argv,
        prog=COMMAND,
        description="Fine-tune an instruction editor on NeIn, so that it understands what should be absent.",
    )
    config.keep_one_length(argv)
    check(config)
    return config, dry_run


def check(config: TuneConfig) -> None:
    """Everything that can be wrong with the options themselves. Raises UserError."""
    if (config.epochs is None) == (config.steps is None):
        raise UserError("Say either --epochs or --steps, and not both (a --recipe brings one of them).")
    for key in ("flip", "dropout", "mix_affirmative"):
        limit = {"flip": 1.0, "dropout": 1 / 3, "mix_affirmative": 0.99}[key]
        if getattr(config, key) > limit:
            value = getattr(config, key)
            raise UserError(f"--{key.replace('_', '-')} is {value}; it must be between 0 and {limit:.3g}.")
    if config.recipe not in (None, *NANO_RECIPES) and config.data.partition(":")[0] == "nano":
        raise UserError(
            f"The recipe '{config.recipe}' needs NeIn's data: --data FOLDER (with train.json, "
            "coco_for_train/ and nein_train/), --data hub:OWNER/NAME or --data shards:FOLDER_OR_URL."
        )
    if not config.ema < 1:
        raise UserError(f"--ema is {config.ema}; it must be below 1 (0.9999 is usual, 0 is none).")
    if config.micro_batch is not None and config.batch_size % config.micro_batch:
        raise UserError(
            f"--batch-size {config.batch_size} is not a multiple of --micro-batch {config.micro_batch}."
        )
    for word in config.hold_out_templates:
        if not re.fullmatch(r"[0-9]|1[0-2]", word):
            raise UserError(f"--hold-out-templates has '{word}'; templates are numbered 0 to 12.")
    if config.mix_affirmative and config.data.startswith("shards:") and config.limit:
        raise UserError("--limit with shards and --mix-affirmative is not defined; leave out --limit.")
    from nein import metrics

    for name in config.validation_metrics:
        if name not in metrics.METRICS or metrics.METRICS[name].kind == "corpus":
            allowed = [key for key, info in metrics.METRICS.items() if info.kind != "corpus"]
            raise unknown("validation metric", name, allowed)
    if config.push is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", config.push):
        raise UserError(f"--push is '{config.push}'; it must be a hub id OWNER/NAME.")
