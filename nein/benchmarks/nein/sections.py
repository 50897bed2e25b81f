"""The tables and plots of reports on NeIn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from nein.benchmarks.compare import heading
from nein.benchmarks.nein import calibrations
from nein.benchmarks.nein.estimates import ALL, ALL_FOUR
from nein.benchmarks.nein.protocols import NOT_FROM_EVIDENCE, QUIRKS
from nein.benchmarks.nein.runs import REMOVALS, TEMPLATES
from nein.metrics import METRICS
from nein.reporting import labels, plots, tables
from nein.reporting.figures import Figure
from nein.reporting.page import Section
from nein.reporting.tables import Column, Row, Show, Table, count, entry, estimate, p_value, value
from nein.statistics import two_way
from nein.wording.families import CELLS, CONSTRUCTIONS, DEPTH, OTHERS

TRACK_NAMES = {"negative": "negative", "remove": '"Remove the X."', "add": '"Add a X."'}
EDITOR = Row("model", "editor")
RUN = (EDITOR, Row("variant", "instruction", TRACK_NAMES))


METRIC = Row("metric", names=heading)


def _columns(of: str, shown: Mapping[str, Any], show: Show | None = None) -> list[Column]:
    """A column under every title, of the figures that have the entry in the column `of` of the frame."""
    return [Column(title, {of: name}, show or estimate()) for title, name in shown.items()]


def shown(figures: Sequence[Figure]) -> str:
    """A figure with ± or, where bounded, the ends of its interval; the paper's own as printed."""
    figure = figures[0]
    if figure.get("source") == "printed":
        return tables.number(figure["value"], figure["unit"], digits=2)
    return tables.text(figure, interval="reach" if METRICS[figure["metric"]].span is None else "ends")


def _unscored(figures: Sequence[Figure]) -> str:
    """The count that the metrics share, or "3 L1, 2 CLIP-I"."""
    counts = [(figure["unscored"], METRICS[figure["metric"]].title) for figure in figures]
    if len({number for number, _ in counts}) == 1:
        return "" if counts[0][0] is None else str(counts[0][0])
    return ", ".join(f"{number} {title}" for number, title in counts if number)


def _metrics() -> Column:
    """A column per metric, also of plug-ins: asked for anew by every report."""
    every = tuple(METRICS)
    where = {"metric": every}
    return Column("", where, shown, by="metric", names=heading, order=every)


def _attempted(figures: Sequence[Figure]) -> str:
    return str(max(figure["n"] + figure["unscored"] for figure in figures))


def _of_presence(by_judge: bool = True) -> tuple[str, ...]:
    """Metrics that say what is in a picture, by a judge or because it is known; or all others."""
    return tuple(name for name, row in METRICS.items() if (row.by_judge or row.by_truth) == by_judge)


def results() -> list[Table]:
    """Table 3, in two parts as the paper has it."""
    task, refused = {"task": "results"}, {"task": "refusals"}
    unscored, refusals = Column("unscored", task, _unscored), Column("refused", refused, _refused)
    columns = (_metrics(), Column("n", task, count()), unscored, refusals)
    parts = (("results_quality", "Image quality"), ("results_presence", "Removal and retention"))
    where = {"task": ("results", "refusals"), "group": ("", ALL)}
    return [
        Table(key, title, RUN, columns, {**where, "metric": (*_of_presence(bool(by_judge)), "refused")})
        for by_judge, (key, title) in enumerate(parts)
    ]


def _refused(figures: Sequence[Figure]) -> str:
    return f"{round(figures[0]['value'] * figures[0]['n'])} of {figures[0]['n']}"


REFUSALS = Table(
    "refusals",
    "Refused by the editor",
    (*RUN, Row("group", "negative instruction")),
    (Column("refused %"), Column("refused", show=_refused)),
    note="Requests that the editor or its service declined: in no score, and sent again only with "
    "retry_refused.",
)
LIMIT = Table(
    "limit",
    "FID for N to infinity",
    RUN,
    (Column("FID"), Column("from", show=count())),
    {"task": "limit", "metric": "fid", "refused": ""},
    "FID is biased upward by about 1/N; jackknife estimate for N to infinity. The interval of FID itself is "
    "that of another sample of N images; compare FIDs at equal N.",
)


