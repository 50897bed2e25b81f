"""`nein report` and `nein compare`, of finished runs of any benchmark."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nein.benchmarks import paired, registry
from nein.benchmarks.config import CompareConfig, ReportConfig
from nein.benchmarks.runner import Benchmark
from nein.benchmarks.runs import FIGURES, Finished
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting import figures as frames
from nein.reporting import tables


def run(options: ReportConfig) -> str | int:
    """`nein report`. Raises UserError."""
    return write(registry.of_runs(options.runs), options)


def compare(options: CompareConfig) -> str | int:
    """`nein compare`: every pair of the runs, tested and corrected for their number. Raises UserError."""
    benchmark = registry.of_runs(options.runs)
    options = _own(benchmark, options, benchmark.compare_config)
    if benchmark.compare is not None:
        return benchmark.compare(options)
    finished = read(benchmark, registry.finished(options.runs))
    if len(finished) < 2:
        raise UserError("A comparison needs two runs, and one is there.")
    scores = {one.name: benchmark.decides(benchmark.scores(one.folder), one.folder) for one in finished}
    pairs = paired.chosen(list(scores), options.baseline)
    rows = paired.comparisons(scores, pairs, benchmark.gap, options.metrics, options.family)
    if not rows:
        raise UserError("These runs have no metric in common.")
    figures = frames.label(frames.frame(rows), benchmark=benchmark.name)
    if options.format == "csv":
        return frames.to_csv(figures)
    shown = tables.sheets([paired.COMPARISONS], figures)
    return (tables.latex if options.format == "tex" else tables.markdown)(shown, "Comparison")


def write(benchmark: Benchmark, options: ReportConfig) -> str | int:
    """The report of runs of one benchmark."""
    from nein.benchmarks.runner import write_report

    options = _own(benchmark, options, benchmark.report_config)
    if benchmark.report is not None:
        return benchmark.report(options)
    atomic.check_writable(options.out.parent)
    out = options.out.with_suffix(".html")
    text, files = write_report(benchmark, out, read(benchmark, registry.finished(options.runs)), options)
    return f"{text}\nReport: {out if out in files else out.parent}\n"


def read(benchmark: Benchmark, folders: Sequence[Path]) -> list[Finished]:
    """Finished runs by their name, or by their path where another one has it."""
    found: dict[str, Finished] = {}
    for path in folders:
        folder = benchmark.folder(path)
        name = str(folder.manifest().get("name", path.name))
        name = str(path) if name in found else name
        figures = frames.label(frames.read(path / FIGURES), benchmark=benchmark.name, model=name)
        found[name] = Finished(folder, name, figures)
    return list(found.values())


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
            raise UserError(f"Of runs of {benchmark.title} there is no --{field.name.replace('_', '-')}.")
    return kind(**own)
