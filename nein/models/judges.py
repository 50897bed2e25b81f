"""Judges that say what is in a picture: loaded by reference, and asked whether things are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nein.engine.answers import AnswerCache
from nein.metrics.base import paper_present, paper_removed, parse_yes_no
from nein.metrics.served import is_served
from nein.models.references import resolve
from nein.models.remembered import RememberedJudge

if TYPE_CHECKING:
    from nein.metrics.judges.base import PromptTemplate

OBJECT, CAPTION, QUESTION = "object", "caption", "question"
#: "Is it there?", by the rule each protocol has for it; NeIn's scripts have one for Removal and another for
#: Retention.
VERDICTS = ("verdict_fixed", "verdict_paper", "verdict_paper_retention")


@dataclass(frozen=True)
class Word:
    """One question with its truth.

    present  None where it is not known.
    role     "object": a name that an instruction would use; "caption": a noun of a caption; "question": a
             whole question.
    """

    word: str
    present: bool | None
    role: str


@dataclass(frozen=True)
class Manner:
    """How judges are asked.

    article    Of the thing in a question to a VQA judge: "none" or "a_an".
    threshold  Score above which a detector has seen it, 0 to 1.
    """

    article: str = "none"
    threshold: float = 0.1

    def of(self, kind: str) -> dict[str, Any]:
        """What of it decides the answers of a kind of judge."""
        return {"article": self.article} if kind == "vqa" else {"threshold": self.threshold}


def check(reference: str) -> None:
    """Looks at a judge without loading it. Raises UserError or MetricError for one that cannot be."""
    from nein import metrics

    metrics.check_reference(*resolve(reference))


def load(kind: str, reference: str, *, cache: Path, device: str, dtype: str, **options: Any) -> Any:
    """A judge of a kind of `metrics.JUDGES`; what one behind an endpoint answers is kept in the folder
    `cache`. Raises UserError or MetricError."""
    from nein import metrics

    where, revision = resolve(reference)
    judge = metrics.load_judge(kind, where, revision=revision, device=device, dtype=dtype, **options)
    return RememberedJudge(judge, AnswerCache(cache / "answers.sqlite")) if is_served(where) else judge


def ask(
    kind: str, judge: Any, pictures: Sequence[np.ndarray], words: Sequence[Sequence[Word]], manner: Manner
) -> list[list[dict[str, Any]]]:
    """Per picture, (H, W, 3) uint8 RGB, and word: the verdicts, None where there is none, the soft score
    for "it is there", and the `reply`, which has an "error" where the judge failed.

    A judge that fails is asked picture by picture, so that only the culprit's questions go without an answer.
    """
    from nein.loading.isolation import isolated

    replies = isolated(
        lambda rows: _replies(kind, judge, [pictures[i] for i in rows], [words[i] for i in rows], manner),
        range(len(pictures)),
    )
    asked = []
    for row, answers in zip(words, replies, strict=True):
        if isinstance(answers, str):
            asked.append([unanswered(answers)] * len(row))
        else:
            asked.append([{**_verdicts(kind, reply, manner), "reply": reply} for reply in answers])
    return asked


def unanswered(reason: str) -> dict[str, Any]:
    """In place of what `ask` gives for a word that has no answer."""
    return {**dict.fromkeys(VERDICTS), "score": None, "reply": {"error": reason}}


def _replies(
    kind: str, judge: Any, pictures: Sequence[np.ndarray], words: Sequence[Sequence[Word]], manner: Manner
) -> list[list[dict[str, Any]]]:
    if kind == "vqa":
        from nein.metrics.judges.base import template

        form = template(judge.template)
        prompts = [[_prompt(form, word, manner.article) for word in row] for row in words]
        answers = judge.ask(pictures, prompts)
        return [[{"answer": a.text, "p_yes": a.p_yes, "p_no": a.p_no} for a in row] for row in answers]
    names = [[word.word for word in row] for row in words]
    seen = judge.detect(pictures, names, manner.threshold)
    return [[{"score": boxes[name].score} for name in row] for boxes, row in zip(seen, names, strict=True)]


def _prompt(form: PromptTemplate, word: Word, article: str) -> str:
    """About a thing; or a question of a test as SimpleNeg asks it (steer.py of its release)."""
    if word.role == QUESTION:
        return form.wrap(f"{word.word}\nAnswer the question with a yes or no.")
    return form.ask_presence(word.word, article)


def _verdicts(kind: str, reply: Mapping[str, Any], manner: Manner) -> dict[str, Any]:
    """Is it there, by each protocol's rule for Removal (None: no verdict), and the soft score for "it is"."""
    if kind == "ovd":
        seen = reply["score"] > manner.threshold
        return {**dict.fromkeys(VERDICTS, seen), "score": reply["score"]}
    yes, no = reply["p_yes"], reply["p_no"]
    total = (yes or 0) + (no or 0)
    return {
        "verdict_fixed": parse_yes_no(reply["answer"]),
        "verdict_paper": not paper_removed(reply["answer"]),
        "verdict_paper_retention": paper_present(reply["answer"]),
        "score": yes / total if yes is not None and no is not None and total > 0 else None,
    }
