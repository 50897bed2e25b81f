"""A run of NegVQA: its files (docs/reference/files.md), its answers read under both protocols, their figures.

Intervals are "clustered" by image; under "paper" also "normal", the paper's p -/+ 1.96 sqrt(p (1 - p) / n).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nein import statistics
from nein.benchmarks.baselines import BASELINES, GAIN, TEXT_ONLY
from nein.benchmarks.runner import selected
from nein.datasets.negvqa.questions import AVERAGE, CATEGORIES, OTHER, VARIANTS
from nein.engine.atomic import Shape
from nein.engine.folder import Folder
from nein.metrics.choices import Reply
from nein.metrics.letters import by_option, parse, without_missing
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable
from nein.statistics.estimates import Estimate

ANSWERS, BLIND, MATCHES = "answers", "blind", "matches"  # the stages and their outputs
#: Rows of a block: what was asked, what the model wrote, and what a matcher made of it.
_ANSWER = {
    "id": str, "variant": str, "subset": str, "category": str, "source": str, "question": str,
    "options": [str], "answer": str, "text": (str, None), "logprobs": ([(float, None)], None), "error": str,
}  # fmt: skip
_MATCH = {"id": str, "variant": str, "letter": (str, None), "reason": str, "error": str}
BLOCKS: Mapping[str, Shape] = {
    ANSWERS: _ANSWER, BLIND: {**_ANSWER, "baseline": str}, MATCHES: _MATCH,
}  # fmt: skip
_MANIFEST = {
    "preset": str, "protocol": str, "reference": str, "identity": {"prompt": str, "asking?": (str, None)},
    "scoring": [str], "matcher": str, "limit": (int, None),
    "data": {
        "kind": str, "sha256": str, "questions": int, "split?": str, "columns?": ({}, None), "name?": str,
        "revision?": (str, None), "file?": str, "world?": str,
    },
}  # fmt: skip


class AnswersDir(Folder):
    """The folder OUT/<model>."""

    benchmark = "negvqa"
    content_name = ANSWERS
    row_types = BLOCKS
    facts = _MANIFEST


#: "fixed": our own rule; an answer without a letter is unscored: counted, neither right nor wrong. "paper":
#: VLMEvalKit's rule, then its matcher where there is one; an answer in which neither finds a letter is wrong.
#: Of a judge asked about one option at a time, the only yes is the letter (`by_option`). A
#: question without an answer is unscored in both: the toolkit, too, asks it again.
PROTOCOLS = ("fixed", "paper")
#: Columns besides the usual, where metric is "accuracy", or a baseline, which is read under "fixed" alone.
DETAILS = ("subset", "category", "answer", "scoring", "protocol", "letter", "failed")
Row = Mapping[str, Any]


def of_folder(folder: Folder) -> Iterator[dict[str, Any]]:
    """The score rows of a run that has all its answers."""
    facts = folder.manifest()
    matched = folder.done(MATCHES) if MATCHES in facts["selected"] else ()
    matches = folder.rows(MATCHES, sorted(matched))  # only of answers without a letter
    yield from score(selected(folder, ANSWERS), facts["scoring"], matches)
    if BLIND in facts["selected"]:
        yield from score(selected(folder, BLIND), facts["scoring"])


table = functools.partial(ScoreTable.of, details=DETAILS)


def score(
    answers: Iterable[Row], scorings: Sequence[str], matches: Iterable[Row] = ()
) -> Iterator[dict[str, Any]]:
    """A row per answer, scoring and protocol: `letter`, `value` (1.0, 0.0, None: unscored), `reason`, and
    `asked`, the answer's own row.

    matches  What the matcher made of answers without a letter.
    """
    matched = {(match["id"], match["variant"]): match for match in matches}
    for row in answers:
        what = {key: row[key] for key in ("id", "variant", "subset", "category", "source", "answer")}
        what |= {"metric": row.get("baseline", "accuracy"), "asked": row}
        match = matched.get((row["id"], row["variant"]))
        for scoring in scorings:
            for protocol in PROTOCOLS[:1] if "baseline" in row else PROTOCOLS:
                reading = read(row, scoring, protocol, match)
                yield {**what, "scoring": scoring, "protocol": protocol, **reading}


def read(row: Row, scoring: str, protocol: str, match: Row | None = None) -> dict[str, Any]:
    """The letter of one answer, with its value or the reason why it has none; `failed`: there is no answer.
    match: what the matcher made of it."""
    failed = bool(row["error"])
    if failed:
        letter, reason = None, str(row["error"])
    elif scoring == "logprob":
        letter, reason = None, "no probabilities of letters"
        if row["logprobs"] is not None:
            try:
                letter = Reply(logprobs=tuple(row["logprobs"])).likeliest
                reason = "" if letter else "no letter is likeliest"
            except ValueError as error:  # a number that is not finite, in a file that was damaged
                reason = str(error)
    elif row.get("each") is not None:
        letter, reason, _ = by_option(row["each"], protocol)
    elif protocol == "paper" and match is not None:
        failed = bool(match["error"])
        letter, reason = match["letter"], match["error"] or match["reason"]
    elif protocol == "paper":
        letter, reason, _ = parse(row["text"] or "", without_missing(row["options"]), "vlmevalkit")
    else:
        letter, reason, _ = parse(row["text"] or "", row["options"], "fixed")
    if letter is not None:
        value: float | None = float(letter == row["answer"])
    else:
        value = 0.0 if protocol == "paper" and scoring == "generated" and not failed else None
    return {"letter": letter, "reason": reason or None, "failed": "yes" if failed else None, "value": value}


#: What can become of a pair -> the values of its original and its negated question.
OUTCOMES = {
    "both": (1.0, 1.0),
    "only_original": (1.0, 0.0),
    "only_negated": (0.0, 1.0),
    "neither": (0.0, 0.0),
}


def figures(scores: ScoreTable, asking: str | None = None) -> pd.DataFrame:
    """Every figure of one model.

    task        metric
    accuracy    "accuracy" per variant and category, with either interval
    subsets     "accuracy" per variant and subset, and "difference"
    gap         over pairs scored in both: "original", "negated" (shares right), "gap" with its test, "ratio"
    outcomes    of pairs: "both", "only_original", "only_negated", "neither", and the test "mcnemar"
    position    share of letters that are A: "answered", "right"
    agreement   "same": share of questions whose generated and likeliest letters agree
    unread      "answers" without a letter, by reason
    blind       per variant and category, of the questions that were also asked without the picture and
                without the question: "text only", "picture only", and "gain over text", accuracy minus the
                former, paired

    asking  How a judge was asked; None for other models.
    """
    figures: list[dict[str, Any]] = []
    scored = scores.where(metric="accuracy")
    for (scoring, protocol), rows in scored.groups("scoring", "protocol"):
        parts: list[Iterable[dict[str, Any]]] = [_accuracies(rows, protocol), _unread(rows)]
        if protocol == "fixed":
            blind = scores.where(scoring=scoring, metric=BASELINES)
            parts += [_by_subset(rows), _blind(rows, blind), _positions(rows)]
            parts += [paired(_in(rows, category), category) for category in categories_of(rows)]
        figures += [{**row, "scoring": scoring, "protocol": protocol} for part in parts for row in part]
    both = agreement(scored)
    frame = frames.frame([*figures, *([both] if both else [])])
    return frames.label(frame, headline=np.where(frame["scoring"] == headline(frame, asking), "yes", ""))


def headline(frame: pd.DataFrame, asking: str | None) -> str:
    """The scoring that stands for a model: what is written, unless no letter could be read there; of a judge
    that is asked about each option, and seldom says yes to just one, the likeliest yes."""
    accuracies = frames.select(frame, task="accuracy", protocol="fixed")
    scored = accuracies.groupby("scoring", sort=False)["n"].sum()
    order = ("logprob", "generated") if asking == "options" else ("generated", "logprob")
    return next((name for name in order if scored.get(name)), str(next(iter(scored.index), "")))


def categories_of(rows: ScoreTable) -> list[str]:
    """The categories that occur, in the paper's order, then the average."""
    present = {*rows.names("category")}
    return [*(c for c in (*CATEGORIES, OTHER) if c in present), AVERAGE]


