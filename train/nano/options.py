"""Options of the commands that make the nano models. Imports nothing heavy: `--help` is immediate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from nein.config.groups import OnDevice, Seed
from nein.config.options import Names, Options, argument, option
from train.options import check_seeds

SEED = 20250519
#: The fine-tuned editors that ship.
NAMES = ("nein-ip2p", "nein-magicbrush")


@dataclass(kw_only=True)
class ZooConfig(OnDevice, Seed):
    """What is trained, how long, and where it goes."""

    models: Names = argument("MODEL", "names of models, all, or judge")
    scale: PositiveFloat = option(1.0, "share of the full number of steps, and of the data", "How")
    seed: NonNegativeInt = SEED
    work: Path = option(Path(".train"), "resumable state of the training", "Output")
    zoo: Path | None = option(
        None, "where models are read and written (default: those that ship, nein/nano/weights)", "Output"
    )


@dataclass(kw_only=True)
class ShipConfig(Options):
    """What is put into the zoo."""

    run: Path = argument("RUN", "finished folder of train/finetune_ip2p.py")
    name: str = argument("NAME", f"one of {', '.join(NAMES)}")
    report: Path | None = option(None, "figures.csv of train.instruct.report, for the card")


@dataclass(kw_only=True)
class GeneraliseConfig(Options):
    """What the study of the VLM varies."""

    seed: Names = option(["0", "1", "2"], "training seeds", "What")
    scale: PositiveFloat = option(1.0, "share of the recipes' steps", "How")
    questions: PositiveInt = option(320, "questions of every world", "How")
    out: Path = option(Path("runs/generalise-negvqa"), "folder of the study", "Output")

    def check(self) -> None:
        check_seeds(self.seed)
