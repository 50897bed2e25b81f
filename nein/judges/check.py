"""The command `nein check`: does an editor or a judge keep its contract? A plain list, passed or failed.

nein check EDITOR             a name, a folder, a hub id, plugin of `nein.editors`, or module:attribute
nein check --judge vqa REF    a reference as `--models.vqa` takes it, or module:attribute; with
                              `--against REF` also whether it gives another judge's verdicts
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tabulate

from nein.judges.config import CheckConfig
from nein.judges.contracts import Outcome, ask_about, picture
from nein.metrics.base import parse_yes_no
from nein.nano.data import source_scene
from nein.nano.draw import CATEGORIES
from nein.nano.scenes import rng_for
from nein.statistics.estimates import bounded_mean


def run(options: CheckConfig) -> int:
    """Prints what passed and what failed; 0 when everything passes, 1 otherwise. Raises UserError."""
    from nein import metrics
    from nein.engine.processes import Processes
    from nein.judges import check, contracts
    from nein.models import editor_choice, references

    def judge(reference: str) -> Any:
        where, revision = references.resolve(reference)
        return metrics.load_judge(
            str(options.judge), where, revision=revision, device=device, dtype=options.dtype
        )

    device = Processes().device(options.device)
    pairs: list[check.Pair] = []
    if options.judge:
        subject = judge(options.subject)
        outcomes = contracts.check_judge(options.judge, subject, options.number)
        if options.against:
            pairs = check.compare(options.judge, subject, judge(options.against), options.number)
            outcomes = itertools.chain(outcomes, check.outcomes(pairs, options.against))
    else:
        [choice] = editor_choice.resolve_editors([options.subject], "nano", options.editor_options)
        subject = choice.load(device=device, dtype=options.dtype, batch_size=4)
        outcomes = contracts.check_editor(subject, options.number)
    failed = 0
    for outcome in outcomes:
        word = {True: "pass", False: "FAIL", None: "info"}[outcome.passed]
        failed += outcome.passed is False
        print(f"{word}  {outcome.name}{': ' if outcome.reason else ''}{outcome.reason}", flush=True)
    if pairs and options.against:
        print(f"\n{check.table(pairs, options.subject, options.against)}")
    print(f"{options.subject}: {'all checks passed' if not failed else f'{failed} checks failed'}")
    return 1 if failed else 0


THRESHOLD = 0.1  # of a detector's score, as `nein eval --threshold`
VERDICTS = ("yes", "no", "neither")


class Reply(NamedTuple):
    """verdict: one of `VERDICTS`. shown: as it came, or a detector's score. soft: P(yes), or the score; None
    where a judge gives none."""

    verdict: str
    shown: str
    soft: float | None


class Pair(NamedTuple):
    """What both said about a word in a picture, the `picture`-th source scene of the split "dev"."""

    picture: int
    word: str
    first: Reply
    second: Reply

    @property
    def flipped(self) -> bool:
        return self.first.verdict != self.second.verdict


def compare(kind: str, judge: Any, other: Any, number: int) -> list[Pair]:
    """Both judges of a kind about everything in the first `number` pictures, and as much that is not."""
    words = []
    for index in range(number):
        there = list(source_scene("dev", index).categories)
        others = [name for name in CATEGORIES if name not in there]
        words.append([*there, *rng_for("dev", index, "parity").sample(others, len(there))])
    pictures = [picture(index) for index in range(number)]

    def replies(judge: Any) -> Iterator[Reply]:
        for answer in (answer for row in ask_about(kind, judge, pictures, words) for answer in row):
            if kind == "ovd":
                seen = "yes" if answer.score > THRESHOLD else "no"
                yield Reply(seen, f"{answer.score:.3f}", float(answer.score))
            else:
                verdict = {True: "yes", False: "no", None: "neither"}[parse_yes_no(answer.text)]
                yield Reply(verdict, repr(answer.text), answer.p_yes)

    places = [(index, word) for index, row in enumerate(words) for word in row]
    return [Pair(*place, *both) for place, *both in zip(places, replies(judge), replies(other), strict=True)]


def outcomes(pairs: Sequence[Pair], against: str) -> Iterator[Outcome]:
    """One check, and what is only reported: the agreement, and how far apart soft answers are."""
    flips = sum(pair.flipped for pair in pairs)
    yield Outcome(f"gives the verdicts of {against}", not flips, f"{flips} of {len(pairs)} differ")
    share = bounded_mean([not pair.flipped for pair in pairs], [pair.picture for pair in pairs])
    if share is not None:
        ends = "" if share.low is None else f" [{share.low:.1%}, {share.high:.1%}]"
        yield Outcome("agreement", None, f"{share.value:.1%}{ends}, {share.clusters} pictures")
    soft = [(pair.first.soft, pair.second.soft) for pair in pairs]
    if apart := [abs(a - b) for a, b in soft if a is not None and b is not None]:
        mean = sum(apart) / len(apart)
        yield Outcome("soft answers", None, f"differ by {mean:.1e} on average, {max(apart):.1e} at most")


def table(pairs: Sequence[Pair], subject: str, against: str) -> str:
    """How often which verdict met which, and below it every flip; Markdown."""
    met = Counter((pair.first.verdict, pair.second.verdict) for pair in pairs)
    rows = [[mine, *(met[mine, theirs] for theirs in VERDICTS)] for mine in VERDICTS]
    text = tabulate.tabulate(rows, [f"{subject} \\ {against}", *VERDICTS], tablefmt="pipe")
    flips = []
    for pair in (pair for pair in pairs if pair.flipped):
        flips.append([pair.picture, pair.word])
        for said in (pair.first, pair.second):
            flips[-1] += [said.shown, "" if said.soft is None else f"{said.soft:.4f}"]
    if not flips:
        return f"{text}\n"
    heads = ["picture", "asked about", subject, "soft", against, "soft"]
    return f"{text}\n\n{tabulate.tabulate(flips, heads, tablefmt='pipe', disable_numparse=True)}\n"
