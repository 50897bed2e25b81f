"""Answers read under both protocols: a letter or a reason, and right or wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nein.benchmarks.negvqa.folder import ANSWERS, BLIND, MATCHES, AnswersDir
from nein.benchmarks.runner import selected
from nein.metrics.choices import Reply
from nein.metrics.letters import EDITIONS, by_option, parse
from nein.reporting.scores import ScoreTable

#: "fixed": our own rule; an answer without a letter is unscored: counted, neither right nor wrong. "paper":
#: VLMEvalKit's rule, then its matcher where there is one; an answer in which neither finds a letter is wrong.
#: Of a judge asked about one option at a time, the only yes is the letter (`by_option`). A
#: question without an answer is unscored in both: the toolkit, too, asks it again.
PROTOCOLS = ("fixed", "paper")
#: Columns besides the usual, where metric is "accuracy", or a baseline, which is read under "fixed" alone.
DETAILS = ("subset", "category", "answer", "scoring", "protocol", "letter", "failed")
Row = Mapping[str, Any]


def of_folder(folder: AnswersDir) -> Iterator[dict[str, Any]]:
    """The score rows of a run that has all its answers."""
    facts = folder.manifest()
    matches = selected(folder, MATCHES) if MATCHES in facts["selected"] else ()
    yield from score(selected(folder, ANSWERS), facts["scoring"], facts["letters"], matches)
    if BLIND in facts["selected"]:
        yield from score(selected(folder, BLIND), facts["scoring"])


def table(rows: Iterable[Row]) -> ScoreTable:
    return ScoreTable.of(rows, DETAILS)


def score(
    answers: Iterable[Row], scorings: Sequence[str], letters: str = EDITIONS[0], matches: Iterable[Row] = ()
) -> Iterator[dict[str, Any]]:
    """A row per answer, scoring and protocol: `letter`, `value` (1.0, 0.0, None: unscored), `reason`, and
    `asked`, the answer's own row.

    answers  Rows of blocks (`nein.benchmarks.negvqa.run`), those of baselines too.
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
        what = {key: row[key] for key in ("id", "variant", "subset", "category", "source", "answer")}
        what |= {"metric": row.get("baseline", "accuracy"), "asked": row}
        for scoring in scorings:
            for protocol in PROTOCOLS[:1] if "baseline" in row else PROTOCOLS:
                said = read(row, scoring, protocol, letters, own)
                yield {**what, "scoring": scoring, "protocol": protocol, **said}
    assert match is None, f"the match of '{match['id']}' belongs to no answer, or is out of order"


def read(row: Row, scoring: str, protocol: str, letters: str, match: Row | None = None) -> dict[str, Any]:
    """The letter of one answer, with its value or the reason why it has none; `failed`: there is no answer.

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
        logprobs, reason = row["logprobs"], "no probabilities of letters"
        try:
            letter = Reply(logprobs=None if logprobs is None else tuple(logprobs)).likeliest
        except ValueError as error:  # a number that is not finite, in a file that was damaged
            letter, reason = None, str(error)
        else:
            reason = "" if letter else reason if logprobs is None else "no letter is likeliest"
    made = {"letter": letter, "reason": reason or None, "failed": "yes" if failed else None}
    if letter is not None:
        return {**made, "value": float(letter == row["answer"])}
    wrong = protocol == "paper" and scoring == "generated" and not failed
    return {**made, "value": 0.0 if wrong else None}
