"""Runs of `nein eval` with chosen contents, written as the command writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nein.benchmarks.nein import figures, records
from nein.benchmarks.nein.runs import EDIT, RunDir, scores_of
from nein.benchmarks.runner import FIGURES
from nein.engine import atomic
from nein.reporting import figures as frames

Row = Mapping[str, Any]


def write(
    run: RunDir,
    edits: Sequence[Row],
    scores: Iterable[Row] = (),
    *,
    config: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    status: str = "complete",
    size: int = 16,
) -> RunDir:
    """A run of these edits in blocks of `size`, and of these scores, each of which names its `metric`."""
    count = len(edits)
    facts = {"config": dict(config or {}), "data": dict(data or {"records_sha256": "x"})}
    facts["selection"] = {"of": count, "block": size, "first": count}
    run.open({"seed": 0}, facts, overwrite=False)
    run.update(status=status)
    columns: dict[str, list[Row]] = {EDIT: list(edits)}
    for row in scores:
        columns.setdefault(scores_of(row["metric"]), []).append(
            {key: value for key, value in row.items() if key != "metric"}
        )
    for output, rows in columns.items():
        if output != EDIT:
            run.open_output(output, {}, overwrite=False)
        for start in range(0, count, size):
            run.write(output, start // size, rows[start : start + size])
    if status == "complete":
        finish(run)
    return run


def finish(run: RunDir) -> None:
    """What the command writes at its end."""
    atomic.write_lines(run.path / "edits.jsonl", run.read_edits())
    atomic.write_lines(run.path / "scores.jsonl", run.scores())
    frames.write(run.path / FIGURES, figures.summarise(records.read(run)))


def rewrite(run: RunDir, output: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replaces the rows of an output."""
    for number in sorted(run.done(output)):
        run.write(output, number, map(change, run.read(output, number)))


def write_fid(run: RunDir, entry: Row) -> None:
    """What a run says of its Frechet distance."""
    atomic.write_json(run.path / "corpus.json", {"fid": dict(entry)})
