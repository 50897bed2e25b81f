"""Plots of a report: bars with intervals and reliability curves, as PNG and SVG, the same bytes every
time."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from metrics import METRICS
from nein.benchmarks.nein.reporting.judge_tables import KINDS, Calibration
from nein.benchmarks.nein.reporting.sections import Table
from nein.statistics import calibration

COLORS = {"removal_vqa": "#1d4ed8", "removal_ovd": "#c2410c", "vqa": "#1d4ed8", "ovd": "#c2410c"}
_STYLE: Any = {
    "svg.hashsalt": "nein", "text.parse_math": False, "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "figure.facecolor": "white",
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """key: file name without its end. title: what a caption says. figure: drawn when it is written."""

    key: str
    title: str
    figure: Any
    _made: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def encode(self, kind: str) -> bytes:
        """ "png" or "svg" bytes, drawn once; without a date, so that equal figures are equal files."""
        if kind not in self._made:
            self._made[kind] = self._drawn(kind)
        return self._made[kind]

    def _drawn(self, kind: str) -> bytes:
        buffer = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            self.figure.savefig(buffer, format=kind, dpi=160, bbox_inches="tight", metadata=metadata)
        return buffer.getvalue()


def gap_by_template(table: Table) -> Plot | None:
    """One panel per editor, one pair of bars per template; `table` as `sections.gaps` makes it."""
    editors = list(dict.fromkeys(line["editor"] for line in table.data))
    if not editors:
        return None
    sentences = list(dict.fromkeys(line["sentence"] for line in sorted(table.data, key=_template)))
    columns = min(3, len(editors))
    rows = math.ceil(len(editors) / columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(2.6 + 3.1 * columns, 0.9 + rows * (0.9 + 0.34 * len(sentences))), layout="constrained"
        )
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for place, panel in enumerate(panels.flat):
            if place >= len(editors):
                panel.set_visible(False)
                continue
            for offset, (metric, name) in ((-0.2, ("removal_vqa", "VQA")), (0.2, ("removal_ovd", "OVD"))):
                lines = {
                    line["sentence"]: line
                    for line in table.data
                    if line["editor"] == editors[place] and line["metric"] == metric
                }
                own = [(y + offset, lines[s]) for y, s in enumerate(sentences) if s in lines]
                _bars(panel, own, COLORS[metric], name)
            panel.set_title(editors[place], fontsize=10, loc="left")
            panel.set_yticks(range(len(sentences)), sentences)
            panel.axvline(0, color="#111827", linewidth=0.8)
            panel.set_xlabel("gap in Removal, points")
            panel.tick_params(labelbottom=True)  # shared axes hide them above an empty place
            panel.grid(axis="x", color="#e5e7eb")
        panels[0, 0].invert_yaxis()
        panels[0, 0].legend(frameon=False, fontsize=8, loc="best")
    return Plot("gap_by_template", 'Negation gap by template: Removal when told "Remove the X." minus '
                'Removal when '
                "told that X is absent, with 95 % intervals", figure)  # fmt: skip


def removal(table: Table) -> Plot | None:
    """Removal of every run by both judges; `table`: the presence part of `sections.results`."""
    labels = list(dict.fromkeys((line["editor"], line["track"]) for line in table.data))
    metrics = [m for m in ("removal_vqa", "removal_ovd") if any(line["metric"] == m for line in table.data)]
    if not metrics:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7, 0.9 + 0.36 * len(labels)), layout="constrained")
        panel = figure.subplots()
        for number, metric in enumerate(metrics):
            offset = (number - (len(metrics) - 1) / 2) * 0.4
            lines = {(x["editor"], x["track"]): x for x in table.data if x["metric"] == metric}
            own = [
                (y + offset, lines[k])
                for y, k in enumerate(labels)
                if k in lines and lines[k]["value"] is not None
            ]
            _bars(panel, own, COLORS[metric], METRICS[metric].title)
        panel.set_yticks(range(len(labels)), [f"{editor}, {track}" for editor, track in labels])
        panel.invert_yaxis()
        panel.set_xlim(0, 100)
        panel.set_xlabel("Removal, per cent")
        panel.grid(axis="x", color="#e5e7eb")
        panel.legend(frameon=False, fontsize=8)
    return Plot("removal", "Removal by run, with 95 % intervals clustered by source image", figure)


def reliability(known: Sequence[Calibration]) -> Plot | None:
    """Share of objects really there against the judge's soft score, one panel per judge."""
    drawn = [judge for judge in known if any(row["score"] is not None for row in judge.rows)]
    if not drawn:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.4 * len(drawn), 3.4), layout="constrained")
        panels = figure.subplots(1, len(drawn), squeeze=False)[0]
        for panel, judge in zip(panels, drawn, strict=True):
            rows = [row for row in judge.rows if row["score"] is not None]
            bins, error = calibration.reliability(
                [r["score"] for r in rows], [r["present"] for r in rows], [r["cluster"] for r in rows]
            )
            x, y = [b.score for b in bins], [b.present.value for b in bins]
            low = [v - (v if b.present.low is None else b.present.low) for v, b in zip(y, bins, strict=True)]
            high = [
                (v if b.present.high is None else b.present.high) - v for v, b in zip(y, bins, strict=True)
            ]
            panel.plot([0, 1], [0, 1], color="#9ca3af", linewidth=1, linestyle="--")
            panel.errorbar(
                x, y, yerr=[low, high], fmt="o-", color=COLORS[judge.kind], markersize=4, capsize=2
            )
            panel.set_xlim(-0.02, 1.02)
            panel.set_ylim(-0.02, 1.02)
            panel.set_xlabel("P(yes)" if judge.kind == "vqa" else "highest box score")
            panel.set_ylabel("share really present")
            panel.set_title(f"{KINDS[judge.kind]}: calibration error {error:.3f}", fontsize=10, loc="left")
            panel.grid(color="#e5e7eb")
    return Plot("reliability", "Reliability of the judges' soft scores on pictures of known truth", figure)


def _bars(panel: Any, own: Sequence[tuple[float, Any]], color: str, name: str) -> None:
    if not own:
        return
    values = [100 * line["value"] for _, line in own]
    ends = [
        [100 * abs(line["value"] - (line["value"] if line[end] is None else line[end])) for _, line in own]
        for end in ("low", "high")
    ]
    panel.barh([y for y, _ in own], values, height=0.36, color=color, alpha=0.75, label=name)
    panel.errorbar(
        values, [y for y, _ in own], xerr=ends, fmt="none", ecolor="#111827", elinewidth=0.9, capsize=2
    )


def _template(line: Any) -> int:
    return 99 if line["template"] is None else line["template"]
