"""Judges that say what is in a picture: loaded by reference, and asked whether things are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nein.loading.errors import isolated
from nein.loading.references import is_served
from nein.metrics.base import Images, paper_present, paper_removed, parse_yes_no
from nein.metrics.judges.base import template
from nein.models.cached import Services
from nein.models.references import resolve

OBJECT, CAPTION, QUESTION = "object", "caption", "question"
#: "Is it there?", by each protocol's rule; NeIn's scripts have one for Removal, another for Retention.
VERDICTS = ("verdict_fixed", "verdict_paper", "verdict_paper_retention")

#: How a VQA judge is asked otherwise -> what stands in place of which words of its question.
REWORDED = {"negated": (" contain ", " not contain "), "reversed": ("yes or no", "no or yes")}


@dataclass(frozen=True)
class Word:
    """One question with its truth, None where it is not known. role: `OBJECT`, a name that an instruction
    would use; `CAPTION`, a noun of a caption; `QUESTION`, a whole question. wording: a key of `REWORDED`."""

    word: str
    present: bool | None
    role: str
    wording: str = ""


Words = Sequence[Sequence[Word]]
#: `VERDICTS`, "score" and "reply".
Verdict = dict[str, Any]


@dataclass(frozen=True)
class JudgeOptions:
    article: str = "none"  #: of the thing in a question to a VQA judge: "none" or "a_an"
    threshold: float = 0.1  #: score above which a detector has seen it, 0 to 1

    def of(self, kind: str) -> dict[str, Any]:
        """The settings that affect answers of this kind of judge."""
        return {"article": self.article} if kind == "vqa" else {"threshold": self.threshold}


def check(reference: str) -> None:
    """Raises UserError or MetricError for a judge that cannot be; loads nothing."""
    from nein import metrics

    metrics.check_reference(resolve(reference))


def load(kind: str, reference: str, *, services: Services | None, **options: Any) -> Any:
    """A judge of `metrics.JUDGES`; services: of an endpoint. Raises UserError or MetricError."""
    from nein import metrics

    where = resolve(reference)
    if services is None or not is_served(where):
        return metrics.load_judge(kind, where, **options)
    return services.keep(metrics.load_judge(kind, where, **{**services.options, **options}))


def ask(kind: str, judge: Any, pictures: Images, words: Words, how: JudgeOptions) -> list[list[Verdict]]:
    """Per picture, (H, W, 3) uint8 RGB, and word: the verdicts, None where there is none, the soft score
    for "it is there", and the `reply`, which has an "error" where the judge failed on this picture."""
    replies = isolated(
        lambda rows: _ask(kind, judge, [pictures[i] for i in rows], [words[i] for i in rows], how),
        range(len(pictures)),
    )
    return [
        [unanswered(answers)] * len(row) if isinstance(answers, str) else answers
        for row, answers in zip(words, replies, strict=True)
    ]


def unanswered(reason: str) -> Verdict:
    """What stands in place of an answer."""
    return {**dict.fromkeys(VERDICTS), "score": None, "reply": {"error": reason}}


def _ask(kind: str, judge: Any, pictures: Images, words: Words, how: JudgeOptions) -> list[list[Verdict]]:
    if kind == "ovd":
        names = [[word.word for word in row] for row in words]
        found = judge.detect(pictures, names, how.threshold)
        scores = [[boxes[name].score for name in row] for boxes, row in zip(found, names, strict=True)]
        return [
            [{**dict.fromkeys(VERDICTS, s > how.threshold), "score": s, "reply": {"score": s}} for s in row]
            for row in scores
        ]
    form = template(judge.template)

    def prompt(word: Word) -> str:
        if word.role == QUESTION:  # as SimpleNeg asks it (steer.py of its release)
            return form.wrap(f"{word.word}\nAnswer the question with a yes or no.")
        presence = form.presence.replace(*REWORDED.get(word.wording, ("", "")))
        return replace(form, presence=presence).ask_presence(word.word, how.article)

    prompts = [[prompt(word) for word in row] for row in words]
    return [[_verdicts(answer) for answer in row] for row in judge.ask(pictures, prompts)]


def _verdicts(answer: Any) -> Verdict:
    """Is it there, by each protocol's rule for Removal (None: no verdict), and the soft score for "it is"."""
    yes, no = answer.p_yes, answer.p_no
    total = (yes or 0) + (no or 0)
    return {
        "verdict_fixed": parse_yes_no(answer.text),
        "verdict_paper": not paper_removed(answer.text),
        "verdict_paper_retention": paper_present(answer.text),
        "score": yes / total if yes is not None and no is not None and total > 0 else None,
        "reply": {"answer": answer.text, "p_yes": yes, "p_no": no},
    }
