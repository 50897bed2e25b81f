"""What `nein negvqa generate` makes of multiple-choice questions: their negations, by rule or a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nein.engine.folder import Row
from nein.generate import maker
from nein.generate.maker import ShardStage, llm_identity
from nein.generate.negvqa import rules, sources
from nein.generate.negvqa.config import ConversionConfig
from nein.generate.negvqa.sources import Choice
from nein.loading.digests import json_digest
from nein.loading.references import is_served
from nein.models.llm import client as llm

#: What became of a question: it has a negation; the model says that it has none; the rules do not cover it;
#: nobody could say, for a reason that is counted; its record was of no use to begin with.
NEGATED, NOT_NEGATABLE, REFUSED, FAILED, UNUSABLE = (
    "negated", "not negatable", "refused", "failed", "unusable",
)  # fmt: skip
UNCHANGED = "unchanged question"
TOGETHER = 128  # questions that rules or a local model are given at once

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

    state: str
    question: str = ""
    reason: str = ""
    kind: str = ""

    @property
    def again(self) -> bool:
        """Whether the same command asks once more."""
        return self.kind in llm.SILENT


def by_rules(items: Sequence[Choice]) -> list[Negation]:
    return [
        Negation(REFUSED, reason=str(found)) if isinstance(found, rules.Refusal) else Negation(NEGATED, found)
        for found in rules.negate([item.question for item in items])
    ]


def by_model(items: Sequence[Choice], client: llm.Client) -> list[Negation]:
    requests = [llm.Request(f"{PROMPT}\nQuestion: {item.question}") for item in items]
    outcomes = client.complete(requests, PrintedVerdict)
    return [_negation(item, outcome) for item, outcome in zip(items, outcomes, strict=True)]


def _negation(item: Choice, outcome: Any) -> Negation:
    if outcome.value is None:
        return Negation(FAILED, reason=outcome.reason, kind=outcome.failure)
    if not outcome.value.negatable:
        return Negation(NOT_NEGATABLE, reason="the language model finds no negation")
    question = outcome.value.negated_question.strip()
    if " ".join(question.casefold().split()) == " ".join(item.question.casefold().split()):
        return Negation(FAILED, reason="the language model returned the question unchanged", kind=UNCHANGED)
    return Negation(NEGATED, question)


class Negate(ShardStage):
    """Question -> the negated question, or why there is none."""

    name, model = "negate", "negator"
    maker: NegvqaMaker

    @property
    def place(self) -> str:
        if self.config.negator == "rules":
            return "host"
        return "remote" if is_served(str(self.config.llm.model)) else "device"

    def load(self) -> Any:
        return rules if self.config.negator == "rules" else self.maker.client(self.config.llm, self.device)

    def read(self, shard: int) -> list[Choice]:
        return self.maker.members(shard)

    def work(self, model: Any, inputs: list[Choice]) -> list[Row]:
        usable = [item for item in inputs if not item.problem]
        found = iter(by_rules(usable) if self.config.negator == "rules" else by_model(usable, model))
        negations = [
            Negation(UNUSABLE, reason=item.problem) if item.problem else next(found) for item in inputs
        ]
        return [{"id": item.id, **asdict(neg)} for item, neg in zip(inputs, negations, strict=True)]

    def is_valid(self, rows: list[Row]) -> bool:
        """A question that got no answer is asked again."""
        return not any(row["kind"] in llm.SILENT for row in rows)


class NegvqaMaker(maker.Maker):
    """A build of NegVQA."""

    config: ConversionConfig
    stages = (Negate,)

    def __init__(self, config: ConversionConfig) -> None:
        # Of a model behind an address a shard is a question: a limit costs no more than it says.
        size = 1 if config.negator == "llm" and is_served(str(config.llm.model)) else TOGETHER
        super().__init__(config, wanted=("negate", "finish"), shard_size=size)
        self.listing = sources.load(config)
        self.negator = rules.describe() if config.negator == "rules" else self._asked()

    def identity(self, device: str) -> dict[str, Any]:
        config = self.config
        return {
            "source": self.listing.sha256(), "letters": config.letters, "seed": config.seed, **self.negator,
        }  # fmt: skip

    def _asked(self) -> dict[str, Any]:
        prompt = json_digest({"prompt": PROMPT})[:16]
        return {"negator": "llm", "prompt": prompt, **llm_identity(self.config.llm)}
