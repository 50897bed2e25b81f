"""`nein grid`: draws samples as rows and editors as columns, in one image. No model is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.config import GridConfig
from nein.benchmarks.nein.runs import REMOVAL_JUDGES, RunDir
from nein.datasets.nein import Dataset, Sample, reload
from nein.engine import atomic, images
from nein.engine.folder import collect_runs
from nein.loading.errors import UserError, unknown
from nein.metrics import METRICS
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell, Row, draw


@dataclass(frozen=True)
class Column:
    """A column of the grid."""

    name: str  # as `--columns` takes it: "sample", "target", an editor, or EDITOR/TRACK for several tracks
    caption: str
    run: RunDir | None = None  # whose edits it shows; None for "sample" and "target"


def draw_grid(options: GridConfig) -> str:
    """Writes the image; returns the line to print, its path. Raises UserError."""
    loaded = read_runs(options.runs, options.tracks)
    dataset = reload(loaded[0].about["data"], options.data, options.split)
    samples = pick_samples(dataset, loaded, options)
    by_name = {column.name: column for column in list_columns(loaded)}
    columns = [] if options.columns else list(by_name.values())
    for text in options.columns:  # NAME or NAME=CAPTION
        name, equals, caption = text.partition("=")
        if name not in by_name:
            raise unknown("column", name, by_name)
        columns.append(replace(by_name[name], caption=caption) if equals else by_name[name])
    names = [column.name for column in columns]
    choices = [*names, *(sample.id for sample in samples)]
    for name in options.highlight:
        if name not in choices:
            raise unknown("column or sample", name, choices)
    rows = [build_row(sample, columns, options) for sample in samples]
    marked = [index for index, name in enumerate(names) if name in options.highlight]
    out = options.out or options.runs[0] / "grid.png"
    captions = [column.caption for column in columns]
    atomic.write_bytes(out, draw(captions, rows, options.size, marked=marked, kind=out.suffix[1:]))
    return f"{out}\n"


def read_runs(paths: Sequence[Path], tracks: Sequence[str] = ()) -> list[RunDir]:
    """Every run below `paths`, complete or not, in the order of tables. Raises UserError without any."""
    loaded = [run for run in map(RunDir, collect_runs(paths)) if not tracks or run.track in tracks]
    if not loaded:
        raise UserError(f"No run here has the track {', '.join(tracks)}; pass other --tracks.")
    for run in loaded:
        if "annotations" not in run.about.get("data", {}):
            raise UserError(f"'{run.path}' is not a run of nein eval; its manifest names no data.")
    return runs.order_runs(loaded)


def pick_samples(dataset: Dataset, loaded: Sequence[RunDir], options: GridConfig) -> list[Sample]:
    """The samples to draw: those named by --samples, or by --select among the edited ones.

    random       The smallest hashes of seed and id, so that a choice stays when the run grows; in data order.
    worst, best  By the metric's mean over the runs that scored the sample; ties by the hash.
    """
    if options.samples:
        return [dataset.samples[index] for index in dataset.find_indices(options.samples)]
    edited = [sample for sample in dataset.samples if any(sample.id in run.edits for run in loaded)]
    if not edited:
        raise UserError("No sample has been edited yet in these runs; run nein eval first.")
    hashes = {sample: hashlib.sha256(f"{options.seed}:{sample.id}".encode()).digest() for sample in edited}
    ranked = sorted(edited, key=hashes.__getitem__)
    if options.select == "random":
        return sorted(ranked[: options.number], key=edited.index)
    metric = options.metric or "removal_vqa"
    values = pd.DataFrame([run.values(metric, all_scores=True) for run in loaded], dtype=float)
    means = values.mean().dropna()  # (runs, samples) -> (scored samples,)
    if means.empty:
        raise UserError(
            f"No sample has a value of {metric} here; pass another --metric, or score it by nein eval."
        )
    scored = [sample for sample in ranked if sample.id in means]
    ascending = METRICS[metric].higher_is_better == (options.select == "worst")
    return sorted(scored, key=lambda sample: means[sample.id], reverse=not ascending)[: options.number]


def list_columns(loaded: Sequence[RunDir]) -> list[Column]:
    """The columns "sample", every run, and "target"."""
    edits = [Column(run.name, run.name, run) for run in loaded]
    if len({run.track for run in loaded}) > 1:
        edits = [Column(run.label, f"{run.name}\n{run.track}", run) for run in loaded]
    return [Column("sample", "NeIn sample"), *edits, Column("target", "target")]


def build_row(sample: Sample, columns: Sequence[Column], options: GridConfig) -> Row:
    """The cells of one sample. Below an edit stand its Removal verdicts and its value of --metric."""
    tracks = list(dict.fromkeys(column.run.track for column in columns if column.run)) or ["negative"]
    instructions = [sample.instruction(track) for track in tracks]
    if len(tracks) > 1:
        instructions = [f"{track}: {text}" for track, text in zip(tracks, instructions, strict=True)]
    paths = {"sample": sample.sample_path, "target": sample.source_path}
    cells = [
        _show_edit(sample.id, column.run, options) if column.run else _show_image(paths[column.name])
        for column in columns
    ]
    facts = f"{sample.id}   object: {sample.object}   caption: {sample.caption}"
    title = "" if options.captions == "none" else "\n".join(instructions)
    return Row(title, facts if options.captions == "all" else "", cells, sample.id in options.highlight)


def _show_image(path: Path) -> Cell:
    try:
        return Cell(images.decode(path))
    except images.ImageError as error:
        return Cell(None, str(error), color=RED)


#: Removal score -> verdict and color.
_VERDICTS = {None: ("unscored", GREY), 1: ("removed", GREEN), 0: ("still there", RED)}


def _show_edit(sample_id: str, run: RunDir, options: GridConfig) -> Cell:
    """The edit of a sample, with a badge per metric shown."""
    edit = run.edits.get(sample_id)
    if edit is None:
        return Cell(None, "not edited yet")
    if edit.image is None:
        return Cell(None, edit.why_not, color=RED)
    metrics = [*REMOVAL_JUDGES] if options.verdicts else []
    metrics += [options.metric] if options.metric and options.metric not in REMOVAL_JUDGES else []
    values: dict[str, Any] = {row.metric: row.value for row in run.replies(sample_id)}
    badges = []
    for metric in (metric for metric in metrics if metric in values):
        value = values[metric]
        if metric in REMOVAL_JUDGES:
            verdict, color = _VERDICTS[value]
            badges.append(Badge(f"{REMOVAL_JUDGES[metric]}: {verdict}", color))
        else:
            number = "unscored" if value is None else f"{value * METRICS[metric].scale:.3g}"
            badges.append(Badge(f"{METRICS[metric].title} {number}", GREY))
    return replace(_show_image(run.image_path(edit)), badges=badges)
