"""The options of a fine-tuning run and the one order in which they are put together.

Precedence: command line > `--config FILE` > `--recipe NAME` (`configs/train/NAME.yaml`) > default. Imports
nothing heavy, so that `--help` is immediate.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import yaml
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config.complaints import complaint
from nein.config.options import Help, Names, names, preset_file
from nein.engine.errors import UserError, near_match, unknown
from train.options import RunOptions, option

COMMAND = "train/finetune_ip2p.py"
RECIPES = ("nein-ip2p", "nein-magicbrush", "nano", "lora")


@dataclass
class TuneConfig(RunOptions):
    """Everything that decides a fine-tuning run. Field names are the keys of a configuration file."""

    recipe: str | None = option(None, f"a row of configs/train: {', '.join(RECIPES)}", "What", decides=False)
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
        "nano", "nano, a folder in NeIn's layout, hub:OWNER/NAME[@REVISION], or shards:FOLDER_OR_URL", "Data"
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
        False, "store VAE and text features once and learn from them (makes what is missing)", "Features"
    )
    precompute_only: bool = option(False, "make the features and stop", "Features", decides=False)
    features: str | None = option(
        None, "folder of features; default: the user's cache", "Features", decides=False
    )
    feature_dtype: Literal["float32", "float16", "bfloat16"] = option(
        "float16", "number type of stored features", "Features"
    )
    feature_block: PositiveInt = option(256, "pairs per file of features", "Features", decides=False)

    epochs: PositiveFloat | None = option(None, "passes over the negative pairs", "Optimisation")
    steps: PositiveInt | None = option(None, "optimiser steps, in place of --epochs", "Optimisation")
    batch_size: PositiveInt = option(64, "pairs per optimiser step, over all processes", "Optimisation")
    micro_batch: PositiveInt | None = option(
        None, "pairs per forward and process; the rest is accumulated", "Optimisation", decides=False
    )
    learning_rate: PositiveFloat = option(1e-4, "peak learning rate", "Optimisation")
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "learning rate after the warm-up", "Optimisation"
    )
    warmup: NonNegativeInt = option(0, "steps of linear warm-up", "Optimisation")
    optimizer: Literal["adamw", "adamw8bit"] = option(
        "adamw", "adamw8bit needs the package bitsandbytes", "Optimisation"
    )
    beta1: NonNegativeFloat = option(0.9, "AdamW", "Optimisation")
    beta2: NonNegativeFloat = option(0.999, "AdamW", "Optimisation")
    epsilon: PositiveFloat = option(1e-8, "AdamW", "Optimisation")
    weight_decay: NonNegativeFloat = option(0.01, "AdamW", "Optimisation")
    clip: NonNegativeFloat = option(1.0, "largest norm of the gradient; 0 is no limit", "Optimisation")
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
    seed: NonNegativeInt = option(0, "of data order, noise and dropout", "Optimisation")

    precision: Literal["fp32", "bf16", "fp16"] = option(
        "fp32", "autocast; the weights that learn stay in float32", "Machine"
    )
    gradient_checkpointing: bool = option(False, "less memory, a third more time", "Machine", decides=False)
    device: Literal["auto", "cpu"] = option("auto", "auto: a GPU if there is one", "Machine", decides=False)
    workers: PositiveInt = option(4, "threads that read pairs ahead", "Machine", decides=False)
    threads: PositiveInt | None = option(None, "CPU threads of PyTorch per process", "Machine", decides=False)

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
    log_every: PositiveInt = option(10, "steps between logged figures", "Watching", decides=False)
    trackers: Names = option(
        ["tensorboard"], "tensorboard, wandb, trackio, ... or none", "Watching", decides=False
    )

    out: str = option("runs/finetune", "folder of the run", "Files", decides=False)
    save_every: PositiveInt = option(500, "steps between checkpoints", "Files", decides=False)
    keep: PositiveInt = option(2, "checkpoints that are kept", "Files", decides=False)
    export_dtype: Literal["float32", "float16", "bfloat16"] = option(
        "float32", "number type of the exported pipeline", "Files", decides=False
    )
    push: str | None = option(None, "hub id OWNER/NAME to upload the result to", "Files", decides=False)
    overwrite: bool = option(False, "discard an earlier run in --out", "Files", decides=False)


def parse(argv: Sequence[str]) -> tuple[TuneConfig, bool]:
    """The checked options of a command line, and whether `--dry-run` was given.

    Raises UserError for anything wrong with them; prints and raises SystemExit(0) for `--help`.
    """
    files, rest = _files(argv)
    parser = _parser()
    tokens: list[str] = []
    for part in (*(_tokens(file) for file in files), rest):
        tokens = [*_without_rival(tokens, part), *part]
    try:
        found = parser.parse_args(tokens)
    except argparse.ArgumentError as error:
        flags = [f for action in parser._actions for f in action.option_strings if f.startswith("--")]
        raise complaint(error, flags, typing.get_type_hints(TuneConfig), COMMAND) from None
    values = found.as_dict()
    dry_run = values.pop("dry_run")
    known = {item.name for item in dataclasses.fields(TuneConfig)}
    config = TuneConfig(**{key: _plain(value) for key, value in values.items() if key in known})
    check(config)
    return config, dry_run


def dump(config: TuneConfig) -> str:
    """The options as YAML that `--config` reads back."""
    return yaml.safe_dump(config.as_dict(), sort_keys=False, allow_unicode=True)


def recipe_file(name: str) -> Path:
    """`configs/train/<name>.yaml`. Raises UserError for an unknown name."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return preset_file(name, "train/")


