"""Answers read under both protocols: a letter or a reason, and right or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metrics.choices import Reply
from metrics.letters import by_option, parse

#: Protocol -> letter rule. "paper": VLMEvalKit's exact matching, and what it cannot read, or what failed,
#: counts as wrong. "fixed": our own rule, and such answers are unscored: counted, neither right nor wrong. Of
#: a judge asked about one option at a time, the only yes is the letter (`metrics.letters.by_option`).
PROTOCOLS = {"fixed": "fixed", "paper": "vlmevalkit"}


def score(answers: Sequence[Mapping[str, Any]], scorings: Sequence[str]) -> list[dict[str, Any]]:
    """A row per answer, scoring and protocol: `letter`, `value` (1.0, 0.0, None: unscored), `reason`.

    answers  Lines of answers.jsonl.
    """
    return [
        {
            **{key: row[key] for key in ("id", "variant", "subset", "category", "source", "answer")},
            "scoring": scoring,
            "protocol": protocol,
            **read(row, scoring, protocol),
        }
        for row in answers
        for scoring in scorings
        for protocol in PROTOCOLS
    ]


def read(row: Mapping[str, Any], scoring: str, protocol: str) -> dict[str, Any]:
    """The letter of one answer, with its value or the reason why it has none."""
    if row["error"]:
        letter, reason = None, str(row["error"])
    elif scoring == "generated" and row.get("each") is not None:
        letter, reason = by_option(row["each"], protocol)
    elif scoring == "generated":
        letter, reason = parse(row["text"] or "", row["options"], PROTOCOLS[protocol])
    else:
        logprobs = None if row["logprobs"] is None else tuple(row["logprobs"])
        letter = Reply(logprobs=logprobs).likeliest
        reason = (
            "" if letter else "no probabilities of letters" if logprobs is None else "no letter is likeliest"
        )
    if letter is not None:
        return {"letter": letter, "value": float(letter == row["answer"]), "reason": ""}
    wrong = protocol == "paper" and scoring == "generated"
    return {"letter": None, "value": 0.0 if wrong else None, "reason": reason}
