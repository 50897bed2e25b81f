"""Plots of a NegVQA report: accuracy, outcomes of pairs, and accuracy against the number of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from nein.benchmarks.negvqa import table1
from nein.benchmarks.negvqa.figures import headline
from nein.benchmarks.negvqa.tables import Summaries
from nein.benchmarks.nein.reporting.plots import _STYLE, Plot
from nein.datasets.negvqa.categories import AVERAGE, CATEGORIES, OTHER, TITLES

COLORS = {"original": "#1d4ed8", "negated": "#c2410c"}
OUTCOMES = {"both": ("both right", "#166534"), "only_original": ("only original", "#60a5fa"),
            "only_negated": ("only negated", "#fdba74"), "neither": ("neither", "#9ca3af")}  # fmt: skip
MARKERS = "osD^vP*Xhp"


def all_plots(found: Summaries) -> list[Plot]:
    """Every plot of the report."""
    return [bars(found), pairs(found), *scaling(found)]


def _accuracy(summary: Mapping[str, Any], protocol: str) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {
        (e["variant"], e["category"]): e
        for e in summary["accuracy"]
        if e["scoring"] == headline(summary) and e["protocol"] == protocol
    }


def bars(found: Summaries) -> Plot:
    """One panel per model, original beside negated per category, with clustered intervals."""
    columns = min(3, len(found))
    rows = math.ceil(len(found) / columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(1.2 + 3.6 * columns, 0.6 + 2.9 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for panel, (name, summary) in zip(panels.flat, found.items(), strict=False):
            own = _accuracy(summary, "fixed")
            categories = [c for c in (*CATEGORIES, OTHER, AVERAGE) if ("original", c) in own]
            for offset, variant in ((-0.2, "original"), (0.2, "negated")):
                entries = [(x + offset, own[variant, c]) for x, c in enumerate(categories)]
                drawn = [(x, e) for x, e in entries if e["value"] is not None]
                values = [100 * e["value"] for _, e in drawn]
                ends = [
                    [100 * abs(e["value"] - (e["value"] if e[end] is None else e[end])) for _, e in drawn]
                    for end in ("low", "high")
                ]
                panel.bar([x for x, _ in drawn], values, width=0.38, color=COLORS[variant])
                panel.errorbar([x for x, _ in drawn], values, yerr=ends, fmt="none", ecolor="#111827",
                               elinewidth=0.9, capsize=2)  # fmt: skip
            panel.axhline(50, color="#6b7280", linewidth=0.9, linestyle="--")
            panel.set_xticks(range(len(categories)), [TITLES.get(c, c) for c in categories], fontsize=8)
            panel.set_ylim(0, 105)
            panel.set_xlim(-0.6, len(categories) - 0.4)
            scored = min(own[variant, AVERAGE]["n"] for variant in COLORS)
            panel.set_title(f"{name}, {headline(summary)}, n {scored}", fontsize=10, loc="left")
            panel.grid(axis="y", color="#e5e7eb")
            panel.tick_params(labelleft=True)
            if all(entry["value"] is None for entry in own.values()):
                panel.text(0.5, 0.6, "no letter could be read", ha="center", transform=panel.transAxes)
        for panel in list(panels.flat)[len(found) :]:
            panel.set_visible(False)
        panels[0, 0].set_ylabel("accuracy, per cent")
        handles = [Patch(color=color, label=variant) for variant, color in COLORS.items()]
        figure.legend(handles=handles, frameon=False, fontsize=8, ncols=2, loc="outside lower center")
    title = (
        "Accuracy on original and negated questions by category, protocol 'fixed', with 95 % intervals "
        "clustered by picture; dashed: two options by chance"
    )
    return Plot("accuracy", title, figure)


def pairs(found: Summaries) -> Plot:
    """One stacked bar per model: what happened to the pairs."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7, 1.1 + 0.45 * len(found)), layout="constrained")
        panel = figure.subplots()
        names = []
        for y, (name, summary) in enumerate(found.items()):
            entry = next(
                e
                for e in summary["paired"]
                if (e["scoring"], e["protocol"], e["category"]) == (headline(summary), "fixed", AVERAGE)
            )
            names.append(f"{name}, n {entry['n']}")
            left = 0.0
            for key, (title, color) in OUTCOMES.items():
                share = 100 * entry[key] / max(1, entry["n"])
                panel.barh(y, share, left=left, height=0.6, color=color, label=title if y == 0 else None)
                if share >= 6:
                    panel.text(left + share / 2, y, f"{share:.0f}", ha="center", va="center", fontsize=8,
                               color="white" if key == "both" else "#111827")  # fmt: skip
                left += share
        panel.set_yticks(range(len(found)), names)
        panel.invert_yaxis()
        panel.set_xlim(0, 100)
        panel.set_xlabel("per cent of the pairs scored in both")
        figure.legend(*panel.get_legend_handles_labels(), frameon=False, fontsize=8, ncols=4,
                      loc="outside lower center")  # fmt: skip
    return Plot("outcomes", "Original and negated question of a pair together", figure)


