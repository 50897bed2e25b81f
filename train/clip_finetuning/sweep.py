"""Recall against accuracy over alpha: OUT/tradeoff.md, .csv, .png, from the runs in OUT/evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench import run
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.report import NANO_LABEL
from nein.benchmarks.negbench.scores import TEXT_TO_IMAGE
from nein.benchmarks.negbench.sections import accuracy_columns, retrieval_columns
from nein.datasets.negbench.records import NEGATED, ORIGINAL
from nein.datasets.negbench.registry import MCQ, NANO, TEMPLATED
from nein.engine import atomic
from nein.engine.executors.threads import Threads
from nein.reporting import figures as frames
from nein.reporting import plots, tables
from nein.train.clip_finetuning.options import ContrastConfig, spelled

BASE = "base"
#: Bars of the plot -> their figures.
SERIES: dict[str, dict[str, str]] = {
    "R@1, original captions": {"metric": "recall@1", "kind": ORIGINAL},
    "R@1, negated captions": {"metric": "recall@1", "kind": NEGATED},
    "multiple-choice accuracy": {"metric": "accuracy", "type": "all"},
}
TABLE = tables.Table(
    "tradeoff",
    "Trade-off over alpha",
    (tables.Row("model"), tables.Row("dataset", "data")),
    (
        *retrieval_columns(1),
        *retrieval_columns(5)[:2],
        *accuracy_columns("MCQ accuracy ↑"),
        *(
            tables.Column(title, {"metric": ("recall@1", "accuracy"), "whole": "yes"}, tables.sum_of(column))
            for title, column in (("n", "n"), ("unscored", "unscored"))
        ),
    ),
)
NOTE = (
    "Percentages. ± and [ ]: 95 % interval, clustered by picture. n and unscored: captions + questions. "
    "Negation gap: recall with the original captions minus recall with the negated ones, paired."
)
PLOT = plots.Bars(
    "tradeoff",
    "Recall and multiple-choice accuracy over alpha, the weight of the contrastive loss; dotted: chance",
    place=("model", "dataset"),
    series="series",
    where={"series": tuple(SERIES)},
    axis="per cent; dotted: chance in multiple choice",
    marks=(plots.Mark({"metric": "chance"}),),
    order=tuple(SERIES),
    colors=dict(zip(SERIES, (plots.BLUE, plots.RED, plots.VIOLET), strict=True)),
)


@dataclass(frozen=True)
class Row:
    """One model of the table on one data set: `alpha` None for the base."""

    label: str
    alpha: float | None
    dataset: str
    figures: pd.DataFrame


def write(rows: Sequence[Row], out: Path) -> str:
    """Writes tradeoff.md, .csv and .png; the table as text."""
    table = figures(rows)
    stamp = NANO_LABEL if all(row.dataset.partition("-")[0] == NANO for row in rows) else ""
    sheet = replace(TABLE.sheet(table), title=f"Trade-off over alpha, {stamp or 'measured here'}")
    text = f"{tables.section(sheet)}\n\n{NOTE}\n"
    atomic.write_text(out / "tradeoff.md", text)
    frames.write(out / "tradeoff.csv", table)
    drawing = plots.draw(PLOT, table, stamp)
    if drawing is not None:
        atomic.write_bytes(out / "tradeoff.png", drawing.png)
    return text


def figures(rows: Sequence[Row]) -> pd.DataFrame:
    """The figures of the table; columns besides the usual: alpha, `series` of the plot, and `whole` for those
    whose n counts all captions or questions."""
    original, _, accuracy = SERIES
    parts = []
    for row in rows:
        templated = frames.select(row.figures, variant=TEMPLATED)
        recalls = frames.select(templated, direction=TEXT_TO_IMAGE)
        both = frames.concat([recalls, frames.select(templated, task=MCQ, metric=("accuracy", "chance"))])
        named = [
            next((name for name, where in SERIES.items() if where.items() <= figure.items()), "")
            for figure in frames.records(both)
        ]
        columns = {
            "model": row.label,
            "dataset": row.dataset,
            "series": named,
            "alpha": BASE if row.alpha is None else spelled(row.alpha),
            "whole": ["yes" if name in (original, accuracy) else "" for name in named],
        }
        parts.append(frames.label(both, **columns))
    return frames.concat(parts)


def evaluate(config: ContrastConfig, folders: Sequence[Path], *, scenes: int | None = None) -> list[Row]:
    """Runs nein negbench eval on the base and every model, on `--evaluate`; the base, then by alpha."""
    models = dict(sorted(zip(config.alphas, folders, strict=True)))
    names: dict[str, float | None] = {BASE: None, **{f"alpha-{spelled(alpha)}": alpha for alpha in models}}
    out = config.out_dir / "evaluation"
    settings = EvalConfig(
        preset="paper" if config.preset == "paper" else "nano",
        model=[f"{name}={where}" for name, where in zip(names, (config.base, *models.values()), strict=True)],
        data=config.evaluate or "nano",
        image_root=[config.image_root] if config.image_root else [],
        scenes=scenes,
        out=str(out),
        overwrite=config.overwrite,
        device="cpu" if config.device == "cpu" else "auto",
        batch_size=64,
    )
    run.NEGBENCH(settings, Threads(settings.device))
    return [
        Row(name, alpha, folder.path.name, frames.read(files.figures(folder)))
        for name, alpha in names.items()
        for folder in files.find(out / name)
        if files.figures(folder).is_file()
    ]
