"""Scatter plots of templates (like figures 6 and 9 of the paper) and the measures beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nein.benchmarks.negbench.analysis.measures import MEASURES, components
from nein.benchmarks.negbench.analysis.templates import (
    AFFIRMED,
    DENIED,
    HYBRID,
    NEITHER,
    TITLES,
    TWO,
    Sentence,
)
from nein.benchmarks.nein.reporting.plots import _STYLE, Plot

COLORS = {
    AFFIRMED: "#1d4ed8", DENIED: "#c2410c", TWO: "#0891b2", HYBRID: "#7c3aed", NEITHER: "#be123c",
}  # fmt: skip
PALETTE = ("#1d4ed8", "#c2410c", "#0f766e", "#7c3aed", "#a16207", "#be123c", "#4b5563", "#0891b2")


def scatter(
    key: str,
    title: str,
    features: Mapping[str, np.ndarray],
    sentences: Sequence[Sentence],
    pair: tuple[str, str],
    groups: Sequence[str],
) -> Plot:
    """One panel per model: the two principal components of the sentences of `groups`.

    Colour is the group, the marker which object stands first; components are those of the sentences shown.
    """
    chosen = [i for i, s in enumerate(sentences) if s.group in groups]
    columns = min(3, len(features))
    rows = math.ceil(len(features) / columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(0.4 + 3.5 * columns, 0.9 + 3.3 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for panel in panels.flat[len(features) :]:
            panel.set_visible(False)
        for panel, (model, found) in zip(panels.flat, features.items(), strict=False):
            points, shares = components(found[chosen])
            for group in groups:
                for first, marker in ((True, "o"), (False, "^")):
                    own = [
                        row
                        for row, i in enumerate(chosen)
                        if sentences[i].group == group and sentences[i].first == first
                    ]
                    panel.scatter(
                        points[own, 0], points[own, 1], s=22, marker=marker, color=COLORS[group], alpha=0.75,
                        linewidths=0,
                    )  # fmt: skip
            panel.set_title(model, loc="left", fontsize=10)
            panel.set_xlabel(f"component 1 ({100 * shares[0]:.0f} %)", fontsize=8)
            panel.set_ylabel(f"component 2 ({100 * shares[1]:.0f} %)", fontsize=8)
            panel.set_xticks([])
            panel.set_yticks([])
        handles = [Line2D([], [], marker="s", linestyle="", color=COLORS[g], label=TITLES[g]) for g in groups]
        handles += [
            Line2D([], [], marker=marker, linestyle="", color="#6b7280", label=f"A = {name}")
            for marker, name in zip("o^", pair, strict=True)
        ]
        figure.legend(
            handles=handles, frameon=False, fontsize=8, loc="outside lower center", ncols=min(4, len(handles))
        )
    return Plot(key, title, figure)


def measures(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Plot:
    """Dots with intervals: one panel per measure that is a share or a cosine, one line per model.

    found  Model -> measure -> {value, low, high}.
    """
    names = list(MEASURES)
    models = list(found)
    columns = 3
    rows = math.ceil(len(names) / columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10.5, rows * (0.75 + 0.26 * len(models))), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for panel in panels.flat[len(names) :]:
            panel.set_visible(False)
        for panel, name in zip(panels.flat, names, strict=False):
            title, chance = MEASURES[name]
            for y, model in enumerate(models):
                entry = found[model][name]
                color = PALETTE[y % len(PALETTE)]
                if entry["low"] is not None:
                    panel.hlines(y, entry["low"], entry["high"], color=color, linewidth=1.4)
                panel.plot([entry["value"]], [y], "o", color=color, markersize=5)
            if chance is not None:
                panel.axvline(chance, color="#111827", linewidth=0.8, linestyle=":")
            low = min(0.0, *(found[m][name]["value"] for m in models))
            panel.set_xlim(min(low, 0.0) - 0.03, 1.03)
            panel.set_ylim(len(models) - 0.5, -0.5)
            panel.set_yticks(range(len(models)), models)
            panel.set_title(title, loc="left", fontsize=9)
            panel.grid(axis="x", color="#e5e7eb")
    return Plot("measures", "What each encoder separates, with 95 % intervals over pairs of objects", figure)
