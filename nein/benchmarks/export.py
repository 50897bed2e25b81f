"""`nein export`: finished runs of any benchmark, for other programs.

nein export runs/nano --format every-eval-ever     schema 0.3.0, with a line per sample
nein export runs/nano --format csv                 all rows as tables
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from nein.benchmarks import registry
from nein.benchmarks.config import ExportConfig
from nein.benchmarks.runner import FIGURES, SCORES, Benchmark, selected
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.reporting import figures as frames
from nein.reporting import interchange
from nein.reporting.interchange import Exported


def run(config: ExportConfig) -> str:
    atomic.make_folder(config.out)
    folders = registry.finished(config.runs)
    if config.format == "csv":
        return _listing(tables(folders, config.out))
    exported = [read(folder) for folder in folders]
    text = _listing([file for entry in exported for file in interchange.every_eval_ever(entry, config.out)])
    unscored = sum(result.figure["unscored"] or 0 for entry in exported for result in entry.results)
    more = f"{unscored} unscored values have no line, since the schema has none; their figures count them.\n"
    return text + (more if unscored else "")


def _listing(files: Sequence[Path]) -> str:
    return "".join(f"{path}\n" for path in files)


def read(folder: Path) -> Exported:
    benchmark = registry.of_run(folder)
    return benchmark.read(folder) if benchmark.read is not None else _read(benchmark, folder)


def _read(benchmark: Benchmark, path: Path) -> Exported:
    """Of a run whose benchmark has no export of its own."""
    folder = benchmark.folder(path)
    manifest = interchange.public(folder.manifest())
    data = {"name": benchmark.name, **manifest.get("data", {})}
    figures = frames.read(path / FIGURES)
    results = []
    for row in frames.records(figures, task="results"):
        if row["value"] is not None:
            title = f"{row['metric']}, {row['variant']}".strip(", ")
            results.append(interchange.share(_key(row), row, title))
    for metric in frames.values(frames.select(figures, task="gap"), "metric"):
        of_gap = frames.records(figures, task="gap", metric=metric)
        if of_gap[-1]["value"] is not None:
            results.append(interchange.gap(metric, *of_gap))

    def samples() -> Iterator[interchange.Sample]:
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


def tables(folders: Sequence[Path], out: Path) -> list[Path]:
    """OUT/<name>.csv: rows of blocks, files of rows, scores and figures of all runs."""
    sources: dict[str, list[tuple[str, Any]]] = {}
    for path in folders:
        label = path.name if len(folders) == 1 else _label(path, folders)
        benchmark = registry.known(path)
        for file in sorted(path.glob("*.jsonl")):
            rows: Any = functools.partial(atomic.checked_lines, file)
            sources.setdefault(file.name.removesuffix(".jsonl"), []).append((label, rows))
        if benchmark is not None:
            own = benchmark.folder(path)
            for output in own.manifest()["selected"]:
                if "id" not in own.row_shapes.get(output, ("id",)):
                    continue  # what was encoded is no sample
                sources.setdefault(output, []).append((label, functools.partial(selected, own, output)))
            sources.setdefault("scores", []).append((label, _scores(benchmark, own)))
        if (path / FIGURES).is_file():
            rows = functools.partial(frames.records, frames.read(path / FIGURES))
            sources.setdefault("figures", []).append((label, rows))
    for name, several in sources.items():
        _write(several, out / f"{name}.csv")
    return [out / f"{name}.csv" for name in sources]


def _scores(benchmark: Benchmark, folder: Folder) -> Callable[[], Iterable[Mapping[str, Any]]]:
    """The scores of a run, or those of its scores.csv where their data have gone."""
    try:
        rows = functools.partial(benchmark.rows, folder) if benchmark.rows else benchmark.scores(folder).rows
        next(iter(rows()), None)
        return rows
    except UserError as error:
        file = folder.path / SCORES
        if not file.is_file():
            raise
        print(f"{error} What {file} holds of its scores is written.", file=sys.stderr)

    def saved() -> Iterator[dict[str, Any]]:
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                yield {**row, "value": float(row["value"]) if row["value"] else None}

    return saved


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """The end of a folder that tells it from the others: "ip2p/negative"."""
    lengths = range(1, len(folder.parts) + 1)
    own = (n for n in lengths if len({other.parts[-n:] for other in folders}) == len(folders))
    return "/".join(folder.parts[-next(own, 0) :])


#: Of a table, for every run: its label, and what reads its rows anew.
Sources: TypeAlias = Sequence[tuple[str, Callable[[], Iterable[Mapping[str, Any]]]]]


def _rows(sources: Sources) -> Iterator[dict[str, Any]]:
    def plain(value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value

    for label, read in sources:
        yield from ({"run": label, **{key: plain(value) for key, value in row.items()}} for row in read())


def _write(files: Sources, path: Path) -> None:
    """The rows of all runs below each other. They are read twice, for the columns and for the rows, and never
    held."""
    columns = dict.fromkeys(itertools.chain.from_iterable(_rows(files)))
    with atomic.writing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        table = csv.DictWriter(text, list(columns), lineterminator="\n")
        table.writeheader()
        for row in _rows(files):
            table.writerow({key: frames.harmless(value) for key, value in row.items()})
        text.detach()  # which writes what it still holds, and leaves the file open
