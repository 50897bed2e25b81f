"""How a nano VLM that was taught negation generalises: recipes, seeds and worlds.

    python -m research.negvqa_nano --seed 0,1,2 --out runs/generalise-negvqa

Trains every recipe of `negvqa.RECIPES` that knows negation from every seed, asks all models, and the one
taught no negation, the questions of every world, and writes the table (`research.generalise`). Resumes
where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from pydantic import PositiveFloat, PositiveInt

from nein.benchmarks.negvqa.config import NegvqaConfig
from nein.benchmarks.negvqa.runs import NEGVQA, name_run
from nein.benchmarks.runner import FIGURES_CSV
from nein.cli import launch
from nein.config.groups import Command
from nein.config.options import Names, Options, option
from nein.datasets.negvqa import AVERAGE
from nein.engine.exits import exit_with
from nein.engine.folder import Folder
from nein.engine.run import Executor
from nein.nano import zoo
from nein.nano.scenes import AXES
from nein.reporting import figures as frames
from research import generalise
from research.generalise import BEFORE, Model, check_seeds, command_line
from research.nano.job import run
from research.nano.negvqa import negvqa_job


@dataclass(kw_only=True)
class GeneraliseConfig(Options):
    """What the study of the VLM varies."""

    seed: Names = option(["0", "1", "2"], "training seeds", "Main")
    scale: PositiveFloat = option(1.0, "share of the recipes' steps", "Method")
    questions: PositiveInt = option(320, "questions of every world", "Method")
    out: Path = option(Path("runs/generalise-negvqa"), "folder of the study", "Output")

    def check(self) -> None:
        check_seeds(self.seed)


COMMAND = Command(
    "how a nano VLM that was taught negation generalises: recipes, seeds and worlds",
    "research.negvqa_nano:GeneraliseConfig",
    "research.negvqa_nano:study",
)
RECIPES = ("negvqa-negated", "negvqa-varied")
#: Taught by the first recipe before objects were held out: only its wordings, and the style, are new to it.
SHIPPED = "shipped (knows all objects)"
#: Row of the table -> its figures.
METRICS = {
    "negated questions": {"task": "accuracy", "variant": "negated"},
    "original questions": {"task": "accuracy", "variant": "original"},
}


def models(out: Path, seeds: Sequence[int], scale: float) -> list[Model]:
    """The model before, the one that ships, and every recipe from every seed; trains those not there yet."""
    made = [Model(BEFORE, None, "nano:negvqa"), Model(SHIPPED, None, "nano:negvqa-negated")]
    for seed in seeds:
        for recipe in RECIPES:
            place = out / recipe / f"seed-{seed}"
            if not (place / "model" / "config.json").is_file():
                torch.manual_seed(seed)
                job = negvqa_job(recipe, zoo.ZOO, torch.device("cpu"), scale, place / "model")
                run(job, device=torch.device("cpu"), seed=seed, work=place)
            made.append(Model(recipe, seed, str(place / "model")))
    return made


def evaluate(out: Path, asked: Sequence[Model], world: str, questions: int) -> list[pd.DataFrame]:
    """The figures of all models on a world."""
    config = NegvqaConfig(
        model=[model.named for model in asked],
        data=world,
        questions=questions,
        scoring=["logprob"],
        out=str(out / "evaluation" / world.partition(":")[2]),
        device="cpu",
        batch_size=32,
        blind=0,
    )
    NEGVQA(config, Executor("cpu"))
    parts = []
    for model in asked:
        folder = Folder(config.out_dir / name_run(model.named, config))
        wanted = frames.select(
            frames.read(folder.path / FIGURES_CSV), task="accuracy", protocol="fixed", interval="clustered",
            category=AVERAGE,
        )  # fmt: skip
        parts.append(generalise.labelled(wanted, model, world))
    return parts


def study(given: GeneraliseConfig) -> str:
    """Runs what is left of the study and writes its table, which is returned."""
    asked = models(given.out, [int(seed) for seed in given.seed], given.scale)
    parts = [part for world in AXES for part in evaluate(given.out, asked, world, given.questions)]
    return generalise.write(
        given.out,
        "NegVQA: a miniature VLM taught negated questions",
        parts,
        METRICS,
        command=command_line("python -m research.negvqa_nano", given),
        note="Questions have two options: a model that ignores the negation is right about one kind and "
        "wrong about the other. The likeliest letter counts (`--scoring logprob`).",
        chance=dict.fromkeys(METRICS, 50.0),
    )


def main(argv: Sequence[str] | None = None) -> int:
    return launch("python -m research.negvqa_nano", COMMAND, argv)


if __name__ == "__main__":
    exit_with(main)
