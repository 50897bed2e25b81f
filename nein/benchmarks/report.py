"""`nein report` and `nein compare`, of finished runs of any benchmark."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from nein.benchmarks import compare as comparing
from nein.benchmarks import registry
from nein.benchmarks.config import CompareConfig, ReportConfig
from nein.benchmarks.runner import Benchmark, Finished
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder, runs_at


def run(options: ReportConfig) -> str:
    """`nein report`."""
    return write(registry.of_runs(options.runs), options)


def write(benchmark: Benchmark, options: ReportConfig) -> str:
    """Writes the report of the complete runs of one benchmark; what is printed."""
    options = _own(benchmark, options, benchmark.report_config)
    atomic.make_folder(options.out.parent)
    finished, unfinished = _finished(benchmark, options.runs)
    return benchmark.write_report(options.out.with_suffix(".html"), finished, options, unfinished)


def compare(options: CompareConfig) -> str:
    """`nein compare`: every pair of the runs, tested and corrected for their number."""
    benchmark = registry.of_runs(options.runs)
    options = _own(benchmark, options, benchmark.compare_config)
    finished, unfinished = _finished(benchmark, options.runs)
    if unfinished:
        names = ", ".join("/".join(path.parts[-2:]) for path in unfinished)
        print(f"not compared because not complete: {names}", file=sys.stderr)
    sides = benchmark.sides(finished, options)
    if len(sides) < 2:
        track = getattr(options, "track", "all")
        more = "" if track == "all" else f" of track '{track}' (--track all compares every track)"
        raise UserError(f"A comparison needs two runs; {len(sides)} complete run is there{more}.")
    pairs = comparing.chosen([*sides], options.baseline)
    rows = comparing.comparisons(sides, pairs, options.metrics, options.family)
    if not rows:
        raise UserError("These runs have no metric in common; score them with the same --metrics.")
    return comparing.printed(options.format, rows, benchmark.name)


def _finished(benchmark: Benchmark, paths: list[Path]) -> tuple[list[Finished], list[Path]]:
    """The complete runs at or below the paths, and the folders of the others. Raises UserError for none."""
    folders = runs_at(paths)
    complete = [path for path in folders if Folder(path).is_complete] or registry.finished(folders)
    return benchmark.of_folders(complete), [path for path in folders if path not in complete]


def _own(benchmark: Benchmark, options: Any, kind: type[Any]) -> Any:
    """The options as the benchmark's command takes them. Raises UserError for one that it does not have."""
    known = {field.name for field in dataclasses.fields(kind)}
    for field in dataclasses.fields(options):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.name not in known and getattr(options, field.name) != default:
            raise UserError(f"--{field.name.replace('_', '-')} does not apply to runs of {benchmark.title}.")
    own = (field.name for field in dataclasses.fields(options) if field.name in known)
    return options if type(options) is kind else kind(**{name: getattr(options, name) for name in own})
