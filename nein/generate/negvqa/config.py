"""Everything that decides a built set of negated questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt

from nein.config import options
from nein.config.options import about
from nein.engine.errors import UserError
from nein.models.llm.options import LlmOptions


@dataclass
class ConversionConfig:
    """Field names are the keys of a configuration file."""

    preset: Literal["nano", "paper"] = field(
        default="nano",
        metadata=about("which configs/negvqa/generate-<preset>.yaml fills what is missing", "What"),
    )
    source: str = field(
        default="nano",
        metadata=about(
            "nano, hub:OWNER/NAME[@REVISION], or a .jsonl, .json, .csv or .tsv file in VMCBench's layout",
            "Source",
        ),
    )
    images: str | None = field(
        default=None, metadata=about("folder of the pictures, if not beside the file", "Source")
    )
    split: str = field(default="dev", metadata=about("split of a data set on the hub", "Source"))
    columns: dict[str, str] = field(
        default_factory=dict,
        metadata=about("fields by other names: --columns.question prompt --columns.A option_a", "Source"),
    )
    questions: PositiveInt = field(default=200, metadata=about("questions drawn for --source nano", "Source"))
    limit: PositiveInt | None = field(default=None, metadata=about("only the first N questions", "Source"))
    negator: Literal["rules", "llm"] = field(
        default="rules",
        metadata=about(
            "rules: offline, refuses what it does not cover; llm: the language model below", "How"
        ),
    )
    letters: Literal["balanced", "drawn"] = field(
        default="balanced",
        metadata=about("balanced: as many A as B in every subset; drawn: one by one, as in the paper", "How"),
    )
    seed: NonNegativeInt = field(
        default=1234, metadata=about("of the wrong option, the letters and the check sheet", "How")
    )
    sheet: PositiveInt = field(
        default=100, metadata=about("random items on the sheet that a person checks", "Output")
    )
    out: str | None = field(default=None, metadata=about("folder of the result", "Output"))
    overwrite: bool = field(
        default=False, metadata=about("discard what another configuration left in OUT", "Output")
    )
    device: str = field(default="auto", metadata=about("of a local language model", "Machine"))
    llm: LlmOptions = field(default_factory=LlmOptions)

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/negvqa-generate-{self.preset}")


def parse(argv: Sequence[str]) -> tuple[ConversionConfig, bool]:
    """The checked configuration of a `nein negvqa generate` command line, and whether `--dry-run` was given.

    Raises UserError; prints and raises SystemExit(0) for `--help`.
    """
    config, dry_run = options.read(
        ConversionConfig,
        argv,
        prog="nein negvqa generate",
        description="Make two-choice questions and their negations out of a multiple-choice VQA file.",
        folder="negvqa/generate-",
        llm="The language model of --negator llm; the key is the environment variable OPENAI_API_KEY.",
    )
    if config.negator == "rules" and config.llm.model is not None and "--negator" not in " ".join(argv):
        raise UserError("--llm.model is given but --negator is rules; add --negator llm.")
    if config.negator == "llm" and not config.llm.model:
        raise UserError(
            "--negator llm needs --llm.model openai:URL#MODEL, a hub id owner/name, or a local folder."
        )
    return config, dry_run
