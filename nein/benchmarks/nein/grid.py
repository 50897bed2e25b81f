"""The command `nein grid`: samples as rows, editors as columns, in one picture. No model is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.config import GridConfig
from nein.benchmarks.nein.runs import REMOVALS, RunDir
from nein.datasets import nein as loading
from nein.datasets.nein import Dataset, Sample
from nein.engine import atomic, images
from nein.engine.folder import runs_at
from nein.loading.errors import UserError, unknown
from nein.metrics import METRICS
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell, Row, draw


@dataclass(frozen=True)
class Column:
    """What is shown in a column: a run, or of None the picture `name`. name: as `--columns` takes it, sample,
    target, an editor, or EDITOR/TRACK where there are several."""

    name: str
    caption: str
    run: RunDir | None = None


def grid(options: GridConfig) -> str:
    """Draws the image; returns its path, a line. Raises UserError for anything the user can mend."""
    loaded = read_runs(options.runs, options.tracks)
    dataset = loading.reload(loaded[0].about["data"], options.data, options.split)
    chosen = choose(dataset, loaded, options)
    by_name = {column.name: column for column in columns(loaded)}
    visible = [] if options.columns else list(by_name.values())
    for name, equals, caption in (word.partition("=") for word in options.columns):
        if name not in by_name:
            raise unknown("column", name, by_name)
        visible.append(replace(by_name[name], caption=caption) if equals else by_name[name])
    names = [column.name for column in visible]
    for name in options.highlight:
        if name not in (choices := [*names, *(sample.id for sample in chosen)]):
            raise unknown("column or sample", name, choices)
    rows = [build_row(sample, visible, options) for sample in chosen]
    marked = [index for index, name in enumerate(names) if name in options.highlight]
    out = options.out or options.runs[0] / "grid.png"
    captions = [column.caption for column in visible]
    atomic.write_bytes(out, draw(captions, rows, options.size, marked=marked, kind=out.suffix[1:]))
    return f"{out}\n"


def read_runs(paths: Sequence[Path], tracks: Sequence[str] = ()) -> list[RunDir]:
    """Every run below `paths`, also one under way, in the order of tables; all must be on the same data."""
    loaded = [run for run in map(RunDir, runs_at(paths)) if not tracks or run.track in tracks]
    if not loaded:
        raise UserError(f"No run here has the track {', '.join(tracks)}; see --tracks.")
    for run in loaded:
        if "annotations" not in run.about.get("data", {}):
            raise UserError(f"'{run.path}' is not a run of nein eval; its manifest names no data.")
    return runs.order_runs(loaded)


def choose(dataset: Dataset, loaded: Sequence[RunDir], options: GridConfig) -> list[Sample]:
    """The samples to draw: those named; or "random", those whose hash with the seed is smallest, so that a
    sample stays when the run grows, in data order; or "worst" and "best" by the mean of the metric over the
    runs that scored the sample, equal ones by the hash."""
    if options.samples:
        return [dataset.samples[index] for index in dataset.find_indices(options.samples)]
    edited = [sample for sample in dataset.samples if any(sample.id in run.edits for run in loaded)]
    if not edited:
        raise UserError("No sample has been edited yet in these runs; run nein eval first.")
    hashes = {s: hashlib.sha256(f"{options.seed}:{s.id}".encode()).hexdigest() for s in edited}
    ranked = sorted(edited, key=hashes.__getitem__)
    if options.select == "random":
        return sorted(ranked[: options.number], key=edited.index)
    metric = options.metric or "removal_vqa"
    values = pd.DataFrame([run.values(metric, every=True) for run in loaded], dtype=float)  # (runs, samples)
    means = values.mean().dropna()
    if means.empty:
        raise UserError(
            f"No sample has a value of {metric} here (fid is a value of a run, not of a sample); choose "
            f"another --metric, or score it: nein eval --metrics {metric}."
        )
    scored = [sample for sample in ranked if sample.id in means]
    ascending = METRICS[metric].higher_is_better == (options.select == "worst")
    return sorted(scored, key=lambda sample: means[sample.id], reverse=not ascending)[: options.number]


def columns(loaded: Sequence[RunDir]) -> list[Column]:
    """The sample, every run, and the target."""
    several = len({run.track for run in loaded}) > 1
    edits = [
        Column(run.label, f"{run.name}\n{run.track}", run) if several else Column(run.name, run.name, run)
        for run in loaded
    ]
    return [Column("sample", "NeIn sample"), *edits, Column("target", "target")]


def build_row(sample: Sample, columns: Sequence[Column], options: GridConfig) -> Row:
    """What is drawn for one sample; below every edit the judges' verdicts, and its value by another metric by
    which samples are chosen."""
    tracks = list(dict.fromkeys(column.run.track for column in columns if column.run)) or ["negative"]
    lines = [f"{track}: " * (len(tracks) > 1) + sample.instruction(track) for track in tracks]
    paths = {"sample": sample.sample_path, "target": sample.source_path}
    cells = [
        _edit(sample.id, column.run, options) if column.run else _image(paths[column.name])
        for column in columns
    ]
    facts = f"{sample.id}   object: {sample.object}   caption: {sample.caption}"
    title = "" if options.captions == "none" else "\n".join(lines)
    is_marked = sample.id in options.highlight
    return Row(title, facts if options.captions == "all" else "", cells, is_marked)


def _image(path: Path) -> Cell:
    try:
        return Cell(images.decode(path))
    except images.ImageError as error:
        return Cell(None, str(error), color=RED)


#: What a Removal score says, and its color.
_VERDICTS = {None: ("unscored", GREY), 1: ("removed", GREEN), 0: ("still there", RED)}


def _edit(name: str, run: RunDir, options: GridConfig) -> Cell:
    edit = run.edits.get(name)
    if edit is None or edit.image is None:
        return Cell(None, edit.why_not, color=RED) if edit else Cell(None, "not edited yet")
    metrics = [*REMOVALS] if options.verdicts else []
    metrics += [options.metric] if options.metric and options.metric not in REMOVALS else []
    values: dict[str, Any] = {row.metric: row.value for row in run.replies(name)}
    badges = []
    for metric in (metric for metric in metrics if metric in values):
        value = values[metric]
        if metric in REMOVALS:
            verdict, color = _VERDICTS[value]
            badges.append(Badge(f"{REMOVALS[metric]}: {verdict}", color))
        else:
            number = "unscored" if value is None else f"{value * METRICS[metric].scale:.3g}"
            badges.append(Badge(f"{METRICS[metric].title} {number}", GREY))
    return replace(_image(run.image_path(edit)), badges=badges)
