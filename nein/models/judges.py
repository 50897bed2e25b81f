"""Judges of images (is a thing there?) and of edits (which one follows its instruction?)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nein import metrics
from nein.loading.digests import Json, json_digest
from nein.loading.errors import UserError, isolate_answers
from nein.loading.references import is_served
from nein.metrics.base import Images, Score
from nein.metrics.judges.base import find_template, paper_says_present, paper_says_removed, parse_yes_no
from nein.metrics.rewards import RewardJudge, check_edits
from nein.models.cached import Services
from nein.models.references import resolve
from nein.wording import denials

OBJECT, CAPTION, QUESTION = "object", "caption", "question"
#: "Is it there?" by each protocol's rule; NeIn's scripts have different ones for Removal and Retention.
VERDICTS = ("verdict_fixed", "verdict_paper", "verdict_paper_retention")

#: Another wording of a VQA judge's question -> (words, their replacement).
REWORDED = {"negated": (" contain ", " not contain "), "reversed": ("yes or no", "no or yes")}


@dataclass(frozen=True)
class Word:
    """One question with its truth (None: unknown). role: `OBJECT`, a name as in an instruction; `CAPTION`, a
    noun of a caption; `QUESTION`, a whole question. wording: a key of `REWORDED`."""

    word: str
    present: bool | None
    role: str
    wording: str = ""


Words = Sequence[Sequence[Word]]
#: `VERDICTS`, "score" and "reply".
Verdict = Json


@dataclass(frozen=True)
class JudgeOptions:
    article: str = "none"  #: of the thing in a question to a VQA judge: "none" or "a_an"
    threshold: float = 0.1  #: score above which a detector has seen it, 0 to 1

    def decisive(self, kind: str) -> Json:
        return {"article": self.article} if kind == "vqa" else {"threshold": self.threshold}


def check(reference: str) -> None:
    """Raises UserError or MetricError for an impossible judge; loads nothing."""
    metrics.check_reference(resolve(reference))


def load(kind: str, reference: str, *, services: Services | None, **options: Any) -> Any:
    """A judge of `metrics.JUDGES`; services: of an endpoint. Raises UserError or MetricError."""
    location = resolve(reference)
    if services is None or not is_served(location):
        return metrics.load_judge(kind, location, **options)
    return services.keep(metrics.load_judge(kind, location, **{**services.options, **options}))


def ask(kind: str, judge: Any, images: Images, words: Words, how: JudgeOptions) -> list[list[Verdict]]:
    """Per image, (H, W, 3) uint8 RGB, and word: the verdicts (None: no verdict), the soft score of "it is
    there", and the `reply`, which has an "error" if the judge failed on this image."""
    replies = isolate_answers(lambda some, theirs: _ask(kind, judge, some, theirs, how), images, words)
    return [
        [make_unanswered(answers)] * len(row) if isinstance(answers, str) else answers
        for row, answers in zip(words, replies, strict=True)
    ]


def make_unanswered(reason: str) -> Verdict:
    return {**dict.fromkeys(VERDICTS), "score": None, "reply": {"error": reason}}


def _ask(kind: str, judge: Any, images: Images, words: Words, how: JudgeOptions) -> list[list[Verdict]]:
    if kind == "ovd":
        names = [[word.word for word in row] for row in words]
        detections = judge.detect(images, names, how.threshold)
        scores = [[boxes[name].score for name in row] for boxes, row in zip(detections, names, strict=True)]
        return [
            [{**dict.fromkeys(VERDICTS, s > how.threshold), "score": s, "reply": {"score": s}} for s in row]
            for row in scores
        ]
    form = find_template(judge.template)

    def prompt(word: Word) -> str:
        if word.role == QUESTION:  # as SimpleNeg asks it (steer.py of its release)
            return form.wrap(f"{word.word}\nAnswer the question with a yes or no.")
        presence = form.presence.replace(*REWORDED.get(word.wording, ("", "")))
        return replace(form, presence=presence).ask_presence(word.word, how.article)

    prompts = [[prompt(word) for word in row] for row in words]
    return [[_verdicts(answer) for answer in row] for row in judge.ask(images, prompts)]


