"""Judges of edits for commands: those of `metrics.rewards`, and the yes/no judge of Removal as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from nein import metrics
from nein.engine.errors import UserError
from nein.loading.digests import json_digest
from nein.metrics.base import Images, Score
from nein.metrics.rewards import RewardJudge as RewardJudge
from nein.metrics.rewards import check_edits
from nein.models import judges
from nein.models.cached import Services
from nein.wording import denials

#: The run's judge of Removal; every other reference is one of `metrics.rewards`.
REMOVAL = "removal"
FORMS = (REMOVAL, "editscore:MODEL", "pairwise:MODEL", "matching:MODEL")
NAMES_NOTHING = "the sentence names nothing that is to be gone"


class RemovalReward(RewardJudge):
    """The share of "no" when a yes/no judge is asked for what the instruction wants gone (`to_be_gone`):
    P(no) / (P(yes) + P(no)), or 1 and 0 where the judge gives no probabilities. Of several objects the least.
    A sentence without one, and an answer that is neither yes nor no, leaves an edit unscored."""

    def __init__(self, judge: Any, article: str = "none") -> None:
        super().__init__(judge)
        self.article = article
        self.fingerprint = json_digest({"kind": REMOVAL, "judge": judge.fingerprint, "article": article})

    def describe(self) -> dict[str, Any]:
        return {**self.model.describe(), "kind": REMOVAL, "judge": self.model.fingerprint}

    def score(self, sources: Images, edits: Images, instructions: Sequence[str]) -> list[Score]:
        """See `metrics.rewards.RewardJudge`; `detail` has the answer to each object."""
        check_edits([sources, edits], instructions)
        named = to_be_gone(instructions)
        words = [[judges.Word(name, None, judges.OBJECT) for name in row] for row in named]
        answers = judges.ask("vqa", self.model, edits, words, judges.JudgeOptions(self.article))
        return [_least(names, replies) for names, replies in zip(named, answers, strict=True)]


def _least(names: Sequence[str], answers: Sequence[judges.Verdict]) -> Score:
    if not names:
        return Score(None, NAMES_NOTHING)
    shares = {}
    detail = {"answers": {k: a["reply"].get("answer") for k, a in zip(names, answers, strict=True)}}
    for name, answer in zip(names, answers, strict=True):
        if "error" in answer["reply"]:
            return Score(None, answer["reply"]["error"])
        if answer["score"] is None and answer["verdict_fixed"] is None:
            why = f"the answer {detail['answers'][name]!r} is neither yes nor no"
            return Score(None, why, detail)
        shares[name] = float(not answer["verdict_fixed"]) if answer["score"] is None else 1 - answer["score"]
    return Score(min(shares.values()), ", ".join(f"no {k}: {v:.3f}" for k, v in shares.items()), detail)


def to_be_gone(instructions: Sequence[str]) -> list[tuple[str, ...]]:
    """What each sentence wants gone: "Remove the cup and the bus." and "no cup" alike; () for nothing."""
    commands = [re.fullmatch(r"Remove the (.+?)\.?", text.strip()) for text in instructions]
    read = denials.read(
        [text for text, command in zip(instructions, commands, strict=True) if command is None]
    )
    absent = iter([reading.absent for reading in read])
    return [next(absent) if found is None else tuple(found[1].split(" and the ")) for found in commands]


def check(reference: str) -> None:
    """Says what is wrong with a reference before anything is loaded. Raises UserError or MetricError."""
    if reference == REMOVAL:
        return
    if ":" not in reference:
        raise UserError(f"'{reference}' is not a judge of edits; expected {', '.join(FORMS)}.")
    metrics.check_reward(reference)


def load(
    reference: str, *, services: Services, removal: Callable[[], RewardJudge], **how: Any
) -> RewardJudge:
    """The judge of that reference, loaded. services: of a judge behind an endpoint; removal: makes
    `RemovalReward` of the run's judge; how: device and dtype."""
    if reference == REMOVAL:
        return removal()
    judge = metrics.load_reward(reference, sending=services.options, **how)
    services.keep(judge.model)  # pairwise comparison by a model of multiple choice
    return services.keep(judge)
