"""`nein report` and `nein compare`, of finished runs of any benchmark."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nein.benchmarks import paired, registry, runner
from nein.benchmarks.config import CompareConfig, ReportConfig
from nein.benchmarks.runner import SCORES, Benchmark, Finished
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import runs_at
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable


def run(options: ReportConfig) -> str:
    """`nein report`."""
    return write(registry.of_runs(options.runs), options)


def compare(options: CompareConfig) -> str:
    """`nein compare`: every pair of the runs, tested and corrected for their number."""
    benchmark = registry.of_runs(options.runs)
    options = _own(benchmark, options, benchmark.compare_config)
    finished, unfinished = _finished(benchmark, options.runs)
    if unfinished:
        names = ", ".join("/".join(path.parts[-2:]) for path in unfinished)
        print(f"not compared because not complete: {names}", file=sys.stderr)
    if benchmark.compare is not None:
        return benchmark.compare(finished, options)
    if len(finished) < 2:
        raise UserError("A comparison needs two runs, and one is there.")
    rows_of = benchmark.compared or benchmark.decides
    scores = {run.name: rows_of(ScoreTable.read(run.folder.path / SCORES), run.folder) for run in finished}
    pairs = paired.chosen(list(scores), options.baseline)
    rows = paired.comparisons(scores, pairs, benchmark.gap, options.metrics, options.family)
    if not rows:
        raise UserError("These runs have no metric in common.")
    figures = frames.frame(rows, benchmark=benchmark.name)
    return paired.printed(options.format, figures, [paired.COMPARISONS])


def write(benchmark: Benchmark, options: ReportConfig) -> str:
    """Writes the report of the complete runs of one benchmark; what is printed."""
    options = _own(benchmark, options, benchmark.report_config)
    atomic.make_folder(options.out.parent)
    finished, unfinished = _finished(benchmark, options.runs)
    return runner.write_report(benchmark, options.out.with_suffix(".html"), finished, options, unfinished)


def _finished(benchmark: Benchmark, paths: Sequence[Path]) -> tuple[list[Finished], list[Path]]:
    """The complete runs at or below the paths, and the folders of the others. Raises UserError for none."""
    folders = runs_at(paths)
    complete = [path for path in folders if registry.complete(path)] or registry.finished(folders)
    return runner.of_folders(benchmark, complete), [path for path in folders if path not in complete]


def _own(benchmark: Benchmark, options: Any, kind: type[Any]) -> Any:
    """The options as the benchmark's command takes them. Raises UserError for one that it does not have."""
    if type(options) is kind:
        return options
    known = {field.name for field in dataclasses.fields(kind)}
    own: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name in known:
            own[field.name] = value
        elif value != (field.default_factory() if callable(field.default_factory) else field.default):
            raise UserError(f"--{field.name.replace('_', '-')} does not apply to runs of {benchmark.title}.")
    return kind(**own)
