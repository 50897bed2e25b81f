"""What the options of all training runs have in common. Imports nothing heavy: `--help` is immediate."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

from nein.config import options


def option(default: Any, text: str, group: str, *, decides: bool = True) -> Any:
    """A field. `decides`: its value changes the weights that come out, so a run cannot change it half-way."""
    return options.option(default, text, group, decides=decides)


class RunOptions(options.Options):
    """A dataclass of `option`s that `Session`, `Record` and `loop.run` can work with, whatever learns.

    batch_size   Examples per optimiser step, over all processes.
    clip         Largest norm of the gradient; 0 is no limit.
    precision    "fp32", "bf16" or "fp16": accelerate's autocast.
    device       "auto" or "cpu". `threads`: PyTorch's on a CPU, or None. `workers`: threads that read ahead.
    log_every    Steps between logged figures, sent to `trackers` as well.
    save_every   Steps between checkpoints, of which the newest `keep` stay.
    out          Folder of the run. `overwrite`: discard what another run left there.

    ANOTHER   What to do where the folder holds another run. `CALMER`: where the loss is not finite.
    """

    ANOTHER: ClassVar[str] = "choose another --out, or --overwrite to discard it"
    CALMER: ClassVar[str] = (
        "Try a lower --learning-rate, a longer --warmup, --clip 1, or --precision bf16 or fp32, in another "
        "--out."
    )
    base: str
    batch_size: Any
    clip: Any
    precision: Any
    device: Any
    threads: Any
    workers: Any
    log_every: Any
    trackers: Any
    out: str
    save_every: Any
    keep: Any
    overwrite: bool

    @property
    def out_dir(self) -> Path:
        return Path(self.out)

    def identity(self) -> dict[str, Any]:
        """The options that decide the weights, for comparison with an earlier part of the same run."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {item.name: getattr(self, item.name) for item in fields if item.metadata["decides"]}

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]
