"""The tables and plots of reports on NeIn, as specifications over the frame of `figures` and `reporting`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nein.benchmarks import paired
from nein.benchmarks.nein.minimal_pairs import ALL_FOUR
from nein.benchmarks.nein.records import REMOVALS, TEMPLATES
from nein.benchmarks.nein.reporting.protocols import NOT_FROM_EVIDENCE, QUIRKS
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting import format, plots, tables
from nein.reporting.figures import Figure
from nein.reporting.report import Section
from nein.reporting.tables import Across, Column, Row, Table
from nein.statistics import two_way
from nein.wording.families import CELLS
from nein.wording.languages.base import CONSTRUCTIONS, DEPTH, OTHERS

TRACK_NAMES = {"negative": "negative", "remove": '"Remove the X."', "add": '"Add a X."'}
RUN = (Row("model", "editor"), Row("variant", "instruction", TRACK_NAMES))


def heading(metric: str) -> str:
    return format.heading(METRICS[metric].title, METRICS[metric].higher_is_better)


def _higher_is_better(metric: str) -> bool | None:
    return METRICS[metric].higher_is_better


def shown(figures: Sequence[Figure]) -> str:
    """A figure with ±, or with the ends of its interval where it is bounded; as printed where it is the
    paper's."""
    figure = figures[0]
    if figure.get("source") == "printed":
        return format.number(figure["value"], figure["unit"], digits=2)
    return format.text(figure, interval="reach" if METRICS[figure["metric"]].span is None else "ends")


def _unscored(figures: Sequence[Figure]) -> str:
    """What the metrics share, or "3 L1, 2 CLIP-I"."""
    counts = [(figure["unscored"], METRICS[figure["metric"]].title) for figure in figures]
    if len({count for count, _ in counts}) == 1:
        return "" if counts[0][0] is None else str(counts[0][0])
    return ", ".join(f"{count} {title}" for count, title in counts if count)


def _metrics(where: dict[str, object] | None = None) -> Across:
    return Across("metric", where or {}, shown, heading, tuple(METRICS), _higher_is_better)


def results() -> list[Table]:
    """Table 3, in two parts as the paper has it."""
    parts = (("results_quality", "Image quality", False), ("results_presence", "Removal and retention", True))
    return [
        Table(
            key,
            title,
            RUN,
            (_metrics(), Column("n", show=tables.count()), Column("unscored", show=_unscored)),
            {"task": "results", "metric": tuple(m for m in METRICS if _of_presence(m) == by_judge)},
        )
        for key, title, by_judge in parts
    ]


LIMIT = Table(
    "limit",
    "FID of infinitely many pictures",
    RUN,
    (
        Column("FID", {"metric": "fid"}),
        Column("from", {"metric": "fid"}, tables.count()),
        Column("not given because", {"metric": "fid"}, tables.entry("refused")),
    ),
    {"task": "limit"},
    "FID falls with the number of pictures, about as 1 / N; this is what the jackknife leaves of it. The "
    "interval beside FID itself is of what as many other pictures would give, and FIDs are compared at equal "
    "numbers.",
)


def _samples(figures: Sequence[Figure]) -> str:
    return str(max(figure["n"] + figure["unscored"] for figure in figures))


def families() -> Section:
    """By family of negation and, where it is known, by what makes a sentence difficult."""
    presence = {"metric": tuple(filter(_of_presence, METRICS))}
    both = [
        Table(
            "families",
            "By family of negation",
            (*RUN, Row("group", "family")),
            (_metrics(), Column("n", show=_samples)),
            {"task": "families", **presence},
        ),
        Table(
            "difficulty",
            "By family and difficulty",
            (*RUN, Row("group", "family"), Row("metric", names=heading), Row("axis", "how many")),
            (Across("level", {}, shown, order=tuple(map(str, range(10)))), Column("n of each", show=_ns)),
            {"task": "difficulty", **presence},
        ),
    ]
    return Section(
        "families",
        "Families of negation",
        both,
        [_curve(OTHERS, ", without a denial above"), _curve(DEPTH, "")],
    )


def _ns(figures: Sequence[Figure]) -> str:
    """ "10", or "10, 9" where they differ."""
    return ", ".join(dict.fromkeys(str(figure["n"]) for figure in figures))


