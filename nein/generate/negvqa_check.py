"""The check sheet of generated NegVQA questions, and `nein negvqa check`, which evaluates its labels.

`write_sheet` (of `nein negvqa generate`) makes a page on which people label random questions and save their
labels as a CSV file; `check` turns such files into the share of right questions with its interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nein.datasets.negvqa import VARIANTS
from nein.engine.folder import Row
from nein.generate.config import CheckConfig
from nein.reporting import cards, labels, tables
from nein.reporting import figures as frames
from nein.reporting.figures import Figure, figure
from nein.reporting.page import format_headline
from nein.reporting.tables import Column, Table
from nein.statistics import bounded_mean

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

# --- the sheet -----------------------------------------------------------------------------------
RATER_INSTRUCTIONS = (
    "A conversion is right when the negated question is good English, asks for the opposite of the original "
    "with little changed, and the option marked for each question is right for the picture."
)
IMAGE_SIDE = 320  # pixels of the longer side, enough to read text in an image


def write_sheet(path: Path, rows: Sequence[Row], *, population: int, negator: str) -> None:
    """Writes the sheet of some rows of questions.jsonl, whose images are relative to the folder of `path`.
    population: how many conversions they were drawn from; negator: the model."""
    drawn = f"{len(rows)} random items out of {population} (negated by: {negator})."
    heads = ("", "question", "A", "B")
    items = []
    for row in rows:
        cells = []  # a line per variant: variant, question, A, B; the right option is ticked
        for variant in VARIANTS:
            right = row[f"{variant}_answer"]
            options = [f"✓ {row[letter]}" if letter == right else row[letter] for letter in "AB"]
            cells.append([variant, row[f"{variant}_question"], *options])
        image = cards.read_thumbnail(path.parent / row["image"], IMAGE_SIDE)
        pictures = [("", image)]  # one, without a caption
        items.append(labels.Item(str(row["index"]), row["category"], pictures, heads=heads, rows=cells))
    guide = f"{drawn} {RATER_INSTRUCTIONS}"
    labels.write_page(path, "Are these negated questions right?", guide, [QUESTION], items)


# --- the command ---------------------------------------------------------------------------------
COLUMNS = (
    Column("right %", {"statistic": RIGHT}),
    Column("of", {"statistic": RIGHT}, tables.count()),
    Column("without a label", {"statistic": RIGHT}, tables.count("unscored")),
    *(Column(kind, {"statistic": kind}, tables.value()) for kind in ERRORS),
)
CHECK = Table("check", "Accuracy of the conversion", (tables.Row("rater"),), COLUMNS, {"task": "check"})


def check(options: CheckConfig) -> str:
    """The accuracy of a conversion with its interval, as tables. Raises UserError."""
    frame = frames.frame(make_figures(labels.read_answers(options.files, [QUESTION])))
    if options.out is not None:
        frames.write(options.out, frame)
    kinds = [f"{kind}: {text}" for kind, text in ERRORS.items()]
    return format_headline(frame, [CHECK, labels.AGREEMENT], ["Intervals are exact. Wrong, by kind:", *kinds])


def make_figures(rows: Sequence[labels.Label]) -> Iterator[Figure]:
    """Yields each rater's share of right conversions, with its exact 95 % interval, and errors by kind
    (task "check"); then the agreement of the raters on right or wrong."""
    for rater in dict.fromkeys(row["rater"] for row in rows):
        verdicts = Counter(row[QUESTION.key] for row in rows if row["rater"] == rater)  # "": no label
        hits = [1.0] * verdicts[RIGHT] + [0.0] * sum(verdicts[kind] for kind in ERRORS)
        fields: Row = {"task": "check", "metric": "right", "rater": rater}
        share = bounded_mean(hits, range(len(hits)))  # every question is a cluster
        yield figure(share, unit="%", unscored=verdicts[""], statistic=RIGHT, **fields)
        for kind in ERRORS:
            yield frames.number(verdicts[kind], unit="count", statistic=kind, **fields)
    # All kinds of errors count as "wrong".
    plain = [row | {"verdict": "wrong" if row["verdict"] in ERRORS else row["verdict"]} for row in rows]
    right_or_wrong = replace(QUESTION, answers={RIGHT: "", "wrong": ""})
    cluster_of = {row["item"]: row["item"] for row in rows}  # every question is a cluster
    yield from labels.measure_agreement(plain, [right_or_wrong], cluster_of)
