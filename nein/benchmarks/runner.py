"""From a benchmark, which is a value, to finished folders and a report: what all benchmarks have in common.

A benchmark says which runs a configuration asks for and which stages each of them has, and what is written
when all blocks are there. Everything else is done here and in `nein.engine`: opening folders, refusing
mixtures, computing what is missing on any number of processes, and the word "complete".
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nein.engine import atomic, environment, images, memory
from nein.engine.executors import Stage, Threads
from nein.engine.folder import COMPLETE, INCOMPLETE, Folder
from nein.engine.world import World


@dataclass(frozen=True)
class Run:
    """One folder of results: a model on a data set.

    folder    Below the command's OUT.
    name      As progress and tables show it.
    identity  What decides its rows: another value of any key is another run.
    stages    What there is to compute, in order; a stage reads what those before it have written.
    facts     For the manifest: what the latest command says of itself.
    outputs   Output -> identity, of those that may differ from the folder's (a metric, say).
    whole     Whether all there is to a run is there in the end; a command may ask for a part.
    """

    folder: str
    name: str
    identity: Mapping[str, Any]
    stages: tuple[Stage, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True)
class Benchmark:
    """What there is to know about a benchmark.

    name      Of its command.
    holds     What its folders hold, in messages: "answers".
    runs      (configuration, device) -> the runs that are asked for. Finds everything that can be wrong with
              names, data and models; loads nothing.
    conclude  (configuration, run, folder) -> counts for the manifest, once all blocks are there: writes the
              canonical files and figures of a run.
    report    (configuration, folders) -> text for the terminal, or None: writes tables and pages.
    """

    name: str
    holds: str
    runs: Callable[[Any, str], Sequence[Run]]
    conclude: Callable[[Any, Run, Folder], Mapping[str, Any]]
    report: Callable[[Any, Sequence[Folder]], str | None]


def evaluate(benchmark: Benchmark, config: Any, world: World) -> str | None:
    """Computes what is missing, then figures and report; the text of the report on the main process.

    Several processes, and several commands, may work on the same folders: each finds the blocks that others
    have left. Raises UserError, EditorError or MetricError.
    """
    device = world.device(config.device)
    runs = benchmark.runs(config, device)
    atomic.check_writable(config.out_dir)
    folders = [Folder(config.out_dir / run.folder, benchmark.holds) for run in runs]
    if world.is_main:
        for run, folder in zip(runs, folders, strict=True):
            facts = {**run.facts, "invocation": invocation(device, world)}
            folder.open(run.identity, facts, overwrite=config.overwrite)
            for output, identity in run.outputs.items():
                folder.open_output(output, identity, overwrite=config.overwrite)
    world.barrier()  # no process reads a folder that another is about to refuse or to remove
    executor = Threads(world, device)
    peaks: dict[str, dict[str, Any]] = {}  # of the latest run that a model worked for
    for run, folder, stage in by_model(runs, folders):
        if executor.compute(folder, stage, label=run.name) and world.is_main and stage.model is not None:
            peaks[stage.model.name] = folder.notes("peak_memory")[stage.name]
    if not world.is_main:
        return None
    for name, peak in peaks.items():
        print(f"Peak memory, {memory.sentence(name, peak)}.", file=sys.stderr, flush=True)
    for run, folder in zip(runs, folders, strict=True):
        folder.update(status=INCOMPLETE)
        counts = benchmark.conclude(config, run, folder)
        folder.update(status=COMPLETE if run.whole else INCOMPLETE, counts=dict(counts))
    return benchmark.report(config, folders)


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


def invocation(device: str, world: World) -> dict[str, Any]:
    """When and how the command at hand was given, and on what."""
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": list(sys.argv[1:]),
        "processes": world.size,
        "environment": environment.describe(device),
    }
