"""From a benchmark, which is a value, to finished folders and a report: what all benchmarks have in common.

A benchmark says which runs a configuration asks for, which stages each of them has, which figures follow from
the rows, and which tables and plots show them. Everything else is done here, in `nein.engine` and in
`nein.reporting`: opening folders, refusing mixtures, computing what is missing on any number of processes,
files and pages.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from nein.engine import atomic, environment, images, memory
from nein.engine.executors import Stage, Threads
from nein.engine.folder import COMPLETE, INCOMPLETE, Folder
from nein.engine.processes import Processes
from nein.reporting import figures as frames
from nein.reporting import report
from nein.reporting.report import Section
from nein.reporting.tables import Table

FIGURES = "figures.csv"


@dataclass(frozen=True)
class Run:
    """One folder of results: a model on a data set.

    folder    Below the command's OUT.
    name      As progress and tables show it.
    identity  What decides its rows: another value of any key is another run.
    stages    What there is to compute, in order; a stage reads what those before it have written.
    facts     For the manifest: what the latest command says of itself.
    outputs   Output -> identity, of those that may differ from the folder's (a metric, say).
    partial   Whether the command asks for a part of what makes a run complete.
    """

    folder: str
    name: str
    identity: Mapping[str, Any]
    stages: tuple[Stage, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    partial: bool = False


@dataclass(frozen=True)
class Benchmark:
    """What there is to know about a benchmark.

    name      In the column "benchmark" of its figures.
    title     Of its report.
    holds     What its folders hold, in messages: "answers".
    runs      (configuration, device) -> the runs that are asked for. Finds everything that can be wrong with
              names, data and models; loads nothing.
    figures   (configuration, run, folder) -> the figures of a run, once all its blocks are there; also writes
              the canonical files, if there are any beside the blocks.
    sections  Tables and plots, as specifications over the figures of all runs.
    headline  The tables that a command prints when it ends.
    report    (configuration, folders) -> text for the terminal or None, for a benchmark whose report is more
              than these sections; None: `write_report`.
    """

    name: str
    title: str
    holds: str
    runs: Callable[[Any, str], Sequence[Run]]
    figures: Callable[[Any, Run, Folder], pd.DataFrame]
    sections: Sequence[Section] = ()
    headline: Sequence[Table] = ()
    report: Callable[[Any, Sequence[Folder]], str | None] | None = None

    def __call__(self, config: Any, processes: Processes) -> str | None:
        """What the benchmark's row in the table of commands names: see `evaluate`."""
        return evaluate(self, config, processes)


def evaluate(benchmark: Benchmark, config: Any, processes: Processes) -> str | None:
    """Computes what is missing, then figures and report; the text of the report on the main process.

    Several processes, and several commands, may work on the same folders: each finds the blocks that others
    have left. Raises UserError, EditorError or MetricError.
    """
    device = processes.device(config.device)
    runs = benchmark.runs(config, device)
    atomic.check_writable(config.out_dir)
    folders = [Folder(config.out_dir / run.folder, benchmark.holds) for run in runs]
    if processes.is_main:
        for run, folder in zip(runs, folders, strict=True):
            facts = {**run.facts, "name": run.name, "invocation": invocation(device, processes)}
            folder.open(run.identity, facts, overwrite=config.overwrite)
            for output, identity in run.outputs.items():
                folder.open_output(output, identity, overwrite=config.overwrite)
    processes.barrier()  # no process reads a folder that another is about to refuse or to remove
    executor = Threads(processes, device)
    steps = by_model(runs, folders)
    peaks: dict[str, dict[str, Any]] = {}  # of the latest run that a model worked for
    for number, (run, folder, stage) in enumerate(steps, start=1):
        if executor.compute(folder, stage, label=run.name) and processes.is_main and stage.model is not None:
            if (peak := folder.noted("peak_memory", stage.name)) is not None:
                peaks[stage.model.name] = peak
        executor.loaded.keep({other.model.name for _, _, other in steps[number:] if other.model is not None})
    if not processes.is_main:
        return None
    for name, peak in peaks.items():
        print(f"Peak memory, {memory.sentence(name, peak)}.", file=sys.stderr, flush=True)
    for run, folder in zip(runs, folders, strict=True):
        folder.update(status=INCOMPLETE)
        figures = frames.label(
            benchmark.figures(config, run, folder), benchmark=benchmark.name, model=run.name
        )
        atomic.write_text(folder.path / FIGURES, frames.to_csv(figures))
        folder.update(status=INCOMPLETE if run.partial else COMPLETE)
    if benchmark.report is not None:
        return benchmark.report(config, folders)
    return write_report(benchmark, config.out_dir, folders)


def write_report(benchmark: Benchmark, out: Path, folders: Sequence[Folder]) -> str:
    """OUT/table.md, figures.csv, report.html and the rest of finished runs; the headline as text."""
    figures = frames.concat(frames.read(folder.path / FIGURES) for folder in folders)
    report.write(out, figures, title=benchmark.title, sections=benchmark.sections)
    return report.headline(figures, benchmark.headline)


def by_model(runs: Sequence[Run], folders: Sequence[Folder]) -> list[tuple[Run, Folder, Stage]]:
    """Every stage of every run, in an order in which each model is loaded once: what shares a model comes
    together, models of later stages after those of earlier ones."""
    steps = [
        (run, folder, stage, place)
        for run, folder in zip(runs, folders, strict=True)
        for place, stage in enumerate(run.stages)
    ]
    latest: dict[str | None, int] = {}
    for _, _, stage, place in steps:
        name = stage.model.name if stage.model is not None else None
        latest[name] = max(place, latest.get(name, 0))
    first = {name: number for number, name in enumerate(latest)}

    def order(step: tuple[Run, Folder, Stage, int]) -> tuple[int, int]:
        name = step[2].model.name if step[2].model is not None else None
        return latest[name], first[name]

    return [(run, folder, stage) for run, folder, stage, _ in sorted(steps, key=order)]


def machine_identity(config: Any, device: str) -> dict[str, Any]:
    """What of the machine and its settings decides the last bits of every row."""
    return {
        "batch_size": config.batch_size,
        "dtype": config.dtype,
        "device": device.partition(":")[0],
        "image_rule": images.RULE,
    }


def invocation(device: str, processes: Processes) -> dict[str, Any]:
    """When and how the command at hand was given, and on what."""
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": environment.command_line(),
        "processes": processes.size,
        "environment": environment.describe(device),
    }
