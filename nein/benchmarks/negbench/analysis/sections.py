"""The table of measures, and the plots: points of templates (like figures 6 and 9 of the paper), and
measures."""

from __future__ import annotations

from collections.abc import Sequence

from nein.benchmarks.negbench.analysis.measures import MEASURES
from nein.benchmarks.negbench.analysis.templates import AFFIRMED, DENIED, GROUPS, HYBRID, NEITHER, TITLES, TWO
from nein.reporting import plots, tables
from nein.reporting.figures import Figure
from nein.reporting.report import Section
from nein.reporting.tables import Across, Row, Table

#: What stands for a model in the column of values that an encoder without structure gives.
CHANCE = "without structure"
COLORS = {
    AFFIRMED: plots.BLUE, DENIED: plots.RED, TWO: "#0891b2", HYBRID: plots.VIOLET, NEITHER: "#be123c",
}  # fmt: skip
_TITLES = {name: title for name, (title, _) in MEASURES.items()}


def _shown(figures: Sequence[Figure]) -> str:
    if figures[0]["model"] == CHANCE:
        return tables.value(2)(figures)
    return tables.estimate("reach", 3)(figures)


MEASURED = Table(
    "measures", "What text encoders separate", (Row("metric", "", _TITLES),), (Across("model", {}, _shown),)
)
DOTS = plots.Bars(
    "measures",
    "What each encoder separates, with 95 % intervals over pairs of objects; dashed: without structure",
    place=("model",),
    series="benchmark",
    panel=("metric",),
    where={"source": ""},
    names=_TITLES,
    axis="share or cosine",
    limits=None,
    rule={name: chance for name, (_, chance) in MEASURES.items() if chance is not None},
    dots=True,
)
SECTIONS = (Section("measures", "Measures", (MEASURED,), (DOTS,)),)


def points(key: str, title: str) -> plots.Scatter:
    """The first two principal components of sentences, a panel per model: colour is the group, the marker
    which object stands first."""
    return plots.Scatter(key, title, "model", "group", "first", {"plot": key}, COLORS, TITLES)


#: Key and title of a plot, and whose sentences it shows.
PLOTS = (
    ("pca", "One object, affirmed and negated", (AFFIRMED, DENIED)),
    ("pca_all", "All five groups of templates", GROUPS),
)
