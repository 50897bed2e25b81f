"""A model of multiple choice as a judge of edits: which of two obeys the instruction, in both orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nein.metrics.base import Images, Score, fingerprint
from nein.metrics.choices import ChatChoices, ChoiceQuestion, Prompt, Reply, answer_each
from nein.metrics.letters import LETTERS, parse
from nein.metrics.rewards import RewardJudge, check_edits

#: Between the pictures of a sheet, as a share of their height; white.
GAP = 0.06
OPTIONS = ("the picture in the middle", "the picture on the right")
LISTED = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, OPTIONS, strict=False))
QUESTION = (
    "Three pictures side by side. On the left is the original; in the middle and on the right are two edits "
    'of it. The editor was told: "{instruction}" Which edit is as it was told?'
)


class Pairwise(RewardJudge):
    """Shown the picture before and both edits side by side in one picture, the model is asked twice, with the
    edits in either place. The mean over both orders of ln P(first) - ln P(second) decides, from which a
    preference for a place cancels; without probabilities the letters, and two that disagree are no preference
    (0.5). `detail` has the letters of both orders."""

    compares = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        # Writing costs a local model more than looking at the first step; a server may give no probabilities.
        cheap = "logprob" in model.scorings and not model.concurrent
        self._scorings = ("logprob",) if cheap else tuple(model.scorings)
        self.fingerprint = fingerprint({"kind": "pairwise", "model": model.fingerprint, "prompt": QUESTION})

    def describe(self) -> dict[str, Any]:
        return {**self.model.describe(), "kind": "pairwise", "prompt": QUESTION, "orders": 2}

    def score(self, sources: Images, edits: Images, instructions: Sequence[str]) -> list[Score]:
        """Against the picture before, 0 to 1: the logistic of the mean difference, else the preference."""
        scores = []
        for result in self.prefer(sources, edits, sources, instructions):
            if result.value is not None and (x := result.detail["difference"]) is not None:
                result = replace(result, value=1 / (1 + math.exp(-x)) if x > -700 else 0.0)
            scores.append(result)
        return scores

    def prefer(
        self, sources: Images, first: Images, second: Images, instructions: Sequence[str]
    ) -> list[Score]:
        check_edits([sources, first, second], instructions)
        sheets, questions = [], []
        for source, one, other, instruction in zip(sources, first, second, instructions, strict=True):
            sheets += [sheet([source, one, other]), sheet([source, other, one])]
            question = QUESTION.replace("{instruction}", instruction)
            words = f"{question}\n{LISTED}\nAnswer with the letter alone."
            questions += [[ChoiceQuestion(Prompt("", words), len(OPTIONS), question, OPTIONS)]] * 2
        replies = [row[0] for row in answer_each(self.model, sheets, questions, self._scorings)]
        return [_preference(*pair) for pair in zip(replies[::2], replies[1::2], strict=True)]


def sheet(pictures: Images) -> np.ndarray:
    """Pictures side by side on white, (H, W, 3) uint8; others are brought to the size of the first."""
    from PIL import Image

    height, width = pictures[0].shape[:2]
    gap = max(1, round(GAP * height))
    canvas = np.full((height, len(pictures) * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for k, picture in enumerate(pictures):
        if picture.shape != pictures[0].shape:
            picture = np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))
        canvas[:, k * (width + gap) : k * (width + gap) + width] = picture
    return canvas


def _preference(straight: Reply, swapped: Reply) -> Score:
    letters: list[str | None] = []
    sides: list[float] = []  # ln P(A) - ln P(B)
    for order, reply in (("first", straight), ("second", swapped)):
        if reply.error:
            return Score(None, f"the {order} order: {reply.error}")
        letters.append(reply.likeliest or (parse(reply.text, OPTIONS).letter if reply.text else None))
        a, b = (reply.logprobs or (None, None))[:2]
        sides += [] if a is None or b is None else [a - b]
    detail: dict[str, Any] = {"letters": letters, "difference": None}
    if len(sides) == 2:
        difference = (sides[0] - sides[1]) / 2
        value = 0.5 if difference == 0 else float(difference > 0)
        return Score(value, f"ln P differs by {difference:.3g}", {**detail, "difference": difference})
    if None in letters:
        return Score(None, f"no letter in {[straight.text, swapped.text]!r}", detail)
    value = {"AB": 1.0, "BA": 0.0}.get("".join(map(str, letters)), 0.5)
    return Score(value, f"said {letters[0]}, then {letters[1]}", detail)


def load(path_or_id: str, **how: Any) -> Pairwise:
    """By any model of multiple choice (`metrics.load_choices`)."""
    return Pairwise(ChatChoices.load(path_or_id, **how))