def _of_each(figures: Sequence[Figure]) -> str:
    return ", ".join(dict.fromkeys(str(figure["n"]) for figure in figures))


def _curve(axis: str, which: str) -> plots.Plot:
    title = f"Edits that obey a negation, by what is known of the pictures, by number of {axis}{which}"
    names = {name: name.replace("_", " ") for name in CONSTRUCTIONS}
    how: Any = {"axes": (f"{axis}, how many", "obeyed, per cent"), "panel": ("model", "variant")}
    where = {"task": "difficulty", "metric": "obeyed", "axis": axis}
    key, title = axis.replace(" ", "_"), f"{title}, 95 % intervals"
    return plots.plot(key, title, where, plots.curves, x="level", line="group", names=names, **how)


def families() -> Section:
    """By family of negation and, where it is known, by what makes a sentence difficult."""
    rows, which = [*RUN, Row("group", "family")], {"metric": _of_presence()}
    columns = [_metrics(), Column("n", show=_attempted)]
    by_family = Table("families", "By family of negation", rows, columns, {"task": "families", **which})
    rows = [*rows, METRIC, Row("axis", "how many")]
    columns = [
        Column(by="level", show=shown, order=tuple(map(str, range(10)))),
        Column("n of each", show=_of_each),
    ]
    where = {"task": "difficulty", **which}
    by_difficulty = Table("difficulty", "By family and difficulty", rows, columns, where)
    curves = [_curve(OTHERS, ", without a denial above"), _curve(DEPTH, "")]
    return Section("families", "Families of negation", [by_family, by_difficulty], curves)


_BY_JUDGE = (EDITOR, Row("metric", "judge", REMOVALS))
_GAP = {"statistic": "gap"}
GAP = Table(
    "gap",
    "Negation gap",
    _BY_JUDGE,
    (
        *_columns("statistic", {'"Remove the X."': "remove", "negative": "negative"}),
        Column("gap (points)", _GAP),
        Column("ratio", {"statistic": "ratio"}),
        Column("p", _GAP, p_value()),
        Column("pairs", _GAP, count()),
    ),
    note='Removal in per cent when told "Remove the X." and when told that X is absent, for the same samples '
    "from the same noise. Gap: the paired difference. Ratio: – where nothing was removed.",
)
GAP_BY_TEMPLATE = Table(
    "gap_by_template",
    "Negation gap by template",
    (*_BY_JUDGE, Row("group", "negative instruction")),
    (Column("gap (points)"), Column("pairs", show=count())),
    note="Paired by sample, intervals clustered by source image; not corrected for their number.",
)
_PART = {"statistic": "part"}
MINIMAL_PAIRS = Table(
    "minimal_pairs",
    "Minimal pairs: what decides the edit",
    _BY_JUDGE,
    (
        *(Column(f"{cell} (change)", {"statistic": "change", "group": cell}) for cell in CELLS),
        *(Column(f"{part} part", {**_PART, "group": part}) for part in two_way.PARTS),
        Column("all four obeyed %", {"statistic": "obeyed", "group": ALL_FOUR}),
        Column("judge right before %", {"statistic": "agrees"}),
        Column("n", _PART, count()),
        Column("unscored", _PART, count("unscored")),
    ),
    note="The object affirmed or denied, there or absent in the picture that is edited. Change in presence "
    "in points: seen by the judge after the edit, less seen before. Judge right before: how often it says of "
    "the unedited pictures what the data do. An editor that obeys has +100 of text, -100 of picture, 0 of "
    "interaction; one that removes whatever is named 0, -100, 0; one that does nothing 0 throughout.",
)
BREAKDOWNS = {"by_template": "negative instruction", "by_object": "object"}


def breakdowns() -> list[Table]:
    metrics = Column(by="metric", names=heading, order=tuple(METRICS))
    columns = (metrics, Column("samples", show=_attempted))
    rows = {key: (*RUN, Row("group", title)) for key, title in BREAKDOWNS.items()}
    return [Table(key, f"By {title}", rows[key], columns) for key, title in BREAKDOWNS.items()]


