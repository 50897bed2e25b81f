"""Stages 3 and 4, algorithm 2 of the paper: does the generated picture show the object and all else?

"paper" reads answers as the released code does: kept only if both are "Yes" to the letter. "fixed" reads the
first word, whatever its case and punctuation. An answer that is neither is never kept, and counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nein.generate.nein import wording
from nein.loading.isolation import isolated
from nein.metrics.base import parse_yes_no
from nein.metrics.judges.base import Answer, Matcher, VqaJudge, template

LOW_MATCH = "match at or below the threshold"
NO_CAPTION = 'answered "no" to the caption'
NO_OBJECT = 'answered "no" to the object'
NO_BOTH = 'answered "no" to both'
UNPARSABLE = "unparsable answer"
FAILED = "the judge failed"
ACCEPTED = "accepted"


def match(
    candidates: Sequence[Mapping[str, Any]], pictures: Sequence[np.ndarray], matcher: Matcher, *,
    above: float, protocol: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Filter 1: a row per candidate with the cosine of picture and text, accepted if it is above `above`."""
    texts = [wording.matched_text(c["caption"], c["object"], protocol) for c in candidates]
    cosines = isolated(
        lambda rows: matcher.match([pictures[i] for i in rows], [[texts[i]] for i in rows], head="itc"),
        range(len(candidates)),
    )
    rows = []
    for candidate, text, value in zip(candidates, texts, cosines, strict=True):
        row: dict[str, Any] = {"id": candidate["id"], "text": text, "cosine": None}
        if isinstance(value, str):
            rows.append({**row, "verdict": FAILED, "error": value})
            continue
        cosine = float(value[0])
        verdict = ACCEPTED if cosine > above else LOW_MATCH
        rows.append({**row, "cosine": round(cosine, 6), "verdict": verdict})
    return rows


def ask(
    candidates: Sequence[Mapping[str, Any]], pictures: Sequence[np.ndarray], judge: VqaJudge, *, protocol: str
) -> list[dict[str, Any]]:
    """Filter 2: a row per candidate with both answers and the verdict; questions share a picture's prefix."""
    form = template(judge.template)
    prompts = [wording.questions(c["caption"], c["object"], form, protocol) for c in candidates]
    answers = isolated(
        lambda rows: judge.ask([pictures[i] for i in rows], [prompts[i] for i in rows]),
        range(len(candidates)),
    )
    rows = []
    for candidate, value in zip(candidates, answers, strict=True):
        if isinstance(value, str):
            rows.append({"id": candidate["id"], "verdict": FAILED, "error": value})
            continue
        caption, noun = value
        said = {"caption_answer": _answer(caption), "object_answer": _answer(noun)}
        rows.append({"id": candidate["id"], **said, "verdict": verdict(caption.text, noun.text, protocol)})
    return rows


def verdict(about_caption: str, about_object: str, protocol: str) -> str:
    """What becomes of a sample after both answers; a "no" weighs more than an answer that cannot be read."""
    if protocol == "paper":
        read = [{"Yes": True, "No": False}.get(text.strip()) for text in (about_caption, about_object)]
    else:
        read = [parse_yes_no(about_caption), parse_yes_no(about_object)]
    if read == [True, True]:
        return ACCEPTED
    if False not in read:
        return UNPARSABLE
    if read == [False, False]:
        return NO_BOTH
    return NO_CAPTION if read[0] is False else NO_OBJECT


def _answer(answer: Answer) -> dict[str, Any]:
    chances = {"p_yes": answer.p_yes, "p_no": answer.p_no}
    return {"text": answer.text, **{k: None if v is None else round(v, 6) for k, v in chances.items()}}