def _in(rows: ScoreTable, category: str) -> ScoreTable:
    return rows if category == AVERAGE else rows.where(category=category)


def _accuracies(rows: ScoreTable, protocol: str) -> Iterator[dict[str, Any]]:
    for variant in VARIANTS:
        of_variant = rows.where(variant=variant)
        for category in categories_of(of_variant):
            members = _in(of_variant, category)
            estimate = accuracy(members, category, protocol)
            what: dict[str, Any] = {"task": "accuracy", "metric": "accuracy", "variant": variant}
            what |= {"category": category, "unit": "%"}
            yield members.described(estimate, **what, interval="clustered")
            if protocol == "paper":
                yield members.described(normal(estimate), **what, interval="normal")


def accuracy(rows: ScoreTable, category: str, protocol: str) -> Estimate | None:
    """Share of right answers over all questions of a category; under "paper", but for the average, the
    unweighted mean of its subsets' accuracies, as the released notebook has it."""
    scored = rows.scored
    if protocol != "paper" or category == AVERAGE or not len(scored):
        return rows.estimate()
    subset = scored.frame["subset"].cat.codes.to_numpy()
    weights = 1 / np.bincount(subset)[subset]
    return statistics.bounded_mean(scored.values, scored.clusters, weights=weights)


def normal(estimate: Estimate | None) -> Estimate | None:
    """The same share with the interval of NegVQA's Table 1 (arXiv:2505.22946), not cut off at 0 and 1."""
    if estimate is None:
        return None
    value = min(1.0, max(0.0, estimate.value))
    reach = 1.96 * math.sqrt(value * (1 - value) / estimate.n)
    return replace(estimate, low=value - reach, high=value + reach, standard_error=None)


