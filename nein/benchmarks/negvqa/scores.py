"""Makes the table of scores of a run of NegVQA: reads and grades the letter of every answer.

Protocol "fixed" is our own rule; an answer without a letter is unscored: counted, neither right nor wrong.
"paper" is VLMEvalKit's rule, then its matcher if there is one; an answer in which neither finds a letter is
wrong. A question without an answer is unscored under both: the toolkit asks it again, too.
"""

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
from nein.metrics.letters import LETTERS, drop_missing, parse, read_verdicts
from nein.reporting.scores import ScoreTable

PROTOCOLS = ("fixed", "paper")
#: Columns besides those of every `ScoreTable`, whose metric is "accuracy" or a baseline.
DETAILS = ("subset", "category", "answer", "scoring", "protocol", "letter", "failed")
make_table = functools.partial(ScoreTable.from_rows, details=DETAILS)


def make_scores(folder: Folder, items: Sequence[Item], indices: Iterable[int]) -> ScoreTable:
    """The scores of a run that has all its answers. items: all questions; indices: those asked."""
    manifest = folder.manifest()
    outputs, scorings = manifest["selected"], manifest["scoring"]
    matches = folder.rows(MATCHES, sorted(folder.list_blocks(MATCHES))) if MATCHES in outputs else ()
    blind = select_rows(folder, BLIND) if BLIND in outputs else ()
    answers = score_answers(select_rows(folder, ANSWERS), scorings, matches)
    without_image_or_question = score_answers(blind, scorings)
    return make_table(itertools.chain(answers, without_image_or_question, score_text_reader(items, indices)))


def score_text_reader(items: Sequence[Item], indices: Iterable[int]) -> Iterator[Row]:
    """Rows of the text reader, a classifier of words that is trained on all items."""
    training = {}  # (id, variant) -> question; every one is read by a classifier of the others
    for item, variant in itertools.product(items, VARIANTS):
        right = LETTERS.index(item.answers[variant])
        question = baselines.Question(item.questions[variant], item.options, right, item.source)
        training[item.id, variant] = question
    values = baselines.score_text_reader(training)  # (id, variant) -> 1.0 right, 0.0 wrong
    if not values:  # too few questions to learn from
        return
    for item, variant in itertools.product((items[index] for index in indices), VARIANTS):
        labels = {key: getattr(item, key) for key in ("id", "subset", "category", "source")}
        labels |= {"metric": baselines.TEXT_READER, "variant": variant, "answer": item.answers[variant]}
        yield {**labels, "value": values[item.id, variant]}


def score_answers(
    answers: Iterable[Answer], scorings: Sequence[str], matches: Iterable[Match] = ()
) -> Iterator[Row]:
    """A row per answer, scoring and protocol: `letter`, `value` (1.0, 0.0, None: unscored) and `reason`."""
    by_question = {(match.id, match.variant): match for match in matches}
    for row in answers:
        copied = ("id", "variant", "subset", "category", "source", "answer")
        labels = {key: getattr(row, key) for key in copied}
        labels["metric"] = row.baseline or "accuracy"
        match = by_question.get((row.id, row.variant))
        for scoring in scorings:
            for protocol in ("fixed",) if row.baseline else PROTOCOLS:
                reading = read_answer(row, scoring, protocol, match)
                yield {**labels, "scoring": scoring, "protocol": protocol, **reading}


def read_answer(row: Answer, scoring: str, protocol: str, match: Match | None = None) -> Row:
    """The letter of one answer, and its value or the reason why it has none; `failed`: there is no answer.
    match: what the matcher read; None if it was not asked."""
    failed = bool(row.error)
    if failed:
        letter, reason = None, row.error
    elif scoring == "logprob":  # the likeliest letter
        letter, reason = None, "no probabilities of letters"
        if row.logprobs is not None:
            try:
                letter = Reply(logprobs=row.logprobs).likeliest
                reason = "" if letter else "no letter is likeliest"
            except ValueError as error:  # a damaged file: a number is not finite
                reason = str(error)
    elif row.each is not None:  # a judge, asked about one option at a time: its only yes
        letter, reason, _ = read_verdicts(row.each, protocol)
    elif protocol == "paper" and match is not None:  # VLMEvalKit's second step
        failed = bool(match.error)
        letter, reason = match.letter, match.error or match.reason
    elif protocol == "paper":
        letter, reason, _ = parse(row.text or "", drop_missing(row.options), "vlmevalkit")
    else:
        letter, reason, _ = parse(row.text or "", row.options, "fixed")
    value = None if letter is None else float(letter == row.answer)
    if letter is None and protocol == "paper" and scoring == "generated" and not failed:
        value = 0.0  # as the toolkit counts it
    return {"letter": letter, "reason": reason or None, "failed": "yes" if failed else None, "value": value}
