"""`nein export`: finished runs of any benchmark, for other programs.

nein export runs/nano --format every-eval-ever     schema 0.3.0, with a line per sample
nein export runs/nano --format csv                 all rows as tables; parquet alike
nein export runs/mine/ip2p --format hf --push OWNER/NAME
nein export runs/nano --format bundle              a folder with the report, to put on a server
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nein.benchmarks import registry
from nein.benchmarks.runs import FIGURES
from nein.config.groups import Runs
from nein.config.options import option
from nein.engine.errors import UserError

if TYPE_CHECKING:
    from nein.benchmarks.runner import Benchmark
    from nein.reporting.interchange import Exported

FORMATS = ("every-eval-ever", "hf", "csv", "parquet", "bundle")


@dataclass(kw_only=True)
class ExportConfig(Runs):
    """What is written, and where to."""

    format: Literal["every-eval-ever", "hf", "csv", "parquet", "bundle"] = option(
        "every-eval-ever", f"one of {', '.join(FORMATS)}", "What"
    )
    out: Path = option(Path("export"), "folder to write", "Output")
    push: str | None = option(
        None, "hf: OWNER/NAME of a model's repository, to which the files are uploaded if you are logged in",
        "Hub",
    )  # fmt: skip
    dataset: str | None = option(
        None, "hf: the benchmark's data set on the hub, OWNER/NAME, if not the run's own", "Hub"
    )

    def check(self) -> None:
        if self.format != "hf" and (self.push or self.dataset):
            raise UserError("--push and --dataset are for --format hf.")


def run(config: ExportConfig) -> str:
    """The command. Raises UserError."""
    from nein.engine import atomic

    atomic.check_writable(config.out)
    folders = registry.finished(config.runs)
    if config.format in ("csv", "parquet"):
        return _listing(tables(folders, config.out, config.format))
    if config.format == "bundle":
        return _listing(bundle(config.runs, config.out))
    exported = [read(folder) for folder in folders]
    if config.format == "hf":
        from nein.reporting import hub

        if config.push is None:
            return _listing(list(hub.write(exported, config.out, dataset=config.dataset).values()))
        return hub.publish(exported, config.push, config.out, dataset=config.dataset) + "\n"
    from nein.reporting import interchange

    text = _listing(interchange.every_eval_ever(exported, config.out))
    unscored = sum(result.unscored for one in exported for result in one.results)
    more = f"{unscored} unscored values have no line, since the schema has none; their figures count them.\n"
    return text + (more if unscored else "")


def _listing(files: Sequence[Path]) -> str:
    return "".join(f"{path}\n" for path in files)


def read(folder: Path) -> Exported:
    """What a finished run gives away."""
    benchmark = registry.of_run(folder)
    return benchmark.read(folder) if benchmark.read is not None else _read(benchmark, folder)


def _read(benchmark: Benchmark, path: Path) -> Exported:
    """The figures of a run without an export of its own, and the scores that they are of."""
    from nein.reporting import figures as frames
    from nein.reporting import interchange

    folder = benchmark.folder(path)
    manifest = interchange.public(folder.manifest())
    data = {"name": benchmark.name, **manifest.get("data", {})}
    figures = frames.read(path / FIGURES)
    results = []
    for row in frames.records(frames.select(figures, task="results")):
        if row["value"] is not None:
            title = f"{row['metric']}, {row['variant']}".strip(", ")
            results.append(interchange.share(_key(row), row, title))
    for metric in frames.values(frames.select(figures, task="gap"), "metric"):
        of_gap = frames.records(frames.select(figures, task="gap", metric=metric))
        if of_gap[-1]["value"] is not None:
            results.append(interchange.gap(metric, *of_gap))

    def samples() -> Iterator[interchange.Sample]:
        assert benchmark.scores is not None
        for row in benchmark.scores(folder).rows():
            name, key = f"{row['id']}.{row['variant']}".strip("."), _key(row)
            yield interchange.Sample(key, name, "", "", "", row["metric"], row["value"], row["reason"])

    return interchange.Exported(
        benchmark.name, benchmark.title, str(manifest["name"]), "",
        str(manifest.get("reference", manifest["name"])), data, None, str(manifest.get("preset")),
        str(manifest.get("protocol", "fixed")), results, samples, manifest, path,
    )  # fmt: skip


def _key(row: Mapping[str, Any]) -> str:
    return "/".join(filter(None, (row["metric"], row["variant"])))


def tables(folders: Sequence[Path], out: Path, kind: str) -> list[Path]:
    """The rows of runs by name: those of their blocks, files of rows, scores; and their figures."""
    from nein.benchmarks.runner import selected
    from nein.engine import atomic
    from nein.engine.folder import Folder
    from nein.reporting import figures as frames
    from nein.reporting import rowtables

    sources: dict[str, list[tuple[str, Any]]] = {}
    figures = {}
    for path in folders:
        label, folder = path.name if len(folders) == 1 else _label(path, folders), Folder(path)
        benchmark = registry.known(path)
        files = sorted([*path.glob("*.jsonl"), *path.glob("samples/*.jsonl")])
        for file in files:
            rows = functools.partial(atomic.checked_lines, file)
            sources.setdefault(file.name.removesuffix(".jsonl"), []).append((label, rows))
        if benchmark is not None and benchmark.scores is not None:
            own = benchmark.folder(path)
            for output in folder.manifest()["selected"]:
                sources.setdefault(output, []).append((label, functools.partial(selected, folder, output)))
            rows = functools.partial(benchmark.rows, own) if benchmark.rows else benchmark.scores(own).rows
            sources.setdefault("scores", []).append((label, rows))
        if (path / FIGURES).is_file():
            figures[label] = frames.read(path / FIGURES)
    return rowtables.write(sources, figures, out, kind)


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """The end of a folder that tells it from the others: "ip2p/negative"."""
    for length in range(1, len(folder.parts) + 1):
        ends = ["/".join(other.parts[-length:]) for other in folders]
        if len(set(ends)) == len(ends):
            return "/".join(folder.parts[-length:])
    return str(folder)


def bundle(paths: Sequence[Path], out: Path) -> list[Path]:
    """OUT/index.html with all that lies beside it, and the rows as CSV in OUT/data: a folder to put on a
    server."""
    from nein.benchmarks import report
    from nein.engine import atomic

    benchmark, folders = registry.of_runs(paths), registry.finished(paths)
    report.write(benchmark, benchmark.report_config(runs=list(paths), out=out / "index.html"))
    atomic.write_text(out / ".nojekyll", "")  # GitHub's pages pass over files with an underscore otherwise
    return [out / "index.html", *tables(folders, out / "data", "csv")]
