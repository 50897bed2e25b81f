"""Loads and asks judges of images (is a thing there?) and judges of edits (is the instruction met?)."""

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

# --- judges of images ------------------------------------------------------------------------------------

OBJECT, CAPTION, QUESTION = "object", "caption", "question"  # roles of a `Word`
#: Other wordings of a VQA judge's question -> (words, their replacement).
REWORDED = {"negated": (" contain ", " not contain "), "reversed": ("yes or no", "no or yes")}


@dataclass(frozen=True)
class Word:
    """What a judge is asked about an image."""

    word: str
    present: bool | None  # the truth; None: unknown
    role: str  # `OBJECT`: a name as in an instruction; `CAPTION`: a noun of a caption; `QUESTION`: a sentence
    wording: str = ""  # key of `REWORDED`; "": the wording of the judge's template


Words = Sequence[Sequence[Word]]  # a row per image

#: "Is it there?" by each protocol's rule; NeIn's scripts have different ones for Removal and Retention.
VERDICTS = ("verdict_fixed", "verdict_paper", "verdict_paper_retention")
#: `VERDICTS` (None: no verdict), "score" (of "it is there", 0 to 1), "reply" (with "error" if it failed).
Verdict = Json


@dataclass(frozen=True)
class JudgeOptions:
    article: str = "none"  # before the thing in a question to a VQA judge: "none" or "a_an"
    threshold: float = 0.1  # score above which a detector has seen the thing, 0 to 1

    def decisive(self, kind: str) -> Json:
        """The option that decides the answers of a kind of judge."""
        return {"article": self.article} if kind == "vqa" else {"threshold": self.threshold}


def check(reference: str) -> None:
    """Raises UserError or MetricError for a reference that names no judge; loads nothing."""
    metrics.check_reference(resolve(reference))


def load(kind: str, reference: str, *, services: Services | None, **options: Any) -> Any:
    """A judge of `metrics.JUDGES`; services: of an endpoint. Raises UserError or MetricError."""
    location = resolve(reference)
    if services is None or not is_served(location):
        return metrics.load_judge(kind, location, **options)
    return services.keep(metrics.load_judge(kind, location, **{**services.options, **options}))


def ask(kind: str, judge: Any, images: Images, words: Words, options: JudgeOptions) -> list[list[Verdict]]:
    """A verdict per image, (H, W, 3) uint8 RGB, and word. kind: "vqa", or "ovd": a detector."""
    ask_kind = _ask_detector if kind == "ovd" else _ask_vqa
    answers = isolate_answers(lambda part, rows: ask_kind(judge, part, rows, options), images, words)
    verdicts = []
    for row, answer in zip(words, answers, strict=True):
        failed = isinstance(answer, str)  # why the image has no row of verdicts
        verdicts.append([make_unanswered(answer)] * len(row) if failed else answer)
    return verdicts


def make_unanswered(reason: str) -> Verdict:
    return {**dict.fromkeys(VERDICTS), "score": None, "reply": {"error": reason}}


def _ask_detector(judge: Any, images: Images, words: Words, options: JudgeOptions) -> list[list[Verdict]]:
    names = [[word.word for word in row] for row in words]
    verdicts: list[list[Verdict]] = []
    for row, boxes in zip(names, judge.detect(images, names, options.threshold), strict=True):
        scores = [boxes[name].score for name in row]  # `boxes`: name -> the best box
        verdicts.append([_make_detection(score, options.threshold) for score in scores])
    return verdicts


def _make_detection(score: float, threshold: float) -> Verdict:
    return {**dict.fromkeys(VERDICTS, score > threshold), "score": score, "reply": {"score": score}}


def _ask_vqa(judge: Any, images: Images, words: Words, options: JudgeOptions) -> list[list[Verdict]]:
    template = find_template(judge.template)

    def make_prompt(word: Word) -> str:
        if word.role == QUESTION:  # as SimpleNeg asks it (steer.py of its release)
            return template.wrap(f"{word.word}\nAnswer the question with a yes or no.")
        presence = template.presence
        if word.wording:
            presence = presence.replace(*REWORDED[word.wording])
        return replace(template, presence=presence).ask_presence(word.word, options.article)

    prompts = [[make_prompt(word) for word in row] for row in words]
    return [[_make_verdict(answer) for answer in row] for row in judge.ask(images, prompts)]


