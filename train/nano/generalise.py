"""What of the negation taught to the nano VLM holds off its training: recipes, seeds and worlds.

    python -m train.nano.generalise --seeds 0,1,2 --out runs/generalise-negvqa

Trains every recipe of `negvqa.RECIPES` that knows negation from every seed, asks all models and the one taught no
negation the questions of every world, and writes the table (see `train.generalise`). Resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from nein.benchmarks.negvqa import folder as files
from nein.benchmarks.negvqa.config import NegvqaConfig
from nein.benchmarks.negvqa.run import NEGVQA, run_name
from nein.datasets.negvqa.categories import AVERAGE
from nein.engine.folder import Folder
from nein.engine.processes import Processes
from nein.nano import zoo
from nein.nano.worlds import AXES
from nein.reporting import figures as frames
from train import generalise
from train.generalise import BEFORE, Model
from train.nano.job import run
from train.nano.negvqa import negvqa_job

RECIPES = ("negvqa-negated", "negvqa-varied")
#: Row of the table -> its figures.
METRICS = {
    "negated questions": {"task": "accuracy", "variant": "negated"},
    "original questions": {"task": "accuracy", "variant": "original"},
}


def models(out: Path, seeds: Sequence[int], scale: float) -> list[Model]:
    """The model before, and every recipe from every seed; trains those that are not there yet."""
    made = [Model(BEFORE, None, "nano:negvqa")]
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
        model=[model.reference for model in asked],
        data=world,
        questions=questions,
        scoring=["logprob"],
        out=str(out / "evaluation" / world.partition(":")[2]),
        device="cpu",
        batch_size=32,
        formats=["csv"],
    )
    NEGVQA(config, Processes())
    parts = []
    for model in asked:
        folder = Folder(config.out_dir / run_name(model.reference, config))
        wanted = frames.select(
            frames.read(files.figures(folder)), task="accuracy", protocol="fixed", interval="clustered",
            category=AVERAGE,
        )  # fmt: skip
        parts.append(generalise.labelled(wanted, model, world))
    return parts


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    options = _parser().parse_args(given)
    asked = models(options.out, [int(seed) for seed in options.seeds.split(",")], options.scale)
    parts = [part for world in AXES for part in evaluate(options.out, asked, world, options.questions)]
    print(
        generalise.write(
            options.out,
            "NegVQA: a miniature VLM taught negated questions",
            parts,
            METRICS,
            command=f"python -m train.nano.generalise {' '.join(given)}".rstrip(),
            note="Questions have two options: a model that ignores the negation is right about one kind and wrong "
            "about the other. The likeliest letter counts (`--scoring logprob`).",
        )
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.nano.generalise",
        description="What of the negation taught to the nano VLM holds off its training.",
    )
    parser.add_argument("--seeds", default="0,1,2", help="training seeds (default: 0,1,2)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="fraction of the recipes' steps (default: 1)"
    )
    parser.add_argument("--questions", type=int, default=320, help="questions per world (default: 320)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/generalise-negvqa"), help="folder of the study"
    )
    return parser


if __name__ == "__main__":
    from nein.engine.exits import exit_with

    exit_with(main)
