"""Judges of edits for commands: those of `metrics.rewards`, and the yes/no judge of Removal as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nein import metrics
from nein.engine.errors import UserError
from nein.loading.digests import json_digest
from nein.loading.errors import isolated
from nein.metrics.base import Score, parse_yes_no
from nein.metrics.judges.base import Answer, template
from nein.metrics.rewards import RewardJudge as RewardJudge
from nein.metrics.rewards import check_edits
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

    def score(
        self, sources: Sequence[np.ndarray], edits: Sequence[np.ndarray], instructions: Sequence[str]
    ) -> list[Score]:
        """See `metrics.rewards.RewardJudge`; `detail` has the answer to each object."""
        check_edits([sources, edits], instructions)
        named = to_be_gone(instructions)
        ask = template(self.model.template).ask_presence
        indices = [k for k, words in enumerate(named) if words]
        answers = isolated(
            lambda rows: self.model.ask(
                [edits[k] for k in rows], [[ask(word, self.article) for word in named[k]] for k in rows]
            ),
            indices,
        )
        scores = [Score(None, NAMES_NOTHING)] * len(named)
        for k, replies in zip(indices, answers, strict=True):
            scores[k] = Score(None, replies) if isinstance(replies, str) else _least(named[k], replies)
        return scores


def _least(names: Sequence[str], answers: Sequence[Answer]) -> Score:
    detail = {"answers": {name: answer.text for name, answer in zip(names, answers, strict=True)}}
    shares = {}
    for name, answer in zip(names, answers, strict=True):
        yes, no, present = answer.p_yes, answer.p_no, parse_yes_no(answer.text)
        if yes is not None and no is not None and yes + no > 0:
            shares[name] = no / (yes + no)
        elif present is None:
            return Score(None, f"the answer {answer.text!r} is neither yes nor no", detail)
        else:
            shares[name] = float(not present)
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
    reference: str, *, services: Services, device: str, dtype: str, removal: Callable[[], RewardJudge]
) -> RewardJudge:
    """The judge of that reference, loaded.

    services  Of a judge behind an endpoint.
    removal   Makes `RemovalReward` of the run's judge.
    """
    if reference == REMOVAL:
        return removal()
    judge = metrics.load_reward(reference, device=device, dtype=dtype, sending=services.options)
    services.keep(judge.model)  # pairwise comparison by a model of multiple choice
    return services.keep(judge)
