"""How a nano editor that was taught negation generalises: recipes, seeds and worlds.

    python -m research.nein_nano --seed 0,1,2 --out runs/generalise-editors

Fine-tunes the nano InstructPix2Pix by every recipe from every seed, gives all of them, and the editor as it
was, the negative sentences of every world, and writes the table (`research.generalise`). Resumes where it
stopped.

The judges have seen plain drawings only, so beside their verdicts stands one that needs none: over the pixels
that tell the sample from the target, is the edit nearer to the target? And two rows say what the judges make
of pictures whose truth is known: the sample as it is, from which nothing was taken, and the target itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import PositiveInt

from nein.benchmarks.nein import estimates as run_figures
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.run import NEIN
from nein.benchmarks.nein.runs import RunDir
from nein.cli import launch
from nein.config.groups import Command
from nein.config.options import Names, Options, option
from nein.datasets import nein as loading
from nein.datasets.nein import Sample
from nein.engine import atomic, images
from nein.engine.exits import exit_with
from nein.engine.run import Executor
from nein.nano.scenes import AXES
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable
from nein.train.editor_finetuning.options import NANO_RECIPES, TuneConfig
from research import generalise
from research.generalise import BEFORE, Model, check_seeds, command_line

COMMAND = Command(
    "how a nano editor that was taught negation generalises: recipes, seeds and worlds",
    "research.nein_nano:GeneraliseConfig",
    "research.nein_nano:study",
)


@dataclass(kw_only=True)
class GeneraliseConfig(Options):
    """What the study of the nano editor varies."""

    recipe: Names = option(
        list(NANO_RECIPES), "how it is fine-tuned, configs/train/RECIPE.yaml", "Main",
        among=NANO_RECIPES, what="recipe",
    )  # fmt: skip
    seed: Names = option(["0", "1", "2"], "training seeds", "Main")
    steps: PositiveInt | None = option(None, "steps per editor (default: the recipe's)", "Main")
    samples: PositiveInt = option(80, "samples of every world", "Data")
    out: Path = option(Path("runs/generalise-editors"), "folder of the study", "Output")

    def check(self) -> None:
        check_seeds(self.seed)


#: The editor that ships is the recipe "nano" from seed 0.
SHIPPED = {("nano", 0): "nano:nein-ip2p"}
UNEDITED, TARGET = "(the sample)", "(the target)"
JUDGED = ("removal_vqa", "removal_ovd", "retention_vqa")
NEARER = "nearer"
#: Row of the table -> its figures.
METRICS = {
    "nearer to the target": {"metric": NEARER},
    "Removal (VQA)": {"metric": "removal_vqa"},
    "Removal (OVD)": {"metric": "removal_ovd"},
    "Retention (VQA)": {"metric": "retention_vqa"},
}


def models(given: GeneraliseConfig) -> list[Model]:
    """The editor before, and every recipe from every seed; trains those that are not there yet."""
    from nein.train import finetune_ip2p
    from nein.train.loop import Session

    made = [Model(BEFORE, None, "nano:ip2p")]
    for recipe in given.recipe:
        for seed in map(int, given.seed):
            reference = SHIPPED.get((recipe, seed)) if given.steps is None else None
            if reference is None:
                place = given.out / recipe / f"seed-{seed}"
                if not (place / "model" / "training.json").is_file():
                    words = ["--recipe", recipe, "--out", str(place), f"--seed={seed}", "--trackers=none"]
                    words += ["--steps", str(given.steps)] if given.steps else []
                    config, _ = TuneConfig.parse_line(words)
                    with Session(config) as session:
                        finetune_ip2p.train(config, session)
                reference = str(place / "model")
            made.append(Model(recipe, seed, reference))
    return made


def evaluate(given: GeneraliseConfig, asked: Sequence[Model], world: str) -> list[pd.DataFrame]:
    """The figures of all editors in a world, and those of the pictures whose truth is known."""
    out = given.out / "evaluation" / world.partition(":")[2]
    samples = loading.load(world).samples[: given.samples]
    targets = atomic.make_folder(out / "pictures" / "target")
    for sample in samples:
        shutil.copyfile(sample.source_path, targets / f"{sample.id}.png")
    made = {"sample": Model(UNEDITED, None, "identity"), **{model.name: model for model in asked}}
    editors = [f"{name}={model.reference}" for name, model in made.items()]
    for what in ({"editor": editors}, {"edited": str(targets)}):
        settings = EvalConfig.create(
            data=world, limit=given.samples, metrics=list(JUDGED), device="cpu",
            out=str(out), **what,
        )  # fmt: skip
        NEIN(settings, Executor("cpu"))
    made["target"] = Model(TARGET, None, "")
    return [
        generalise.labelled(figures_of(RunDir(out / name / "negative"), samples), model, world)
        for name, model in made.items()
    ]


def figures_of(run: RunDir, samples: Sequence[Sample]) -> pd.DataFrame:
    """The judges' figures of a run, and the share of edits nearer to the target than to the sample."""
    clusters = {sample.id: sample.source_id for sample in samples}
    columns: dict[str, dict[str, float | None]] = {metric: {} for metric in JUDGED}
    for row in run.score_rows():
        if row.metric in columns:
            columns[row.metric][row.id] = row.value
    columns[NEARER] = {
        sample.id: nearer(images.decode(run.image_path(edit)), sample) if edit.image else None
        for edit, sample in zip(run.edits.values(), samples, strict=True)
    }
    rows = []
    for metric, values in columns.items():
        kind = "removal_vqa" if metric == NEARER else metric  # a share like it
        scores = ({"id": k, "source": clusters[k], "value": v} for k, v in values.items())
        estimate = run_figures.estimate_mean(ScoreTable.from_rows(scores), kind)
        unscored = sum(value is None for value in values.values())
        rows.append(frames.figure(estimate, unit="%", unscored=unscored, metric=metric))
    return frames.frame(rows)


def nearer(edited: np.ndarray, sample: Sample) -> float:
    """1.0 where, over the pixels that tell sample and target apart, the edit is nearer to the target (squared
    differences), else 0.0. edited: (H, W, 3) uint8, of the size of both."""
    before, after = (images.decode(path).astype(float) for path in (sample.sample_path, sample.source_path))
    apart = (before != after).any(-1)
    to_sample, to_target = (((edited - picture)[apart] ** 2).sum() for picture in (before, after))
    return float(to_target < to_sample)


def study(given: GeneraliseConfig) -> str:
    """Runs what is left of the study and writes its table, which is returned."""
    asked = models(given)
    parts = [part for world in AXES for part in evaluate(given, asked, world)]
    return generalise.write(
        given.out,
        "NeIn: a miniature editor fine-tuned on negative sentences",
        parts,
        METRICS,
        command=command_line("python -m research.nein_nano", given),
        note="The judges know plain drawings only; the rows in brackets, pictures whose truth is known, say "
        'how far they can be trusted in a column. "Nearer to the target" asks no judge.',
    )


def main(argv: Sequence[str] | None = None) -> int:
    return launch("python -m research.nein_nano", COMMAND, argv)


if __name__ == "__main__":
    exit_with(main)
