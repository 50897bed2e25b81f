"""Draws the frame of estimates with matplotlib, as `bars` and as `curves`, for a page and a paper.

Parts: `Plot`, the description of a plot; the functions `bars` and `curves`; the panels of both. One panel is
as wide as a column of a paper; several stand side by side across its page and share their axes. Bars are
horizontal, so that names of any length have room.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from nein.reporting import figures as frames

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, GREY, FAINT = "#111827", "#6b7280", "#e5e7eb"
BLUE, RED, GREEN, VIOLET, OCHRE = "#1d4ed8", "#c2410c", "#166534", "#7c3aed", "#a16207"
PALETTE = (BLUE, RED, "#0f766e", VIOLET, OCHRE, "#be123c", "#4b5563", "#0891b2", "#db2777", "#65a30d")
MARKERS = "osD^vP*Xhp"  # of matplotlib, one per line of a panel
COLUMN, PAGE = 3.3, 6.9  # inches: width of a plot with one panel, with several
LETTERS = 17  # letters of 8 points that fit into an inch
#: Kind of file -> its field for a date or a version, which is left out: equal plots are equal bytes.
FILE_KINDS = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}
#: Settings of matplotlib: letters of 8 points, INK for texts and axes, no frames; equal plots, equal bytes.
_STYLE: Any = (
    dict.fromkeys(("font.size", "axes.titlesize", "legend.fontsize"), 8)
    | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    | dict.fromkeys(("axes.spines.top", "axes.spines.right", "text.parse_math", "legend.frameon"), False)
    | {"svg.hashsalt": "nein", "pdf.fonttype": 42, "axes.axisbelow": True, "grid.color": FAINT}
    | {"lines.markersize": 4, "axes.titlelocation": "left", "errorbar.capsize": 1.5}
    | {"legend.handlelength": 1.2, "legend.columnspacing": 1.5}
)


class Plot(NamedTuple):
    """The description of a plot."""

    key: str  # end of the file's name
    title: str  # its caption
    where: Mapping[str, Any]  # the estimates shown: entries for `figures.select`
    draw: Callable[..., Canvas]  # `bars` or `curves`
    options: Mapping[str, Any]  # further arguments of `draw`

    def files(self, figures: pd.DataFrame, stamp: str, kinds: Sequence[str]) -> dict[str, bytes]:
        """Kind of file -> the plot of these estimates as a file, with the text `stamp` below it."""
        import matplotlib

        files = {}
        with matplotlib.rc_context(_STYLE):
            canvas = self.draw(figures, **self.options)
            if stamp:
                text = textwrap.fill(stamp, int(LETTERS * canvas.get_figwidth()))
                canvas.supxlabel(text, x=0.01, ha="left", fontsize=8, color=GREY)
            canvas.draw_without_rendering()
            canvas.set_layout_engine("none")  # laid out once for all kinds
            for kind in kinds:
                buffer = io.BytesIO()
                canvas.savefig(buffer, format=kind, dpi=220, metadata={FILE_KINDS[kind]: None})
                files[kind] = buffer.getvalue()
        return files


def plot(key: str, title: str, where: Mapping[str, Any], draw: Callable[..., Canvas], **options: Any) -> Plot:
    """Makes a `Plot`; its options are written as keywords."""
    return Plot(key, title, where, draw, options)


def draw_all(
    plots: Iterable[Plot], figures: pd.DataFrame, stamp: str = "", kinds: Sequence[str] = tuple(FILE_KINDS)
) -> list[tuple[Plot, dict[str, bytes]]]:
    """The plots that have estimates in the frame, each with its files."""
    drawn = []
    for item in plots if kinds else ():
        rows = frames.select(figures, **item.where)
        rows = rows[rows["value"].notna()] if "value" in rows else rows
        if len(rows):
            drawn.append((item, item.files(rows, stamp, kinds)))
    return drawn


# --- bars and curves -------------------------------------------------------------------------
def bars(
    figures: pd.DataFrame,
    *,
    place: Sequence[str],  # columns whose entries are groups of bars
    series: str,  # column whose entries are the bars of a group
    panel: Sequence[str] = (),  # columns whose entries are panels
    order: Sequence[str] = (),  # of places, panels and series; other entries follow as they appear
    names: Mapping[str, str] = MappingProxyType({}),  # entry -> its text
    colors: Mapping[str, str] = MappingProxyType({}),  # entry of `series` -> color; others: from the palette
    axis: str = "per cent",  # title of the axis of values
    limits: tuple[float, float] | None = (0, 100),  # of that axis, in the unit shown
    rule: float | Mapping[str, float] | None = None,  # value of a dashed line, in all panels or by panel
    marks: Mapping[str, str] = MappingProxyType({}),  # metric that is no bar -> its marker
    dots: bool = False,  # in place of bars, for estimates that do not grow from zero
) -> Canvas:
    """Draws bars with intervals. `marks` are white marks on them or, for "|", a line across the group."""
    figures = _prepare(figures, place, panel)
    drawn = figures[~figures["metric"].isin([*marks])]
    groups = frames.list_entries(drawn, "_place", order)
    bar_names = frames.list_entries(drawn, series, order)
    panel_names = frames.list_entries(drawn, "_panel", order)
    # Panels. Their height grows with the groups, and with the lines of a group's name (at most 3).
    full = [names.get(group, group) for group in groups]
    ticks = [textwrap.fill(name if len(name) <= 72 else f"…{name[-71:]}", 24) for name in full]
    lines = 1 + max((tick.count("\n") for tick in ticks), default=0)
    height = 0.4 + max(0.16 * len(bar_names), 0.24, 0.13 * lines + 0.04) * len(groups)  # inches
    canvas, axes = panels([names.get(name, name) for name in panel_names], height, label_width=1.2)
    # The groups are at y = 0, 1, 2, ... from above; the bars of a group lie around its y.
    offsets = {bar: 0.8 * ((number + 0.5) / len(bar_names) - 0.5) for number, bar in enumerate(bar_names)}
    for ax, panel_name in zip(axes, panel_names or [""], strict=True):
        for number, bar in enumerate(bar_names):
            rows = frames.select(drawn, **{"_panel": panel_name, series: bar})
            ys = rows["_place"].map(groups.index).to_numpy(float) + offsets[bar]  # (N,)
            color = colors.get(bar, PALETTE[number % len(PALETTE)])
            style: Any = {"color": color, "label": names.get(bar, bar), "xerr": _measure_errors(rows)}
            if dots:
                ax.errorbar(rows["value"], ys, fmt="o", elinewidth=1.2, **style)
            else:
                error_style = {"ecolor": INK, "elinewidth": 0.8}
                ax.barh(ys, rows["value"], 0.72 / len(bar_names), alpha=0.85, error_kw=error_style, **style)
        for metric, marker in marks.items():
            rows = frames.select(figures, metric=metric, _panel=(panel_name, ""), _place=groups)
            ys = rows["_place"].map(groups.index).to_numpy(float)
            if marker == "|":
                ax.vlines(rows["value"], ys - 0.45, ys + 0.45, color=INK, linewidth=1, linestyle=":")
            elif len(rows):
                style = {"color": "white", "markeredgecolor": INK, "label": metric, "zorder": 4}
                ax.plot(rows["value"], ys + rows[series].map(offsets), marker, clip_on=False, **style)
        ax.grid(axis="x")
        ax.axvline(0, color=INK, linewidth=0.8)
        dashed = rule.get(panel_name) if isinstance(rule, Mapping) else rule
        if dashed is not None:
            ax.axvline(dashed, color=GREY, linewidth=0.8, linestyle="--")
    axes[0].set_yticks(range(len(ticks)), ticks)  # all panels share its axes
    axes[0].set(ylim=(len(ticks) - 0.5, -0.5))
    if limits:
        axes[0].set_xlim(limits)
    return add_labels(canvas, axis)


def curves(
    figures: pd.DataFrame,
    *,
    x: str,  # column of numbers
    line: str,  # column whose entries are lines
    panel: Sequence[str],  # columns whose entries are panels
    axes: tuple[str, str],  # titles of x and y
    order: Sequence[str] = (),  # of panels and lines; other entries follow as they appear
    names: Mapping[str, str] = MappingProxyType({}),  # entry -> its text
    hollow: Mapping[str, str] = MappingProxyType({}),  # column -> entry: drawn dotted, with open markers
    limits: tuple[float, float] = (0, 100),  # of y, in the unit shown
    rule: float | None = None,  # level of a dashed line
    diagonal: bool = False,  # draw the dashed line y = 100 x, for x in [0, 1]
    log: bool = False,  # draw a logarithmic x axis
) -> Canvas:
    """Draws lines with intervals, each through its estimates in the order of `x`."""
    figures = _prepare(figures, (), panel).astype({x: float}).sort_values(x, kind="stable")
    panel_names = frames.list_entries(figures, "_panel", order)
    line_names = frames.list_entries(figures, line, order)
    has_whole_steps = not log and bool((figures[x] % 1 == 0).all())
    canvas, panel_axes = panels([names.get(name, name) for name in panel_names], 1.9)
    for ax, panel_name in zip(panel_axes, panel_names, strict=True):
        for number, line_name in enumerate(line_names):
            rows = frames.select(figures, **{"_panel": panel_name, line: line_name})
            # In steps of 1, lines are moved apart by 0.035, so that equal ones do not hide each other.
            offset = 0.035 * (number - (len(line_names) - 1) / 2) if has_whole_steps else 0.0
            color = PALETTE[number % len(PALETTE)]
            style: Any = {"color": color, "marker": MARKERS[number % len(MARKERS)]}
            style |= {"label": names.get(line_name, line_name), "clip_on": limits != (0, 100)}
            style |= {"elinewidth": 0.8, "linewidth": 1.1}
            dotted: Any = frames.select(rows, **hollow).index if hollow else []
            for part, linestyle, face in ((rows.drop(dotted), "-", color), (rows.loc[dotted], ":", "white")):
                if len(part):
                    style |= {"linestyle": linestyle, "markerfacecolor": face, "yerr": _measure_errors(part)}
                    ax.errorbar(part[x] + offset, part["value"], **style)
        ax.grid()
        if rule is not None:
            ax.axhline(rule, color=GREY, linewidth=0.8, linestyle="--")
        if diagonal:
            ax.plot([0, 1], [0, 100], color="#9ca3af", linewidth=1, linestyle="--")
            ax.set_xlim(-0.02, 1.02)
    panel_axes[0].set_ylim(limits)  # all panels share its axes
    if has_whole_steps:
        panel_axes[0].set_xticks(figures[x].unique())
    if log:
        panel_axes[0].set_xscale("log", base=2)
        panel_axes[0].xaxis.set_major_formatter("{x:g}")
    return add_labels(canvas, *axes)


def _prepare(figures: pd.DataFrame, place: Sequence[str], panel: Sequence[str]) -> pd.DataFrame:
    """The estimates in the unit shown, with the joined entries of `place` and `panel` in new columns."""
    scale = figures["unit"].map({name: unit.scale for name, unit in frames.UNITS.items()})
    columns: dict[str, Any] = {end: figures[end].astype(float) * scale for end in ("value", "low", "high")}
    for name, joined in (("_place", place), ("_panel", panel)):
        parts = figures.reindex(columns=[*joined], fill_value="").to_numpy()
        columns[name] = [", ".join(filter(None, row)) for row in parts]
    return figures.assign(**columns)


def _measure_errors(figures: pd.DataFrame) -> Any:
    """(2, N) float64: the distances of the low and high ends from their values; None without intervals."""
    ends = figures[["low", "high"]].sub(figures["value"], axis=0).abs()
    return ends.T.to_numpy() if ends.notna().any(axis=None) else None


# --- panels ----------------------------------------------------------------------------------
def panels(
    titles: Sequence[str], height: float, *, label_width: float = 0.4, shared: bool = True
) -> tuple[Canvas, list[Axes]]:
    """Makes a panel of `height` inches per title, at most three in a row; one panel without titles.

    label_width  Inches at the left of a row for names.     shared  Whether all panels have the same axes.
    """
    from matplotlib.figure import Figure

    count = max(1, len(titles))
    across = 2 if count in (2, 4) else min(count, 3)
    down = math.ceil(count / across)
    width = COLUMN if count == 1 else PAGE
    letters = int(LETTERS * (width - label_width) / across)
    wrapped = [textwrap.fill(title, letters) for title in titles]
    lines = 1 + max((title.count("\n") for title in wrapped), default=0)
    size = (width, 0.5 + down * (height + 0.1 + 0.15 * lines))  # inches
    canvas = Figure(figsize=size, layout="constrained")
    axes = [*canvas.subplots(down, across, squeeze=False, sharex=shared, sharey=shared).flat]
    for empty in axes[count:]:
        empty.remove()
    for ax, title in zip(axes, wrapped, strict=False):
        ax.set_title(title)
    # The lowest panel of each column has numbers below its axis, also above an empty place.
    for ax in axes[max(0, count - across) : count]:
        ax.tick_params(labelbottom=True)
    return canvas, axes[:count]


def add_labels(canvas: Canvas, x: str, y: str = "") -> Canvas:
    """Names the axes x and y at the outer panels, and adds one legend of all panels if it has two entries."""
    from matplotlib.lines import Line2D

    handle_of: dict[str, Any] = {}  # text of the legend -> its line or bar
    for ax in canvas.axes:
        spec: Any = ax.get_subplotspec()
        if ax.xaxis.get_tick_params()["labelbottom"]:
            ax.set_xlabel(x)
        if spec.is_first_col():
            ax.set_ylabel(y)
        handles, labels = ax.get_legend_handles_labels()
        handle_of = dict(zip(labels, handles, strict=True)) | handle_of
    handle_of = dict(sorted(handle_of.items(), key=lambda item: isinstance(item[1], Line2D)))  # marks last
    if len(handle_of) > 1:
        letters = int(LETTERS * canvas.get_figwidth())
        columns = max(1, min(len(handle_of), letters // (7 + max(map(len, handle_of)))))  # 7: a handle
        canvas.legend([*handle_of.values()], [*handle_of], ncols=columns, loc="outside upper left")
    return canvas
