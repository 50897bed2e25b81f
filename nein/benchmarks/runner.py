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

from nein.engine import atomic, environment, images
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
    """

    folder: str
    name: str
    identity: Mapping[str, Any]
    stages: tuple[Stage, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """What there is to know about a benchmark.

    name      Of its command.
    holds     What its folders hold, in messages: "answers".
    runs      (configuration, device) -> the runs that are asked for. Finds everything that can be wrong with
              names, data and models; loads nothing.
    conclude  (configuration, run, folder) -> counts for the manifest, once all blocks are there: writes the
              canonical files and figures of a run.
    report    (configuration, folders) -> text for the terminal: writes tables and pages.
    """

    name: str
    holds: str
    runs: Callable[[Any, str], Sequence[Run]]
    conclude: Callable[[Any, Run, Folder], Mapping[str, Any]]
    report: Callable[[Any, Sequence[Folder]], str]


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
    world.barrier()  # no process reads a folder that another is about to refuse or to remove
    executor = Threads(world, device)
    for number, (run, folder) in enumerate(zip(runs, folders, strict=True), start=1):
        for stage in run.stages:
            executor.compute(folder, stage, label=run.name)
        later = (stage.model for other in runs[number:] for stage in other.stages)
        executor.loaded.keep({model.name for model in later if model is not None})
    if not world.is_main:
        return None
    for run, folder in zip(runs, folders, strict=True):
        folder.update(status=INCOMPLETE)
        counts = benchmark.conclude(config, run, folder)
        folder.update(status=COMPLETE, counts=dict(counts))
    return benchmark.report(config, folders)


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
