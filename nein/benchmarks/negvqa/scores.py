"""The answers of a run of NegVQA, read under both protocols: the table of scores."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

from nein.benchmarks import baselines
from nein.benchmarks.negvqa.data import ANSWERS, BLIND, MATCHES, Answer, Match
from nein.benchmarks.runner import select_rows
from nein.datasets.negvqa import VARIANTS, Item
from nein.engine.folder import Folder, Row
from nein.metrics.choices import Reply
from nein.metrics.letters import LETTERS, by_option, parse, without_missing
from nein.reporting.scores import ScoreTable

#: "fixed": our own rule; an answer without a letter is unscored: counted, neither right nor wrong. "paper":
#: VLMEvalKit's rule, then its matcher where there is one; an answer in which neither finds a letter is wrong.
#: Of a judge asked about one option at a time, the only yes is the letter (`by_option`). A
#: question without an answer is unscored in both: the toolkit, too, asks it again.
PROTOCOLS = ("fixed", "paper")
#: Columns besides the usual, where metric is "accuracy", or a baseline, which is read under "fixed" alone.
DETAILS = ("subset", "category", "answer", "scoring", "protocol", "letter", "failed")


def of_run(folder: Folder, items: Sequence[Item], wanted: Iterable[int]) -> ScoreTable:
    """The scores of a run that has all its answers. items: of the file, of which the `wanted` were asked."""
    facts = folder.manifest()
    matched = folder.done(MATCHES) if MATCHES in facts["selected"] else ()
    rows = score(select_rows(folder, ANSWERS), facts["scoring"], folder.rows(MATCHES, sorted(matched)))
    blind = select_rows(folder, BLIND) if BLIND in facts["selected"] else ()
    return table(itertools.chain(rows, score(blind, facts["scoring"]), of_reader(items, wanted)))


def of_reader(items: Sequence[Item], wanted: Iterable[int]) -> Iterator[Row]:
    """Rows of the text reader, which learns from all items."""
    learned = {}
    for item, variant in itertools.product(items, VARIANTS):
        right = LETTERS.index(item.answers[variant])
        question = baselines.Question(item.questions[variant], item.options, right, item.source)
        learned[item.id, variant] = question
    right_by = baselines.read_texts(learned)
    for item, variant in itertools.product((items[index] for index in wanted), VARIANTS if right_by else ()):
        what = {key: getattr(item, key) for key in ("id", "subset", "category", "source")}
        what |= {"metric": baselines.TEXT_READER, "variant": variant, "answer": item.answers[variant]}
        yield {**what, "value": right_by[item.id, variant]}


table = functools.partial(ScoreTable.of, details=DETAILS)


def score(answers: Iterable[Answer], scorings: Sequence[str], matches: Iterable[Match] = ()) -> Iterator[Row]:
    """A row per answer, scoring and protocol: `letter`, `value` (1.0, 0.0, None: unscored) and `reason`.

    matches  What the matcher made of answers without a letter.
    """
    matched = {(match.id, match.variant): match for match in matches}
    for row in answers:
        what = {key: getattr(row, key) for key in ("id", "variant", "subset", "category", "source", "answer")}
        what["metric"] = row.baseline or "accuracy"
        match = matched.get((row.id, row.variant))
        for scoring in scorings:
            for protocol in PROTOCOLS[:1] if row.baseline else PROTOCOLS:
                reading = read(row, scoring, protocol, match)
                yield {**what, "scoring": scoring, "protocol": protocol, **reading}


def read(row: Answer, scoring: str, protocol: str, match: Match | None = None) -> Row:
    """The letter of one answer, with its value or the reason why it has none; `failed`: there is no answer.
    match: what the matcher made of it."""
    failed = bool(row.error)
    if failed:
        letter, reason = None, row.error
    elif scoring == "logprob":
        letter, reason = None, "no probabilities of letters"
        if row.logprobs is not None:
            try:
                letter = Reply(logprobs=row.logprobs).likeliest
                reason = "" if letter else "no letter is likeliest"
            except ValueError as error:  # a number that is not finite, in a file that was damaged
                reason = str(error)
    elif row.each is not None:
        letter, reason, _ = by_option(row.each, protocol)
    elif protocol == "paper" and match is not None:
        failed = bool(match.error)
        letter, reason = match.letter, match.error or match.reason
    elif protocol == "paper":
        letter, reason, _ = parse(row.text or "", without_missing(row.options), "vlmevalkit")
    else:
        letter, reason, _ = parse(row.text or "", row.options, "fixed")
    value = None if letter is None else float(letter == row.answer)
    if letter is None and protocol == "paper" and scoring == "generated" and not failed:
        value = 0.0
    return {"letter": letter, "reason": reason or None, "failed": "yes" if failed else None, "value": value}
