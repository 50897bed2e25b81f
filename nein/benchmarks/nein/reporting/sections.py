"""Figures and tables of a report as plain data. Every number here can be worked out again from the JSONL."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from metrics import METRICS
from nein import statistics
from nein.benchmarks.nein import negation_gap, results_table
from nein.benchmarks.nein.protocols import NOT_FROM_EVIDENCE, QUIRKS, shifts
from nein.benchmarks.nein.reporting.collect import Run, affirmative, template_of
from nein.statistics import bootstrap
from nein.statistics.estimates import Estimate

REMOVALS = {"removal_vqa": "VQA", "removal_ovd": "OVD"}
#: Longest side of a source image in pixels -> the class it is counted under.
SIZES = ((256, "up to 256 px"), (512, "257 to 512 px"), (math.inf, "above 512 px"))
SIZE_CLASSES = tuple(name for _, name in SIZES)
HEADLINES = ("removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd")


@dataclass(frozen=True)
class Table:
    """One table of the report.

    key      File and anchor name.     title, note  Plain text.
    columns  Column heads; the first column names the row.
    rows     Texts as shown.
    data     The same as unrounded numbers, one record per figure: what the CSV file holds.
    """

    key: str
    title: str
    columns: list[str]
    rows: list[list[str]]
    data: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def span(found: Any, scale: float = 100, digits: int = 1) -> str:
    """ "12.3 [10.0, 15.0]", "12.3" without an interval, "–" without a value."""
    if found is None or found.value is None:
        return "–"
    text = f"{scale * found.value:.{digits}f}"
    if found.low is None:
        return text
    return f"{text} [{scale * found.low:.{digits}f}, {scale * found.high:.{digits}f}]"


def record(found: Any, **about: Any) -> dict[str, Any]:
    """A line of a CSV file: what it is about, then value, low, high and what else an estimate has."""
    names = ("value", "low", "high", "standard_error", "n", "clusters")
    return {**about, **{name: getattr(found, name, None) for name in names}}


# --- results -------------------------------------------------------------------------------


def results(loaded: Sequence[Run], fid: Mapping[str, Estimate]) -> list[Table]:
    """Table 3 of these runs, in two parts as the paper has it. `fid`: run label -> FID with its interval."""
    parts = []
    present = [m for m in METRICS if any(m in run.summary["metrics"] for run in loaded)]
    groups = (
        ("results_quality", "Image quality", [m for m in present if not METRICS[m].by_judge]),
        ("results_presence", "Removal and retention", [m for m in present if METRICS[m].by_judge]),
    )
    for key, title, names in groups:
        if not names:
            continue
        rows, data = [], []
        for run in loaded:
            entries = {
                name: dict(run.summary["metrics"][name]) for name in names if name in run.summary["metrics"]
            }
            if "fid" in entries and run.label in fid:
                found = fid[run.label]
                entries["fid"] |= {
                    "low": found.low,
                    "high": found.high,
                    "standard_error": found.standard_error,
                }
            rows.append(results_table._row({**run.summary, "editor": run.name, "metrics": entries}, names))
            data += [_result(run, name, entry) for name, entry in entries.items()]
        columns = [
            "editor",
            "instruction",
            *(results_table.heading(METRICS[name]) for name in names),
            "n",
            "unscored",
        ]
        parts.append(Table(key, title, columns, rows, data))
    return parts


def _result(run: Run, metric: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    exact: tuple[float | None, float | None] = (None, None)
    if METRICS[metric].kind == "proportion" and entry["n"]:
        ones = round(entry["value"] * entry["n"])
        exact = statistics.exact_interval(ones, entry["n"])
    return {
        "editor": run.name,
        "track": run.track,
        "metric": metric,
        **{name: entry.get(name) for name in ("value", "low", "high", "standard_error")},
        "exact_low": exact[0],
        "exact_high": exact[1],
        "attempted": len(run.edits),
        "n": entry["n"],
        "clusters": entry.get("clusters"),
        "n_unscored": entry["n_unscored"],
    }


def coverage(loaded: Sequence[Run]) -> Table:
    """Attempted, scored, unscored and why, for every run and metric."""
    rows, data = [], []
    for run in loaded:
        for metric, entry in run.summary["metrics"].items():
            reasons = Counter(
                row["reason"] for row in run.scores.get(metric, {}).values() if row["value"] is None
            ) or Counter(entry.get("reasons", {}))
            why = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(3))
            attempted = entry["n"] + entry["n_unscored"]
            share = entry["n"] / attempted if attempted else 0.0
            cells = [str(attempted), str(entry["n"]), percent(share), str(entry["n_unscored"]), why]
            rows.append([run.label, METRICS[metric].title, *cells])
            data.append({"run": run.label, "metric": metric, "attempted": attempted, "n": entry["n"],
                         "n_unscored": entry["n_unscored"], "reasons": dict(reasons)})  # fmt: skip
    columns = ["run", "metric", "attempted", "scored", "scored %", "unscored", "commonest reasons"]
    return Table("coverage", "Coverage", columns, rows, data)


# --- the gap -------------------------------------------------------------------------------


def gaps(loaded: Sequence[Run]) -> list[Table]:
    """The negation gap of every editor whose control was run, in all and per template."""
    rows, data, by_template, template_data = [], [], [], []
    for run in loaded:
        twin = affirmative(loaded, run)
        if twin is None:
            continue
        for metric, judge in REMOVALS.items():
            if metric not in run.values or metric not in twin.values:
                continue
            found = statistics.paired_test(twin.values[metric], run.values[metric], run.sources)
            if found is None:
                continue
            times = bootstrap.ratio(twin.values[metric], run.values[metric], run.sources)
            told, denied = mean_of(twin.values[metric]), mean_of(run.values[metric])
            rows.append([run.name, judge, percent(told), percent(denied), span(found.difference),
                         span(times, 1, 2), p_text(found.p), str(found.difference.n)])  # fmt: skip
            about = {"editor": run.name, "metric": metric}
            data.append({**record(found.difference, **about), "remove": told, "negative": denied,
                         "p": found.p,
                         "ratio": times.value if times else None})  # fmt: skip
            pairs = negation_gap.gap_by_template(_rows(run, metric), _rows(twin, metric))
            for entry in pairs:
                interval = Estimate(entry.estimate, entry.low, entry.high, None, entry.n, 0)
                name = negation_gap.template_name(entry.template)
                by_template.append([run.name, judge, name, span(interval), str(entry.n)])
                template_data.append({**about, "template": entry.template, "sentence": name,
                                      "value": entry.estimate, "low": entry.low, "high": entry.high,
                                      "n": entry.n})  # fmt: skip
    if not rows:
        return []
    columns = ["editor", "judge", '"Remove the X."', "negative", "gap (points)", "ratio", "p", "pairs"]
    note = (
        'Removal in per cent when told "Remove the X." and when told that X is absent, for the same samples '
        "from "
        "the same noise. Gap: the paired difference. Ratio: clustered bootstrap; – where nothing was removed."
    )
    return [
        Table("gap", "Negation gap", columns, rows, data, note),
        Table("gap_by_template", "Negation gap by template",
              ["editor", "judge", "negative instruction", "gap (points)", "pairs"], by_template,
              template_data,
              "Paired by sample, intervals clustered by source image; not corrected for looking at many "
              "templates."),
    ]  # fmt: skip


def _rows(run: Run, metric: str) -> list[dict[str, Any]]:
    return negation_gap.score_rows(run.edits.values(), run.scores[metric].values(), metric)


# --- breakdowns ----------------------------------------------------------------------------


def breakdowns(loaded: Sequence[Run], sizes: Mapping[str, str]) -> list[Table]:
    """Removal and Retention by template, object and source image size. `sizes`: source id -> size class."""
    kinds: tuple[tuple[str, str, Callable[[Run, Mapping[str, Any]], Any]], ...] = (
        ("template", "negative instruction", lambda run, edit: template_of(edit)),
        ("object", "object", lambda run, edit: edit["object"]),
        ("size", "size of the source image", lambda run, edit: sizes.get(edit["source_id"])),
    )
    order = {name: place for place, name in enumerate(SIZE_CLASSES)}
    found = []
    for key, title, group_of in kinds:
        rows, data = [], []
        metrics = [m for m in HEADLINES if m != "auc_removal" and any(m in run.values for run in loaded)]
        for run in loaded:
            groups: dict[Any, list[str]] = {}
            for name, edit in run.edits.items():
                group = group_of(run, edit)
                if group is not None:
                    groups.setdefault(group, []).append(name)
            for group in sorted(groups, key=lambda g: (isinstance(g, str), order.get(g, 0), g)):
                shown = negation_gap.template_name(group) if key == "template" else str(group)
                cells = []
                for metric in metrics:
                    estimate = _estimate(run, metric, groups[group])
                    cells.append(span(estimate))
                    data.append(
                        record(estimate, editor=run.name, track=run.track, group=shown, metric=metric)
                    )
                rows.append([run.label, shown, *cells, str(len(groups[group]))])
        if len({row[1] for row in rows}) > 1:
            columns = ["run", title, *(results_table.heading(METRICS[m]) for m in metrics), "samples"]
            found.append(Table(f"by_{key}", f"By {title}", columns, rows, data))
    return found


def _estimate(run: Run, metric: str, ids: Iterable[str]) -> Estimate | None:
    values = run.values.get(metric, {})
    own = [(float(value), run.sources[i]) for i in ids if (value := values.get(i)) is not None]
    if METRICS[metric].kind == "proportion":
        return statistics.proportion([v for v, _ in own], [s for _, s in own])
    found = statistics.mean([v for v, _ in own], [s for _, s in own])
    return None if found is None else statistics.bounded(found, *METRICS[metric].range)


# --- protocols -----------------------------------------------------------------------------


def protocols(loaded: Sequence[Run]) -> Table:
    """Which quirk of the published protocol moves which figure, from the evidence of these runs."""
    rows, data = [], []
    for run in loaded:
        for shift in shifts(run.directory):
            info = METRICS[shift.metric]
            shown = "all of them" if shift.quirk == "all" else shift.quirk
            moved = "–"
            if shift.fixed is not None and shift.paper is not None:
                moved = f"{info.scale * (shift.paper - shift.fixed):+.{2 if info.scale == 1 else 1}f}"
            flips = "–" if shift.flips is None else str(shift.flips)
            counts = (
                f"{shift.n_fixed}" if shift.n_fixed == shift.n_paper else f"{shift.n_fixed} / {shift.n_paper}"
            )
            rows.append([run.label, results_table.heading(info), shown, number(shift.fixed, info),
                         number(shift.paper, info), moved, flips,
                         counts if not shift.note else shift.note])  # fmt: skip
            data.append({"editor": run.name, "track": run.track, "metric": shift.metric, "quirk": shift.quirk,
                         "fixed": shift.fixed, "paper": shift.paper, "n_fixed": shift.n_fixed,
                         "n_paper": shift.n_paper, "flips": shift.flips, "note": shift.note})  # fmt: skip
    meanings = "; ".join(f"{name}: {text}" for name, text in QUIRKS.items())
    others = ", ".join(f"{option} ({text})" for option, text in NOT_FROM_EVIDENCE.items())
    note = f"{meanings}. From the recorded answers; no model was run. These need another run: {others}."
    columns = ["run", "metric", "quirk", "fixed", "paper", "change", "samples that flip", "n (fixed / paper)"]
    return Table("protocols", "Published protocol against the mended one", columns, rows, data, note)


def number(value: float | None, info: Any) -> str:
    return "–" if value is None else f"{value * info.scale:.{2 if info.scale == 1 else 1}f}"


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def mean_of(values: Mapping[str, float | None]) -> float | None:
    numbers = [value for value in values.values() if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