def _by_subset(rows: ScoreTable) -> Iterator[dict[str, Any]]:
    for (subset,), members in rows.groups("subset"):
        what = {"task": "subsets", "subset": subset}
        ends = [members.where(variant=v).figure(metric="accuracy", variant=v, **what) for v in VARIANTS]
        yield from ends
        first, second = (end["value"] for end in ends)
        if first is not None and second is not None:
            yield frames.number(first - second, unit="points", metric="difference", **what)


def _blind(rows: ScoreTable, blind: ScoreTable) -> Iterator[dict[str, Any]]:
    for variant in VARIANTS:
        seen, unseen = rows.where(variant=variant), blind.where(variant=variant)
        for category in categories_of(unseen) if len(unseen) else ():
            what: dict[str, Any] = {"task": "blind", "variant": variant, "category": category}
            for baseline in BASELINES:
                if len(members := _in(unseen, category).where(metric=baseline)):
                    yield members.figure(metric=baseline, **what)
            alone = _in(unseen, category).where(metric=TEXT_ONLY)
            with_picture, without, clusters = seen.pair(alone)
            gain = statistics.bounded_mean(with_picture - without, clusters, -1.0, 1.0)
            unscored = len(alone) - (gain.n if gain else 0)
            yield frames.figure(gain, unit="points", unscored=unscored, metric=GAIN, **what)


def paired(rows: ScoreTable, category: str) -> list[dict[str, Any]]:
    """Both questions of a pair together: the negation gap with its test, and the outcomes with McNemar's,
    which takes pairs for independent."""
    first, second = (rows.where(variant=variant) for variant in VARIANTS)
    original, negated, clusters = first.pair(second)
    n = len(original)
    in_gap: dict[str, Any] = {"task": "gap", "category": category}
    what: dict[str, Any] = {"task": "outcomes", "category": category, "unscored": len(first) - n, "n": n}
    gaps = rows.gap(*VARIANTS, **in_gap)  # original, negated, gap; their names are metrics here
    ratio = statistics.pairs_ratio(original, negated, clusters)
    counts = {
        name: int(((original == one) & (negated == other)).sum()) for name, (one, other) in OUTCOMES.items()
    }
    exact = mcnemar(counts["only_original"], counts["only_negated"])
    return [
        *({**row, "metric": row["variant"], "variant": ""} for row in gaps),
        frames.figure(ratio, unit="", metric="ratio", **in_gap),
        *(
            frames.number(count / n if n else None, unit="%", metric=name, **what)
            for name, count in counts.items()
        ),
        frames.number(None, unit="", metric="mcnemar", p=exact, **what),
        frames.number(None, unit="", metric="clustered", p=gaps[-1].get("p"), **what),
    ]


def mcnemar(first: int, second: int) -> float:
    """Two-sided p that two kinds of discordant pairs are equally likely, by the exact binomial test; 1.0 when
    there are none. Source: McNemar, Psychometrika 12 (1947), in its exact form."""
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def _positions(rows: ScoreTable) -> Iterator[dict[str, Any]]:
    """Share of "A" among the letters given and among the right letters of the same questions."""
    for variant in VARIANTS:
        members = rows.where(variant=variant)
        given = ScoreTable(members.frame[members.frame["letter"].notna()])
        answered = (given.frame["letter"] == "A").to_numpy(np.float64)
        right = len(given.where(answer="A")) / len(given) if len(given) else None
        what: dict[str, Any] = {"task": "position", "variant": variant, "unit": "%"}
        yield frames.figure(statistics.bounded_mean(answered, given.clusters), metric="answered", **what)
        yield frames.number(right, metric="right", n=len(given), **what)


def agreement(scored: ScoreTable) -> dict[str, Any] | None:
    """Share of questions whose generated and likeliest letters are the same, of those that have both; None
    where one way of scoring was not asked for."""
    fixed = scored.where(protocol="fixed").frame
    letters = fixed.astype({"scoring": str}).pivot(
        index=["id", "variant"], columns="scoring", values="letter"
    )
    if letters.shape[1] < 2:
        return None
    both = letters.dropna()
    same, n = int((both.iloc[:, 0] == both.iloc[:, 1]).sum()), len(both)
    return frames.number(same / n if n else None, unit="%", n=n, task="agreement", metric="same")


def _unread(rows: ScoreTable) -> Iterator[dict[str, Any]]:
    for variant in VARIANTS:
        reasons = Counter(rows.where(variant=variant).frame["reason"].dropna())
        what: dict[str, Any] = {"unit": "count", "task": "unread", "metric": "answers", "variant": variant}
        for reason, count in reasons.most_common():
            yield frames.number(count, reason=reason, **what)