def check(config: TuneConfig) -> None:
    """Everything that can be wrong with the options themselves. Raises UserError."""
    if (config.epochs is None) == (config.steps is None):
        raise UserError("Say either --epochs or --steps, and not both (a --recipe brings one of them).")
    for key in ("flip", "dropout", "mix_affirmative"):
        limit = {"flip": 1.0, "dropout": 1 / 3, "mix_affirmative": 0.99}[key]
        if getattr(config, key) > limit:
            value = getattr(config, key)
            raise UserError(f"--{key.replace('_', '-')} is {value}; it must be between 0 and {limit:.3g}.")
    if config.recipe not in (None, "nano") and config.data == "nano":
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
    import metrics

    for name in config.validation_metrics:
        if name not in metrics.METRICS or metrics.METRICS[name].kind == "corpus":
            allowed = [key for key, info in metrics.METRICS.items() if info.kind != "corpus"]
            raise unknown("validation metric", name, allowed)
    if config.push is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", config.push):
        raise UserError(f"--push is '{config.push}'; it must be a hub id OWNER/NAME.")


def _parser() -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser(
        prog=COMMAND,
        usage="[accelerate launch | python] %(prog)s [OPTIONS]",
        formatter_class=Help,
        print_config=None,
        description="Fine-tune an instruction editor on NeIn, so that it understands what should be absent.",
        epilog="Precedence: command line, then --config, then --recipe. Sources: configs/train/*.yaml.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", help="YAML file with any of these options; a flag beats it")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved options and stop")
    hints = typing.get_type_hints(TuneConfig)
    groups: dict[str, Any] = {}
    for item in dataclasses.fields(TuneConfig):
        title = item.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        text = item.metadata["help"]
        flag, hint = f"--{item.name.replace('_', '-')}", hints[item.name]
        if hint is bool:
            action: Any = jsonargparse.ActionYesNo(no_prefix="no-")
            groups[title].add_argument(flag, action=action, default=default, help=text)
        else:
            kind = names if hint == Names else hint
            groups[title].add_argument(flag, type=kind, default=default, help=text)
    return parser


def _files(argv: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The recipe's file and those of `--config`, lowest precedence first, and the other arguments."""
    recipe: str | None = None
    files: list[Path] = []
    rest: list[str] = []
    items = list(argv)
    while items:
        flag, equals, value = items.pop(0).partition("=")
        if flag not in ("--config", "--recipe"):
            rest.append(flag + equals + value)
            continue
        if not equals:
            if not items or items[0].startswith("--"):
                raise UserError(f"{flag} needs a value; see {COMMAND} --help.")
            value = items.pop(0)
        if flag == "--recipe":
            recipe = value
        elif Path(value).is_file():
            files.append(Path(value))
        else:
            raise UserError(f"There is no configuration file '{value}'.")
    for file in files:
        recipe = recipe or _read(file).get("recipe")
    if recipe is not None:
        return [recipe_file(recipe), *files], [f"--recipe={recipe}", *rest]
    return files, rest


def _without_rival(tokens: list[str], later: Sequence[str]) -> list[str]:
    """`tokens` without --steps where `later` says --epochs, and the other way round: the later one counts."""
    rivals = {"--epochs": "--steps", "--steps": "--epochs"}
    given = {word.partition("=")[0] for word in later}
    gone = {rivals[flag] for flag in given if flag in rivals}
    return [word for word in tokens if word.partition("=")[0] not in gone]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"The configuration file '{file}' is not valid YAML: {detail}.") from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"The configuration file '{file}' must hold 'key: value' lines.")
    return content or {}


def _tokens(file: Path) -> list[str]:
    """The keys of a file as command-line words, so that files and flags are checked by the same rules."""
    known = [item.name for item in dataclasses.fields(TuneConfig)]
    hints = typing.get_type_hints(TuneConfig)
    tokens = []
    for key, value in _read(file).items():
        if key not in known:
            near = near_match(str(key), known)
            guess = f"; did you mean '{near}'?" if near else f"; {COMMAND} --help lists the keys."
            raise UserError(f"Unknown key '{key}' in '{file}'{guess}")
        if value is None or key == "recipe":
            continue
        flag = key.replace("_", "-")
        if hints[key] is bool and not isinstance(value, bool):
            raise UserError(f"'{key}' in '{file}' is '{value}'; it must be true or false.")
        if isinstance(value, bool):
            tokens.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        if isinstance(value, list):
            text = ",".join(str(part) for part in value) or "none"
        else:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
        tokens.append(f"--{flag}={text}")
    return tokens


def _plain(value: Any) -> Any:
    """jsonargparse's restricted numbers as Python's own, which YAML and JSON can write."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, int) else float(value)