CALIBRATION = Table(
    "calibration",
    "Judges on known truth",
    (Row("judge"), Row("group", "pictures")),
    (
        *_columns("metric", {"sensitivity": "sensitivity", "specificity": "specificity", "ROC-AUC": "auc"}),
        *_columns("metric", {"present": "sensitivity", "absent": "specificity"}, count()),
        *_columns("metric", {"unscored": "sensitivity"}, count("unscored")),
    ),
    note="Sensitivity: share of objects that are there and are seen; specificity: share of absent ones that "
    "are not seen; ROC-AUC of the soft score. Clustered by picture.",
)
_CONTROL = {"metric": ("fall", "same")}
CONTROLS = Table(
    "controls",
    "Judges under controls",
    (Row("judge"), Row("group", "control", calibrations.CONTROLS)),
    (
        *_columns(
            "metric", {"yes before": "before", "after": "after", "fall": "fall", "same answer": "same"}
        ),
        Column("n", _CONTROL, count()),
        Column("unscored", _CONTROL, count("unscored")),
        Column("flag", _CONTROL, entry("flag")),
    ),
    note="Questions about objects that are there, with the picture or the question changed. A judge that "
    "looks and reads says yes less often (fall, in points; flagged where the interval reaches 0), and "
    "answers the same on a mirrored picture or with yes and no swapped (flagged where the interval ends "
    f"below {100 * calibrations.STEADY:.0f} %). Clustered by picture.",
)
CORRECTED = Table(
    "corrected",
    "Corrected for the judge's error",
    (*RUN, METRIC),
    (
        *_columns("statistic", {"as judged": "judged", "corrected": "corrected"}),
        Column("not corrected because", {"statistic": "corrected"}, entry("refused")),
    ),
    note="Rogan-Gladen: as if the judge erred on the edited pictures as often as on those of known truth. "
    "The interval contains that of the raw figure and of both error rates.",
)
_LABELLED = {"statistic": "labelled"}
LABELLED = Table(
    "labelled",
    "Removal with people's labels",
    (*RUN, METRIC),
    (
        *_columns("statistic", {"as judged": "judged", "with labels": "labelled"}),
        *(
            Column("labels", _LABELLED, count()),
            Column("more labels for ± 5 points", _LABELLED, entry("more")),
        ),
        Column("not given because", _LABELLED, entry("refused")),
    ),
    note="Labels, helped by verdicts with the best weight: right however bad the judge, if the labelled "
    "samples are random. With ± 5 points for each of two runs a gap of 10 points between them is found with "
    'probability 0.8; "more samples": the verdicts alone leave more doubt. Partly gone is not gone.',
)
_SEES = {"sees what people see %": "sensitivity", "sees none where people see none %": "specificity"}
_SAME = Column("samples", {"statistic": "same"}, count())
JUDGE_PEOPLE = Table(
    "judge-people",
    "The judges against people",
    (Row("metric", "judge", REMOVALS), Row("by"), Row("group", "")),
    (*_columns("statistic", {"same verdict %": "same", **_SEES}), dataclasses.replace(_SAME, title="labels")),
)
_AGREE = {"same verdict %": "same", "Cohen's kappa": "kappa", "Krippendorff's alpha": "alpha"}
AGREEMENT = Table(
    "agreement",
    "Agreement of the judges",
    RUN,
    (*_columns("statistic", _AGREE), _SAME),
    note="Removal by VQA against removal by detection. – where there is one verdict only.",
)
PEOPLE = [LABELLED, JUDGE_PEOPLE, labels.AGREEMENT]


def _change(figures: Sequence[Figure]) -> str:
    by = {figure["statistic"]: figure for figure in figures}
    fixed, paper = by["fixed"]["value"], by["paper"]["value"]
    if fixed is None or paper is None:
        return tables.DASH
    return tables.number(paper - fixed, by["fixed"]["unit"], sign=True)


def _ns(figures: Sequence[Figure]) -> str:
    return str(figures[0].get("note") or " / ".join(dict.fromkeys(str(figure["n"]) for figure in figures)))


