"""A plot is a specification over the frame of figures; all that knows matplotlib is here.

`Bars`, `Stack`, `Curves` and `Scatter` say which figures stand where; a `Drawing` is PNG and SVG of them, the
same bytes every time. Panels stand below each other, as wide as a telephone or a column of a paper; bars lie,
so that names of any length have room.
"""

from __future__ import annotations

import io
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from nein.reporting import figures as frames
from nein.reporting.figures import UNITS, Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

INK, GREY, FAINT = "#111827", "#6b7280", "#e5e7eb"
BLUE, RED, GREEN, VIOLET, OCHRE = "#1d4ed8", "#c2410c", "#166534", "#7c3aed", "#a16207"
PALETTE = (BLUE, RED, "#0f766e", VIOLET, OCHRE, "#be123c", "#4b5563", "#0891b2", "#db2777", "#65a30d")
MARKERS = "osD^vP*Xhp"
#: Writing on a light bar: stays dark where a dark page turns `INK` light.
ON_BAR = "#0b0f19"
WIDTH = 4.2  # inches
_DPI = 220
#: Of the lines of a plot from each other, where one step of x is 1.
_ASIDE = 0.035
_HOLLOW: Any = {
    "markersize": 4.5, "markerfacecolor": "white", "markeredgecolor": INK, "markeredgewidth": 1,
}  # fmt: skip
_STYLE: Any = {
    "svg.hashsalt": "nein", "text.parse_math": False, "font.size": 9, "legend.fontsize": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "figure.facecolor": "white",
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip


@dataclass(frozen=True)
class Plot(ABC):
    """key: end of a file's name; title: its caption; where: the figures that are drawn, without any there is
    no plot; names: entry -> what is written for it."""

    key: str
    title: str
    where: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    names: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def shown(self, figures: pd.DataFrame) -> pd.DataFrame:
        return _select(figures, self.where)

    @abstractmethod
    def canvas(self, figures: pd.DataFrame) -> Canvas: ...

    def name(self, entry: str) -> str:
        return self.names.get(entry, entry)


@dataclass(frozen=True)
class Drawing:
    """A plot of figures: equal figures are equal bytes. `stamp` stands below it."""

    plot: Plot
    figures: pd.DataFrame
    stamp: str = ""

    @cached_property
    def png(self) -> bytes:
        return self._printed("png", "Software")

    @cached_property
    def svg(self) -> bytes:
        return self._printed("svg", "Date")

    @cached_property
    def _canvas(self) -> Canvas:
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            canvas = self.plot.canvas(self.figures)
            if self.stamp:
                text = textwrap.fill(self.stamp, 62)
                canvas.supxlabel(text, x=0.01, ha="left", fontsize=9, color=GREY)
            layout = canvas.get_layout_engine()
            assert layout is not None
            layout.execute(canvas)
            canvas.set_layout_engine("none")  # once for both formats
            return canvas

    def _printed(self, kind: str, unsaid: str) -> bytes:
        import matplotlib

        buffer = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            self._canvas.savefig(buffer, format=kind, dpi=_DPI, metadata={unsaid: None})
        return buffer.getvalue()


def drawings(plots: Iterable[Plot], figures: pd.DataFrame, stamp: str = "") -> list[Drawing]:
    """The plots that the frame has figures for."""
    return [Drawing(plot, figures, stamp) for plot in plots if len(plot.shown(figures))]


@dataclass(frozen=True)
class Mark:
    """Figures (`where`) to compare bars with: a dotted stroke across a group or, with a `column` whose entry
    says which bar of the group is meant, a white mark on each, explained in the legend."""

    where: Mapping[str, Any]
    column: str = ""
    name: str = ""
    marker: str = ""


@dataclass(frozen=True)
class Bars(Plot):
    """Bars with intervals: a panel per entry of `panel`, a group of bars per entry of `place`, one per
    `series`. Where several columns name a place or a panel, their entries are joined.

    order    Of places, panels and series; others follow as they appear.
    colors   Entry of `series` -> colour, else the palette in order.
    axis     What the length of a bar is.     limits  Of that axis, in the unit shown.
    rule     Where a dashed line stands (chance, say), for all panels or by panel.
    dots     A dot in place of a bar, for figures that do not grow from zero.
    """

    place: tuple[str, ...]
    series: str
    panel: tuple[str, ...] = ()
    order: Sequence[str] = ()
    colors: Mapping[str, str] = field(default_factory=dict)
    axis: str = "per cent"
    limits: tuple[float, float] | None = (0, 100)
    rule: float | Mapping[str, float] | None = None
    marks: Sequence[Mark] = ()
    dots: bool = False

    def canvas(self, figures: pd.DataFrame) -> Canvas:
        figures = _joined(figures, _place=self.place, _panel=self.panel)
        drawn = self.shown(figures)
        panels = frames.values(drawn, "_panel", self.order) or [""]
        places = frames.values(drawn, "_place", self.order)
        series = frames.values(drawn, self.series, self.order)
        marked = [(mark, _select(figures, mark.where)) for mark in self.marks]
        ticks = [_tick(self.name(place)) for place in places]
        lines = 1 + max(tick.count("\n") for tick in ticks)
        height = 0.5 + max(0.2 * len(series), 0.3, 0.15 * lines + 0.05) * len(places)
        canvas, axes = _grid(len(panels), height)
        colors = {name: self.colors.get(name, PALETTE[k % len(PALETTE)]) for k, name in enumerate(series)}
        heights = {
            (place, name): y + (k - (len(series) - 1) / 2) * 0.8 / len(series)
            for y, place in enumerate(places)
            for k, name in enumerate(series)
        }
        for axis, panel in zip(axes, panels, strict=True):
            rows = frames.select(drawn, _panel=panel)
            for name, color in colors.items():
                bars = frames.records(rows, **{self.series: name})
                if bars:
                    ys = [heights[figure["_place"], name] for figure in bars]
                    self._bars(axis, ys, bars, color, 0.72 / len(series))
            for mark, of_all in marked:
                self._mark(axis, mark, frames.select(of_all, _panel=(panel, "")), heights, places)
            self._dress(axis, panel, ticks)
        hollow = {mark.name: mark.marker for mark, of_all in marked if mark.column and len(of_all)}
        if len(series) > 1 or hollow:
            named = {self.name(name): color for name, color in colors.items()}
            _legend(canvas, {**named, **dict.fromkeys(hollow, INK)}, hollow, hollow)
        return canvas

    def _bars(self, axis: Any, ys: list[float], bars: Sequence[Figure], color: str, height: float) -> None:
        values, reach = [_shown(f, "value") for f in bars], _reach(bars)
        if self.dots:
            axis.errorbar(values, ys, xerr=reach, fmt="o", color=color, markersize=5, elinewidth=1.4)
        else:
            ends = {"ecolor": INK, "elinewidth": 0.9, "capsize": 2}
            axis.barh(ys, values, height, xerr=reach, color=color, alpha=0.85, error_kw=ends)

    def _mark(
        self, axis: Any, mark: Mark, figures: pd.DataFrame, heights: Mapping[tuple[str, str], float],
        places: Sequence[str],
    ) -> None:  # fmt: skip
        for figure in frames.records(figures):
            place, x = figure["_place"], _shown(figure, "value")
            if mark.column and (y := heights.get((place, figure[mark.column]))) is not None:
                axis.plot(x, y, mark.marker, **_HOLLOW, zorder=4, clip_on=False)
            elif not mark.column and place in places:
                y = places.index(place)
                axis.vlines(x, y - 0.45, y + 0.45, color=INK, linewidth=1.2, linestyle=":")

    def _dress(self, axis: Any, panel: str, ticks: Sequence[str]) -> None:
        axis.set_yticks(range(len(ticks)), ticks)
        axis.set_ylim(len(ticks) - 0.5, -0.5)
        _label(axis, self.name(panel), self.axis)
        axis.grid(axis="x", color=FAINT)
        axis.axvline(0, color=INK, linewidth=0.8)
        if self.limits:
            axis.set_xlim(*self.limits)
        rule = self.rule.get(panel) if isinstance(self.rule, Mapping) else self.rule
        if rule is not None:
            axis.axvline(rule, color=GREY, linewidth=0.9, linestyle="--")


@dataclass(frozen=True)
class Stack(Plot):
    """One bar per entry of `place`, cut into the shares of `series`, which add up to the whole; fields as in
    `Bars`."""

    place: tuple[str, ...]
    series: str
    colors: Mapping[str, str]
    axis: str = "per cent"

    def shown(self, figures: pd.DataFrame) -> pd.DataFrame:
        return _select(figures, {**self.where, self.series: tuple(self.colors)})

    def canvas(self, figures: pd.DataFrame) -> Canvas:
        bars: dict[str, list[Figure]] = {}
        for figure in frames.records(_joined(self.shown(figures), _place=self.place)):
            bars.setdefault(figure["_place"], []).append(figure)
        titles = [
            _tick(f"{name}, n\N{NO-BREAK SPACE}{max(f['n'] for f in members):g}")
            for name, members in bars.items()
        ]
        lines = 1 + max(title.count("\n") for title in titles)
        canvas, [axis] = _grid(1, 0.5 + max(0.4, 0.15 * lines + 0.1) * len(bars))
        for y, members in enumerate(bars.values()):
            left = 0.0
            by = {figure[self.series]: figure for figure in members}
            for name, color in self.colors.items():
                width = _shown(by[name], "value") if name in by else 0.0
                axis.barh(y, width, left=left, height=0.65, color=color)
                if width >= 6:
                    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
                    ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 128 else ON_BAR
                    axis.text(left + width / 2, y, f"{width:.0f}", ha="center", va="center", color=ink)
                left += width
        axis.set_yticks(range(len(bars)), titles)
        axis.set_ylim(len(bars) - 0.5, -0.5)
        axis.set_xlim(0, 100)
        _label(axis, "", self.axis)
        _legend(canvas, {self.name(name): color for name, color in self.colors.items()})
        return canvas


@dataclass(frozen=True)
class Curves(Plot):
    """A line per entry of `line` through its figures in the order of the number in column `x`; a panel per
    entry of `panel`, as in `Bars`.

    hollow    Entries of the frame's columns whose figures are drawn dotted, with open markers.
    diagonal  A dashed line of y = x.     rule, log  A dashed level; a logarithmic x axis.
    """

    x: str
    line: str
    panel: tuple[str, ...]
    axes: tuple[str, str]
    order: Sequence[str] = ()
    hollow: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[float, float] = (0, 100)
    rule: float | None = None
    diagonal: bool = False
    log: bool = False

    def canvas(self, figures: pd.DataFrame) -> Canvas:
        drawn = _joined(self.shown(figures), _panel=self.panel)
        panels = frames.values(drawn, "_panel", self.order)
        lines = frames.values(drawn, self.line, self.order)
        canvas, axes = _grid(len(panels), 2.4)
        counts = not self.log and all(float(x) % 1 == 0 for x in drawn[self.x])
        marked = self.hollow.items()
        for axis, panel in zip(axes, panels, strict=True):
            for index, name in enumerate(lines):
                points = frames.records(drawn, **{"_panel": panel, self.line: name})
                aside = _ASIDE * (index - (len(lines) - 1) / 2) if counts else 0.0
                for hollow in (False, True):
                    if part := [f for f in points if hollow == (bool(marked) and marked <= f.items())]:
                        self._line(axis, part, index, hollow, aside)
            self._dress(axis, panel, {float(x) for x in drawn[self.x]} if counts else ())
        if len(lines) > 1:
            handles = {self.name(name): PALETTE[index % len(PALETTE)] for index, name in enumerate(lines)}
            markers = {title: MARKERS[index % len(MARKERS)] for index, title in enumerate(handles)}
            _legend(canvas, handles, markers)
        return canvas

    def _line(self, axis: Any, part: Sequence[Figure], at: int, hollow: bool, aside: float) -> None:
        """aside: how far from its place, so that equal lines are seen beside each other."""
        part = sorted(part, key=lambda figure: float(figure[self.x]))
        color = PALETTE[at % len(PALETTE)]
        xs, ys = [float(f[self.x]) + aside for f in part], [_shown(f, "value") for f in part]
        axis.errorbar(
            xs, ys, yerr=_reach(part), color=color, capsize=2, elinewidth=0.8,
            marker=MARKERS[at % len(MARKERS)], markersize=5, linewidth=1.3, linestyle=":" if hollow else "-",
            markerfacecolor="white" if hollow else color, clip_on=self.limits != (0, 100),
        )  # fmt: skip

    def _dress(self, axis: Any, panel: str, counts: Collection[float]) -> None:
        """counts: what x is, where it counts something."""
        _label(axis, self.name(panel), *self.axes)
        axis.set_ylim(*self.limits)
        axis.grid(color=FAINT)
        if counts:
            axis.set_xticks(sorted(counts))
        if self.log:
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if self.rule is not None:
            axis.axhline(self.rule, color=GREY, linewidth=0.9, linestyle="--")
        if self.diagonal:
            axis.plot([0, 1], [0, 100], color="#9ca3af", linewidth=1, linestyle="--")
            axis.set_xlim(-0.02, 1.02)


@dataclass(frozen=True)
class Scatter(Plot):
    """Points of a plane: a panel per entry of `panel`, a colour per entry of `color`, a marker per `marker`.
    Its frame is one of points: columns `x` and `y`, with what each point is."""

    panel: str
    color: str
    marker: str
    colors: Mapping[str, str]

    def shown(self, figures: pd.DataFrame) -> pd.DataFrame:
        return frames.select(figures, **self.where)

    def canvas(self, figures: pd.DataFrame) -> Canvas:
        drawn = self.shown(figures)
        panels, markers = drawn[self.panel].unique(), list(drawn[self.marker].unique())
        canvas, axes = _grid(len(panels), 3.6)
        for axis, panel in zip(axes, panels, strict=True):
            for (color, marker), part in drawn[drawn[self.panel] == panel].groupby([self.color, self.marker]):
                axis.scatter(part["x"], part["y"], s=22, marker="o^sD"[markers.index(marker)],
                             color=self.colors[str(color)], alpha=0.75, linewidths=0)  # fmt: skip
            _label(axis, panel, "component 1", "component 2")
            axis.set_xticks([])
            axis.set_yticks([])
        titles = {self.name(c): self.colors[c] for c in drawn[self.color].unique()}
        shapes = dict.fromkeys(titles, "s")
        for index, marker in enumerate(markers):
            titles[str(marker)], shapes[str(marker)] = GREY, "o^sD"[index]
        _legend(canvas, titles, shapes)
        return canvas


def _select(figures: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    chosen = frames.select(figures, **where)
    return chosen[chosen["value"].notna()]


def _joined(figures: pd.DataFrame, **columns: Sequence[str]) -> pd.DataFrame:
    """The figures with columns that hold the entries of others, side by side."""
    texts = {name: figures.reindex(columns=list(parts), fill_value="") for name, parts in columns.items()}
    return figures.assign(
        **{name: [", ".join(filter(None, row)) for row in part.to_numpy()] for name, part in texts.items()}
    )


def _grid(count: int, height: float) -> tuple[Canvas, list[Any]]:
    """A canvas with `count` panels below each other, each `height` inches and its labels."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(WIDTH, 0.6 + count * (height + 0.6)), layout="constrained")
    return canvas, list(canvas.subplots(count, squeeze=False).flat)


def _legend(
    canvas: Canvas,
    colors: Mapping[str, str],
    markers: Mapping[str, str] | None = None,
    hollow: Collection[str] = (),
) -> None:
    """hollow: those whose markers are white."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], linestyle="", marker=(markers or {}).get(name, "s"), label=name,
            **(_HOLLOW if name in hollow else {"color": color}),
        )
        for name, color in colors.items()
    ]  # fmt: skip
    columns = max(1, min(4, len(handles), 58 // (8 + max(map(len, colors), default=0))))
    canvas.legend(handles=handles, frameon=False, ncols=columns, loc="outside upper left")


def _tick(name: str) -> str:
    """A name beside its bar, in lines; only the end of a long one."""
    return textwrap.fill(name if len(name) <= 72 else f"…{name[-71:]}", 24)


def _label(axis: Any, panel: str, x: str, y: str = "") -> None:
    axis.set_title(textwrap.fill(panel, 34), loc="left", fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def _shown(figure: Figure, end: str) -> float:
    """A value or an end of its interval as it is shown, NaN where there is none."""
    raw = figure[end]
    return math.nan if raw is None else UNITS[figure["unit"]].scale * raw


def _reach(figures: Iterable[Figure]) -> list[list[float]] | None:
    """How far the ends of intervals are from their values, (2, n), NaN for none; None without any."""
    every = list(figures)
    if all(None in (figure["low"], figure["high"]) for figure in every):
        return None
    return [[abs(_shown(f, end) - _shown(f, "value")) for f in every] for end in ("low", "high")]
