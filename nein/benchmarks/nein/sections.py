"""Defines the tables and plots of a NeIn report. Each selects rows of the frame of estimates by their `task`,
and names the columns of the frame that become its rows, columns, bars or lines.

Parts: the list of sections; columns and cells that tables share; the sections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nein.benchmarks.compare import COMPARISONS, name_metric
from nein.benchmarks.nein import calibrations
from nein.benchmarks.nein.estimates import ALL, ALL_FOUR
from nein.benchmarks.nein.protocols import NOT_FROM_EVIDENCE, QUIRKS
from nein.benchmarks.nein.runs import REMOVAL_JUDGES, TEMPLATES
from nein.metrics import METRICS
from nein.reporting import labels, plots, tables
from nein.reporting.figures import Figure
from nein.reporting.page import Section
from nein.reporting.tables import Column, Row, Show, Table, count, count_scored, entry, estimate, p_value
from nein.statistics import two_way
from nein.wording.families import CELLS, CONSTRUCTIONS, DEPTH, OTHERS

# Columns of the frame that name the rows of tables.
TRACK_NAMES = {"negative": "negative", "remove": '"Remove the X."', "add": '"Add a X."'}
EDITOR = Row("model", "editor")
RUN = (EDITOR, Row("variant", "instruction", TRACK_NAMES))
METRIC = Row("metric", names=name_metric)
BY_JUDGE = (EDITOR, Row("metric", "judge", REMOVAL_JUDGES))


def make_sections(comparisons: Table = COMPARISONS) -> list[Section]:
    """All sections, in the order of the page, which leaves out tables without estimates."""
    columns = (_expand_metrics({}), *tables.COUNTS)
    breakdowns = []
    for key, title in {"by_template": "negative instruction", "by_object": "object"}.items():
        breakdowns.append(Table(key, f"By {title}", (*RUN, Row("group", title)), columns))
    return [
        _make_gap(),
        make_minimal_pairs(),
        _make_results(),
        _make_families(),
        Section("breakdowns", "Breakdowns", breakdowns),
        Section("comparisons", "Comparisons", [comparisons]),
        _make_judges(),
        _make_protocols(),
    ]


# --- columns and cells -----------------------------------------------------------------------
def _entry_columns(column: str, titles: Mapping[str, Any], show: Show | None = None) -> list[Column]:
    """A column of a table per entry of `column`, a column of the frame. titles: title -> entry."""
    return [Column(title, {column: name}, show or estimate()) for title, name in titles.items()]


def show_mean(figures: Sequence[Figure]) -> str:
    """An estimate with [low, high]; with ± if its metric is unbounded, whose interval is symmetric."""
    is_unbounded = METRICS[figures[0]["metric"]].span is None
    return tables.format_estimate(figures[0], interval="reach" if is_unbounded else "ends")


def _expand_metrics(selection: Mapping[str, Any]) -> Column:
    """A column per metric, those of plug-ins included."""
    return Column("", selection, show_mean, by="metric", names=name_metric, order=tuple(METRICS))


def _list_metrics(presence: bool) -> tuple[str, ...]:
    """The metrics of the presence of objects, by a judge or by known truth; or all others."""
    return tuple(name for name, metric in METRICS.items() if (metric.by_judge or metric.by_truth) == presence)


def _show_declined(figures: Sequence[Figure]) -> str:
    """The count of requests that the editor declined; the estimate is their share."""
    return f"{round(figures[0]['value'] * figures[0]['n'])} of {figures[0]['n']}"


# --- results ---------------------------------------------------------------------------------
def make_results_table(key: str = "results", title: str = "Results", metrics: Sequence[str] = ()) -> Table:
    """Table 3 of the paper: these metrics, then the counts. metrics=(): the counts, then all metrics."""
    others = [name for name in METRICS if name not in REMOVAL_JUDGES]
    order = metrics or (*others, *reversed(REMOVAL_JUDGES))
    # The column of declined requests has a task and a metric ("refused") of its own.
    selection = {"task": ("results", "refusals"), "group": ("", ALL), "metric": (*order, "refused")}
    values = Column("", {"metric": order}, show_mean, by="metric", names=name_metric, order=order)
    scored = Column("scored", {"task": "results"}, count_scored)
    declined = Column("refused", {"task": "refusals"}, _show_declined)
    columns = (values, scored, declined) if metrics else (scored, declined, values)
    return Table(key, title, RUN, columns, selection)


def make_paper_tables() -> list[Table]:
    """Table 3 of the paper, in its two parts."""
    return [
        make_results_table("results_quality", "Image quality", _list_metrics(presence=False)),
        make_results_table("results_presence", "Removal and retention", _list_metrics(presence=True)),
    ]


def _make_results() -> Section:
    """Table 3 of the paper, FID for infinitely many images, and declined requests."""
    columns = [Column("FID"), Column("from", show=count())]  # of the one estimate of a row
    selection = {"task": "limit", "metric": "fid", "refused": ""}  # here "refused" says why there is none
    note = (
        "FID is biased upward by about 1/N; jackknife estimate for N to infinity. The interval of FID itself "
        "is that of another sample of N images; compare FIDs at equal N."
    )
    limit = Table("limit", "FID for N to infinity", RUN, columns, selection, note)
    rows = (*RUN, Row("group", "negative instruction"))
    columns = [Column("%"), Column("refused", {}, _show_declined)]
    note = "Requests that the editor or its service declined: in no score, and sent again only with "
    note += "retry_refused."
    refusals = Table("refusals", "Refused by the editor", rows, columns, note=note)
    return Section("results", "Results", [*make_paper_tables(), limit, refusals])


# --- families of negation --------------------------------------------------------------------
def _make_families() -> Section:
    """Tables by family of negation, and by the difficulty of a sentence if it is known."""
    rows = [*RUN, Row("group", "family")]
    selection = {"task": "families", "metric": _list_metrics(presence=True)}
    columns = [_expand_metrics(selection), *tables.COUNTS]
    by_family = Table("families", "By family of negation", rows, columns, selection)
    rows = [*rows, METRIC, Row("axis", "how many")]
    selection = {**selection, "task": "difficulty"}
    by_level = Column(by="level", show=show_mean, order=tuple("0123456789"))
    columns = [by_level, Column("n of each", show=_show_counts)]
    by_difficulty = Table("difficulty", "By family and difficulty", rows, columns, selection)
    curves = [_plot_curve(OTHERS, ", without a denial above"), _plot_curve(DEPTH, "")]
    return Section("families", "Families of negation", [by_family, by_difficulty], curves)


def _show_counts(figures: Sequence[Figure]) -> str:
    return ", ".join(dict.fromkeys(str(figure["n"]) for figure in figures))


def _plot_curve(axis: str, condition: str) -> plots.Plot:
    """Obedience by the level of difficulty on an axis, the number of other things or the depth."""
    caption = f"Edits that obey a negation, by what is known of the pictures, by number of {axis}{condition}"
    where = {"task": "difficulty", "metric": "obeyed", "axis": axis}
    layout: Any = {"x": "level", "line": "group", "panel": ("model", "variant")}
    layout["names"] = {name: name.replace("_", " ") for name in CONSTRUCTIONS}
    layout["axes"] = (f"{axis}, how many", "obeyed, per cent")
    return plots.plot(axis.replace(" ", "_"), f"{caption}, 95 % intervals", where, plots.curves, **layout)


# --- the negation gap, and what decides an edit ----------------------------------------------
def _make_gap() -> Section:
    """Tables of the gap, over all samples and by template, and of what a rewriter loses; two plots."""
    # The gap of whole runs.
    of_gap = {"statistic": "gap"}
    ends = {'"Remove the X."': "affirmed", "negative": "negated", "gap (points)": "gap"}
    columns = [*_entry_columns("statistic", ends), Column("ratio", {"statistic": "ratio"})]
    columns += [Column("p", of_gap, p_value()), Column("pairs", of_gap, count())]
    note = (
        'Removal in per cent when told "Remove the X." and when told that X is absent, for the same samples '
        "from the same noise. Gap: the paired difference. Ratio: – if nothing was removed."
    )
    overall = Table("gap", "Negation gap", BY_JUDGE, columns, note=note)
    rows = (*BY_JUDGE, Row("group", "negative instruction"))
    columns = [Column("gap (points)"), Column("pairs", show=count())]
    note = "Paired by sample, intervals clustered by source image; not corrected for their number."
    by_template = Table("gap_by_template", "Negation gap by template", rows, columns, note=note)
    # Plots: Removal by instruction, and the gap by template.
    told = {"remove": 'told "Remove the X."', "negative": "told that X is absent", "add": 'told "Add a X."'}
    caption = "Removal by instruction, with 95 % intervals clustered by source image"
    where = {"task": "results", "metric": tuple(REMOVAL_JUDGES)}
    layout: Any = {"place": ("model",), "series": "variant", "panel": ("metric",)}
    layout |= {"order": (*told, *REMOVAL_JUDGES), "names": {**REMOVAL_JUDGES, **told}}
    removal = plots.plot("gap", caption, where, plots.bars, axis="Removal, per cent", **layout)
    caption = (
        'Negation gap by template: Removal when told "Remove the X." minus Removal when told that X is '
        "absent, with 95 % intervals"
    )
    where = {"task": "gap_by_template"}
    layout = {"place": ("group",), "series": "metric", "panel": ("model",), "limits": None}
    layout |= {"order": (*REMOVAL_JUDGES, *TEMPLATES), "names": REMOVAL_JUDGES}
    gaps = plots.plot("gap_by_template", caption, where, plots.bars, axis="gap in Removal, points", **layout)
    # What a rewriter and the editor behind it lose.
    rows = (*BY_JUDGE, Row("group", "lost"))
    parts = {"by the rewriter": "rewriter", "by the editor": "painter", "whole": "whole"}
    of_whole = {"statistic": "whole"}
    columns = [*_entry_columns("statistic", parts), Column("cannot tell", of_whole, entry("cannot_tell"))]
    columns.append(Column("scored", of_whole, count_scored))
    note = (
        "Editors that were told a rewritten instruction, in points. Lost by the rewriter: X is still there, "
        "and the text neither asks for its removal nor denies it; by the editor: the text does. Gap: this "
        'loss minus the loss of the same editor, without rewriter, when told "Remove the X.". Cannot tell: '
        "texts in which the rule reads no phrase with X; they are unscored."
    )
    losses = Table("losses", "Lost by the rewriter, lost by the editor", rows, columns, note=note)
    return Section("gap", "Negation gap", [overall, losses, by_template], [removal, gaps])


def make_minimal_pairs() -> Section:
    """What the instruction, the image and both together contribute to an edit."""
    of_part = {"statistic": "part"}
    columns = [
        *(Column(f"{cell} (change)", {"statistic": "change", "group": cell}) for cell in CELLS),
        *(Column(f"{part} part", {**of_part, "group": part}) for part in two_way.PARTS),
        Column("all four obeyed %", {"statistic": "obeyed", "group": ALL_FOUR}),
        Column("judge right before %", {"statistic": "agrees"}),
        Column("scored", of_part, count_scored),
    ]
    note = (
        "The object is affirmed or denied, and there or absent in the unedited picture. Change in presence "
        "in points: seen by the judge after the edit minus seen before. Judge right before: how often it "
        "agrees with the data about the unedited pictures. An editor that obeys has +100 of text, -100 of "
        "picture, 0 of interaction; one that removes whatever is named 0, -100, 0; one that does nothing 0 "
        "throughout."
    )
    caption = (
        "Minimal pairs: what the instruction, the picture and both together contribute to the change in "
        "presence; an editor that obeys has +100, -100 and 0"
    )
    colors = {two_way.TEXT: plots.RED, two_way.PICTURE: "#9ca3af", two_way.INTERACTION: plots.GREEN}
    layout: Any = {"place": ("model",), "series": "group", "panel": ("metric",), "colors": colors}
    layout |= {"order": (*two_way.PARTS, *REMOVAL_JUDGES), "names": REMOVAL_JUDGES, "limits": None}
    where = {"task": "minimal_pairs", "statistic": "part"}
    parts = plots.plot("minimal_pairs", caption, where, plots.bars, axis="points", **layout)
    table = Table("minimal_pairs", "Minimal pairs: what decides the edit", BY_JUDGE, columns, note=note)
    return Section("minimal_pairs", "Minimal pairs", [table], [parts])


# --- judges and people -----------------------------------------------------------------------
def _make_judges() -> Section:
    """Error rates and controls of judges, corrected estimates, agreement, and the tables of labels."""
    # Error rates.
    rates = {"sensitivity": "sensitivity", "specificity": "specificity", "ROC-AUC": "auc"}
    counts = {"present": "sensitivity", "absent": "specificity"}
    columns = [*_entry_columns("metric", rates), *_entry_columns("metric", counts, count())]
    columns += _entry_columns("metric", {"unscored": "sensitivity"}, count("unscored"))
    note = (
        "Sensitivity: share of present objects that are seen; specificity: share of absent objects that are "
        "not seen; ROC-AUC of the soft score. Clustered by picture."
    )
    rows = (Row("judge"), Row("group", "pictures"))
    calibration = Table("calibration", "Judges on known truth", rows, columns, note=note)
    answers = {"yes before": "before", "after": "after", "fall": "fall", "same answer": "same"}
    of_result = {"metric": ("fall", "same")}
    columns = [*_entry_columns("metric", answers), Column("scored", of_result, count_scored)]
    columns.append(Column("flag", of_result, entry("flag")))
    note = (
        "Questions about present objects, with the picture or the question changed. A judge that looks and "
        "reads says yes less often (fall, in points; flagged if the interval reaches 0), and gives the same "
        "answer to a mirrored picture or with yes and no swapped (flagged if the interval ends below "
        f"{100 * calibrations.STEADY:.0f} %). Clustered by picture."
    )
    rows = (Row("judge"), Row("group", "control", calibrations.CONTROLS))
    controls = Table("controls", "Judges under controls", rows, columns, note=note)
    # Corrected estimates, and the agreement of the judges.
    columns = _entry_columns("statistic", {"as judged": "judged", "corrected": "corrected"})
    columns.append(Column("not corrected because", {"statistic": "corrected"}, entry("refused")))
    note = (
        "Rogan-Gladen, assuming that the judge errs on edited pictures as often as on those of known truth. "
        "A corrected value may lie outside of the raw interval, which ignores the judge's error: if 3 % of "
        "absent objects are seen, 97.0 as judged is 100.0 corrected. Its own interval covers the uncertainty "
        "of the raw value and of both error rates."
    )
    title = "Corrected for the judge's error"
    corrected = Table("corrected", title, (*RUN, METRIC), columns, note=note)
    agree = {"same verdict %": "same", "Cohen's kappa": "kappa", "Krippendorff's alpha": "alpha"}
    columns = [*_entry_columns("statistic", agree), Column("samples", {"statistic": "same"}, count())]
    note = "Removal by VQA against removal by detection. –: all verdicts are the same."
    agreement = Table("agreement", "Agreement of the judges", RUN, columns, note=note)
    caption = "Reliability of the judges' soft scores on pictures of known truth"
    layout: Any = {"x": "score", "line": "judge", "panel": ("group",), "limits": (-2, 102), "diagonal": True}
    layout["axes"] = ("soft score", "per cent really present")
    reliability = plots.plot("reliability", caption, {"task": "reliability"}, plots.curves, **layout)
    all_tables = [calibration, controls, corrected, agreement, *make_label_tables()]
    return Section("judges", "Judges", all_tables, [reliability])


def make_label_tables() -> list[Table]:
    """The tables of people's labels: runs, judges and raters."""
    of_labels = {"statistic": "labelled"}
    columns = _entry_columns("statistic", {"as judged": "judged", "with labels": "labelled"})
    columns.append(Column("labels", of_labels, count()))
    columns.append(Column("more labels for ± 5 points", of_labels, entry("more")))
    columns.append(Column("not given because", of_labels, entry("refused")))
    note = (
        "Labels combined with verdicts at the best weight (prediction-powered inference): unbiased however "
        "bad the judge, if the labelled samples are random. With ± 5 points for each of two runs, a gap of "
        '10 points is found with probability 0.8; "more samples": the verdicts alone are too uncertain. '
        "Partly gone is not gone."
    )
    labelled = Table("labelled", "Removal with people's labels", (*RUN, METRIC), columns, note=note)
    sees = {"sees what people see %": "sensitivity", "sees none where people see none %": "specificity"}
    columns = _entry_columns("statistic", {"same verdict %": "same", **sees})
    columns.append(Column("labels", {"statistic": "same"}, count()))
    rows = (Row("metric", "judge", REMOVAL_JUDGES), Row("by"), Row("group", ""))  # "by" names the breakdown
    return [labelled, Table("judge-people", "The judges against people", rows, columns), labels.AGREEMENT]


