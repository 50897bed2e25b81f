"""The negation of every question, or why there is none. "Not negatable" is a verdict; an error never is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nein.generate.negvqa.sources import Choice
from nein.models import llm
from nein.models.llm.client import SILENT

#: What became of a question: it has a negation; the model says that it has none; the rules do not cover it;
#: nobody could say, for a reason that is counted; its record was of no use to begin with.
NEGATED, NOT_NEGATABLE, REFUSED, FAILED, UNUSABLE = (
    "negated", "not negatable", "refused", "failed", "unusable",
)  # fmt: skip
UNCHANGED = "unchanged question"

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
    """`state` is one of the words above; `question` the negation (NEGATED only); `reason` says why not.

    kind   For FAILED, what kind of failure, for counting; again: whether the same command asks once more.
    """

    state: str
    question: str = ""
    reason: str = ""
    kind: str = ""

    @property
    def again(self) -> bool:
        return self.kind in SILENT


def by_rules(items: Sequence[Choice]) -> list[Negation]:
    from nein.generate.negvqa.rules import Refusal, negate

    return [
        Negation(REFUSED, reason=str(made)) if isinstance(made, Refusal) else Negation(NEGATED, made)
        for made in negate([item.question for item in items])
    ]


def by_model(
    items: Sequence[Choice], wrong: Sequence[str], client: llm.Client, instruction: str = "ours"
) -> list[Negation]:
    """Negations by a language model, told one of `INSTRUCTIONS`; `wrong` is the option that each item keeps
    beside the right one."""
    schema: type[Verdict]
    if instruction == "paper":
        prompts, schema = [f"{PRINTED}\nQuestion: {item.question}" for item in items], PrintedVerdict
    else:
        prompts, schema = (
            [
                INSTRUCTION.format(question=item.question, right=item.answer, wrong=other)
                for item, other in zip(items, wrong, strict=True)
            ],
            Verdict,
        )
    outcomes = client.complete([*map(llm.Request, prompts)], schema, progress="negations")
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
