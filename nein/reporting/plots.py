"""Plots: `bars` and `curves` are functions of the frame of figures, drawn by matplotlib.

A `Plot` names one of them and the figures that it draws. Panels stand below each other, as wide as a column
of a paper or a telephone; bars lie, so that names of any length have room.
"""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from nein.reporting import figures as frames
from nein.reporting.figures import UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, GREY, FAINT = "#111827", "#6b7280", "#e5e7eb"
BLUE, RED, GREEN, VIOLET, OCHRE = "#1d4ed8", "#c2410c", "#166534", "#7c3aed", "#a16207"
PALETTE = (BLUE, RED, "#0f766e", VIOLET, OCHRE, "#be123c", "#4b5563", "#0891b2", "#db2777", "#65a30d")
MARKERS = "osD^vP*Xhp"
WIDTH = 3.4  # inches
_ASIDE = 0.035  # between lines that would hide each other, where one step of x is 1
_STYLE: Any = (
    dict.fromkeys(("font.size", "axes.titlesize", "legend.fontsize"), 8)
    | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    | dict.fromkeys(("axes.spines.top", "axes.spines.right", "text.parse_math", "legend.frameon"), False)
    | {"svg.hashsalt": "nein", "lines.markersize": 4, "axes.titlelocation": "left", "errorbar.capsize": 1.5}
    | {"legend.handlelength": 1.2, "legend.columnspacing": 1.5, "axes.axisbelow": True, "grid.color": FAINT}
)


class Plot(NamedTuple):
    """key: end of the file's name; title: its caption; where: the figures that are drawn, as `figures.select`
    takes them; draw, options: `bars`, say, and its further arguments."""

    key: str
    title: str
    where: Mapping[str, Any]
    draw: Callable[..., Canvas]
    options: Mapping[str, Any]

    def shown(self, figures: pd.DataFrame) -> pd.DataFrame:
        chosen = frames.select(figures, **self.where)
        return chosen[chosen["value"].notna()] if "value" in chosen else chosen

    def files(self, figures: pd.DataFrame, stamp: str, kinds: Sequence[str]) -> dict[str, bytes]:
        """ "png", "svg" -> the plot of `shown` figures; `stamp` stands below it."""
        import matplotlib

        found = {}
        with matplotlib.rc_context(_STYLE):
            canvas = self.draw(figures, **self.options)
            if stamp:
                canvas.supxlabel(textwrap.fill(stamp, 58), x=0.01, ha="left", fontsize=8, color=GREY)
            canvas.draw_without_rendering()
            canvas.set_layout_engine("none")  # laid out once for all kinds
            for kind in kinds:
                buffer, undated = io.BytesIO(), {"png": "Software", "svg": "Date"}[kind]
                canvas.savefig(buffer, format=kind, dpi=220, metadata={undated: None})
                found[kind] = buffer.getvalue()
        return found


def plot(key: str, title: str, where: Mapping[str, Any], draw: Callable[..., Canvas], **options: Any) -> Plot:
    return Plot(key, title, where, draw, options)


def drawings(
    plots: Iterable[Plot], figures: pd.DataFrame, stamp: str = "", kinds: Sequence[str] = ("png", "svg")
) -> list[tuple[Plot, dict[str, bytes]]]:
    """The plots that the frame has figures for, each with its files."""
    chosen = [(plot, plot.shown(figures)) for plot in plots if kinds]
    return [(plot, plot.files(rows, stamp, kinds)) for plot, rows in chosen if len(rows)]