# --- protocols -------------------------------------------------------------------------------
def _make_protocols() -> Section:
    """The estimates under either protocol, by quirk of the published one."""
    of_both = {"statistic": ("fixed", "paper")}
    columns = _entry_columns("statistic", {"fixed": "fixed", "paper": "paper"})
    columns += [Column("change", of_both, _show_change), Column("samples that flip", {"statistic": "flips"})]
    columns.append(Column("n (fixed / paper)", of_both, _show_ns))
    others = ", ".join(f"{option} ({text})" for option, text in NOT_FROM_EVIDENCE.items())
    quirks = "; ".join(f"{name}: {text}" for name, text in QUIRKS.items())
    note = f"{quirks}. Recomputed from the recorded answers. These options need another run: {others}."
    rows = (*RUN, METRIC, Row("quirk", names={"all": "all of them"}))
    title = "Published protocol against the fixed one"
    return Section("protocols", "Protocols", [Table("protocols", title, rows, columns, note=note)])


def _show_change(figures: Sequence[Figure]) -> str:
    by_statistic = {figure["statistic"]: figure for figure in figures}
    fixed, paper = by_statistic["fixed"]["value"], by_statistic["paper"]["value"]
    if fixed is None or paper is None:
        return tables.DASH
    return tables.format_number(paper - fixed, by_statistic["fixed"]["unit"], sign=True)


def _show_ns(figures: Sequence[Figure]) -> str:
    """The numbers of samples, one if they are equal; or the note that says why there is no estimate."""
    return str(figures[0].get("note") or " / ".join(dict.fromkeys(str(figure["n"]) for figure in figures)))