def _verdicts(answer: Any) -> Verdict:
    """Verdicts by each protocol's rule for Removal (None: none), and the soft score of "it is there"."""
    yes, no = answer.p_yes, answer.p_no
    total = (yes or 0) + (no or 0)
    return {
        "verdict_fixed": parse_yes_no(answer.text),
        "verdict_paper": not paper_says_removed(answer.text),
        "verdict_paper_retention": paper_says_present(answer.text),
        "score": yes / total if yes is not None and no is not None and total > 0 else None,
        "reply": {"answer": answer.text, "p_yes": yes, "p_no": no},
    }


# --- judges of edits: those of `metrics.rewards`, and the yes/no judge of Removal as one --------------

#: The run's judge of Removal; every other reference is one of `metrics.rewards`.
REMOVAL = "removal"
FORMS = (REMOVAL, "editscore:MODEL", "pairwise:MODEL")
NAMES_NOTHING = "the sentence names nothing that is to be gone"


class RemovalReward(RewardJudge):
    """The share of "no" of a yes/no judge that is asked for the things to remove (`find_removals`): P(no) /
    (P(yes) + P(no)), or 1 and 0 without probabilities; the least of several objects. A sentence without an
    object, and an answer that is neither yes nor no, leave an edit unscored."""

    def __init__(self, judge: Any, article: str = "none") -> None:
        super().__init__(judge)
        self.article = article
        self.fingerprint = json_digest({"kind": REMOVAL, "judge": judge.fingerprint, "article": article})

    def describe(self) -> Json:
        return {**self.model.describe(), "kind": REMOVAL, "judge": self.model.fingerprint}

    def score(self, sources: Images, edits: Images, instructions: Sequence[str]) -> list[Score]:
        """See `metrics.rewards.RewardJudge`; `detail` has the answer to each object."""
        check_edits([sources, edits], instructions)
        named = find_removals(instructions)
        words = [[Word(name, None, OBJECT) for name in row] for row in named]
        answers = ask("vqa", self.model, edits, words, JudgeOptions(self.article))
        return [_least(names, replies) for names, replies in zip(named, answers, strict=True)]


def _least(names: Sequence[str], answers: Sequence[Verdict]) -> Score:
    if not names:
        return Score(None, NAMES_NOTHING)
    shares: dict[str, float] = {}  # of "no", by object
    detail = {"answers": {k: a["reply"].get("answer") for k, a in zip(names, answers, strict=True)}}
    for name, answer in zip(names, answers, strict=True):
        if "error" in answer["reply"]:
            return Score(None, answer["reply"]["error"])
        if answer["score"] is None and answer["verdict_fixed"] is None:
            return Score(None, f"the answer {detail['answers'][name]!r} is neither yes nor no", detail)
        shares[name] = float(not answer["verdict_fixed"]) if answer["score"] is None else 1 - answer["score"]
    return Score(min(shares.values()), ", ".join(f"no {k}: {v:.3f}" for k, v in shares.items()), detail)


def find_removals(instructions: Sequence[str]) -> list[tuple[str, ...]]:
    """The things that each sentence wants removed: of "Remove the cup and the bus.", or of "no cup"."""
    gone = []
    for text, reading in zip(instructions, denials.read(instructions), strict=True):
        command = re.fullmatch(r"Remove the (.+?)\.?", text.strip())
        gone.append(tuple(command[1].split(" and the ")) if command else reading.absent)
    return gone


def check_reward(reference: str) -> None:
    """Raises UserError or MetricError for an impossible judge of edits; loads nothing."""
    if reference == REMOVAL:
        return
    if ":" not in reference:
        raise UserError(f"'{reference}' is not a judge of edits; expected {', '.join(FORMS)}.")
    metrics.check_reward(reference)


def load_reward(
    reference: str, *, services: Services, removal: Callable[[], RewardJudge], **how: Any
) -> RewardJudge:
    """Loads a judge of edits. services: of a judge behind an endpoint; removal: makes the `RemovalReward` of
    the run's judge; how: device and dtype."""
    if reference == REMOVAL:
        return removal()
    judge = metrics.load_reward(reference, endpoint_options=services.options, **how)
    services.keep(judge.model)  # pairwise comparison by a model of multiple choice
    return services.keep(judge)
