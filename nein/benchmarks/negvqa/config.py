"""Everything that decides an evaluation on NegVQA; the paper's values: `configs/negvqa/eval-paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from nein.benchmarks import config as benchmarks
from nein.config.groups import (
    Blind,
    Formats,
    Limit,
    Output,
    Preset,
    RuntimeOptions,
    ScoreOptions,
    TrackerOptions,
)
from nein.config.options import Names, option
from nein.engine.errors import UserError
from nein.engine.store import Need
from nein.metrics.letters import EDITIONS, SCORINGS, Edition

EXACT, LLM = "exact", "llm:"


@dataclass(kw_only=True)
class NegvqaConfig(Preset, Limit, Blind, RuntimeOptions, Output, Formats, ScoreOptions, TrackerOptions):
    """Field names are the keys of a configuration file."""

    presets = "negvqa/eval-"
    default_out = "runs/negvqa-PRESET"
    counted = "questions (rounded up to whole blocks)"
    batch_size: PositiveInt = 8
    model: Names = option(
        [],
        "nano:NAME, a hub id owner/name[@revision], a folder, openai:URL#MODEL, vllm:URL#MODEL, vllm:MODEL, "
        "or judge: the VQA judge that decides Removal; each as NAME=... under a name of yours (repeatable, "
        "or a,b)",
        "What",
    )
    answers_from: Names = option(
        [],
        "answers of people or of another program: FILE or NAME=FILE, a .csv with the columns index, original "
        "and negated; read and scored as a model's",
        "What",
    )
    data: str = option(
        "nano", "nano, nano:WORLD, hub:OWNER/NAME[@REVISION], or a .jsonl file in NegVQA's layout", "Data"
    )
    negated: str | None = option(
        None, "the second of two files with question and answer: *-negated.jsonl", "Data"
    )
    images: str | None = option(None, "folder of the pictures, if not beside the file", "Data")
    split: str = option("test", "split of a data set on the hub", "Data")
    columns: dict[str, str] = option({}, "fields by other names: --columns.category subset", "Data")
    questions: PositiveInt = option(640, "questions drawn for --data nano", "Data")
    mend: Names = option(
        [],
        "cures without training, beside the model as it is: flip, consistent, chain-of-thought",
        "What",
        among=("flip", "consistent", "chain-of-thought"),
        what="cure",
    )
    prompt: Literal["paper", "vlmevalkit"] = option(
        "paper",
        "wording of the question: as the paper prints it, or as VLMEvalKit puts it to each model",
        "How",
    )
    scoring: Names = option(
        list(SCORINGS),
        "generated (the letter that is written), logprob (the likeliest letter)",
        "How",
        among=SCORINGS,
        what="scoring",
    )
    protocol: Literal["paper", "fixed"] = option(
        "fixed", "reading and averaging: as published, or mended; the report shows both", "How"
    )
    letters: Edition = option(
        EDITIONS[0],
        "how --protocol paper reads a letter: VLMEvalKit's rule of NegVQA's time, or as it changed since",
        "How",
    )
    matcher: str = option(
        EXACT,
        "what reads an answer in which --letters finds none: exact (nothing, it is wrong) or llm:MODEL, a "
        "language model as VLMEvalKit has one (openai:URL#MODEL, a hub id, a folder)",
        "How",
    )
    max_new_tokens: PositiveInt | None = option(
        None, "longest answer; default: what VLMEvalKit gives the model, 200 to 4,096 tokens", "How"
    )
    model_options: dict[str, Any] = option(
        {}, "of a model behind an endpoint: --model-options.reasoning_effort none", "How"
    )
    judge: str = option("nano:llava", "which judge --model judge is", "Judge")
    judge_asking: Literal["options", "letters"] = option(
        "options",
        "options: its own yes/no question once per option; letters: --prompt, as other models are asked",
        "Judge",
    )
    judge_quantization: Literal["none", "bnb-fp4"] = option(
        "none", "bnb-fp4: 4 bit, as in the NeIn paper (needs CUDA)", "Judge"
    )
    formats: Names = field(default_factory=lambda: ["html", "md", "csv"])
    samples: NonNegativeInt = option(400, "questions shown with their answers in the page", "Output")

    @property
    def matching(self) -> str | None:
        """The language model that reads answers without a letter, if one does."""
        return None if self.matcher == EXACT else self.matcher.removeprefix(LLM)

    def needs(self) -> list[Need]:
        from nein.models import needs, references

        models = (references.named(name)[1] for name in self.model)
        return [
            *(need for m in models for need in needs.of_model("vqa", self.judge if m == "judge" else m)),
            *needs.of_model("llm", self.matching),
            *needs.of_data(self.data),
        ]

    def check(self) -> None:
        if not self.scoring:
            raise UserError(f"--scoring must name at least one of {', '.join(SCORINGS)}.")
        if not self.model and not self.answers_from:
            raise UserError(
                "--model names no model; give a hub id, a folder, openai:URL#MODEL, nano:negvqa or judge."
            )
        if self.answers_from and "generated" not in self.scoring:
            raise UserError("--answers-from has answers in words; add generated to --scoring.")
        if self.matcher != EXACT and not self.matcher.startswith(LLM):
            raise UserError(f"--matcher is '{self.matcher}'; allowed: {EXACT}, {LLM}MODEL.")
        if self.negated is not None and self.data.partition(":")[0] in ("nano", "hub"):
            raise UserError("--negated is the second of two files; --data must be the first.")


@dataclass(kw_only=True)
class ReportConfig(benchmarks.ReportConfig):
    """Which runs, and where their pictures are."""

    out: Path = option(Path("negvqa.html"), "page to write; the other files lie beside it", "Output")
    samples: NonNegativeInt = option(400, "questions shown in the page", "Output")
    data: str | None = option(None, "the questions, if they are not nano's (for their pictures)", "Data")
    negated: str | None = option(None, "the second of two files with the questions", "Data")
    images: str | None = option(None, "folder of the pictures, if not beside the file", "Data")