def bars(
    figures: pd.DataFrame,
    *,
    place: Sequence[str],
    series: str,
    panel: Sequence[str] = (),
    order: Sequence[str] = (),
    names: Mapping[str, str] = MappingProxyType({}),
    colors: Mapping[str, str] = MappingProxyType({}),
    axis: str = "per cent",
    limits: tuple[float, float] | None = (0, 100),
    rule: float | Mapping[str, float] | None = None,
    marks: Mapping[str, str] = MappingProxyType({}),
    dots: bool = False,
) -> Canvas:
    """Bars with intervals: a panel per entry of the columns `panel`, a group of bars per entry of `place`, a
    bar per entry of `series`.

    order   Of places, panels and series; others follow as they appear.
    names   Entry -> what is written for it.     colors  Entry of `series` -> color, else the palette.
    axis    What the length of a bar is.         limits  Of that axis, in the unit shown.
    rule    Where a dashed line stands (chance, say), in all panels or by panel.
    marks   Metric -> marker: its figures are white marks on the bars or, with the marker "|", a dotted stroke
            across the group.
    dots    A dot in place of a bar, for figures that do not grow from zero.
    """
    figures = _joined(figures, place, panel)
    drawn = figures[~figures["metric"].isin([*marks])]
    places, kinds, entries = (frames.values(drawn, column, order) for column in ("_place", series, "_panel"))
    full = [names.get(entry, entry) for entry in places]
    ticks = [textwrap.fill(name if len(name) <= 72 else f"…{name[-71:]}", 24) for name in full]
    lines = 1 + max(tick.count("\n") for tick in ticks)
    height = 0.4 + max(0.16 * len(kinds), 0.24, 0.13 * lines + 0.04) * len(places)
    canvas, axes = panels([names.get(entry, entry) for entry in entries], height)
    aside = {kind: 0.8 * ((number + 0.5) / len(kinds) - 0.5) for number, kind in enumerate(kinds)}
    for at, entry in zip(axes, entries or [""], strict=True):
        for kind, usual in zip(kinds, itertools.cycle(PALETTE), strict=False):
            rows = frames.select(drawn, **{"_panel": entry, series: kind})
            ys = rows["_place"].map(places.index).to_numpy(float) + aside[kind]
            color = colors.get(kind, usual)
            look: Any = {"color": color, "label": names.get(kind, kind), "xerr": _reach(rows)}
            if dots:
                at.errorbar(rows["value"], ys, fmt="o", elinewidth=1.2, **look)
            else:
                ends = {"ecolor": INK, "elinewidth": 0.8}
                at.barh(ys, rows["value"], 0.72 / len(kinds), alpha=0.85, error_kw=ends, **look)
        for metric, marker in marks.items():
            rows = frames.select(figures, metric=metric, _panel=(entry, ""), _place=places)
            ys = rows["_place"].map(places.index).to_numpy(float)
            if marker == "|":
                at.vlines(rows["value"], ys - 0.45, ys + 0.45, color=INK, linewidth=1, linestyle=":")
            elif len(rows):
                look = {"color": "white", "markeredgecolor": INK, "label": metric, "zorder": 4}
                at.plot(rows["value"], ys + rows[series].map(aside), marker, clip_on=False, **look)
        at.set_yticks(range(len(ticks)), ticks)
        at.set(xlabel=axis, ylim=(len(ticks) - 0.5, -0.5))
        if limits:
            at.set_xlim(limits)
        at.grid(axis="x")
        at.axvline(0, color=INK, linewidth=0.8)
        dashed = rule.get(entry) if isinstance(rule, Mapping) else rule
        if dashed is not None:
            at.axvline(dashed, color=GREY, linewidth=0.8, linestyle="--")
    return with_legend(canvas)


