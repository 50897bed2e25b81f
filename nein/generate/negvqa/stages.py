"""What `nein negvqa generate` makes of multiple-choice questions: their negations, by rule or a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nein.engine.blocks import sample_seed
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

INSTRUCTION = """\
Below is a question about a picture, with its right answer and a wrong one. Rewrite the question so that it
asks for the opposite: with the new question the wrong answer becomes right, and the right answer wrong.

Rules:
1. Change as few words as possible; as a rule, insert one "not" or swap one verb for its negation.
2. The new question is grammatical, natural English and still has one clear answer among the two.
3. Negate only what is asked. Sentences of background, given facts and conditions ("If ...", "Given that ...")
   are repeated unchanged, never negated.
4. Negate once. Do not negate a question that is negative already by adding a second negation.
5. If no such question exists, the question is not negatable: then say so and leave the new question empty.

Examples:
Question: What is the woman holding? Right: umbrella. Wrong: phone.
-> negatable, "What is the woman not holding?"
Question: A ball is dropped on the Moon. Which force pulls it down? Right: gravity. Wrong: friction.
-> negatable, "A ball is dropped on the Moon. Which force does not pull it down?"
Question: How would you describe your feelings about this painting? Right: calm. Wrong: tense.
-> not negatable, ""

Question: {question}
Right answer: {right}
Wrong answer: {wrong}"""
#: As NegVQA's notebook and paper print it (arXiv:2505.22946, appendix); the question follows.
PRINTED = (Path(__file__).parent / "paper_prompt.txt").read_text(encoding="utf-8")
INSTRUCTIONS = {"ours": INSTRUCTION, "paper": PRINTED}


class Verdict(BaseModel):
    """What a language model has to answer."""

    model_config = ConfigDict(extra="forbid")

    negatable: bool = Field(description="whether a negated question exists")
    negated_question: str = Field(description="the negated question; empty if not negatable")

    @model_validator(mode="after")
    def _consistent(self) -> Verdict:
        if self.negatable != bool(self.negated_question.strip()):
            raise ValueError("a question is negatable exactly if a negated question is given")
        return self


class PrintedVerdict(Verdict):
    """What a language model has to answer."""

    negatable: bool = Field(alias="is_negatable", description="whether a negated question exists")


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


def by_model(
    items: Sequence[Choice], wrong: Sequence[str], client: llm.Client, instruction: str = "ours"
) -> list[Negation]:
    """Negations by a language model, told one of `INSTRUCTIONS`; `wrong` is the option that each item keeps
    beside the right one."""
    schema: type[Verdict] = Verdict
    if instruction == "paper":
        prompts, schema = [f"{PRINTED}\nQuestion: {item.question}" for item in items], PrintedVerdict
    else:
        prompts = [
            INSTRUCTION.format(question=item.question, right=item.answer, wrong=other)
            for item, other in zip(items, wrong, strict=True)
        ]
    outcomes = client.complete([*map(llm.Request, prompts)], schema)
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


def wrong_option(item: Choice, seed: int) -> str:
    """One of the wrong options that differ from the right one, drawn with the item's own seed."""
    rng = np.random.default_rng(sample_seed(seed, f"wrong/{item.id}"))
    return item.wrong[int(rng.integers(len(item.wrong)))]


class Negate(ShardStage):
    """Question, right and wrong answer -> the negated question, or why there is none."""

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
        if self.config.negator == "rules":
            found = iter(by_rules(usable))
        else:
            wrong = [wrong_option(item, self.config.seed) for item in usable]
            found = iter(by_model(usable, wrong, model, self.config.instruction))
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
        is_llm = config.negator == "llm"
        # Of a model behind an address a shard is a question: a limit costs no more than it says.
        size = 1 if is_llm and is_served(str(config.llm.model)) else TOGETHER
        super().__init__(config, wanted=("negate", "finish"), shard_size=size)
        if is_llm:
            llm.check(str(config.llm.model))
        self.listing = sources.load(config)
        self.negator = rules.describe() if config.negator == "rules" else self._asked()

    def identity(self, device: str) -> dict[str, Any]:
        config = self.config
        return {
            "source": self.listing.sha256(), "letters": config.letters, "seed": config.seed, **self.negator,
        }  # fmt: skip

    def _asked(self) -> dict[str, Any]:
        instruction = json_digest({"instruction": INSTRUCTIONS[self.config.instruction]})[:16]
        return {"negator": "llm", "instruction": instruction, **llm_identity(self.config.llm)}
