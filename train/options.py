"""Define the options that every training run has: run folder, logs, steps, learning rate, AdamW.

The two fine-tunings add their own. Nothing here imports torch, so that `--help` is immediate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config import options
from nein.config.groups import TrackerOptions
from nein.loading.errors import UserError

BelowOne = Annotated[float, Field(ge=0, lt=1)]


def option(default: Any, text: str, group: str, *, decides: bool = True, **more: Any) -> Any:
    """Field with a help text. decides: its value changes the weights, so a resumed run must keep it."""
    is_flag = default is False  # also gets --no-NAME: a recipe may turn it on
    return options.option(default, text, group, decides=decides, negatable=is_flag, **more)


def setting(default: Any, text: str, group: str) -> Any:
    """Field whose value changes no weight, so it may differ when a run resumes."""
    return option(default, text, group, decides=False)


@dataclass(kw_only=True)
class RunOptions(TrackerOptions):
    """Options of the training loop (`train.loop`)."""

    MEMORY_ADVICE: ClassVar[str] = "lower --batch-size"  # in the message after an out-of-memory error

    base: str  # these three: help and defaults in the subclasses
    batch_size: PositiveInt
    clip: NonNegativeFloat

    precision: Literal["fp32", "bf16"] = option("fp32", "autocast; weights stay in float32", "Machine")
    device: Literal["auto", "cpu"] = setting("auto", "auto: a GPU if there is one", "Machine")
    workers: PositiveInt = setting(4, "prefetch threads", "Machine")

    log_every: PositiveInt = setting(10, "steps between log entries", "Logging")

    out: str = setting("runs", "folder of the run", "Files")
    save_every: PositiveInt = setting(500, "steps between checkpoints", "Files")
    keep: PositiveInt = setting(2, "checkpoints to keep", "Files")
    overwrite: bool = setting(False, "discard an earlier run in --out", "Files")

    @property
    def out_dir(self) -> Path:
        return Path(self.out)

    def identity(self) -> dict[str, object]:
        """Values of the options that decide the weights; a resumed run must have the same."""
        fields = options.fields(type(self))
        return {field.name: getattr(self, field.name) for field in fields if field.metadata.get("decides")}


@dataclass(kw_only=True)
class Learning(RunOptions):
    """Options of a fine-tuning: number of steps, learning rate, AdamW; and its command line."""

    PROG: ClassVar[str] = ""  # usage line of `--help`
    DESCRIPTION: ClassVar[str] = ""
    CARD_OPTIONS: ClassVar[Sequence[str]] = ()  # options that a model card lists even at their defaults

    steps: PositiveInt | None = option(None, "optimizer steps, in place of --epochs", "Optimization")
    epochs: PositiveFloat | None = option(None, "passes over the data", "Optimization")
    learning_rate: PositiveFloat = option(1e-4, "peak learning rate", "Optimization")
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "learning rate after the warm-up", "Optimization"
    )
    warmup: NonNegativeInt = option(0, "steps of linear warm-up", "Optimization")
    beta1: BelowOne = option(0.9, "AdamW", "Optimization")
    beta2: BelowOne = option(0.999, "AdamW", "Optimization")
    epsilon: PositiveFloat = option(1e-8, "AdamW", "Optimization")
    weight_decay: NonNegativeFloat = option(0.01, "AdamW", "Optimization")
    clip: NonNegativeFloat = option(1.0, "gradient norm limit; 0: none", "Optimization")
    seed: NonNegativeInt = option(0, "seed of data order, noise, dropout and augmentation", "Optimization")
    unreadable: Literal["stop", "skip"] = option(
        "stop", "images that cannot be decoded: stop, or take the next one", "Data"
    )
    features: str | None = setting(None, "feature cache (default: the user's cache)", "Machine")

    def adamw(self, parameters: list[Any], **more: Any) -> Any:
        """torch.optim.AdamW for parameters, or for parameter groups."""
        from torch.optim import AdamW

        more |= {"betas": (self.beta1, self.beta2), "eps": self.epsilon, "weight_decay": self.weight_decay}
        return AdamW(parameters, lr=self.learning_rate, **more)

    @classmethod
    def parse_line(cls, argv: Sequence[str]) -> tuple[Any, bool]:
        """(options of a command line, whether `--dry-run` was given). Raises UserError."""
        config, dry_run = options.read(cls, argv, prog=cls.PROG, description=cls.DESCRIPTION)
        flags = {"--steps", "--epochs"} & {word.partition("=")[0] for word in argv}
        if flags == {"--steps"}:  # replaces the preset's epochs
            config.epochs = None
        elif flags == {"--epochs"}:
            config.steps = None
        if (config.epochs is None) == (config.steps is None):
            sets_one = f"--{cls.preset_option} sets one of them"
            raise UserError(f"Pass either --epochs or --steps, not both ({sets_one}).")
        return config, dry_run

    @classmethod
    def main(cls, run: Callable[[Any], object], argv: Sequence[str] | None) -> int:
        """Parse `argv` (default: sys.argv), then `run`; `--dry-run` prints the options."""
        config, dry_run = cls.parse_line(sys.argv[1:] if argv is None else argv)
        if dry_run:
            print(options.dump(config), end="")
        else:
            run(config)
        return 0
