"""Answers read under both protocols: a letter or a reason, and right or wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from metrics.choices import Reply
from metrics.letters import EDITIONS, by_option, parse

#: "fixed": our own rule; an answer without a letter is unscored: counted, neither right nor wrong. "paper":
#: VLMEvalKit's rule, then its matcher where there is one; an answer in which neither finds a letter is wrong.
#: Of a judge asked about one option at a time, the only yes is the letter (`metrics.letters.by_option`). A
#: question without an answer is unscored in both: the toolkit, too, asks it again.
PROTOCOLS = ("fixed", "paper")
Row = Mapping[str, Any]


def score(
    answers: Iterable[Row],
    scorings: Sequence[str],
    letters: str = EDITIONS[0],
    matches: Iterable[Row] = (),
) -> Iterator[dict[str, Any]]:
    """A row per answer, scoring and protocol: `letter`, `value` (1.0, 0.0, None: unscored), `reason`.

    answers  Lines of answers.jsonl.
    letters  The edition of VLMEvalKit's rule for "paper" (`metrics.letters.EDITIONS`).
    matches  What the matcher made of some of the answers, in their order: rows of
             `nein.benchmarks.negvqa.matching`.
    """
    waiting = iter(matches)
    match = next(waiting, None)
    for row in answers:
        own = None
        if match is not None and (match["id"], match["variant"]) == (row["id"], row["variant"]):
            own, match = match, next(waiting, None)
        for scoring in scorings:
            for protocol in PROTOCOLS:
                yield {
                    **{key: row[key] for key in ("id", "variant", "subset", "category", "source", "answer")},
                    "scoring": scoring,
                    "protocol": protocol,
                    **read(row, scoring, protocol, letters, own),
                }
    assert match is None, f"the match of '{match['id']}' belongs to no answer, or is out of order"


def blind(answers: Iterable[Row], scorings: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row per answer of a baseline and scoring, read under the protocol "fixed".

    answers  As of `score`, each with its `baseline`.
    """
    for row in answers:
        for scoring in scorings:
            yield {
                **{key: row[key] for key in ("id", "variant", "category", "source", "baseline")},
                "scoring": scoring,
                **read(row, scoring, "fixed", EDITIONS[0], None),
            }


def read(row: Row, scoring: str, protocol: str, letters: str, match: Row | None) -> dict[str, Any]:
    """The letter of one answer, with its value or the reason why it has none.

    match  What the matcher made of it, if it was asked.
    """
    failed = bool(row["error"])
    if failed:
        letter, reason = None, str(row["error"])
    elif scoring == "generated" and row.get("each") is not None:
        letter, reason, _ = by_option(row["each"], protocol)
    elif scoring == "generated" and protocol == "paper" and match is not None:
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
