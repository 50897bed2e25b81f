"""The options of `nein negvqa` and of its report; the paper's values: `configs/negvqa/eval-paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from nein.benchmarks import config as benchmarks
from nein.config.groups import Blind, Evaluation
from nein.config.options import DrawnCount, Names, option
from nein.loading.errors import UserError
from nein.loading.references import Need
from nein.metrics.letters import SCORINGS

REMEDIES = ("flip", "consistent", "chain-of-thought")
EXACT, LLM = "exact", "llm:"  # values of --matcher: VLMEvalKit's rule alone; prefix of a model


@dataclass(kw_only=True)
class NegvqaConfig(Evaluation, Blind):
    """The options of an evaluation. Field names are the keys of a configuration file."""

    presets = "negvqa/eval-"  # start of a preset's file
    default_out = "runs/negvqa-PRESET"
    counted = "questions (rounded up to whole blocks)"  # by --limit
    batch_size: PositiveInt = 8
    model: Names = option(
        [], "hub id, folder, openai:URL#MODEL, nano:NAME, judge, file.py:FUNCTION, LABEL=MODEL", "Main"
    )
    answers_from: Names = option(
        [], "score existing answers: [NAME=]FILE.csv with index, original, negated", "Main"
    )
    data: str = option("nano", "nano, nano:WORLD, hub:OWNER/NAME[@REVISION], or a .jsonl file", "Main")
    negated: str | None = option(None, "second of two files: *-negated.jsonl", "Data")
    images: str | None = option(None, "image folder (default: next to the file)", "Data")
    split: str = option("test", "split of a data set on the hub", "Data")
    columns: dict[str, str] = option({}, "renamed fields: --columns.category subset", "Data")
    questions: DrawnCount = option(640, "questions drawn for --data nano", "Data")
    mend: Names = option([], f"add remedies: {', '.join(REMEDIES)}", "Main", among=REMEDIES, what="remedy")
    prompt: Literal["paper", "vlmevalkit"] = option(
        "paper", "question wording: the paper's, or VLMEvalKit's for each model", "Method"
    )
    scoring: Names = option(
        list(SCORINGS), "generated letter, logprob (likeliest letter)", "Method",
        among=SCORINGS, what="scoring",
    )  # fmt: skip
    matcher: str = option(
        EXACT, "read answers without a letter: exact (counts as wrong), or llm:MODEL", "Method"
    )
    max_new_tokens: PositiveInt | None = option(
        None, "max tokens per answer (paper: VLMEvalKit's per model, 200 to 4,096)", "Method"
    )
    model_options: dict[str, Any] = option(
        {}, "of the model: --model-options.reasoning_effort none, .device_map auto", "Method"
    )
    judge: str = option("nano:llava", "VQA judge of --model judge", "Judge")
    judge_asking: Literal["options", "letters"] = option(
        "options", "options: yes/no per option; letters: as other models", "Judge"
    )
    judge_quantization: Literal["none", "bnb-fp4"] = option(
        "none", "bnb-fp4: 4 bit, as in the NeIn paper (CUDA)", "Judge"
    )

    @property
    def matcher_model(self) -> str | None:
        """The language model that reads answers without a letter, if one does."""
        return None if self.matcher == EXACT else self.matcher.removeprefix(LLM)

    def needs(self) -> list[Need]:
        from nein.models import needs, references

        needed: list[Need] = []
        for name in self.model:
            reference = references.split_label(name)[1]
            needed += needs.model_needs("vqa", self.judge if reference == "judge" else reference)
        return [*needed, *needs.model_needs("llm", self.matcher_model), *needs.data_needs(self.data)]

    def check(self) -> None:
        if not self.scoring:
            raise UserError(f"--scoring must name at least one of {', '.join(SCORINGS)}.")
        if not self.model and not self.answers_from:
            raise UserError("--model names no model; pass a hub id, folder, openai:URL#MODEL or nano:negvqa.")
        if self.answers_from and "generated" not in self.scoring:
            raise UserError("--answers-from has answers in words; add generated to --scoring.")
        if self.matcher != EXACT and self.matcher_model in ("", self.matcher):  # no name, or no prefix
            raise UserError(f"--matcher is '{self.matcher}'; allowed: {EXACT}, {LLM}MODEL.")
        if self.negated is not None and self.data.partition(":")[0] in ("nano", "hub"):
            raise UserError("--negated is the second of two files; --data must be the first.")


@dataclass(kw_only=True)
class ReportConfig(benchmarks.ReportConfig):
    """Which runs to report, and where their images are."""

    shown: NonNegativeInt = option(400, "questions shown in the page", "Output")
    data: str | None = option(None, "the questions, for their images (not nano's)", "Data")
    negated: str | None = option(None, "second of two question files", "Data")
    images: str | None = option(None, "image folder (default: next to the file)", "Data")