def points(found: Summaries) -> dict[str, list[dict[str, Any]]]:
    """Family -> its models by size: `size` (billions of parameters), `name`, `own` (measured here, not
    printed), and (variant, category) -> share.

    A model measured here belongs to the family that its name says; one whose name says none is left out.
    """
    families: dict[str, list[dict[str, Any]]] = {}
    for name in dict.fromkeys(cell.model for cell in table1.cells()):
        known = table1.family(name)
        if known is None or name in table1.NOT_DRAWN:
            continue
        shares = {(c.variant, c.category): c.value for c in table1.cells() if c.model == name}
        families.setdefault(known[0], []).append(
            {"size": known[1], "name": name, "own": False, "shares": shares}
        )
    for name, summary in found.items():
        printed = table1.known(summary["reference"])
        known = table1.family(printed or summary["reference"])
        if known is None or summary["preset"] == "nano":
            continue
        shares = {key: e["value"] for key, e in _accuracy(summary, "paper").items() if e["value"] is not None}
        families.setdefault(known[0], []).append(
            {"size": known[1], "name": name, "own": True, "shares": shares}
        )
    for members in families.values():
        members.sort(key=lambda member: (member["size"], member["own"]))
    return families


def scaling(found: Summaries) -> list[Plot]:
    """Accuracy against parameters, a line per family: original left, negated right, a row per category."""
    families = points(found)
    drawn = (AVERAGE, *CATEGORIES)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 1.0 + 2.5 * len(drawn)), layout="constrained")
        panels = figure.subplots(len(drawn), 2, sharex=True)
        for row, category in enumerate(drawn):
            for column, variant in enumerate(COLORS):
                panel = panels[row, column]
                for number, (family, members) in enumerate(families.items()):
                    for own in (False, True):
                        line = [
                            (m["size"], 100 * m["shares"][variant, category])
                            for m in members
                            if m["own"] == own and (variant, category) in m["shares"]
                        ]
                        if line:
                            panel.plot(
                                *zip(*line, strict=True), marker=MARKERS[number % len(MARKERS)], markersize=5,
                                linewidth=1.3, color=f"C{number % 10}", linestyle=":" if own else "-",
                                markerfacecolor="white" if own else f"C{number % 10}",
                                label=f"{family}, here" if own else family,
                            )  # fmt: skip
                panel.set_xscale("log", base=2)
                panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
                panel.set_ylim(15, 101)
                panel.axhline(50, color="#6b7280", linewidth=0.9, linestyle="--")
                panel.grid(color="#e5e7eb")
                panel.set_title(
                    f"{TITLES.get(category, category)}, {variant} questions", fontsize=10, loc="left"
                )
                panel.tick_params(labelbottom=True)
            panels[row, 0].set_ylabel("accuracy, per cent")
        for panel in panels[-1]:
            panel.set_xlabel("parameters, billions")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), frameon=False, fontsize=8, ncols=4,
                      loc="outside lower center")  # fmt: skip
    title = (
        "Accuracy against size by family: the paper's Table 1 (solid), and models measured here whose names "
        "say their size (dotted, open). Dashed: two options by chance"
    )
    return [Plot("scaling", title, figure)]