def _of_presence(metric: str) -> bool:
    """Whether it says what is in a picture: a judge's, or known."""
    return METRICS[metric].by_judge or METRICS[metric].by_truth


def _share(figures: Sequence[Figure]) -> str:
    attempted = figures[0]["n"] + figures[0]["unscored"]
    return format.number(figures[0]["n"] / attempted if attempted else 0.0, "%")


def _why(figures: Sequence[Figure]) -> str:
    commonest = list(frames.reasons(figures[0]).items())[:3]
    return "; ".join(f"{count} × {reason}" for reason, count in commonest)


def coverage() -> Table:
    """Attempted, scored, unscored and why, for every run and metric."""
    columns = (
        Column("attempted", show=_samples),
        Column("scored", show=tables.count()),
        Column("scored %", show=_share),
        Column("unscored", show=tables.count("unscored")),
        Column("commonest reasons", show=_why),
    )
    titles = {name: METRICS[name].title for name in METRICS}
    rows = (*RUN, Row("metric", names=titles))
    return Table("coverage", "Coverage", rows, columns, {"task": "results", "source": ""})


GAP = Table(
    "gap",
    "Negation gap",
    (RUN[0], Row("metric", "judge", REMOVALS)),
    (
        Column('"Remove the X."', {"statistic": "remove"}),
        Column("negative", {"statistic": "negative"}),
        Column("gap (points)", {"statistic": "gap"}, higher_is_better=False),
        Column("ratio", {"statistic": "ratio"}),
        Column("p", {"statistic": "gap"}, tables.p_value()),
        Column("pairs", {"statistic": "gap"}, tables.count()),
    ),
    {"task": "gap"},
    'Removal in per cent when told "Remove the X." and when told that X is absent, for the same samples from '
    "the same noise. Gap: the paired difference. Ratio: – where nothing was removed.",
)
GAP_BY_TEMPLATE = Table(
    "gap_by_template",
    "Negation gap by template",
    (RUN[0], Row("metric", "judge", REMOVALS), Row("group", "negative instruction")),
    (Column("gap (points)"), Column("pairs", show=tables.count())),
    {"task": "gap_by_template"},
    "Paired by sample, intervals clustered by source image; not corrected for looking at many templates.",
)
MINIMAL_PAIRS = Table(
    "minimal_pairs",
    "Minimal pairs: what decides the edit",
    (RUN[0], Row("metric", "judge", REMOVALS)),
    (
        *(Column(f"{cell} (change)", {"statistic": "change", "group": cell}) for cell in CELLS),
        *(Column(f"{part} part", {"statistic": "part", "group": part}) for part in two_way.PARTS),
        Column("all four obeyed %", {"statistic": "obeyed", "group": ALL_FOUR}, higher_is_better=True),
        Column("judge right before %", {"statistic": "agrees"}),
        Column("n", {"statistic": "part"}, tables.count()),
        Column("unscored", {"statistic": "part"}, tables.count("unscored")),
    ),
    {"task": "minimal_pairs"},
    "The object affirmed or denied, there or absent in the picture that is edited. Change in presence in "
    "points: seen by the judge after the edit, less seen by it before. Judge right before: how often it says "
    "of the unedited pictures what the data do. An editor that does what it is told has +100 of text, -100 "
    "of picture, 0 of interaction; one that removes whatever is named 0, -100, 0; one that does nothing 0 "
    "throughout.",
)
BREAKDOWNS = {
    "by_template": "negative instruction",
    "by_object": "object",
    "by_size": "size of the source image",
}


def breakdowns() -> list[Table]:
    return [
        Table(
            task,
            f"By {title}",
            (*RUN, Row("group", title)),
            (
                Across("metric", {}, tables.estimate(), heading, tuple(METRICS)),
                Column("samples", show=_samples),
            ),
            {"task": task},
        )
        for task, title in BREAKDOWNS.items()
    ]


def comparisons(out_of_reach: str = "") -> Table:
    """Every pair of runs, metric by metric. out_of_reach: a sentence on what these runs cannot show."""
    table = paired.COMPARISONS
    rows = tuple(Row("metric", names=heading) if row.column == "metric" else row for row in table.rows)
    return dataclasses.replace(table, rows=rows, note=f"{table.note} {out_of_reach}".strip())


