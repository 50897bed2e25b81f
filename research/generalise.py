"""What of a mending holds off its training: the taught world beside those with something held out.

Every study (editors, CLIP, vision-language models) gives a frame with the columns recipe, seed, world and
metric; here it becomes table and file. `nein.nano.scenes` says what each world holds out.

    OUT/generalise.md    the table: mean over training seeds and, in brackets, the lowest and the highest seed
    OUT/generalise.csv   every figure of every seed, with its interval over pictures
    OUT/generalise.png   the table as bars
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.negbench.report import NANO_LABEL
from nein.config import options
from nein.engine import atomic
from nein.loading.errors import UserError
from nein.nano.scenes import AXES
from nein.reporting import figures as frames
from nein.reporting import plots, tables
from nein.reporting.tables import format_rows

BEFORE = "before"
#: World -> what its column says.
TITLES = {
    "nano:taught": "as taught",
    "nano:wording": "other wording",
    "nano:negator": "other denying word",
    "nano:objects": "other objects",
    "nano:style": "other style",
    "nano:unlike": "wording, objects and style",
}
PLOT = plots.plot(
    "generalise",
    "What was taught beside what was held out: mean over training seeds, whiskers from the lowest to the "
    "highest; dashed: chance",
    {},
    plots.bars,
    place=("title",),
    series="recipe",
    panel=("figure",),
    order=(*TITLES.values(), BEFORE),
    axis="per cent, or points of a gap; dashed: chance",
    limits=None,
)
HEADLINE = "nano:unlike"  #: nothing in it was taught: the figure that a headline may give


@dataclass(frozen=True)
class Model:
    """A model of a study: as it was (`seed` None), or trained by a recipe from a seed."""

    recipe: str
    seed: int | None
    reference: str

    @property
    def name(self) -> str:
        """Of its folder of results: "nano-alpha-0.5-seed-0"."""
        seed = [] if self.seed is None else [f"seed-{self.seed}"]
        return "-".join([*re.findall(r"[\w.]+", self.recipe), *seed])

    @property
    def named(self) -> str:
        """As a benchmark's `--model` takes it: NAME=REFERENCE."""
        return f"{self.name}={self.reference}"


@dataclass(frozen=True)
class Spread:
    """A figure over training seeds: mean, lowest and highest; `seeds` 0 for a model not trained here."""

    value: float
    low: float
    high: float
    seeds: int
    unit: str

    def text(self) -> str:
        value, low, high = (tables.format_number(x, self.unit) for x in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})" if self.seeds > 1 else value


def labelled(figures: pd.DataFrame, model: Model, world: str) -> pd.DataFrame:
    """The figures of a model on a world, with the columns that `report` reads."""
    seed = "" if model.seed is None else str(model.seed)
    return frames.with_columns(figures, recipe=model.recipe, seed=seed, world=world)


def spread(figures: pd.DataFrame, **where: Any) -> Spread | None:
    """The figures with the entries `where`, one per seed, as one."""
    rows = [row for row in frames.records(frames.select(figures, **where)) if row["value"] is not None]
    if not rows:
        return None
    values = [row["value"] for row in rows]
    trained = sum(row["seed"] != "" for row in rows)
    return Spread(sum(values) / len(values), min(values), max(values), trained, rows[0]["unit"])


def table(figures: pd.DataFrame, metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """Recipes and metrics against worlds. `metrics`: title of a row -> the entries of its figures."""
    worlds = [world for world in AXES if len(frames.select(figures, world=world))]
    lines = []
    for recipe in frames.list_entries(figures, "recipe", (BEFORE,)):
        for title, where in metrics.items():
            cells = [spread(figures, recipe=recipe, world=world, **where) for world in worlds]
            if any(cells):
                lines.append([recipe, title, *(cell.text() if cell else tables.DASH for cell in cells)])
    return format_rows(lines, ["trained", "figure", *(TITLES[world] for world in worlds)])


def bars(figures: pd.DataFrame, metrics: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The cells of the table as the figures of `PLOT`."""
    rows = []
    for recipe in frames.list_entries(figures, "recipe", (BEFORE,)):
        for title, where in metrics.items():
            for world in AXES:
                cell = spread(figures, recipe=recipe, world=world, **where)
                if cell is not None:
                    ends = {"low": cell.low, "high": cell.high} if cell.seeds > 1 else {}
                    what = {"recipe": recipe, "figure": title, "title": TITLES[world]}
                    rows.append({**what, "value": cell.value, "unit": cell.unit, **ends})
    return frames.frame(rows)


def write(
    out: Path,
    title: str,
    parts: Iterable[pd.DataFrame],
    metrics: Mapping[str, Mapping[str, Any]],
    *,
    command: str,
    sentences: Sequence[str] = (),
    note: str = "",
    chance: Mapping[str, float] | None = None,
) -> str:
    """Writes table, file and picture below `out`; the table with its heading as text.

    command  The command line that makes it. `note`: what one must know to read the figures.
    chance   Title of a row -> what guessing gets, in per cent.
    """
    figures = frames.concat(parts)
    seeds = ", ".join(frames.list_entries(figures, "seed")) or "none"
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    n = tables.count()(frames.records(frames.select(figures, **next(iter(metrics.values())))))
    text = "\n".join(
        [
            f"## {title}",
            "",
            f"Mean over training seeds {seeds} and, in brackets, the lowest and the highest; n = {n} per "
            f"model and column; {today}; `{command}`. {note}".rstrip(),
            "",
            table(figures, metrics),
            "",
            *(f"- {sentence}" for sentence in sentences),
            "",
        ]
    )
    atomic.write_text(out / "generalise.md", text)
    frames.write(out / "generalise.csv", figures)
    plot = PLOT._replace(options={**PLOT.options, "rule": chance})
    for _, files in plots.draw_all([plot], bars(figures, metrics), NANO_LABEL):
        atomic.write_bytes(out / "generalise.png", files["png"])
    return text


def check_seeds(words: Sequence[str]) -> None:
    """Raises UserError for a seed that is no whole number."""
    for word in words:
        if not word.isdecimal():
            raise UserError(f"--seed has '{word}'; seeds are whole numbers from 0 on: --seed 0,1,2.")


def command_line(program: str, config: options.Options) -> str:
    """What is typed for a configuration: options that are not as by default, but not where results go."""
    usual, words = vars(type(config)()), [program]
    for name, value in vars(config).items():
        if value != usual[name] and name not in ("out", "overwrite"):
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"--{name.replace('_', '-')} {text}")
    return " ".join(words)
