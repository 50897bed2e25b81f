"""Defines the tables, plots and sections of a NegVQA report, each a selection from the estimates."""

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
        f"accuracy_{protocol}_{interval}",
        f"Accuracy, protocol '{protocol}', {interval} intervals",
        (*_NAME, _QUESTIONS),
        (_CATEGORIES, _SCORED),
        {"task": "accuracy", "protocol": protocol, "interval": interval},
        f"{_PROTOCOL_NOTES[protocol]} {interval_note}.",
    )


GAP = Table(
    "gap",
    "Negation gap",
    (*_NAME, _CATEGORY),
    (
        Column("original", {"metric": "original"}),
        Column("negated", {"metric": "negated"}),
        Column("gap (points)", {"metric": "gap"}),
        Column("ratio", {"metric": "ratio"}),
        Column("p", {"metric": "gap"}, tables.p_value()),
        Column("pairs", {"metric": "gap"}, tables.count_scored),
    ),
    note="Accuracy in per cent on original questions and on their negations, over pairs scored in both. Gap: "
    "the paired difference, clustered by picture; 0: negation costs nothing. Ratio: "
    "– if no negated question was right.",
)
OVER_ALL = replace(GAP, rows=_NAME, where={"task": "gap", "category": AVERAGE})
BLIND = Table(
    "blind",
    "Without the picture, without the question",
    (*_NAME, _QUESTIONS, Row("metric", "shown")),
    (_CATEGORIES, _SCORED),
    note="Accuracy in per cent on --blind questions, evenly spread. Text only: with a grey picture. Picture "
    "only: with the options and no question; one answer counts for the question and its negation. Gain over "
    f"text: accuracy minus text only on the same questions, paired, in points. {baselines.READ} "
    f"{_CLUSTERED}.",
)


def _count_and_share(figures: Sequence[Figure]) -> str:
    """A count with its share in per cent: "12 (37.5)"."""
    figure = figures[0]
    if figure["value"] is None:
        return "0"
    return f"{round(figure['value'] * figure['n'])} ({tables.format_number(figure['value'], figure['unit'])})"


PAIRS = Table(
    "outcomes",
    "Pairs: original and negated together",
    (*_NAME, _CATEGORY),
    (
        *(Column(title, {"metric": name}, _count_and_share) for name, title in OUTCOME_TITLES.items()),
        Column("pairs", {"metric": "both"}, tables.count_scored),
        Column("p (McNemar)", {"metric": "mcnemar"}, tables.p_value()),
        Column("p (clustered)", {"metric": "clustered"}, tables.p_value()),
    ),
    note="Pairs, and per cent of them. A model that ignores the negation gives the same answer to both "
    "questions and is right on only one of them; a constant letter is never right on both. McNemar's "
    "exact test assumes independent pairs; the other p accounts for questions about the same picture.",
)
POSITION = Table(
    "position",
    "Position bias",
    (*_NAME, _QUESTIONS),
    (
        Column("answered A %", {"metric": "answered"}),
        Column("A is right %", {"metric": "right"}),
        Column("letters", {"metric": "answered"}, tables.count()),
    ),
    note="If A is answered far more or less often than it is right, the model chooses by position.",
)
AGREEMENT = Table(
    "agreement",
    "Two ways of scoring",
    (Row("model"),),
    (
        Column("same letter %"),
        Column("same", show=lambda figures: _count_and_share(figures).partition(" ")[0]),
        Column("questions with both", show=tables.count()),
    ),
    note="The generated letter against the letter with the highest probability as the first token.",
)
SUBSETS = Table(
    "subsets",
    "Accuracy by subset",
    (*_NAME, Row("subset")),
    (
        *(Column(variant, {"metric": "accuracy", "variant": variant}) for variant in VARIANTS),
        Column("difference", {"metric": "difference"}),
        Column("n", {"metric": "accuracy"}, lambda figures: " / ".join(str(row["n"]) for row in figures)),
    ),
    note=f"{_CLUSTERED}.",
)
TABLE_1 = Table(
    "table1",
    "NegVQA, Table 1, and the models measured here",
    (Row("model"), _SOURCE, _QUESTIONS),
    (_CATEGORIES, _SCORED),
    note=f"Accuracy in per cent. Printed: arXiv:2505.22946 (May 2025), hub:{HUB}, 7,379 questions. Measured "
    "here: protocol 'paper', on these questions only; data, number and date stand at the head of the page. "
    "Normal intervals on both sides.",
)


def _name_best(figures: Sequence[Figure]) -> str:
    return f"{figures[0]['model']}, {tables.format_estimate(figures[0])}"