# --- judges --------------------------------------------------------------------------------

CALIBRATION = Table(
    "calibration",
    "Judges on known truth",
    (Row("judge"), Row("group", "pictures")),
    (
        Column("sensitivity", {"metric": "sensitivity"}),
        Column("specificity", {"metric": "specificity"}),
        Column("ROC-AUC", {"metric": "auc"}),
        Column("present", {"metric": "sensitivity"}, tables.count()),
        Column("absent", {"metric": "specificity"}, tables.count()),
        Column("unscored", {"metric": "sensitivity"}, tables.count("unscored")),
    ),
    {"task": "calibration"},
    "Sensitivity: share of objects that are there and are seen; specificity: share of absent ones that are "
    "not seen; ROC-AUC of the soft score. Clustered by picture.",
)
#: Families of pairs of edits (`nein.judges.known_edits`) -> what the wrong one did.
PAIRS = {"unedited": "did nothing", "other": "took another out", "along": "took another along"}
REWARDS = Table(
    "rewards",
    "Judges of edits on known truth",
    (Row("judge"), Row("group", "the wrong edit", PAIRS)),
    (
        Column("Remove the X.", {"metric": "affirmed"}),
        Column("negative sentence", {"metric": "negated"}),
        Column("gap", {"metric": "gap"}),
        Column("A rather than B", {"metric": "position"}),
        Column("pairs", {"metric": "affirmed"}, tables.count()),
        Column("no preference", {"metric": ("affirmed", "negated")}, tables.entry("ties")),
        Column("unscored", {"metric": ("affirmed", "negated")}, tables.count("unscored")),
    ),
    {"task": "rewards"},
    "Share of pairs of edits in which the judge prefers the one that obeys, told in either way about the "
    "same pictures; no preference counts as half. Who does not hear the sentence has 50 where another thing "
    "was taken out, and who likes empty pictures 0 where one was taken along. A rather than B: of a judge "
    "that is shown both, its preference for a place. No preference and unscored: of both wordings. "
    "Clustered by picture.",
)
BEST_OF = Table(
    "best-of",
    "The best of several edits, and the judge that chose",
    RUN,
    (
        *(Column(f"right: {did}", {"metric": "preferred", "group": name}) for name, did in PAIRS.items()),
        *(
            Column(f"gain ({judge})", {"metric": name, "statistic": "gain"})
            for name, judge in REMOVALS.items()
        ),
    ),
    {"task": "best-of"},
    "Right: how often the judge that chose prefers the edit that obeys (the share above, in this wording), "
    "once it is calibrated: nein calibrate RUN --judges reward --judge reward=JUDGE. Gain in Removal: of the "
    "chosen edit over the editor's own, the first candidate, in points over the samples scored in both; the "
    "judge that chose may be the one that scores (removal: VQA).",
)
CORRECTED = Table(
    "corrected",
    "Corrected for the judge's error",
    (*RUN, Row("metric", names=heading)),
    (
        Column("as judged", {"statistic": "judged"}),
        Column("corrected", {"statistic": "corrected"}),
        Column("not corrected because", {"statistic": "corrected"}, tables.entry("refused")),
    ),
    {"task": "corrected"},
    "Rogan-Gladen: as if the judge erred on the edited pictures as often as on those of known truth. The "
    "interval contains that of the raw figure and of both error rates.",
)
LABELLED = Table(
    "labelled",
    "Removal with people's labels",
    (*RUN, Row("metric", names=heading)),
    (
        Column("as judged", {"statistic": "judged"}),
        Column("with labels", {"statistic": "labelled"}),
        Column("labels", {"statistic": "labelled"}, tables.count()),
        Column("not given because", {"statistic": "labelled"}, tables.entry("refused")),
    ),
    {"task": "labelled"},
    "Mean verdict plus mean of (label - verdict): right however bad the judge, if the labelled samples are "
    "random.",
)
AGREEMENT = Table(
    "agreement",
    "Agreement of the judges",
    RUN,
    (
        Column("same verdict %", {"statistic": "same"}),
        Column("Cohen's kappa", {"statistic": "kappa"}),
        Column("Krippendorff's alpha", {"statistic": "alpha"}),
        Column("samples", {"statistic": "same"}, tables.count()),
    ),
    {"task": "agreement"},
    "Removal by VQA against removal by detection. – where there is one verdict only.",
)
NEGVQA = Table(
    "negvqa",
    "The judge on NegVQA",
    (Row("used", "judge of"), Row("judge", "class"), Row("asked")),
    (
        Column("original questions", {"statistic": "original questions"}),
        Column("negated questions", {"statistic": "negated questions"}),
        Column("negation gap", {"statistic": "negation gap"}),
        Column(
            "both right",
            {"statistic": "both"},
            lambda f: f"{round((f[0]['value'] or 0) * f[0]['n'])} of {f[0]['n']}",
        ),
        Column(
            "unscored answers",
            {"statistic": ("original questions", "negated questions")},
            lambda figures: str(sum(figure["unscored"] for figure in figures)),
        ),
    ),
    {"task": "negvqa"},
    "Two-choice questions and their negations, put to the judge (same weights and settings) that decided "
    "about the runs named first; per cent right, chance 50. A judge with a gap must not be asked negated "
    "questions: Removal and Retention ask it affirmative ones only.",
)


