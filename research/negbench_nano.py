"""How a nano CLIP that was taught negation generalises; one command, without a network.

    python -m research.negbench_nano --seed 0,1,2

1. The text that the shipped CLIP learned from is searched for negation.
2. The CLIP is fine-tuned on drawn NegCap and NegMCQ: every recipe, from every seed, at every value of alpha.
3. All of them answer NegBench on scenes none has seen, in every world of `nein.nano.scenes`: in the taught
   wording, in others, about other objects, in another drawing style.

    OUT/study.md                          the tables and what they say
    OUT/generalise.md, .csv               recall, gap and multiple choice by world, over seeds
    OUT/RECIPE/seed-S/alpha-A/model       the fine-tuned models
    OUT/evaluation/WORLD/                 everything per sample; table.md and plots

Every figure is measured. Nothing here says anything about the published data sets.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import PositiveInt

from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.scoring import TEXT_TO_IMAGE
from nein.benchmarks.runner import FIGURES_CSV
from nein.cli import launch
from nein.config.groups import Command, Output
from nein.config.options import Names, option
from nein.datasets.negbench.records import NEGATED, ORIGINAL
from nein.datasets.negbench.registry import MCQ, RETRIEVAL
from nein.engine import atomic
from nein.engine.exits import exit_with
from nein.engine.run import Executor
from nein.nano.scenes import AXES
from nein.reporting import figures as frames
from nein.train.clip_finetuning.options import ClipConfig, format_alpha
from research import generalise
from research.generalise import BEFORE, HEADLINE, Model, check_seeds, command_line, spread


@dataclass(kw_only=True)
class StudyConfig(Output):
    """What the study varies, and on how many scenes."""

    default_out = "runs/negbench-study"

    recipe: Names = option(
        ["nano", "varied"], "how CLIP is fine-tuned, configs/train/clip-RECIPE.yaml", "Main",
        among=("nano", "varied"), what="recipe",
    )  # fmt: skip
    seed: Names = option(["0", "1", "2"], "training seeds", "Main")
    alpha: Names = option(["0.5"], "weights of the contrastive loss", "Main")
    scenes: PositiveInt = option(300, "held-out scenes of every world", "Main")
    steps: PositiveInt | None = option(None, "steps per model (default: the recipe's)", "Main")
    base: str = option("nano:clip", "model to start from", "Main")

    def check(self) -> None:
        check_seeds(self.seed)


COMMAND = Command(
    "NegBench in the nano world: measure, fine-tune, trade-off",
    "research.negbench_nano:StudyConfig",
    "research.negbench_nano:study",
)
_TOLD = {"task": RETRIEVAL, "direction": TEXT_TO_IMAGE}
#: Row of the table -> its figures.
METRICS = {
    "choices right": {"task": MCQ, "metric": "accuracy", "type": "all"},
    "of negation questions": {"task": MCQ, "metric": "accuracy", "type": "negation"},
    "recall@1, original captions": {**_TOLD, "metric": "recall@1", "kind": ORIGINAL},
    "recall@1, negated captions": {**_TOLD, "metric": "recall@1", "kind": NEGATED},
    "negation gap": {**_TOLD, "metric": "gap@1"},
}
#: Words that deny: what an affirmative text must not contain.
NEGATION = re.compile(
    r"\b(?:no|not|none|never|nothing|nobody|nowhere|neither|nor|without|lacks?|lacking|absent|absence|missing|except"
    r"|cannot|devoid)\b|n['\u2019]t\b",
    re.IGNORECASE,
)


def study(given: StudyConfig) -> str:
    """Runs what is left of the study and writes its report, which is returned."""
    start = time.perf_counter()
    models = [Model(BEFORE, None, given.base), *fine_tuned(given)]
    parts = [part for world in AXES for part in evaluate(given, models, world)]
    denials, texts = search(training_texts())
    table = generalise.write(
        given.out_dir,
        "NegBench: a miniature CLIP fine-tuned on negation",
        parts,
        METRICS,
        command=command_line("python -m research.negbench_nano", given),
        sentences=findings(frames.concat(parts)),
        note="Four options per question: chance is 25 %. The gap is recall@1 with the original captions "
        "minus that with the negated ones, in points: a small gap beside a small recall is no success.",
        chance={"choices right": 25.0, "of negation questions": 25.0},
    )
    report = f"# NegBench in the nano world\n\n{affirmative(denials, texts)}\n\n{table}"
    atomic.write_text(given.out_dir / "study.md", report)
    minutes = (time.perf_counter() - start) / 60
    return f"{report}\nStudy: {given.out_dir / 'study.md'} ({minutes:.1f} minutes)\n"


def fine_tuned(given: StudyConfig) -> list[Model]:
    """Every recipe from every seed at every alpha, trained where it is not there yet."""
    from nein.train import finetune_clip

    models = []
    for recipe in given.recipe:
        for seed in given.seed:
            config = recipe_of(given, recipe, seed)
            for alpha in sorted(config.alphas):
                place = config.out_dir / f"alpha-{format_alpha(alpha)}"
                [folder] = finetune_clip.run(config.with_alpha(alpha, place))
                models.append(Model(f"{recipe}, alpha {format_alpha(alpha)}", int(seed), str(folder)))
    return models


def recipe_of(given: StudyConfig, recipe: str, seed: str) -> ClipConfig:
    """The configuration of a recipe (a preset) from a seed."""
    words = ["--preset", recipe, "--device", "cpu", "--base", given.base, "--seed", seed]
    words += ["--out", str(given.out_dir / recipe / f"seed-{seed}"), "--alpha", ",".join(given.alpha)]
    words += ["--steps", str(given.steps)] if given.steps else []
    config, _ = ClipConfig.parse_line([*words, *(["--overwrite"] if given.overwrite else [])])
    return config


def evaluate(given: StudyConfig, models: Sequence[Model], world: str) -> list[pd.DataFrame]:
    """The figures of all models in a world."""
    from nein.benchmarks.negbench import runs as run

    config = EvalConfig(
        model=[model.named for model in models],
        data=world,
        scenes=given.scenes,
        out=str(given.out_dir / "evaluation" / world.partition(":")[2]),
        overwrite=given.overwrite,
        device="cpu",
        batch_size=64,
    )
    run.NEGBENCH(config, Executor(config.device))
    parts = []
    for model in models:
        [folder] = files.find(Path(config.out_dir) / model.name)
        parts.append(generalise.labelled(frames.read(folder.path / FIGURES_CSV), model, world))
    return parts


def training_texts() -> Iterable[str]:
    """Every sentence that the shipped CLIP, and its tokenizer, learned from."""
    from research.nano.data import corpus, described
    from research.nano.vision import POOL

    yield from corpus()
    for index in range(POOL):
        yield from described("train", index)[1]


def search(texts: Iterable[str]) -> tuple[Counter[str], int]:
    """(denying words and how often each occurs, number of texts)."""
    words: Counter[str] = Counter()
    count = 0
    for text in texts:
        count += 1
        words.update(word.casefold() for word in NEGATION.findall(text))
    return words, count


def affirmative(denials: Counter[str], texts: int) -> str:
    """What the search of the training text found, in words."""
    if denials:
        words = ", ".join(f"'{word}' ({n})" for word, n in denials.most_common(5))
        return f"The {texts} texts that the nano CLIP learned from contain negation: {words}."
    return f"None of the {texts} texts that the nano CLIP learned from contains a negation."


def findings(figures: pd.DataFrame) -> list[str]:
    """What the table says: of every recipe first the figure that holds where nothing was taught."""
    sentences = []
    for recipe in frames.list_entries(figures, "recipe", (BEFORE,)):
        told = {
            world: {
                name: cell.text()
                for name, where in METRICS.items()
                if (cell := spread(figures, recipe=recipe, world=world, **where)) is not None
            }
            for world in (HEADLINE, "nano:wording", "nano:taught")
        }
        new, reworded, taught = told.values()
        sentences.append(
            f"{recipe}: in wording, about objects and in a style that were not taught {new['choices right']} "
            f"% of the choices are right, {new['of negation questions']} % of negation questions; the gap is "
            f"{new['negation gap']} points. With another wording alone: {reworded['choices right']} %, "
            f"{reworded['of negation questions']} %, {reworded['negation gap']} points. "
            f"As taught: {taught['choices right']} %, {taught['of negation questions']} %, "
            f"{taught['negation gap']} points."
        )
    return sentences


def main(argv: Sequence[str] | None = None) -> int:
    return launch("python -m research.negbench_nano", COMMAND, argv)


if __name__ == "__main__":
    exit_with(main)
