"""What of a mending holds off its training: the taught world beside those with something held out.

Every study (editors, CLIP, vision-language models) gives a frame with the columns recipe, seed, world and
metric; here it becomes table and file. `nein.nano.worlds` says what each world holds out.

    OUT/generalise.md    the table: mean over training seeds and, in brackets, the lowest and the highest seed
    OUT/generalise.csv   every figure of every seed, with its interval over pictures
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nein.engine import atomic
from nein.nano.worlds import AXES
from nein.reporting import figures as frames
from nein.reporting import format
from nein.reporting.tables import pipes

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
HEADLINE = "nano:unlike"  #: nothing in it was taught: the figure that a headline may give


@dataclass(frozen=True)
class Model:
    """A model of a study: as it was (`seed` None), or trained by a recipe from a seed."""

    recipe: str
    seed: int | None
    reference: str


@dataclass(frozen=True)
class Spread:
    """A figure over training seeds: mean, lowest and highest; `seeds` 0 for a model not trained here."""

    value: float
    low: float
    high: float
    seeds: int
    unit: str

    def text(self) -> str:
        value, low, high = (format.number(x, self.unit) for x in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})" if self.seeds > 1 else value


def labelled(found: pd.DataFrame, model: Model, world: str) -> pd.DataFrame:
    """The figures of a model on a world, with the columns that `report` reads."""
    seed = "" if model.seed is None else str(model.seed)
    return frames.label(found, recipe=model.recipe, seed=seed, world=world)


def spread(found: pd.DataFrame, **where: Any) -> Spread | None:
    """The figures with the entries `where`, one per seed, as one."""
    rows = [row for row in frames.records(frames.select(found, **where)) if row["value"] is not None]
    if not rows:
        return None
    values = [row["value"] for row in rows]
    trained = sum(row["seed"] != "" for row in rows)
    return Spread(sum(values) / len(values), min(values), max(values), trained, rows[0]["unit"])


def table(found: pd.DataFrame, metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """Recipes and metrics against worlds. `metrics`: title of a row -> the entries of its figures."""
    worlds = [world for world in AXES if len(frames.select(found, world=world))]
    lines = []
    for recipe in frames.values(found, "recipe", (BEFORE,)):
        for title, where in metrics.items():
            cells = [spread(found, recipe=recipe, world=world, **where) for world in worlds]
            if any(cells):
                lines.append([recipe, title, *(cell.text() if cell else format.DASH for cell in cells)])
    return pipes(lines, ["trained", "figure", *(TITLES[world] for world in worlds)])


def write(
    out: Path,
    title: str,
    parts: Iterable[pd.DataFrame],
    metrics: Mapping[str, Mapping[str, Any]],
    *,
    command: str,
    sentences: Sequence[str] = (),
    note: str = "",
) -> str:
    """Writes table and file below `out`; the table with its heading as text.

    command  The command line that makes it. `note`: what one must know to read the figures.
    """
    found = frames.concat(parts)
    seeds = ", ".join(frames.values(found, "seed")) or "none"
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    n = format.counts(frames.records(frames.select(found, **next(iter(metrics.values())))), "n")
    text = "\n".join(
        [
            f"## {title}",
            "",
            f"Mean over training seeds {seeds} and, in brackets, the lowest and the highest; n = {n} per "
            f"model and column; {today}; `{command}`. {note}".rstrip(),
            "",
            table(found, metrics),
            "",
            *(f"- {sentence}" for sentence in sentences),
            "",
        ]
    )
    atomic.write_text(out / "generalise.md", text)
    frames.write(out / "generalise.csv", found)
    return text
