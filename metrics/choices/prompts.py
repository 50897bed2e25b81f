"""The wording of a multiple-choice question, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from metrics.base import MetricError, choose
from metrics.letters import LETTERS


class Prompt(NamedTuple):
    """What is said before and after the picture. Where a model's own template puts the picture first, the two
    are joined behind it."""

    before: str
    after: str

    @property
    def text(self) -> str:
        """The words alone: "Question: What is this?" whether or not a picture stood in between."""
        return f"{self.before}{self.after.lstrip()}" if self.before else self.after


def _paper(question: str, options: Sequence[str]) -> Prompt:
    listed = " ".join(f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False))
    return Prompt(
        "Question: ",
        f" {question}\nOptions: {listed}\nAnswer with the option's letter from the given choices directly.",
    )


def _vlmevalkit(question: str, options: Sequence[str]) -> Prompt:
    listed = "".join(f"{letter}. {text}\n" for letter, text in zip(LETTERS, options, strict=False))
    return Prompt(
        "",
        f"Question: {question}\nOptions:\n{listed}"
        "Please select the correct answer from the options above. \n",
    )


#: "paper": as NegVQA prints it (arXiv:2505.22946, the picture behind "Question:"); "vlmevalkit": what the
#: toolkit it was run with sends for a multiple-choice question (vlmeval/dataset/image_mcq.py).
PROMPTS: dict[str, Callable[[str, Sequence[str]], Prompt]] = {"paper": _paper, "vlmevalkit": _vlmevalkit}


def prompt(name: str, question: str, options: Sequence[str]) -> Prompt:
    """The prompt of that name. Raises MetricError for an unknown name or not 2 to 26 options."""
    if not 2 <= len(options) <= len(LETTERS):
        raise MetricError(f"A question needs 2 to {len(LETTERS)} options, not {len(options)}.")
    return PROMPTS[choose("prompt", name, PROMPTS)](question, options)