# --- protocols and costs -------------------------------------------------------------------


def _change(figures: Sequence[Figure]) -> str:
    by = {figure["statistic"]: figure for figure in figures}
    fixed, paper = by["fixed"]["value"], by["paper"]["value"]
    if fixed is None or paper is None:
        return format.DASH
    return format.number(paper - fixed, by["fixed"]["unit"], sign=True)


def _both_counts(figures: Sequence[Figure]) -> str:
    note = figures[0].get("note")
    return str(note) if note else " / ".join(dict.fromkeys(str(figure["n"]) for figure in figures))


PROTOCOLS = Table(
    "protocols",
    "Published protocol against the mended one",
    (*RUN, Row("metric", names=heading), Row("quirk", names={"all": "all of them"})),
    (
        Column("fixed", {"statistic": "fixed"}),
        Column("paper", {"statistic": "paper"}),
        Column("change", {"statistic": ("fixed", "paper")}, _change),
        Column("samples that flip", {"statistic": "flips"}),
        Column("n (fixed / paper)", {"statistic": ("fixed", "paper")}, _both_counts),
    ),
    {"task": "protocols"},
    "; ".join(f"{name}: {text}" for name, text in QUIRKS.items())
    + ". From the recorded answers; no model was run. These need another run: "
    + ", ".join(f"{option} ({text})" for option, text in NOT_FROM_EVIDENCE.items())
    + ".",
)


def _with_share(figures: Sequence[Figure]) -> str:
    by = {figure["metric"]: figure["value"] for figure in figures}
    if by.get("limit") is None or by.get("rate") is None:
        return format.DASH
    return f"{by['limit']:.2f} ({100 * by['rate'] / by['limit']:.0f} %)"


def _gib(figures: Sequence[Figure]) -> str:
    size = figures[0]["value"]
    return f"{size / 2**30:.2f} GiB" if size else format.DASH


COSTS = Table(
    "costs",
    "Costs",
    (*RUN, Row("stage"), Row("device")),
    (
        Column("samples", {"metric": "samples"}),
        Column("seconds", {"metric": "seconds"}, tables.value(1)),
        Column("samples/s", {"metric": "rate"}),
        Column("limit (share)", {"metric": ("rate", "limit")}, _with_share),
        Column("memory", {"metric": "host_bytes"}, _gib),
        Column("GPU memory", {"metric": "device_bytes"}, _gib),
    ),
    {"task": "costs"},
    "Seconds: sum over blocks of samples, as if done one after another (blocks may run side by side). Limit: "
    "peak arithmetic of the device over the operations of one edit; – where either is not known. Memory: "
    "highest of the process.",
)

# --- plots ---------------------------------------------------------------------------------


