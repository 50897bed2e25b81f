"""What `nein negvqa generate` makes of multiple-choice questions: their negations, by a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nein.generate import maker
from nein.generate.maker import ShardStage, llm_identity
from nein.generate.negvqa import sources
from nein.generate.negvqa.config import ConversionConfig
from nein.generate.negvqa.sources import Choice
from nein.loading.digests import json_digest
from nein.models import llm

NEGATED = "negated"
NOT_NEGATABLE = "not negatable"  # says the model
FAILED = "failed"  # the model did not say, for a reason that is counted
UNUSABLE = "unusable"  # the record was of no use to begin with
UNCHANGED = "unchanged question"
TOGETHER = 128  # questions that a local model is given at once

#: As NegVQA's notebook and paper print it (arXiv:2505.22946, appendix); the question follows.
PROMPT = (Path(__file__).parent / "paper_prompt.txt").read_text(encoding="utf-8")


class PrintedVerdict(BaseModel):
    """What a language model has to answer."""

    model_config = ConfigDict(extra="forbid")

    negatable: bool = Field(alias="is_negatable", description="whether a negated question exists")
    negated_question: str = Field(description="the negated question; empty if not negatable")

    @model_validator(mode="after")
    def _consistent(self) -> PrintedVerdict:
        if self.negatable != bool(self.negated_question.strip()):
            raise ValueError("a question is negatable exactly if a negated question is given")
        return self


@dataclass(frozen=True, slots=True)
class Negation:
    """`state` is one of the words above; `question` the negation (NEGATED only); `reason` says why not;
    `kind`, of FAILED, which kind of failure, for counting."""

    id: str
    state: str
    question: str = ""
    reason: str = ""
    kind: str = ""

    @property
    def again(self) -> bool:
        """Whether the same command asks once more."""
        return self.kind in llm.SILENT


def by_model(items: Sequence[Choice], client: llm.Client) -> list[Negation]:
    requests = [llm.Request(f"{PROMPT}\nQuestion: {item.question}") for item in items]
    negations = []
    for item, outcome in zip(items, client.complete(requests, PrintedVerdict), strict=True):
        question = outcome.value.negated_question.strip() if outcome.value else ""
        if outcome.value is None:
            facts = (FAILED, "", outcome.reason, outcome.failure)
        elif not outcome.value.negatable:
            facts = (NOT_NEGATABLE, "", "the language model finds no negation", "")
        elif question.casefold().split() == item.question.casefold().split():
            facts = (FAILED, "", "the language model returned the question unchanged", UNCHANGED)
        else:
            facts = (NEGATED, question, "", "")
        negations.append(Negation(item.id, *facts))
    return negations


class Negate(ShardStage):
    """Question -> the negated question, or why there is none. Drawn questions come with theirs."""

    name, kind = "negate", "negator"
    maker: NegvqaMaker

    def works_at(self) -> str:
        return str(self.config.place)

    def load(self) -> llm.Client:
        return self.maker.client(self.config.llm, self.device)

    def read(self, number: int) -> list[Choice]:
        return self.maker.members(number)

    def make(self, model: llm.Client | None, inputs: list[Choice]) -> list[Negation]:
        usable = [item for item in inputs if not item.problem]
        if model is None:
            negations = [Negation(item.id, NEGATED, item.negated) for item in usable]
        else:
            negations = by_model(usable, model)
        found = iter(negations)
        return [
            Negation(item.id, UNUSABLE, reason=item.problem) if item.problem else next(found)
            for item in inputs
        ]

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        """A question that got no answer is asked again."""
        return not any(row.again for row in rows)


class NegvqaFolder(maker.BuildFolder):
    row_types: ClassVar[Any] = {"work/negate": Negation}


class NegvqaMaker(maker.Maker):
    """A build of NegVQA."""

    config: ConversionConfig
    stages, folder_type, decides = (Negate,), NegvqaFolder, "letters seed"

    def __init__(self, config: ConversionConfig) -> None:
        # Of a model behind an address a shard is a question: a limit costs no more than it says.
        size = 1 if config.place == "remote" else TOGETHER
        super().__init__(config, wanted=("negate", "finish"), shard_size=size)
        self.listing = sources.load(config)

    def identity(self, device: str) -> dict[str, Any]:
        if self.config.llm.model is None:
            return {**super().identity(device), "negator": "drawn"}
        prompt = json_digest({"prompt": PROMPT})[:16]
        return {**super().identity(device), "prompt": prompt, **llm_identity(self.config.llm)}

    def negations(self) -> list[tuple[Choice, Negation]]:
        """Every wanted question, and what became of it."""
        rows = (row for shard in self.blocks.numbers for row in self.rows("negate", shard))
        return [
            (self.listing.records[index], row) for index, row in zip(self.blocks.wanted, rows, strict=False)
        ]
