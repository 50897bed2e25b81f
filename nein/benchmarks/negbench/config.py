"""Everything that decides an evaluation on NegBench; the paper's values are in `configs/negbench/`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt

from nein.config import options
from nein.config.options import Names, about
from nein.datasets.negbench.registry import NANO, ROWS, TASKS, VARIANTS
from nein.engine.errors import UserError, unknown

PROG = "nein negbench eval"


@dataclass
class NegbenchConfig:
    """Field names are the keys of a configuration file."""

    preset: Literal["nano", "paper"] = field(
        default="nano",
        metadata=about("which configs/negbench/eval-<preset>.yaml fills what is not given", "What"),
    )
    model: Names = field(
        default_factory=lambda: ["nano:clip"],
        metadata=about(
            "two-tower models: names (clip, negclip=FOLDER, ...), folders, hub ids, open_clip:ARCH/TAG, "
            "nano:clip, random; none for none",
            "What",
        ),
    )
    vlm: Names = field(
        default_factory=list,
        metadata=about(
            "generative models asked the multiple-choice questions: folders, hub ids, openai:URL#MODEL",
            "What",
        ),
    )
    data: str = field(
        default=NANO,
        metadata=about("nano, a folder with NegBench's CSV files anywhere in it, or one such file", "Data"),
    )
    datasets: Names = field(
        default_factory=lambda: ["all"],
        metadata=about(f"data sets, or all that are there: {', '.join(ROWS)}", "Data"),
    )
    tasks: Names = field(
        default_factory=lambda: ["all"], metadata=about(f"tasks, or all: {', '.join(TASKS)}", "Data")
    )
    variants: Names = field(
        default_factory=lambda: ["all"],
        metadata=about(f"wordings, or all that are there: {', '.join(VARIANTS)}", "Data"),
    )
    image_root: Names = field(
        default_factory=list,
        metadata=about("folder of the pictures, matched by file name; or NAME=FOLDER,...", "Data"),
    )
    split: Literal["val", "dev", "train"] = field(
        default="val", metadata=about("split of --data nano", "Data")
    )
    scenes: PositiveInt | None = field(
        default=None, metadata=about("scenes drawn for --data nano, if not the split's own number", "Data")
    )
    limit: PositiveInt | None = field(
        default=None, metadata=about("only the first N pictures (retrieval) or questions of a task", "Data")
    )
    protocol: Literal["fixed", "paper"] = field(
        default="fixed",
        metadata=about(
            "options shuffled and ties shared, or the right option first and ties to the first", "How"
        ),
    )
    features: Literal["normalised", "unnormalised"] = field(
        default="normalised",
        metadata=about("unnormalised: multiple choice as first published", "How"),
    )
    pooling: Literal["normalise-first", "average-first"] = field(
        default="normalise-first", metadata=about("how frames of a video become one feature", "How")
    )
    prompt: Literal["paper", "vlmevalkit"] = field(
        default="paper",
        metadata=about("wording of the questions to --vlm: NegVQA's, or the toolkit's", "How"),
    )
    scoring: Literal["generated", "logprob"] = field(
        default="generated",
        metadata=about("--vlm: the letter it writes, or the likeliest letter as its first token", "How"),
    )
    letters: Literal["fixed", "vlmevalkit"] = field(
        default="fixed", metadata=about("how the letter of an answer is read", "How")
    )
    seed: NonNegativeInt = field(
        default=0, metadata=about("run seed; every question derives the order of its options from it", "How")
    )
    out: str | None = field(
        default=None, metadata=about("folder of the results; default runs/negbench-<preset>", "Output")
    )
    cache: str | None = field(
        default=None, metadata=about("folder of features, can be shared; default OUT/cache", "Output")
    )
    overwrite: bool = field(
        default=False, metadata=about("discard what another configuration left in OUT", "Output")
    )
    batch_size: PositiveInt = field(
        default=32, metadata=about("pictures or sentences per forward pass", "Machine")
    )
    device: str = field(default="auto", metadata=about("auto, cpu, cuda, cuda:1, mps", "Machine"))
    dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=about("number type of the models", "Machine")
    )

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/negbench-{self.preset}")

    @property
    def cache_dir(self) -> Path:
        return Path(self.cache) if self.cache else self.out_dir / "cache"


def parse(argv: Sequence[str]) -> tuple[NegbenchConfig, bool]:
    """The checked configuration, and whether `--dry-run` was given. Raises UserError."""
    config, dry_run = options.read(
        NegbenchConfig,
        argv,
        prog=PROG,
        description="Measure how well two-tower and generative models understand negated captions.",
        folder="negbench/eval-",
    )
    check(config)
    return config, dry_run


def check(config: NegbenchConfig) -> None:
    """Everything that can be wrong with the words alone. Raises UserError."""
    for what, given, allowed in (
        ("data set", config.datasets, (*ROWS, NANO)),
        ("task", config.tasks, TASKS),
        ("variant", config.variants, VARIANTS),
    ):
        if not given:
            raise UserError(f"No {what} was named; say one of {', '.join(allowed)}, or all.")
        for name in given:
            if name not in (*allowed, "all"):
                raise unknown(what, name, allowed, "Or all.")
    if not config.model and not config.vlm:
        raise UserError("No model was named; say --model NAME or --vlm REFERENCE.")
    check_device(config.device)
    if config.preset == "paper" and config.data == NANO:
        raise UserError(
            "The paper preset needs NegBench's data: --data FOLDER (with the released CSV files) and "
            "--image-root NAME=FOLDER for the pictures."
        )
    if config.data != NANO and (config.scenes is not None or config.split != "val"):
        raise UserError("--scenes and --split are about --data nano; leave them out.")


def check_device(device: str) -> None:
    """Raises UserError for the name of no device."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
        raise UserError(f"--device is '{device}'; it must be auto, cpu, cuda, cuda:N or mps.")
