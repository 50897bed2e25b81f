"""Answers read under both protocols: a letter or a reason, and right or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metrics.choices import Reply
from metrics.letters import EDITIONS, by_option, parse

#: "fixed": our own rule; an answer without a letter is unscored: counted, neither right nor wrong. "paper":
#: VLMEvalKit's rule, then its matcher where there is one; an answer in which neither finds a letter is wrong.
#: Of a judge asked about one option at a time, the only yes is the letter (`metrics.letters.by_option`). A
#: question without an answer is unscored in both: the toolkit, too, asks it again.
PROTOCOLS = ("fixed", "paper")
#: (id, variant) -> what the matcher made of an answer: a row of `nein.benchmarks.negvqa.matching`.
Matches = Mapping[tuple[str, str], Mapping[str, Any]]


def score(
    answers: Sequence[Mapping[str, Any]],
    scorings: Sequence[str],
    letters: str = EDITIONS[0],
    matches: Matches | None = None,
) -> list[dict[str, Any]]:
    """A row per answer, scoring and protocol: `letter`, `value` (1.0, 0.0, None: unscored), `reason`.

    answers  Lines of answers.jsonl.
    letters  The edition of VLMEvalKit's rule for "paper" (`metrics.letters.EDITIONS`).
    """
    return [
        {
            **{key: row[key] for key in ("id", "variant", "subset", "category", "source", "answer")},
            "scoring": scoring,
            "protocol": protocol,
            **read(row, scoring, protocol, letters, matches or {}),
        }
        for row in answers
        for scoring in scorings
        for protocol in PROTOCOLS
    ]


def blind(answers: Sequence[Mapping[str, Any]], scorings: Sequence[str]) -> list[dict[str, Any]]:
    """A row per answer of a baseline and scoring, read under the protocol "fixed".

    answers  As of `score`, each with its `baseline`.
    """
    return [
        {
            **{key: row[key] for key in ("id", "variant", "category", "source", "baseline")},
            "scoring": scoring,
            **read(row, scoring, "fixed", EDITIONS[0], {}),
        }
        for row in answers
        for scoring in scorings
    ]


def read(
    row: Mapping[str, Any], scoring: str, protocol: str, letters: str, matches: Matches
) -> dict[str, Any]:
    """The letter of one answer, with its value or the reason why it has none."""
    failed = bool(row["error"])
    if failed:
        letter, reason = None, str(row["error"])
    elif scoring == "generated" and row.get("each") is not None:
        letter, reason, _ = by_option(row["each"], protocol)
    elif (
        scoring == "generated" and protocol == "paper" and (match := matches.get((row["id"], row["variant"])))
    ):
        failed = bool(match["error"])
        letter, reason = match["letter"], match["error"] or match["reason"]
    elif scoring == "generated":
        rule = letters if protocol == "paper" else "fixed"
        letter, reason, _ = parse(row["text"] or "", row["options"], rule)
    else:
        logprobs = None if row["logprobs"] is None else tuple(row["logprobs"])
        letter = Reply(logprobs=logprobs).likeliest
        reason = (
            "" if letter else "no probabilities of letters" if logprobs is None else "no letter is likeliest"
        )
    if letter is not None:
        return {"letter": letter, "value": float(letter == row["answer"]), "reason": reason}
    wrong = protocol == "paper" and scoring == "generated" and not failed
    return {"letter": None, "value": 0.0 if wrong else None, "reason": reason}
