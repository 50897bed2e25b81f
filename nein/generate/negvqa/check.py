"""The check sheet, a page on which people label random conversions as right or wrong, and
`nein negvqa check FILE...`: from their labels to the accuracy of the conversion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nein.datasets.negvqa.questions import VARIANTS
from nein.generate.negvqa.config import CheckConfig
from nein.reporting import cards, labels
from nein.reporting import figures as frames
from nein.reporting.figures import Figure, figure, number
from nein.reporting.report import headline
from nein.reporting.tables import Column, Row, Table, count, value
from nein.statistics import bounded_mean

HOW = (
    "A conversion is right when the negated question is good English, asks for the opposite of the original "
    "with little changed, and the option marked for each question is right for the picture."
)
SIDE = 320  # pixels of a picture's longer side, so that writing on it can be read
RIGHT = "right"
#: What can be wrong with a conversion: the paper names the first two (NegVQA, section 3).
ERRORS = {
    "unnatural": "the negated question is unnatural or ungrammatical",
    "twice": "a condition or a negation is negated as well",
    "answer": "the letter of the negated question is not right",
    "original": "the original question or its letter is wrong already",
    "other": "something else (see the note)",
}
ANSWERS = {RIGHT: RIGHT} | {kind: f"wrong: {text}" for kind, text in ERRORS.items()}
QUESTION = labels.Question("verdict", "Is the conversion right?", ANSWERS)
COLUMNS = [
    Column("right %", {"statistic": RIGHT}),
    Column("of", {"statistic": RIGHT}, count()),
    Column("without a label", {"statistic": RIGHT}, count("unscored")),
    *(Column(kind, {"statistic": kind}, value()) for kind in ERRORS),
]
CHECK = Table("check", "Accuracy of the conversion", (Row("rater"),), tuple(COLUMNS), {"task": "check"})


def figures(rows: Sequence[labels.Labelled]) -> Iterator[Figure]:
    """Of every rater the share of right conversions with its exact 95 % interval, and the wrong ones by kind
    (task "check"); and how far raters agree on right or wrong, whatever the kind."""
    for rater in dict.fromkeys(row["rater"] for row in rows):
        verdicts = Counter(row[QUESTION.key] for row in rows if row["rater"] == rater)
        hits = [1.0] * verdicts[RIGHT] + [0.0] * sum(verdicts[kind] for kind in ERRORS)
        what: dict[str, Any] = {"task": "check", "metric": "right", "rater": rater}
        share = bounded_mean(hits, range(len(hits)))
        yield figure(share, unit="%", unscored=verdicts[""], statistic=RIGHT, **what)
        for kind in ERRORS:
            yield number(verdicts[kind], unit="count", statistic=kind, **what)
    verdict = replace(QUESTION, answers=dict.fromkeys((RIGHT, "wrong"), ""))
    plain = [row | {"verdict": row["verdict"] and ("wrong", RIGHT)[row["verdict"] == RIGHT]} for row in rows]
    yield from labels.agreement(plain, [verdict], {row["item"]: row["item"] for row in rows})


def run(options: CheckConfig) -> str:
    """The accuracy of a conversion with its interval, as tables. Raises UserError."""
    frame = frames.frame(figures(labels.read(options.files, [QUESTION])))
    if options.out is not None:
        frames.write(options.out, frame)
    kinds = [f"{kind}: {text}" for kind, text in ERRORS.items()]
    return headline(frame, [CHECK, labels.AGREEMENT], ["Intervals are exact. Wrong, by kind:", *kinds])


def write_sheet(path: Path, rows: Sequence[Mapping[str, Any]], *, population: int, negator: str) -> None:
    """Writes the sheet of `rows`, of questions.jsonl, whose images lie beside `path`.

    population  How many conversions the rows were drawn from.
    """
    how = f"{len(rows)} random items out of {population} (negated by: {negator}). {HOW}"
    items = []
    for row in rows:
        asked = []
        for variant in VARIANTS:
            options = [f"✓ {row[k]}" if k == row[f"{variant}_answer"] else row[k] for k in "AB"]
            asked.append([variant, row[f"{variant}_question"], *options])
        image = cards.of_file(path.parent / row["image"], SIDE)
        heads = ("", "question", "A", "B")
        items.append(labels.Item(str(row["index"]), row["category"], [("", image)], heads, asked))
    labels.write_page(path, "Are these negated questions right?", how, [QUESTION], items)