OVER_MODELS = Table(
    "overall",
    "Over models",
    (_SOURCE,),
    (
        *(Column(f"best, {v} questions", {"metric": "best", "variant": v}, _name_best) for v in VARIANTS),
        Column("mean drop (points)", {"metric": "mean drop"}),
        Column("models", {"metric": "mean drop"}, tables.count()),
    ),
    note="Averages, protocol 'paper'. Printed: Table 1; measured here: all runs of this report.",
)
UNREAD = Table(
    "unread",
    "Answers in which the rule finds no letter",
    (*_NAME, Row("protocol"), _QUESTIONS, Row("reason")),
    (Column("answers"),),
    note="Unscored under 'fixed'. Under 'paper' a generated answer that no matcher reads is wrong; a "
    "question without an answer is unscored.",
)

# --- plots -----------------------------------------------------------------------------------------
_FIXED = {"headline": "yes", "protocol": "fixed"}
#: Accuracies, and those of the baselines on the same questions.
_WITH_BASELINES = {
    "task": ("accuracy", "blind"),
    "interval": ("clustered", ""),
    "metric": ("accuracy", *baselines.BASELINES),
    **_FIXED,
}
_AS_BARS: Mapping[str, Any] = {
    "series": "variant",
    "colors": dict(zip(VARIANTS, (plots.BLUE, plots.RED), strict=True)),
    "axis": "accuracy, per cent",
    "rule": 50,  # chance with two options
    "marks": baselines.MARKS,
    "order": (*ORDER, *VARIANTS),
}
BARS = plots.plot(
    "accuracy",
    "Accuracy on original and negated questions by category, protocol 'fixed', with 95 % intervals clustered "
    f"by picture; dashed: two options by chance; {baselines.MARKED}",
    _WITH_BASELINES,
    plots.bars,
    place=("category",),
    panel=("model",),
    names=TITLES,
    **_AS_BARS,
)
ORIGINAL_AND_NEGATED = plots.plot(
    "gap",
    "Accuracy on questions and on their negations, protocol 'fixed', with 95 % intervals; dashed: chance; "
    f"{baselines.MARKED}",
    {**_WITH_BASELINES, "category": AVERAGE},
    plots.bars,
    place=("model",),
    **_AS_BARS,
)
OUTCOMES_OF_PAIRS = plots.plot(
    "outcomes",
    "Original and negated question of a pair together",
    {"task": "outcomes", "metric": tuple(OUTCOME_TITLES), "category": AVERAGE, **_FIXED},
    plots.bars,
    place=("model",),
    series="metric",
    order=tuple(OUTCOME_TITLES),
    colors=dict(zip(OUTCOME_TITLES, (plots.GREEN, "#60a5fa", "#fdba74", "#9ca3af"), strict=True)),
    names=OUTCOME_TITLES,
    axis="per cent of the pairs scored in both",
)
_BY_SIZE: Mapping[str, Any] = {
    "x": "size",
    "axes": ("parameters, billions", "accuracy, per cent"),
    "hollow": {"source": "here"},  # open marks: measured here
    "rule": 50,
    "log": True,
}
#: Category and variant -> the title of their panel.
_PANELS = {
    f"{c}, {v}": f"{TITLES.get(c, c)}, {v} questions" for c in (AVERAGE, *CATEGORIES) for v in VARIANTS
}
SCALING = plots.plot(
    "scaling",
    "Accuracy against size by family: the paper's Table 1 (solid), and models measured here whose names say "
    "their size (dotted, open). Dashed: two options by chance",
    {"task": "scaling"},
    plots.curves,
    line="family",
    panel=("category", "variant"),
    order=tuple(_PANELS),
    names=_PANELS,
    limits=(15, 101),
    **_BY_SIZE,
)
SUBSET_SCALING = plots.plot(
    "subset_scaling",
    "Accuracy by subset against size, a line per family and kind of questions: the authors' notebook (solid, "
    "14 subsets), and models measured here whose names say their size, protocol 'fixed' (dotted, open)",
    {"task": "subset scaling"},
    plots.curves,
    line="line",
    panel=("subset",),
    **_BY_SIZE,
)
PAPER = "paper"  # key of the section that only published questions get
SECTIONS = (
    Section("gap", "Negation gap", [GAP, BLIND, PAIRS], [ORIGINAL_AND_NEGATED, OUTCOMES_OF_PAIRS]),
    Section(
        "accuracy",
        "Accuracy",
        [
            accuracy_table("fixed", "clustered"),
            *(accuracy_table("paper", kind) for kind in _INTERVAL_NOTES),
            SUBSETS,
        ],
        [BARS, SUBSET_SCALING],
    ),
    Section(PAPER, "Compared with the paper", [TABLE_1, OVER_MODELS], [SCALING]),
    Section("letters", "Letters", [POSITION, AGREEMENT, UNREAD]),
)
