"""Writes pages on which people label items, reads the CSV files that these save, and measures agreement.

Parts: the page; the files; agreement and work of the raters, with tables. A sheet is the content of one page,
questions and items. Answers are kept by the browser and saved as CSV: a line per item, a column per question.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nein import statistics
from nein.engine import atomic
from nein.loading.errors import UserError
from nein.reporting import page
from nein.reporting.cards import Thumbnail
from nein.reporting.figures import Figure, figure, number
from nein.reporting.tables import Column, Row, Table, count, value
from nein.statistics import calibration
from nein.statistics.estimates import pairs

UNSURE = "cannot tell"  # an answer that is no label


# --- the page --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Question:
    """A question about an item."""

    key: str  # its column in the file
    text: str
    answers: Mapping[str, str]  # word in the file -> text of the button


@dataclass(frozen=True)
class Item:
    """One item to label."""

    id: str  # in the file; it must reveal nothing to the rater
    title: str
    pictures: Sequence[tuple[str, Thumbnail]]  # (name, image)
    heads: Sequence[str] = ()  # of a table below the images
    rows: Sequence[Sequence[str]] = ()  # of that table


def write_page(
    path: Path, title: str, guide: str, questions: Sequence[Question], items: Sequence[Item]
) -> str:
    """Writes the page of a sheet; returns the sheet's name, a content hash. guide: what raters read first."""
    fields = [{**asdict(question), "answers": [*question.answers.items()]} for question in questions]
    facts: dict[str, Any] = {"questions": fields, "items": [*map(asdict, items)]}
    facts["sheet"] = hashlib.sha256(page.script_bytes(facts)).hexdigest()[:12]
    part = page.Part("labels", "Labels", lambda: {"facts": page.script_json(facts)})
    atomic.write_text(path, page.render(page.Page(title, guide, parts=[part])))
    return str(facts["sheet"])


# --- the files -------------------------------------------------------------------------------
COLUMNS = ("sheet", "items", "rater", "item", "seconds", "note")  # items: their number on the page
Label = dict[str, str]  # a line of a CSV file: column -> cell


def read_answers(
    files: Sequence[Path], questions: Sequence[Question], sheets: Collection[str] = ()
) -> list[Label]:
    """A row per rater and item, of all files. sheets: allowed names; empty: that of the first file. Raises
    UserError for a file with other columns, of another sheet or cut off, and for an item labelled twice."""
    rows: list[Label] = []
    file_of: dict[tuple[str, str], Path] = {}  # (rater, item) -> its file
    for file in files:
        for row in _read_file(file, questions):
            sheets = sheets or {row["sheet"]}
            if row["sheet"] not in sheets:
                raise UserError(f"'{file}' has labels of another sheet, {row['sheet']!r}; leave it out.")
            if first := file_of.get((row["rater"], row["item"])):
                labels = f"labels of '{row['rater']}' for item '{row['item']}'"
                advice = "Give one of them; two people need two names."
                raise UserError(f"'{first}' and '{file}' both have {labels}. {advice}")
            rows.append(row)
        file_of |= {(row["rater"], row["item"]): file for row in rows}
    if not any(row[question.key] for row in rows for question in questions):
        raise UserError(f"There is no label yet in {', '.join(map(str, files))}.")
    return rows


def _read_file(file: Path, questions: Sequence[Question]) -> list[Label]:
    """The rows of one file, which must be complete, of one sheet and by one rater."""
    lines = atomic.read_csv(file, (*COLUMNS, *(question.key for question in questions)))
    for line, row in lines:
        for question in questions:
            if row[question.key] not in ("", *question.answers):
                allowed = f"allowed are {', '.join(question.answers)}, or nothing."
                raise UserError(f"'{file}', line {line}: {question.key} is {row[question.key]!r}; {allowed}")
    rows = [row for _, row in lines]
    if {row["items"] for row in rows} != {str(len(rows))} or len({row["item"] for row in rows}) < len(rows):
        advice = "Save it from the page again; the browser has kept the labels."
        raise UserError(
            f"'{file}' has {len(rows)} of {rows[0]['items']} items: it was cut off or changed. {advice}"
        )
    if len({(row["sheet"], row["rater"]) for row in rows}) > 1 or not rows[0]["rater"].strip():
        raise UserError(f"'{file}' must have one sheet and one named rater; save it from the page again.")
    return rows