_BOTH = {"statistic": ("fixed", "paper")}
PROTOCOLS = Table(
    "protocols",
    "Published protocol against the mended one",
    (*RUN, METRIC, Row("quirk", names={"all": "all of them"})),
    (
        *_columns("statistic", {"fixed": "fixed", "paper": "paper"}),
        Column("change", _BOTH, _change),
        Column("samples that flip", {"statistic": "flips"}),
        Column("n (fixed / paper)", _BOTH, _ns),
    ),
    note="; ".join(f"{name}: {text}" for name, text in QUIRKS.items())
    + ". From the recorded answers; no model was run. These need another run: "
    + ", ".join(f"{option} ({text})" for option, text in NOT_FROM_EVIDENCE.items())
    + ".",
)


def _bytes(figures: Sequence[Figure]) -> str:
    return f"{size / 2**30:.2f} GiB" if (size := figures[0]["value"]) else tables.DASH


COSTS = Table(
    "costs",
    "Costs",
    (*RUN, Row("stage"), Row("device")),
    (
        Column("samples", {"metric": "samples"}),
        Column("seconds", {"metric": "seconds"}, value(1)),
        Column("samples/s", {"metric": "rate"}),
        *_columns("metric", {"memory": "host_bytes", "GPU memory": "device_bytes"}, _bytes),
    ),
    note="Seconds: summed over blocks, which run in parallel. Memory: peak of the process.",
)
_TOLD = {"remove": 'told "Remove the X."', "negative": "told that X is absent", "add": 'told "Add a X."'}
REMOVAL = plots.plot(
    "gap",
    "Removal by instruction, with 95 % intervals clustered by source image",
    {"task": "results", "metric": tuple(REMOVALS), "source": ""},
    plots.bars,
    place=("model",),
    series="variant",
    panel=("metric",),
    order=("remove", "negative", "add", *REMOVALS),
    axis="Removal, per cent",
    names={**REMOVALS, **_TOLD},
)
GAPS = plots.plot(
    "gap_by_template",
    'Negation gap by template: Removal when told "Remove the X." minus Removal when told that X is absent, '
    "with 95 % intervals",
    {"task": "gap_by_template"},
    plots.bars,
    place=("group",),
    series="metric",
    panel=("model",),
    order=(*REMOVALS, *TEMPLATES),
    names=REMOVALS,
    axis="gap in Removal, points",
    limits=None,
)
PARTS = plots.plot(
    "minimal_pairs",
    "Minimal pairs: what the instruction, the picture and both together contribute to the change in "
    "presence; told and obeyed would be +100, -100 and 0",
    {"task": "minimal_pairs", "statistic": "part"},
    plots.bars,
    place=("model",),
    series="group",
    panel=("metric",),
    order=(*two_way.PARTS, *REMOVALS),
    names=REMOVALS,
    axis="points",
    limits=None,
    colors={two_way.TEXT: plots.RED, two_way.PICTURE: "#9ca3af", two_way.INTERACTION: plots.GREEN},
)
RELIABILITY = plots.plot(
    "reliability",
    "Reliability of the judges' soft scores on pictures of known truth",
    {"task": "reliability"},
    plots.curves,
    x="score",
    line="judge",
    panel=("group",),
    limits=(-2, 102),
    diagonal=True,
    axes=("soft score", "per cent really present"),
)
_PAIRS = Section("minimal_pairs", "Minimal pairs", [MINIMAL_PAIRS], [PARTS])


def of_runs() -> list[Section]:
    """What an evaluation writes."""
    shown = Section("results", "Results", [*results(), LIMIT, REFUSALS])
    return [shown, families(), _PAIRS, Section("gap", "Negation gap", [GAP_BY_TEMPLATE], [GAPS])]


def page(comparisons: Table) -> list[Section]:
    """What the report shows."""
    about_judges = [CALIBRATION, CONTROLS, CORRECTED, AGREEMENT, *PEOPLE]
    return [
        Section("gap", "Negation gap", [GAP, GAP_BY_TEMPLATE], [REMOVAL, GAPS]),
        _PAIRS,
        Section("results", "Results", [*results(), LIMIT, REFUSALS]),
        families(),
        Section("breakdowns", "Breakdowns", breakdowns()),
        Section("comparisons", "Comparisons", [comparisons]),
        Section("judges", "Judges", about_judges, [RELIABILITY]),
        Section("protocols", "Protocols", [PROTOCOLS]),
        Section("costs", "Costs", [COSTS]),
    ]