def curves(
    figures: pd.DataFrame,
    *,
    x: str,
    line: str,
    panel: Sequence[str],
    axes: tuple[str, str],
    order: Sequence[str] = (),
    names: Mapping[str, str] = MappingProxyType({}),
    hollow: Mapping[str, str] = MappingProxyType({}),
    limits: tuple[float, float] = (0, 100),
    rule: float | None = None,
    diagonal: bool = False,
    log: bool = False,
) -> Canvas:
    """A line with intervals per entry of `line`, through its figures in the order of the number in column
    `x`; a panel per entry of the columns `panel`; `order` and `names` as in `bars`.

    hollow    Entries of columns whose figures are drawn dotted, with open markers.
    diagonal  A dashed line of y = x.     rule, log  A dashed level; a logarithmic x axis.
    """
    figures = _joined(figures, (), panel).astype({x: float}).sort_values(x, kind="stable")
    entries, lines = frames.values(figures, "_panel", order), frames.values(figures, line, order)
    counted = not log and bool((figures[x] % 1 == 0).all())
    canvas, every = panels([names.get(entry, entry) for entry in entries], 1.9)
    for at, entry in zip(every, entries, strict=True):
        for number, kind in enumerate(lines):
            rows = frames.select(figures, **{"_panel": entry, line: kind})
            # Equal lines are seen beside each other where one step of x is 1.
            aside = _ASIDE * (number - (len(lines) - 1) / 2) if counted else 0.0
            marked: Any = frames.select(rows, **hollow).index if hollow else []
            for part, style in ((rows.drop(marked), "-"), (rows.loc[marked], ":")):
                color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
                look: Any = {
                    "color": color,
                    "marker": marker,
                    "label": names.get(kind, kind),
                    "linestyle": style,
                }
                look |= {"elinewidth": 0.8, "linewidth": 1.1, "clip_on": limits != (0, 100)}
                face = "white" if style == ":" else color
                if len(part):
                    reach = _reach(part)
                    at.errorbar(part[x] + aside, part["value"], yerr=reach, markerfacecolor=face, **look)
        at.set(xlabel=axes[0], ylabel=axes[1], ylim=limits)
        at.grid()
        if counted:
            at.set_xticks(figures[x].unique())
        if log:
            at.set_xscale("log", base=2)
            at.xaxis.set_major_formatter("{x:g}")
        if rule is not None:
            at.axhline(rule, color=GREY, linewidth=0.8, linestyle="--")
        if diagonal:
            at.plot([0, 1], [0, 100], color="#9ca3af", linewidth=1, linestyle="--")
            at.set_xlim(-0.02, 1.02)
    return with_legend(canvas)


def _joined(figures: pd.DataFrame, place: Sequence[str], panel: Sequence[str]) -> pd.DataFrame:
    """The figures with the entries of several columns side by side, as `_place` and `_panel`; numbers are as
    they are shown."""
    scale = figures["unit"].map({unit: shown.scale for unit, shown in UNITS.items()})
    numbers = {end: figures[end].astype(float) * scale for end in ("value", "low", "high")}
    texts = {}
    for name, columns in (("_place", place), ("_panel", panel)):
        parts = figures.reindex(columns=[*columns], fill_value="").to_numpy()
        texts[name] = [", ".join(filter(None, row)) for row in parts]
    return figures.assign(**numbers, **texts)


def _reach(figures: pd.DataFrame) -> Any:
    """How far the ends of intervals are from their values, (2, n); None without any."""
    ends = figures[["low", "high"]].sub(figures["value"], axis=0).abs()
    return ends.T.to_numpy() if ends.notna().any(axis=None) else None


def panels(titles: Sequence[str], height: float) -> tuple[Canvas, list[Axes]]:
    """Panels of `height` inches below each other; without a title one."""
    from matplotlib.figure import Figure

    count = max(1, len(titles))
    canvas = Figure(figsize=(WIDTH, 0.5 + count * (height + 0.5)), layout="constrained")
    axes = [*canvas.subplots(count, squeeze=False).flat]
    for at, title in zip(axes, titles, strict=False):
        at.set_title(textwrap.fill(title, 42))
    return canvas, axes


def with_legend(canvas: Canvas) -> Canvas:
    """One of all panels, marks behind bars, where it says anything."""
    from matplotlib.lines import Line2D

    found: dict[str, Any] = {}
    for at in canvas.axes:
        handles, labels = at.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    found = dict(sorted(found.items(), key=lambda entry: isinstance(entry[1], Line2D)))
    if len(found) > 1:
        columns = max(1, min(4, len(found), 54 // (7 + max(map(len, found)))))
        canvas.legend([*found.values()], [*found], ncols=columns, loc="outside upper left")
    return canvas
