"""Pictures of an evaluation: recall, accuracy by type of question, what is chosen."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from nein.benchmarks.negbench import report
from nein.benchmarks.negbench.results import TEXT_TO_IMAGE
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.nein.reporting.plots import _STYLE, Plot
from nein.datasets.negbench.records import NEGATED, ORIGINAL, TEMPLATES
from nein.datasets.negbench.registry import RETRIEVAL

COLORS = {
    ORIGINAL: "#1d4ed8", NEGATED: "#c2410c", "all": "#374151",
    "affirmation": "#1d4ed8", "negation": "#c2410c", "hybrid": "#7c3aed",
}  # fmt: skip
Summaries = Sequence[Mapping[str, Any]]
Name = tuple[str, str, str]  # model, data, wording
Group = TypeVar("Group")
PER_LINE = 6  # groups of bars beside each other
_CHANCE: dict[str, Any] = {"color": "#111827", "linewidth": 1.2, "linestyle": ":"}


def all_plots(summaries: Summaries) -> list[Plot]:
    """Those for which there are figures."""
    found = (recall(summaries), accuracy(summaries), chosen(summaries))
    return [plot for plot in found if plot is not None]


def recall(summaries: Summaries) -> Plot | None:
    """Text-to-image recall with original and with negated captions, one group of bars per run."""
    groups = [
        ((s["model"], s["title"], variant), s, variant)
        for s in summaries
        for variant in report._variants(s, RETRIEVAL)
    ]
    if not groups:
        return None
    lines = [(k, part) for part in _lines(groups) for k in KS]
    with matplotlib.rc_context(_STYLE):
        canvas = _canvas(groups, len(lines))
        for panel, (k, part) in zip(canvas.subplots(len(lines), 1, squeeze=False)[:, 0], lines, strict=True):
            for kind, offset in ((ORIGINAL, -0.18), (NEGATED, 0.18)):
                about = {"task": RETRIEVAL, "direction": TEXT_TO_IMAGE, "metric": f"recall@{k}", "kind": kind}
                found = [report.pick(s, variant=v, **about) for _, s, v in part]
                _bars(panel, found, offset, 0.34, COLORS[kind])
            _finish(panel, [name for name, *_ in part], _width(groups), f"recall@{k}, per cent")
        _legend(canvas, {kind: f"{kind} captions" for kind in (ORIGINAL, NEGATED)})
    return Plot("recall", "Text-to-image recall with original and negated captions, 95 % intervals", canvas)


def accuracy(summaries: Summaries) -> Plot | None:
    """Multiple-choice accuracy in total and by type of question, with chance."""
    groups = _groups(summaries)
    if not groups:
        return None
    lines = _lines(groups)
    with matplotlib.rc_context(_STYLE):
        canvas = _canvas(groups, len(lines))
        for panel, part in zip(canvas.subplots(len(lines), 1, squeeze=False)[:, 0], lines, strict=True):
            for place, (_, s, t, v) in enumerate(part):
                about = {"task": t, "variant": v}
                found = {
                    type_: figure
                    for type_ in ("all", *TEMPLATES)
                    if (figure := report.pick(s, **about, metric="accuracy", type=type_)) is not None
                }
                for number, (type_, figure) in enumerate(found.items()):  # a binary task has only "all"
                    offset = place + (number - (len(found) - 1) / 2) * 0.2
                    _bars(panel, [figure], offset, 0.19, COLORS[type_])
                if (chance := report.pick(s, **about, metric="chance")) is not None:
                    panel.hlines(100 * chance["value"], place - 0.45, place + 0.45, **_CHANCE)
            _finish(panel, [name for name, *_ in part], _width(groups), "accuracy, per cent")
        names = {type_: type_ for type_ in ("all", *TEMPLATES)}
        _legend(canvas, names, Line2D([], [], label="chance", **_CHANCE))
    return Plot("mcq", "Multiple-choice accuracy by type of question, 95 % intervals", canvas)


def chosen(summaries: Summaries) -> Plot | None:
    """Which templates are chosen (left), and how wrong answers fall by type of question (right)."""
    groups = [
        g for g in _groups(summaries) if report.select(g[1], task=g[2], variant=g[3], metric="selected")
    ]
    if not groups:
        return None
    types = ("all", *TEMPLATES)
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(8.2, 0.9 + 1.9 * len(groups)), layout="constrained")
        panels = canvas.subplots(len(groups), 2, squeeze=False, width_ratios=(1, 1.25))
        for (left, right), (name, s, t, v) in zip(panels, groups, strict=True):
            about = {"task": t, "variant": v}
            for metric, offset, shade in (("selected", -0.18, 1.0), ("offered", 0.18, 0.35)):
                for place, template in enumerate(TEMPLATES):
                    figure = report.pick(s, **about, metric=metric, template=template)
                    _bars(left, [figure], offset + place, 0.34, COLORS[template], shade)
            left.set_xticks(range(len(TEMPLATES)), TEMPLATES)
            left.set_ylabel("per cent")
            left.set_title(f"{', '.join(name)}: chosen (pale: offered)", loc="left", fontsize=9)
            left.set_ylim(0, 100)
            matrix = np.array(
                [
                    [_value(report.pick(s, **about, metric="wrong", type=y, template=x)) for x in TEMPLATES]
                    for y in types
                ]
            )
            right.imshow(matrix, cmap="Oranges", vmin=0, vmax=100, aspect="auto")
            for y, x in np.ndindex(matrix.shape):
                text = "–" if np.isnan(matrix[y, x]) else f"{matrix[y, x]:.0f}"
                ink = "white" if matrix[y, x] > 60 else "#111827"
                right.text(x, y, text, ha="center", va="center", color=ink)
            right.set_xticks(range(len(TEMPLATES)), TEMPLATES)
            right.set_yticks(range(len(types)), [_of_type(report.pick(s, **about, metric="wrong", type=y), y)
                                                 for y in types])  # fmt: skip
            right.set_title("wrong answers: what was chosen, per cent", loc="left", fontsize=9)
            right.spines[:].set_visible(False)
    return Plot("choices", "What is chosen, and how wrong answers fall", canvas)


def _of_type(figure: Mapping[str, Any] | None, type_: str) -> str:
    return f"{type_} questions\n{0 if figure is None else figure['n']:g} wrong"


def _groups(summaries: Summaries) -> list[tuple[Name, Mapping[str, Any], str, str]]:
    found = []
    for s in summaries:
        for task, variant in report._choice_tasks(s):
            model, data, wording = report._label(s, variant, task)
            found.append(((model, data, wording), s, task, variant))
    return found


def _lines(groups: Sequence[Group]) -> list[Sequence[Group]]:
    """The groups, as many to a line as can be read."""
    return [groups[start : start + PER_LINE] for start in range(0, len(groups), PER_LINE)]


def _width(groups: Sequence[Any]) -> int:
    return min(PER_LINE, len(groups))


def _canvas(groups: Sequence[Any], lines: int) -> Canvas:
    return Canvas(figsize=(2.4 + 1.7 * _width(groups), 3.3 * lines), layout="constrained")


def _legend(canvas: Canvas, names: Mapping[str, str], *more: Any) -> None:
    handles = [Patch(color=COLORS[key], label=text) for key, text in names.items()]
    canvas.legend(handles=[*handles, *more], frameon=False, fontsize=8, loc="outside right upper")


def _value(figure: Mapping[str, Any] | None) -> float:
    return float("nan") if figure is None or figure["value"] is None else 100 * figure["value"]


def _bars(
    panel: Any,
    figures: Sequence[Mapping[str, Any] | None],
    offset: float,
    width: float,
    color: str,
    shade: float = 1.0,
) -> None:
    for place, figure in enumerate(figures):
        if figure is None or figure["value"] is None:
            continue
        value = 100 * figure["value"]
        error = None
        if figure.get("low") is not None:
            error = [[max(0.0, value - 100 * figure["low"])], [max(0.0, 100 * figure["high"] - value)]]
        panel.bar(
            place + offset, value, width, yerr=error, color=color, alpha=shade,
            error_kw={"linewidth": 1, "ecolor": "#111827"},
        )  # fmt: skip


def _finish(panel: Any, names: Sequence[Name], width: int, title: str) -> None:
    labels = ["\n".join(textwrap.fill(part, 24) for part in name) for name in names]
    panel.set_xticks(range(len(names)), labels, fontsize=8)
    panel.set_xlim(-0.6, width - 0.4)
    panel.set_ylim(0, 100)
    panel.set_ylabel(title)
    panel.grid(axis="y", color="#e5e7eb")