def _curve(axis: str, which: str) -> plots.Curves:
    return plots.Curves(
        axis.replace(" ", "_"),
        f"Edits that obey a negation, by what is known of the pictures, by number of {axis}{which}, 95 % "
        "intervals",
        x="level",
        line="group",
        panel=("model", "variant"),
        axes=(f"{axis}, how many", "obeyed, per cent"),
        where={"task": "difficulty", "metric": "obeyed", "axis": axis},
        names={name: name.replace("_", " ") for name in CONSTRUCTIONS},
    )


_JUDGES = {"removal_vqa": plots.BLUE, "removal_ovd": plots.RED}
REMOVAL = plots.Bars(
    "removal",
    "Removal by run, with 95 % intervals clustered by source image",
    place=("model", "variant"),
    series="metric",
    where={"task": "results", "metric": tuple(REMOVALS), "source": ""},
    order=tuple(REMOVALS),
    names={name: f"Removal ({judge})" for name, judge in REMOVALS.items()},
    colors=_JUDGES,
    axis="Removal, per cent",
)
TOLD_AND_DENIED = plots.Bars(
    "gap",
    'Negation gap: Removal when told "Remove the X." and when told that X is absent, same samples and noise',
    place=("model",),
    series="statistic",
    panel=("metric",),
    where={"task": "gap", "statistic": ("remove", "negative")},
    order=("remove", "negative", *REMOVALS),
    names={**REMOVALS, "remove": 'told "Remove the X."', "negative": "told that X is absent"},
    colors={"remove": plots.BLUE, "negative": plots.RED},
    axis="Removal, per cent",
)
GAPS = plots.Bars(
    "gap_by_template",
    'Negation gap by template: Removal when told "Remove the X." minus Removal when told that X is absent, '
    "with 95 % intervals",
    place=("group",),
    series="metric",
    panel=("model",),
    where={"task": "gap_by_template"},
    order=(*REMOVALS, *TEMPLATES),
    names=REMOVALS,
    colors=_JUDGES,
    axis="gap in Removal, points",
    limits=None,
)
PARTS = plots.Bars(
    "minimal_pairs",
    "Minimal pairs: what the instruction, the picture and both together contribute to the change in "
    "presence; told and obeyed would be +100, -100 and 0",
    place=("model",),
    series="group",
    panel=("metric",),
    where={"task": "minimal_pairs", "statistic": "part"},
    order=(*two_way.PARTS, *REMOVALS),
    names=REMOVALS,
    colors={two_way.TEXT: plots.RED, two_way.PICTURE: "#9ca3af", two_way.INTERACTION: plots.GREEN},
    axis="points",
    limits=None,
)
RELIABILITY = plots.Curves(
    "reliability",
    "Reliability of the judges' soft scores on pictures of known truth",
    x="score",
    line="judge",
    panel=("group",),
    axes=("soft score", "per cent really present"),
    where={"task": "reliability"},
    limits=(-2, 102),
    diagonal=True,
)

# --- sections ------------------------------------------------------------------------------

_PAIRS = Section("minimal_pairs", "Minimal pairs", [MINIMAL_PAIRS], [PARTS])


def tables_of_runs() -> list[Section]:
    """What an evaluation writes."""
    return [
        Section("results", "Results", [*results(), LIMIT]),
        families(),
        _PAIRS,
        Section("gap", "Negation gap", [GAP_BY_TEMPLATE], [GAPS]),
    ]


def page(out_of_reach: str) -> list[Section]:
    """What the report shows. out_of_reach: see `comparisons`."""
    about_judges = [CALIBRATION, REWARDS, BEST_OF, CORRECTED, AGREEMENT, LABELLED, NEGVQA]
    return [
        Section("gap", "Negation gap", [GAP, GAP_BY_TEMPLATE], [TOLD_AND_DENIED, GAPS]),
        _PAIRS,
        Section("results", "Results", [*results(), LIMIT, coverage()], [REMOVAL]),
        families(),
        Section("breakdowns", "Breakdowns", breakdowns()),
        Section("comparisons", "Comparisons", [comparisons(out_of_reach)]),
        Section("judges", "Judges", about_judges, [RELIABILITY]),
        Section("protocols", "Protocols", [PROTOCOLS]),
        Section("costs", "Costs", [COSTS]),
    ]
