"""Finds a benchmark by its name or by a run's folder, and the runs of a benchmark.

An installed package adds its own benchmarks by entry points of the group `nein.benchmarks`: the name, and a
`nein.benchmarks.runner.Benchmark`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nein.engine.folder import Folder, collect_runs
from nein.loading.errors import UserError, unknown

if TYPE_CHECKING:
    from nein.benchmarks.runner import Benchmark, Finished

OURS = {  # name -> "module:object"
    "nein": "nein.benchmarks.nein.run:NEIN",
    "negbench": "nein.benchmarks.negbench.runs:NEGBENCH",
    "negvqa": "nein.benchmarks.negvqa.runs:NEGVQA",
    "rewriters": "nein.benchmarks.rewriters:REWRITERS",
    "generators": "nein.benchmarks.generators:GENERATORS",
}


def plugins() -> dict[str, str]:
    """Name -> "module:object" of the benchmarks of installed packages; none replaces one of ours."""
    points = importlib.metadata.entry_points(group="nein.benchmarks")
    return {point.name: point.value for point in points if point.name not in OURS}


def names() -> list[str]:
    """The names of all benchmarks."""
    return [*OURS, *plugins()]


@functools.cache
def get(name: str) -> Benchmark:
    """The benchmark of this name. Raises UserError if there is none, or a plug-in cannot be loaded."""
    from nein.benchmarks.runner import Benchmark

    target = OURS.get(name) or plugins().get(name)
    if target is None:
        raise unknown("benchmark", name, names())
    try:
        benchmark = pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise UserError(f"The benchmark '{name}' ({target}) cannot be loaded: {error}.") from None
    if not isinstance(benchmark, Benchmark) or benchmark.name != name:
        raise UserError(f"'{target}' is not a nein.benchmarks.runner.Benchmark named '{name}'.")
    return benchmark


def get_of_run(folder: Path) -> Benchmark:
    """The benchmark of a run's folder. Raises UserError for any other folder."""
    if (name := str(Folder(folder).entries().get("benchmark"))) not in names():
        raise UserError(f"'{folder}' is not a run of {', '.join(names())}.")
    return get(name)


def find_finished(paths: Sequence[Path]) -> list[Path]:
    """The run folders at or below the paths, all of which must be complete. Raises UserError."""
    folders = collect_runs(paths)
    for folder in folders:
        if not Folder(folder).is_complete:
            raise UserError(f"The run '{folder}' is not complete; rerun its command (nein status {folder}).")
    return folders


def group_by_data(folders: Sequence[Path]) -> list[tuple[Benchmark, list[Finished]]]:
    """Finished runs, grouped by benchmark and data."""
    groups: dict[tuple[str, str], list[Path]] = {}  # (name of the benchmark, digest of its data) -> runs
    for folder in folders:
        data = Folder(folder).entries().get("data", {})
        digest = str(data.get("records_sha256") or data.get("sha256"))  # the key depends on the benchmark
        groups.setdefault((get_of_run(folder).name, digest), []).append(folder)
    return [(get(name), get(name).load_finished(members)) for (name, _), members in groups.items()]


def get_shared(paths: Sequence[Path]) -> Benchmark:
    """The one benchmark of all runs at or below the paths. Raises UserError."""
    benchmarks = sorted({get_of_run(folder).name for folder in collect_runs(paths)})
    if len(benchmarks) > 1:
        raise UserError(f"These runs are of {', '.join(benchmarks)}; pass runs of one benchmark.")
    return get(benchmarks[0])
