"""The one table printer: arrows for direction, an interval on every figure, n scored and n unscored."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import tabulate

from metrics import METRICS, Metric

TRACK_NAMES = {"negative": "negative", "remove": '"Remove the X."', "add": '"Add a X."'}


def heading(info: Metric) -> str:
    return f"{info.title} {'↑' if info.higher_is_better else '↓'}"


def figure(info: Metric, entry: Mapping[str, Any] | None) -> str:
    """ "12.3 ± 0.4", "3.8 [2.5, 5.6]" for a proportion, "12.3" without an interval, "–" without a value."""
    if entry is None or entry["value"] is None:
        return "–"
    digits = 2 if info.scale == 1 else 1
    value = f"{entry['value'] * info.scale:.{digits}f}"
    if entry["low"] is None:
        return value
    low, high = entry["low"] * info.scale, entry["high"] * info.scale
    if info.kind == "proportion":  # Wilson's interval is not symmetric, least of all near 0 and 100
        return f"{value} [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value} ± {(high - low) / 2:.{digits}f}"


def markdown(summaries: Sequence[Mapping[str, Any]], published: Mapping[str, Mapping[str, float]]) -> str:
    """Two tables, image quality and presence, one row per run, and the paper's figures below where given.

    summaries  As `nein.benchmarks.nein.report.summarise` makes them.
    published  Editor -> metric -> figure in the paper's units.
    """
    names = [name for name in METRICS if any(name in summary["metrics"] for summary in summaries)]
    groups = [("Image quality", [n for n in names if not METRICS[n].by_judge])]
    groups.append(("Removal and retention", [n for n in names if METRICS[n].by_judge]))
    parts = []
    for title, columns in groups:
        if not columns:
            continue
        rows = []
        for summary in summaries:
            rows.append(_row(summary, columns))
            if summary["track"] == "negative" and summary["editor"] in published:
                paper = published[summary["editor"]]
                cells = [_plain(METRICS[name], paper.get(name)) for name in columns]
                rows.append(["  as printed in the paper", "negative", *cells, "24182", ""])
        headers = ["editor", "instruction", *(heading(METRICS[name]) for name in columns), "n", "unscored"]
        table = tabulate.tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)
        parts.append(f"### {title}\n\n{table}")
    return "\n\n".join(parts)


def to_csv(summaries: Sequence[Mapping[str, Any]]) -> str:
    """One line per run and metric; values in the metric's own unit, not scaled."""
    buffer = io.StringIO()
    columns = ["editor", "track", "metric", "value", "low", "high", "standard_error", "n", "n_unscored"]
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for summary in summaries:
        for metric, entry in summary["metrics"].items():
            row = {"editor": summary["editor"], "track": summary["track"], "metric": metric, **entry}
            writer.writerow({key: "" if value is None else value for key, value in row.items()})
    return buffer.getvalue()


def _row(summary: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    found = summary["metrics"]
    scored = [found[name]["n"] for name in columns if name in found]
    missing = [(name, found[name]["n_unscored"]) for name in columns if name in found]
    same = len({count for _, count in missing}) == 1
    unscored = str(missing[0][1]) if same else ", ".join(f"{c} {METRICS[n].title}" for n, c in missing if c)
    n = str(scored[0]) if len(set(scored)) == 1 else f"{min(scored)}-{max(scored)}" if scored else "0"
    cells = [figure(METRICS[name], found.get(name)) for name in columns]
    track = TRACK_NAMES.get(summary["track"], summary["track"])
    return [summary["editor"], track, *cells, n, unscored]


def _plain(info: Metric, value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
