"""Everything that decides an evaluation on NegVQA; the paper's values: `configs/negvqa/eval-paper.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from metrics.choices.base import SCORINGS
from nein.config import options
from nein.config.options import Names, about
from nein.engine.errors import UserError, unknown

FORMATS = ("html", "md", "csv", "tex", "plots")


@dataclass
class NegvqaConfig:
    """Field names are the keys of a configuration file."""

    preset: Literal["nano", "paper"] = field(
        default="nano",
        metadata=about("which configs/negvqa/eval-<preset>.yaml fills what is not given", "What"),
    )
    model: Names = field(
        default_factory=list,
        metadata=about(
            "nano:NAME, a hub id owner/name[@revision], a folder, openai:URL#MODEL, or judge: the VQA judge "
            "that decides Removal (repeatable, or a,b)",
            "What",
        ),
    )
    data: str = field(
        default="nano",
        metadata=about("nano, hub:OWNER/NAME[@REVISION], or a .jsonl file in NegVQA's layout", "Data"),
    )
    negated: str | None = field(
        default=None,
        metadata=about("the second of two files with question and answer: *-negated.jsonl", "Data"),
    )
    images: str | None = field(
        default=None, metadata=about("folder of the pictures, if not beside the file", "Data")
    )
    split: str = field(default="test", metadata=about("split of a data set on the hub", "Data"))
    columns: dict[str, str] = field(
        default_factory=dict,
        metadata=about("fields by other names: --columns.category subset", "Data"),
    )
    questions: PositiveInt = field(default=640, metadata=about("questions drawn for --data nano", "Data"))
    limit: PositiveInt | None = field(
        default=None, metadata=about("only the first N questions (rounded up to whole blocks)", "Data")
    )
    prompt: Literal["paper", "vlmevalkit"] = field(
        default="paper", metadata=about("wording of the question", "How")
    )
    scoring: Names = field(
        default_factory=lambda: list(SCORINGS),
        metadata=about("generated (the letter that is written), logprob (the likeliest letter)", "How"),
    )
    protocol: Literal["paper", "fixed"] = field(
        default="fixed",
        metadata=about("reading and averaging: as published, or mended; the report shows both", "How"),
    )
    max_new_tokens: PositiveInt = field(default=16, metadata=about("longest answer", "How"))
    judge: str = field(default="nano:llava", metadata=about("which judge --model judge is", "Judge"))
    judge_asking: Literal["options", "letters"] = field(
        default="options",
        metadata=about(
            "options: its own yes/no question once per option; letters: --prompt, as other models are asked",
            "Judge",
        ),
    )
    judge_quantization: Literal["none", "bnb-fp4"] = field(
        default="none", metadata=about("bnb-fp4: 4 bit, as in the NeIn paper (needs CUDA)", "Judge")
    )
    concurrency: PositiveInt = field(
        default=8, metadata=about("questions in flight at an endpoint", "Endpoint")
    )
    timeout: PositiveFloat = field(default=120.0, metadata=about("seconds to wait for an answer", "Endpoint"))
    retries: NonNegativeInt = field(
        default=5, metadata=about("how often a question is asked again after a failure", "Endpoint")
    )
    out: str | None = field(default=None, metadata=about("folder of runs and report", "Output"))
    overwrite: bool = field(
        default=False, metadata=about("discard what another configuration left in OUT", "Output")
    )
    formats: Names = field(
        default_factory=lambda: list(FORMATS),
        metadata=about(f"parts of the report: {', '.join(FORMATS)}", "Output"),
    )
    samples: NonNegativeInt = field(
        default=400,
        metadata=about("questions shown with their answers in the page", "Output"),
    )
    batch_size: PositiveInt = field(
        default=8, metadata=about("pictures asked about together; lower it when memory runs out", "Machine")
    )
    device: str = field(default="auto", metadata=about("auto, cpu, cuda, cuda:1, mps", "Machine"))
    dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=about("number type of the models", "Machine")
    )

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/negvqa-{self.preset}")


def parse(argv: Sequence[str]) -> tuple[NegvqaConfig, bool]:
    """The checked configuration of a `nein negvqa` command line, and whether `--dry-run` was given.

    Raises UserError; prints and raises SystemExit(0) for `--help`.
    """
    config, dry_run = options.read(
        NegvqaConfig,
        argv,
        prog="nein negvqa",
        description="Ask vision-language models questions and their negations, and report what is lost. "
        "Also: nein negvqa report RUN..., nein negvqa generate.",
        folder="negvqa/eval-",
    )
    _check(config)
    return config, dry_run


def _check(config: NegvqaConfig) -> None:
    for what, given, allowed in (
        ("scoring", config.scoring, SCORINGS),
        ("format", config.formats, FORMATS),
    ):
        for name in given:
            if name not in allowed:
                raise unknown(what, name, allowed)
    if not config.scoring:
        raise UserError(f"--scoring must name at least one of {', '.join(SCORINGS)}.")
    if not config.model:
        raise UserError(
            "--model names no model; give a hub id, a folder, openai:URL#MODEL, nano:negvqa or judge."
        )
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", config.device):
        raise UserError(f"--device is '{config.device}'; it must be auto, cpu, cuda, cuda:N or mps.")
    if config.negated is not None and (config.data == "nano" or config.data.startswith("hub:")):
        raise UserError("--negated is the second of two files; --data must be the first.")