# --- agreement and work of the raters --------------------------------------------------------
def measure_agreement(
    rows: Sequence[Mapping[str, str]], questions: Sequence[Question], cluster_of: Mapping[str, Hashable]
) -> Iterator[Figure]:
    """Agreement on items that several raters labelled (task "people"). Each pair of raters: share of equal
    answers, Cohen's kappa; all: Krippendorff's alpha. UNSURE is no answer. cluster_of: item -> cluster."""
    raters = list(dict.fromkeys(row["rater"] for row in rows))
    for question in questions:
        codes = {name: float(code) for code, name in enumerate(question.answers) if name != UNSURE}
        # Rater -> item -> code of the answer; None: unanswered or unsure.
        answers: dict[str, dict[str, float | None]] = {rater: {} for rater in raters}
        for row in rows:
            answers[row["rater"]][row["item"]] = codes.get(row[question.key])
        labels: Figure = {"task": "people", "metric": question.key}
        for first, second in itertools.combinations(raters, 2):
            # Codes of the items that both labelled: (N,) float64 each.
            first_codes, second_codes, clusters = pairs(answers[first], answers[second], cluster_of)
            if estimate := statistics.bounded_mean(first_codes == second_codes, clusters):
                labels["group"] = f"{first}, {second}"
                yield figure(estimate, unit="%", statistic="same", **labels)
                kappa = calibration.cohen_kappa(answers[first], answers[second], cluster_of)
                yield figure(kappa, unit="", statistic="kappa", **labels)
        alpha = calibration.krippendorff_alpha(list(answers.values()), cluster_of)
        if alpha is not None:
            labels["group"] = f"all {len(raters)}"
            yield figure(alpha, unit="", statistic="alpha", **labels)


def describe_raters(
    rows: Sequence[Label], questions: Sequence[Question], gold: Mapping[str, str]
) -> Iterator[Figure]:
    """Work of each rater (task "raters"): number of labelled items, share of "cannot tell", share of right
    answers to the first question where the truth is known. gold: item -> the right answer."""
    for rater in dict.fromkeys(row["rater"] for row in rows):
        first = questions[0].key
        labelled = [row for row in rows if row["rater"] == rater and row[first]]
        answers = [row[question.key] for row in labelled for question in questions if row[question.key]]
        is_right = [row[first] == gold[row["item"]] for row in labelled if row["item"] in gold]
        labels: Figure = {"task": "raters", "rater": rater}
        yield number(len(labelled), unit="count", statistic="labelled", **labels)
        unsure = answers.count(UNSURE) / len(answers) if answers else None
        yield number(unsure, unit="%", n=len(answers), statistic="unsure", **labels)
        if is_right:
            yield number(sum(is_right) / len(is_right), unit="%", n=len(is_right), statistic="gold", **labels)


_RATER_COLUMNS = (
    Column("items", {"statistic": "labelled"}, value()),
    Column("cannot tell %", {"statistic": "unsure"}, value()),
    Column("right where known %", {"statistic": "gold"}, value()),
    Column("of", {"statistic": "gold"}, count()),
)
RATERS = Table("raters", "Raters", (Row("rater"),), _RATER_COLUMNS)
_AGREEMENT_ROWS = (Row("metric", "question"), Row("group", "raters"))
_AGREEMENT_COLUMNS = (
    Column("same answer %", {"statistic": "same"}),
    Column("Cohen's kappa", {"statistic": "kappa"}),
    Column("Krippendorff's alpha", {"statistic": "alpha"}),
    Column("items", {"statistic": ("same", "alpha")}, count()),
)
_NOTE = 'About the items that both, or at least two, labelled; "cannot tell" is no label.'
AGREEMENT = Table("people", "Agreement of the raters", _AGREEMENT_ROWS, _AGREEMENT_COLUMNS, note=_NOTE)