def _make_verdict(answer: Any) -> Verdict:
    yes, no = answer.p_yes, answer.p_no  # probabilities, or None
    total = (yes or 0) + (no or 0)
    return {
        "verdict_fixed": parse_yes_no(answer.text),
        "verdict_paper": not paper_says_removed(answer.text),
        "verdict_paper_retention": paper_says_present(answer.text),
        "score": yes / total if yes is not None and no is not None and total > 0 else None,
        "reply": {"answer": answer.text, "p_yes": yes, "p_no": no},
    }


# --- judges of edits: `RemovalReward`, and those of `metrics.rewards` -------------------------------------

#: The run's judge of Removal; every other reference is one of `metrics.rewards`.
REMOVAL = "removal"
FORMS = (REMOVAL, "editscore:MODEL", "pairwise:MODEL")
NAMES_NOTHING = "the sentence names nothing that is to be gone"


class RemovalReward(RewardJudge):
    """Scores an edit by a yes/no judge, who is asked for each thing to remove (`find_removals`). A thing's
    score is P(no) / (P(yes) + P(no)), or 1 or 0 without probabilities; the edit's is the lowest. A sentence
    that names nothing, or an answer that is neither yes nor no, leaves an edit unscored."""

    def __init__(self, judge: Any, article: str = "none") -> None:
        super().__init__(judge)
        self.article = article
        self.fingerprint = json_digest({"kind": REMOVAL, "judge": judge.fingerprint, "article": article})

    def describe(self) -> Json:
        return {**self.model.describe(), "kind": REMOVAL, "judge": self.model.fingerprint}

    def score(self, sources: Images, edits: Images, instructions: Sequence[str]) -> list[Score]:
        """See `metrics.rewards.RewardJudge`; `detail` has the answer to each object."""
        check_edits([sources, edits], instructions)
        removals = find_removals(instructions)
        words = [[Word(name, None, OBJECT) for name in names] for names in removals]
        answers = ask("vqa", self.model, edits, words, JudgeOptions(self.article))
        return [_score_removal(names, verdicts) for names, verdicts in zip(removals, answers, strict=True)]


def _score_removal(names: Sequence[str], verdicts: Sequence[Verdict]) -> Score:
    if not names:
        return Score(None, NAMES_NOTHING)
    by_name = dict(zip(names, verdicts, strict=True))
    texts = {name: verdict["reply"].get("answer") for name, verdict in by_name.items()}
    shares: dict[str, float] = {}  # name -> score
    for name, verdict in by_name.items():
        if "error" in verdict["reply"]:
            return Score(None, verdict["reply"]["error"])
        if verdict["score"] is not None:
            shares[name] = 1 - verdict["score"]
        elif verdict["verdict_fixed"] is not None:
            shares[name] = float(not verdict["verdict_fixed"])
        else:
            return Score(None, f"the answer {texts[name]!r} is neither yes nor no", {"answers": texts})
    listed = ", ".join(f"no {name}: {share:.3f}" for name, share in shares.items())
    return Score(min(shares.values()), listed, {"answers": texts})


def find_removals(instructions: Sequence[str]) -> list[tuple[str, ...]]:
    """The things that each sentence wants removed, by a command or by a denial."""
    removals = []
    for text, reading in zip(instructions, denials.read(instructions), strict=True):
        command = re.fullmatch(r"Remove the (.+?)\.?", text.strip())  # "Remove the cup and the bus."
        removals.append(tuple(command[1].split(" and the ")) if command else reading.absent)
    return removals


def check_reward(reference: str) -> None:
    """Raises UserError or MetricError for a reference that names no judge of edits; loads nothing."""
    if reference == REMOVAL:
        return
    if ":" not in reference:
        raise UserError(f"'{reference}' is not a judge of edits; expected {', '.join(FORMS)}.")
    metrics.check_reward(reference)


def load_reward(
    reference: str, *, services: Services, removal: Callable[[], RewardJudge], **options: Any
) -> RewardJudge:
    """Loads a judge of edits. services: for a served judge; removal: function that makes the `RemovalReward`
    of the run's judge; options: device and dtype."""
    if reference == REMOVAL:
        return removal()
    judge = metrics.load_reward(reference, endpoint_options=services.options, **options)
    services.keep(judge.model)  # its answers, too, are cached
    return services.keep(judge)
