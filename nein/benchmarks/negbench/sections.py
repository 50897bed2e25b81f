"""Defines the tables, plots and sections of a NegBench report: which estimate stands in which row and column.

A row is a model on a data set with one wording of the captions; published estimates (`source` "printed") have
rows of their own. Metrics: see `estimates`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nein.benchmarks import baselines
from nein.benchmarks.baselines import BASELINES, GAIN, READER_METRICS, READER_NOTE, TEXT_READER
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import OUTCOMES
from nein.benchmarks.negbench.scoring import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from nein.datasets.negbench.other_tests import ALL_FOUR, GROUP
from nein.datasets.negbench.records import NEGATED, ORIGINAL, TEMPLATES
from nein.reporting import plots, tables
from nein.reporting.figures import Figure
from nein.reporting.page import Section
from nein.reporting.tables import Column, Row, Show, Table
from nein.statistics import two_way
from nein.wording.families import CONSTRUCTIONS, DEPTH, OTHERS

# --- how tables show estimates -------------------------------------------------------------------------
RUN_ROWS = (Row("model"), Row("data"), Row("variant", "captions"))
_CAPTION_KIND = Row("kind", "found by", {NEGATED: "negated caption", ORIGINAL: "original caption"})
_ESTIMATE, _EFFECT = tables.estimate("reach"), tables.estimate("reach", 3)  # an effect has three digits
BEAF_METRICS = ("precision", "recall", "F1", "F1 (TU, ID)")  # besides accuracy


def _make_columns(
    column: str, names: Iterable[str], show: Show = _ESTIMATE, title: str = "{}", **entries: str
) -> list[Column]:
    """A table column for each of `names`, which shows the estimates with that name in the frame's column
    `column`, and with `entries`. title: {} becomes the name."""
    return [Column(title.format(name), {**entries, column: name}, show) for name in names]


def _count_scored(**entries: str) -> Column:
    """The column "scored": how many samples have a value. entries: of the estimate with these counts."""
    return Column("scored", entries, tables.count_scored)


def _show_or_refuse(figures: Sequence[Figure]) -> str:
    """The estimate, or why there is none."""
    return figures[0].get("refused") or tables.format_estimate(figures[0], interval="reach")


def _list_counts(figures: Sequence[Figure]) -> str:
    """The distinct numbers of samples: "40, 38"."""
    return ", ".join(dict.fromkeys(str(figure["n"]) for figure in figures))


def _show_selected(figures: Sequence[Figure]) -> str:
    """The shares of chosen and of offered options: "28.8 [26.3, 31.3] (33.4)"."""
    by_metric = {figure["metric"]: figure for figure in figures}
    if "selected" not in by_metric:
        return tables.DASH
    share = tables.format_estimate(by_metric["selected"], interval="reach")
    return f"{share} ({tables.format_estimate(by_metric['offered'])})"


def _make_retrieval_table(direction: str, title: str) -> Table:
    """The table of recall; direction: of `scoring`."""
    columns: list[Column] = []
    for k in KS:
        columns += [
            Column(f"R@{k} ↑", {"metric": f"recall@{k}", "kind": ORIGINAL}, _ESTIMATE),
            Column(f"R-Neg@{k} ↑", {"metric": f"recall@{k}", "kind": NEGATED}, _ESTIMATE),
            Column(f"negation gap@{k} ↓", {"metric": f"gap@{k}"}, _ESTIMATE),
        ]
        for name in BASELINES:
            baseline = {"metric": f"{name}@{k}", "kind": NEGATED}
            columns.append(Column(f"R-Neg@{k}, {name}", baseline, _ESTIMATE))
        judged = {"metric": f"without@{k}", "kind": NEGATED, "statistic": "corrected"}
        columns.append(Column(f"without the thing@{k} ↑", judged, _show_or_refuse))
    columns.append(_count_scored())
    return Table(direction, f"{title} retrieval", RUN_ROWS, columns, {"direction": direction})


def _make_judged_table(
    metric: str, title: str, note: str, *, headings: Mapping[str, str], rows: Sequence[Row]
) -> Table:
    """A table of `metric` at every k. headings: statistic ("": any) -> title of its column, with {} for k."""
    columns: list[Column] = []
    for k in KS:
        for statistic, heading in headings.items():
            entries = {"metric": f"{metric}@{k}"}
            if statistic:
                entries["statistic"] = statistic
            columns.append(Column(heading.format(k), entries, _show_or_refuse))
    selection = {"metric": tuple(f"{metric}@{k}" for k in KS)}
    return Table(metric, title, rows, (*columns, _count_scored()), selection, note)


# --- tables: retrieval, multiple choice, groups of questions ---------------------------------------------

# Arguments of a Table: key, title, rows, columns, selection of the estimates, note.
RETRIEVED = _make_retrieval_table(TEXT_TO_IMAGE, "Text to image")
JUDGED = _make_judged_table(
    "without",
    "Retrieval judged: is what is found without the thing?",
    "Share of the first pictures found in which a judge does not see what the negated caption denies, and "
    "the same corrected for the judge's calibrated error (Rogan & Gladen). Beside it the original caption of "
    "the same picture, which denies nothing, and pictures drawn at random: most pictures lack most things.",
    headings={"judged": "without the thing@{} ↑", "corrected": "@{} corrected ↑"},
    rows=(*RUN_ROWS, _CAPTION_KIND),
)
SATISFIED = _make_judged_table(
    "satisfied",
    "Retrieval judged by the questions of a test",
    "Share of the first pictures found that show what the caption affirms and are without what it denies, as "
    "the judge answers; its error about these questions is not known. Beside it pictures drawn at random.",
    headings={"": "as said@{} ↑"},
    rows=(*RUN_ROWS, _CAPTION_KIND),
)
AVOIDED = _make_judged_table(
    "avoided",
    "What the denial keeps away",
    "Share without the thing of what a negated caption finds, minus that of its original caption, in points, "
    "paired, as judged.",
    headings={"": "avoided@{} ↑"},
    rows=RUN_ROWS,
)
MULTIPLE_CHOICE = Table(
    "choice",
    "Multiple choice",
    RUN_ROWS,
    (
        Column("accuracy ↑", {"metric": "accuracy", "type": "all"}, _show_or_refuse),
        *_make_columns("type", TEMPLATES, _show_or_refuse, metric="accuracy"),
        Column("drop from control ↓", {"metric": "drop"}, _ESTIMATE),
        Column("right option first", {"metric": "right first"}, lambda figures: "always"),
        *_make_columns("metric", BEAF_METRICS),
        *_make_columns("metric", (*BASELINES, TEXT_READER), type="all"),
        Column("chance", {"metric": "chance"}),
        _count_scored(metric="accuracy", type="all"),
    ),
    {"metric": ("accuracy", "chance", "drop", "right first", *BEAF_METRICS, *BASELINES, TEXT_READER)},
    "Text only, picture only: the same without the picture, without the text (--blind). – where no answer "
    "could be read, and of figures as printed.",
)
BASELINE_TABLE = Table(
    "halves",
    "Without the picture, without the text",
    (*RUN_ROWS, Row("metric", "shown")),
    (Column(by="type", show=_ESTIMATE, order=("all", *TEMPLATES)), _count_scored(type="all")),
    {"metric": (*BASELINES, GAIN, *READER_METRICS)},
    "Text only: with the mean of all pictures (encoders) or a grey one (others, each distinct question "
    "once). Picture only: with the mean of all captions, or one that says nothing; among captions this is "
    "chance and not measured. Under --protocol paper an all-equal score has no figure. Gain over text: "
    f"accuracy minus text only, paired, in points. {READER_NOTE}",
)
CHOSEN = Table(
    "chosen",
    "What is chosen",
    RUN_ROWS,
    (*_make_columns("template", TEMPLATES, _show_selected, "{} (offered)"), _count_scored(metric="selected")),
    {"metric": ("selected", "offered")},
)
WRONG = Table(
    "wrong",
    "Wrong answers, by what was chosen",
    (*RUN_ROWS, Row("type", "questions")),
    (*_make_columns("template", TEMPLATES), Column("wrong answers", show=tables.count())),
    {"metric": "wrong"},
)
_GROUP_ROWS = (*RUN_ROWS, Row("type", "together"))
JOINT = Table(
    "joint",
    "Answered right together",
    _GROUP_ROWS,
    (
        Column("all right ↑", {"metric": "joint"}, _ESTIMATE),
        *_make_columns("outcome", OUTCOMES[1:]),
        Column("chance", {"metric": "joint chance"}),
        _count_scored(metric="joint"),
    ),
    {"metric": ("joint", "pair", "joint chance")},
)
DIFFICULTY = Table(
    "difficulty",
    "Answered right together, by difficulty",
    (*_GROUP_ROWS, Row("axis", "how many")),
    (
        Column(by="level", show=_ESTIMATE, order=tuple(map(str, range(10)))),
        Column("n of each", show=_list_counts),
    ),
    {"metric": "joint by difficulty"},
)
PARTS = Table(
    "parts",
    "Minimal pairs: what decides the scores",
    RUN_ROWS,
    (
        *_make_columns("part", two_way.PARTS, _EFFECT, "{} effect", metric="effect"),
        *_make_columns("part", two_way.PARTS, title="{} %", metric="part"),
        *_make_columns("metric", ("text alone", "same caption"), title="{} %"),
        _count_scored(metric="effect"),
    ),
    {"metric": ("effect", "part", "text alone", "same caption")},
    "Text: affirming less denying caption. Picture: with less without the thing. Interaction: what is true "
    "less what is false; only where it is above both others in size is all of a pair right (group). In the "
    "unit of the scores, then as shares of the sum of squares. Text alone: how much of the squared gap "
    "between the captions remains whatever is seen. Same caption: pairs in which both pictures choose one.",
)


def _keep_columns(table: Table, *titles: str) -> Table:
    """The table with these columns and "scored"."""
    return replace(table, columns=[column for column in table.columns if column.title in (*titles, "scored")])


HEADLINE = (
    _keep_columns(RETRIEVED, "R@5 ↑", "R-Neg@5 ↑", "negation gap@5 ↓"),
    _keep_columns(MULTIPLE_CHOICE, "accuracy ↑", "negation", "chance"),
    SATISFIED,
    JOINT,
)

# --- plots -----------------------------------------------------------------------------------------------
_RUN_COLUMNS = ("model", "data", "variant")
_TEMPLATE_COLORS = dict(zip(TEMPLATES, (plots.BLUE, plots.RED, plots.VIOLET), strict=True))
COLORS = {ORIGINAL: plots.BLUE, NEGATED: plots.RED, "all": "#374151", **_TEMPLATE_COLORS}
RECALL_PLOT = plots.plot(
    "recall",
    "Text-to-image recall with original and negated captions, 95 % intervals",
    {"direction": TEXT_TO_IMAGE, "metric": tuple(f"recall@{k}" for k in KS), "source": ""},
    plots.bars,
    place=_RUN_COLUMNS,
    series="kind",
    panel=("metric",),
    colors=COLORS,
    names={ORIGINAL: "original captions", NEGATED: "negated captions"},
)
ACCURACY_PLOT = plots.plot(
    "mcq",
    f"Multiple-choice accuracy by type of question, 95 % intervals; dotted: chance; {baselines.MARKS_NOTE}",
    {"metric": ("accuracy", "chance", *BASELINES), "type": ("all", *TEMPLATES), "source": ""},
    plots.bars,
    place=_RUN_COLUMNS,
    series="type",
    order=("all", *TEMPLATES),
    colors=COLORS,
    axis="accuracy, per cent; dotted: chance",
    marks={"chance": "|", **baselines.MARKS},
)
CHOICES_PLOT = plots.plot(
    "choices",
    "What is chosen, and what is offered",
    {"metric": ("selected", "offered")},
    plots.bars,
    place=("template",),
    series="metric",
    panel=_RUN_COLUMNS,
    order=(*TEMPLATES, "selected", "offered"),
    names={"selected": "chosen"},
    colors={"selected": plots.BLUE, "offered": "#9ca3af"},
)


def _plot_difficulty(axis: str, condition: str) -> plots.Plot:
    """A curve per family of negation: the share of pairs with all four right, by level of `axis`."""
    names = {name: name.replace("_", " ") for name in CONSTRUCTIONS}
    return plots.plot(
        axis.replace(" ", "_"),
        f"All four right of a pair, by number of {axis}{condition}, 95 % intervals; chance: 16.7 % if scores "
        "are compared, 6.2 % if questions are answered",
        {"metric": "joint by difficulty", "axis": axis},
        plots.curves,
        x="level",
        line="type",
        panel=("model", "data"),
        axes=(f"{axis}, how many", "all four right, per cent"),
        order=(GROUP, ALL_FOUR, *CONSTRUCTIONS),
        names={**names, GROUP: "all families, compared", ALL_FOUR: "all families, asked"},
    )


PARTS_PLOT = plots.plot(
    "parts",
    "Minimal pairs: what decides the four scores; the interaction alone is understanding",
    {"metric": "part"},
    plots.bars,
    place=_RUN_COLUMNS,
    series="part",
    order=two_way.PARTS,
    axis="per cent of the sum of squares",
    colors={two_way.TEXT: plots.RED, two_way.PICTURE: "#9ca3af", two_way.INTERACTION: plots.GREEN},
)
_DIFFICULTY_PLOTS = (_plot_difficulty(OTHERS, ", without a denial above"), _plot_difficulty(DEPTH, ""))

# --- sections --------------------------------------------------------------------------------------------
_RETRIEVAL = (RETRIEVED, _make_retrieval_table(IMAGE_TO_TEXT, "Image to text"), JUDGED, AVOIDED, SATISFIED)
_JOINT_PLOTS = (*_DIFFICULTY_PLOTS, PARTS_PLOT)
SECTIONS = (
    Section("retrieval", "Retrieval", _RETRIEVAL, (RECALL_PLOT,)),
    Section("choice", "Multiple choice", (MULTIPLE_CHOICE, BASELINE_TABLE), (ACCURACY_PLOT,)),
    Section("together", "Questions that belong together", (JOINT, DIFFICULTY, PARTS), _JOINT_PLOTS),
    Section("choices", "Choices", (CHOSEN, WRONG), (CHOICES_PLOT,)),
)
