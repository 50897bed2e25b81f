"""The command `nein grid`: samples as rows, editors as columns, in one PNG that is readable at a glance.

A row shows the instruction, the NeIn sample the editors were given, what each run made of it with the
verdict of each removal judge, and the target. It is drawn from a run directory alone; no model is loaded.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from metrics import METRICS
from nein.benchmarks.nein import runs
from nein.benchmarks.nein.config import GridConfig
from nein.benchmarks.nein.runs import RunDir
from nein.datasets.nein import loading
from nein.datasets.nein.samples import TRACKS, Dataset, Sample
from nein.engine import atomic, images
from nein.engine.errors import UserError, near_match
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell, Row, draw

# A verdict is a number of a metric; these words are what a person reads.
JUDGES = {"removal_vqa": "VQA", "removal_ovd": "OVD"}


@dataclass
class Records:
    """What a run has written so far: edits by sample id, scores by metric and sample id."""

    run: RunDir
    origin: Mapping[str, Any]
    edits: Mapping[str, Mapping[str, Any]]
    scores: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)


def grid(options: GridConfig) -> str:
    """Draws the picture; returns its path, a line. Raises UserError for anything the user can mend."""
    drawn = read_runs(options.runs, options.tracks)
    dataset = (
        loading.load(options.data, split=options.split) if options.data else loading.reload(drawn[0].origin)
    )
    chosen = choose(
        dataset,
        drawn,
        ids=options.ids,
        select=options.select,
        metric=options.metric,
        number=options.number,
        seed=options.seed,
    )
    shown = options.metric if options.metric not in JUDGES else None
    rows = [build_row(sample, drawn, shown) for sample in chosen]
    columns = ["NeIn sample", *(_column(records, drawn) for records in drawn), "target"]
    picture = draw(columns, rows, options.size)
    out = options.out or options.runs[0] / "grid.png"
    atomic.write_bytes(out, _png(picture))
    return f"{out}\n"


# --- reading -----------------------------------------------------------------------------


def read_runs(paths: Sequence[Path], tracks: Sequence[str] | None = None) -> list[Records]:
    """Every run at or below `paths`, grouped by editor in the order found; all must be on the same data."""
    by_folder: dict[Path, Records] = {}
    for path in paths:
        below = runs.find(path)
        if not below:
            raise UserError(f"'{path}' holds no run (no manifest.json); give the folder passed to --out.")
        for run in below:
            if not tracks or run.track in tracks:
                by_folder.setdefault(run.path.resolve(), _read_run(run))
    if not by_folder:
        raise UserError(f"There is no run of track {', '.join(tracks or ())} there.")
    records = list(by_folder.values())
    first = records[0]
    for other in records[1:]:
        if other.origin.get("records_sha256") != first.origin.get("records_sha256"):
            raise UserError(
                f"'{first.run.path}' and '{other.run.path}' were made on different data; draw them apart."
            )
    order = list(dict.fromkeys(r.run.editor for r in records))
    return sorted(records, key=lambda r: (order.index(r.run.editor), TRACKS.index(r.run.track)))


def _read_run(run: RunDir) -> Records:
    manifest = run.manifest() or {}
    if "annotations" not in manifest.get("data", {}):
        raise UserError(f"'{run.manifest_path}' does not say where the data are; it is no run of nein eval.")
    if (run.path / "edits.jsonl").exists():
        edits = {row["id"]: row for row in run.read_edits()}
    else:  # a run still under way has only its blocks
        edits = {row["id"]: row for row in run.rows(runs.EDIT, sorted(run.done(runs.EDIT)))}
    records = Records(run, manifest["data"], edits)
    if (run.path / "scores.jsonl").exists():
        for row in run.read_scores():
            records.scores.setdefault(row["metric"], {})[row["id"]] = row
    return records


# --- choosing ----------------------------------------------------------------------------


def choose(
    dataset: Dataset,
    records: Sequence[Records],
    *,
    ids: Sequence[str] | None = None,
    select: str = "random",
    metric: str | None = None,
    number: int = 6,
    seed: int = 0,
) -> list[Sample]:
    """The samples to draw.

    `ids` are taken as they are. "random" takes those whose hash with the seed is smallest, so that a sample
    keeps its place when the run grows, and shows them in data order. "worst" and "best" sort by the mean of
    `metric` over the runs that scored the sample, equal values again by the hash.
    """
    by_id = {sample.id: sample for sample in dataset.samples}
    if ids:
        for name in ids:
            if name not in by_id:
                near = near_match(name, by_id)
                guess = f"; did you mean '{near}'?" if near else "."
                raise UserError(f"There is no sample '{name}' in the data{guess}")
        return [by_id[name] for name in ids]
    edited = [sample for sample in dataset.samples if any(sample.id in run.edits for run in records)]
    if not edited:
        raise UserError("No sample has been edited yet in these runs; run nein eval first.")
    ranked = sorted(edited, key=lambda sample: hashlib.sha256(f"{seed}:{sample.id}".encode()).hexdigest())
    if select == "random":
        drawn = set(ranked[:number])
        return [sample for sample in edited if sample in drawn]
    means = _means(records, metric or "removal_vqa")
    scored = [sample for sample in ranked if sample.id in means]
    ascending = METRICS[metric or "removal_vqa"].higher_is_better == (select == "worst")
    return sorted(scored, key=lambda sample: means[sample.id], reverse=not ascending)[:number]


def _means(runs: Sequence[Records], metric: str) -> dict[str, float]:
    """Sample id -> mean of the metric over the runs that scored it."""
    values: dict[str, list[float]] = {}
    for records in runs:
        for name, row in records.scores.get(metric, {}).items():
            if row["value"] is not None:
                values.setdefault(name, []).append(row["value"])
    if not values:
        raise UserError(f"These runs have no scores of {metric}; score it with nein eval --metrics {metric}.")
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}


# --- rows --------------------------------------------------------------------------------


def build_row(sample: Sample, columns: Sequence[Records], shown: str | None = None) -> Row:
    """What is drawn for one sample; `shown` is a metric whose value is added below every edit."""
    tracks = list(dict.fromkeys(records.run.track for records in columns))
    lines = [sample.instruction(track) for track in tracks]
    if len(tracks) > 1:
        lines = [f"{track}: {line}" for track, line in zip(tracks, lines, strict=True)]
    cells = [_source_cell(sample.sample_path)]
    cells += [_edit_cell(sample.id, records, shown) for records in columns]
    cells.append(_source_cell(sample.source_path))
    return Row("\n".join(lines), f"{sample.id}   object: {sample.object}   caption: {sample.caption}", cells)


def _source_cell(path: Path) -> Cell:
    try:
        return Cell(images.decode(path))
    except images.ImageError as error:
        return Cell(None, str(error), color=RED)


def _edit_cell(sample_id: str, records: Records, shown: str | None) -> Cell:
    edit = records.edits.get(sample_id)
    if edit is None:
        return Cell(None, "not edited yet")
    if edit["image"] is None:
        return Cell(None, f"failed: {edit['error']}", color=RED)
    cell = _source_cell(records.run.path / edit["image"])
    badges = [
        verdict(name, records.scores[metric][sample_id]["value"])
        for metric, name in JUDGES.items()
        if sample_id in records.scores.get(metric, {})
    ]
    if shown and sample_id in records.scores.get(shown, {}):
        value, info = records.scores[shown][sample_id]["value"], METRICS[shown]
        number = "unscored" if value is None else f"{value * info.scale:.3g}"
        badges.append(Badge(f"{info.title} {number}", GREY))
    return Cell(cell.picture, cell.message, badges)


def verdict(judge: str, value: float | None) -> Badge:
    """The badge for a Removal score: 1 the object is gone, 0 it is there, None unscored."""
    if value is None:
        return Badge(f"{judge}: unscored", GREY)
    return Badge(f"{judge}: removed", GREEN) if value == 1 else Badge(f"{judge}: still there", RED)


def _column(records: Records, columns: Sequence[Records]) -> str:
    several = len({other.run.track for other in columns}) > 1
    outs = {other.run.out.resolve() for other in columns}
    name = records.run.editor if len(outs) == 1 else f"{records.run.out.name}/{records.run.editor}"
    return f"{name}\n{records.run.track}" if several else name


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
