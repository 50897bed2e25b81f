"""Defines the tables, plots and sections of NegVQA's report: selections from `estimates` and `paper`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nein.benchmarks import baselines
from nein.benchmarks.negvqa.estimates import OUTCOMES
from nein.datasets.negvqa import AVERAGE, CATEGORIES, HUB, OTHER, TITLES, VARIANTS
from nein.reporting import plots, tables
from nein.reporting.figures import Figure
from nein.reporting.page import Section
from nein.reporting.tables import Column, Row, Table

ORDER = (*CATEGORIES, OTHER, AVERAGE)
#: Outcome of a pair -> its name on the page.
OUTCOME_TITLES = {name: name.replace("_", " ") for name in OUTCOMES} | {"both": "both right"}
_PROTOCOL_NOTES = {
    "fixed": "Over all questions of a category; answers without a readable letter are unscored.",
    "paper": "As published: a category is the unweighted mean of its subsets, letters are read by "
    "VLMEvalKit's rule, and an answer in which neither it nor a matcher finds one is wrong: that "
    "the authors asked none is our assumption. Questions without an answer are unscored.",
}
_CLUSTERED = "95 % intervals clustered by picture"
_INTERVAL_NOTES = {
    "clustered": _CLUSTERED,
    "normal": "95 % intervals by the paper's formula, p ± 1.96 √(p(1 − p)/n), which is not cut at 0 and 100",
}

# --- tables ----------------------------------------------------------------------------------------
#: What names the rows of a table.
_NAME = (Row("model"), Row("scoring"))
_CATEGORY, _QUESTIONS = Row("category", names=TITLES), Row("variant", "questions")
_SOURCE = Row("source", "figures", {"printed": "printed", "here": "measured here"})
_CATEGORIES = Column(by="category", names=TITLES, order=ORDER)  # a column per category
_SCORED = Column("scored", {"category": AVERAGE}, tables.count_scored)


def accuracy_table(protocol: str, interval: str) -> Table:
    """The table of accuracy per category and average, original above negated questions."""
    interval_note = _INTERVAL_NOTES[interval]
    if (protocol, interval) == ("paper", "clustered"):
        interval_note += "; averages of subsets by random weights of pictures"
    return Table(
        f"accuracy_{protocol}_{interval}", f"Accuracy, protocol '{protocol}', {interval} intervals",
        rows=(*_NAME, _QUESTIONS), columns=(_CATEGORIES, _SCORED),
        where={"task": "accuracy", "protocol": protocol, "interval": interval},
        note=f"{_PROTOCOL_NOTES[protocol]} {interval_note}.",
    )  # fmt: skip


GAP = Table(
    "gap", "Negation gap", rows=(*_NAME, _CATEGORY),
    columns=(
        Column("original", {"metric": "original"}), Column("negated", {"metric": "negated"}),
        Column("gap (points)", {"metric": "gap"}), Column("ratio", {"metric": "ratio"}),
        Column("p", {"metric": "gap"}, tables.p_value()),
        Column("pairs", {"metric": "gap"}, tables.count_scored),
    ),
    note="Accuracy in per cent on original questions and on their negations, over pairs scored in both. Gap: "
    "the paired difference, clustered by picture; 0: negation costs nothing. Ratio: "
    "– if no negated question was right.",
)  # fmt: skip
#: The gap without a row per category, which a command prints at its end.
OVER_ALL = replace(GAP, rows=_NAME, where={"task": "gap", "category": AVERAGE})
BLIND = Table(
    "blind", "Without the picture, without the question",
    rows=(*_NAME, _QUESTIONS, Row("metric", "shown")), columns=(_CATEGORIES, _SCORED),
    note="Accuracy in per cent on --blind questions, evenly spread. Text only: with a grey picture. Picture "
    "only: with the options and no question; one answer counts for the question and its negation. Gain over "
    f"text: accuracy minus text only on the same questions, paired, in points. {baselines.READER_NOTE} "
    f"{_CLUSTERED}.",
)  # fmt: skip


def _count(figures: Sequence[Figure]) -> str:
    """The count of which the estimate is the share: "12"."""
    value, n = figures[0]["value"], figures[0]["n"]
    return "0" if value is None else str(round(value * n))


def _count_and_share(figures: Sequence[Figure]) -> str:
    """The count with its share in per cent: "12 (37.5)"."""
    value, unit = figures[0]["value"], figures[0]["unit"]
    return "0" if value is None else f"{_count(figures)} ({tables.format_number(value, unit)})"


def _list_sizes(figures: Sequence[Figure]) -> str:
    """The numbers of original and of negated questions: "20 / 20"."""
    return " / ".join(str(row["n"]) for row in figures)


PAIRS = Table(
    "outcomes", "Pairs: original and negated together", rows=(*_NAME, _CATEGORY),
    columns=(
        *(Column(title, {"metric": name}, _count_and_share) for name, title in OUTCOME_TITLES.items()),
        Column("pairs", {"metric": "both"}, tables.count_scored),
        Column("p (McNemar)", {"metric": "mcnemar"}, tables.p_value()),
        Column("p (clustered)", {"metric": "clustered"}, tables.p_value()),
    ),
    note="Pairs, and per cent of them. A model that ignores the negation gives the same answer to both "
    "questions and is right on only one of them; a constant letter is never right on both. McNemar's "
    "exact test assumes independent pairs; the other p accounts for questions about the same picture.",
)  # fmt: skip
POSITION = Table(
    "position", "Position bias", rows=(*_NAME, _QUESTIONS),
    columns=(
        Column("answered A %", {"metric": "answered"}), Column("A is right %", {"metric": "right"}),
        Column("letters", {"metric": "answered"}, tables.count()),
    ),
    note="If A is answered far more or less often than it is right, the model chooses by position.",
)  # fmt: skip
AGREEMENT = Table(
    "agreement", "Two ways of scoring", rows=(Row("model"),),
    columns=(
        Column("same letter %"), Column("same", show=_count),
        Column("questions with both", show=tables.count()),
    ),
    note="The generated letter against the letter with the highest probability as the first token.",
)  # fmt: skip
SUBSETS = Table(
    "subsets", "Accuracy by subset", rows=(*_NAME, Row("subset")),
    columns=(
        *(Column(variant, {"metric": "accuracy", "variant": variant}) for variant in VARIANTS),
        Column("difference", {"metric": "difference"}), Column("n", {"metric": "accuracy"}, _list_sizes),
    ),
    note=f"{_CLUSTERED}.",
)  # fmt: skip
TABLE_1 = Table(
    "table1", "NegVQA, Table 1, and the models measured here",
    rows=(Row("model"), _SOURCE, _QUESTIONS), columns=(_CATEGORIES, _SCORED),
    note=f"Accuracy in per cent. Printed: arXiv:2505.22946 (May 2025), hub:{HUB}, 7,379 questions. Measured "
    "here: protocol 'paper', on these questions only; data, number and date stand at the head of the page. "
    "Normal intervals on both sides.",
)  # fmt: skip


def _name_best(figures: Sequence[Figure]) -> str:
    """The best model with its accuracy."""
    return f"{figures[0]['model']}, {tables.format_estimate(figures[0])}"


OVER_MODELS = Table(
    "overall", "Over models", rows=(_SOURCE,),
    columns=(
        *(Column(f"best, {v} questions", {"metric": "best", "variant": v}, _name_best) for v in VARIANTS),
        Column("mean drop (points)", {"metric": "mean drop"}),
        Column("models", {"metric": "mean drop"}, tables.count()),
    ),
    note="Averages, protocol 'paper'. Printed: Table 1; measured here: all runs of this report.",
)  # fmt: skip
UNREAD = Table(
    "unread", "Answers in which the rule finds no letter",
    rows=(*_NAME, Row("protocol"), _QUESTIONS, Row("reason")), columns=(Column("answers"),),
    note="Unscored under 'fixed'. Under 'paper' a generated answer that no matcher reads is wrong; a "
    "question without an answer is unscored.",
)  # fmt: skip

# --- plots -----------------------------------------------------------------------------------------
#: One scoring per model: that which decides its headline.
_FIXED = {"headline": "yes", "protocol": "fixed"}
#: Accuracies, and those of the baselines on the same questions.
_WITH_BASELINES = {
    "task": ("accuracy", "blind"), "metric": ("accuracy", *baselines.BASELINES),
    "interval": ("clustered", ""), **_FIXED,  # "": of a baseline, which has one interval
}  # fmt: skip
_AS_BARS: Mapping[str, Any] = {
    "series": "variant", "order": (*ORDER, *VARIANTS), "axis": "accuracy, per cent",
    "colors": dict(zip(VARIANTS, (plots.BLUE, plots.RED), strict=True)),
    "rule": 50, "marks": baselines.MARKS,  # rule: chance with two options
}  # fmt: skip
BARS = plots.plot(
    "accuracy",
    "Accuracy on original and negated questions by category, protocol 'fixed', with 95 % intervals clustered "
    f"by picture; dashed: two options by chance; {baselines.MARKS_NOTE}",
    where=_WITH_BASELINES, draw=plots.bars, place=("category",), panel=("model",), names=TITLES, **_AS_BARS,
)  # fmt: skip
ORIGINAL_AND_NEGATED = plots.plot(
    "gap",
    "Accuracy on questions and on their negations, protocol 'fixed', with 95 % intervals; dashed: chance; "
    f"{baselines.MARKS_NOTE}",
    where={**_WITH_BASELINES, "category": AVERAGE}, draw=plots.bars, place=("model",), **_AS_BARS,
)  # fmt: skip
OUTCOMES_OF_PAIRS = plots.plot(
    "outcomes",
    "Original and negated question of a pair together",
    where={"task": "outcomes", "metric": tuple(OUTCOME_TITLES), "category": AVERAGE, **_FIXED},
    draw=plots.bars, place=("model",), series="metric", order=tuple(OUTCOME_TITLES), names=OUTCOME_TITLES,
    axis="per cent of the pairs scored in both",
    # green, light blue, light orange, gray
    colors=dict(zip(OUTCOME_TITLES, (plots.GREEN, "#60a5fa", "#fdba74", "#9ca3af"), strict=True)),
)  # fmt: skip
_BY_SIZE: Mapping[str, Any] = {
    "x": "size", "log": True, "axes": ("parameters, billions", "accuracy, per cent"),
    "hollow": {"source": "here"}, "rule": 50,  # open marks: measured here; rule: chance
}  # fmt: skip
#: Category and variant -> the title of their panel.
_PANELS = {
    f"{category}, {variant}": f"{TITLES.get(category, category)}, {variant} questions"
    for category in (AVERAGE, *CATEGORIES)
    for variant in VARIANTS
}
SCALING = plots.plot(
    "scaling",
    "Accuracy against size by family: the paper's Table 1 (solid), and models measured here whose names say "
    "their size (dotted, open). Dashed: two options by chance",
    where={"task": "scaling"}, draw=plots.curves, line="family", panel=("category", "variant"),
    order=tuple(_PANELS), names=_PANELS, limits=(15, 101), **_BY_SIZE,  # limits: of the accuracy axis
)  # fmt: skip
SUBSET_SCALING = plots.plot(
    "subset_scaling",
    "Accuracy by subset against size, a line per family and kind of questions: the authors' notebook (solid, "
    "14 subsets), and models measured here whose names say their size, protocol 'fixed' (dotted, open)",
    where={"task": "subset scaling"}, draw=plots.curves, line="line", panel=("subset",), **_BY_SIZE,
)  # fmt: skip
_ACCURACY_TABLES = [
    accuracy_table("fixed", "clustered"),
    accuracy_table("paper", "clustered"),
    accuracy_table("paper", "normal"),
]
PAPER = "paper"  # key of the section that only published questions get
SECTIONS = (
    Section("gap", "Negation gap", [GAP, BLIND, PAIRS], [ORIGINAL_AND_NEGATED, OUTCOMES_OF_PAIRS]),
    Section("accuracy", "Accuracy", [*_ACCURACY_TABLES, SUBSETS], [BARS, SUBSET_SCALING]),
    Section(PAPER, "Compared with the paper", [TABLE_1, OVER_MODELS], [SCALING]),
    Section("letters", "Letters", [POSITION, AGREEMENT, UNREAD]),
)
