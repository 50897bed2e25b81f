"""`nein export`: finished runs of any benchmark, for other programs.

nein export runs/nano --format every-eval-ever     schema 0.3.0, with a line per sample
nein export runs/nano --format csv                 all rows as tables; parquet alike
nein export runs/mine/ip2p --format hf --push OWNER/NAME
nein export runs/nano --format bundle              a folder with the report, to put on a server
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nein.config.groups import FORMATS as PARTS
from nein.config.groups import Runs
from nein.config.options import option
from nein.engine.errors import UserError

FORMATS = ("every-eval-ever", "hf", "csv", "parquet", "bundle")
#: Benchmark, as manifests name it -> what reads a finished run of it, and what writes its page.
READERS: dict[str, str] = {
    "nein": "nein.benchmarks.nein.exported:read",
    "negbench": "nein.benchmarks.negbench.exported:read",
    "negvqa": "nein.benchmarks.negvqa.exported:read",
}


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
    folders = finished(config.runs)
    if config.format in ("csv", "parquet"):
        return _listing(tables(folders, config.out, config.format))
    if config.format == "bundle":
        return _listing(bundle(config.runs, folders, config.out))
    exported = [one for folder in folders for one in read(folder)]
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


def finished(paths: Sequence[Path]) -> list[Path]:
    """The run folders at or below the paths, all of which must be complete. Raises UserError."""
    from nein.engine import atomic
    from nein.engine.folder import COMPLETE, MANIFEST, runs_below

    folders = list(dict.fromkeys(folder for path in paths for folder in runs_below(path)))
    if not folders:
        raise UserError(f"There is no run in '{paths[0]}'; name the --out of a command, or a run in it.")
    for folder in folders:
        if atomic.read_json(folder / MANIFEST, {"status": str})["status"] != COMPLETE:
            raise UserError(
                f"The run '{folder}' is not complete; give its command again (nein status {folder} says how "
                f"far "
                "it is)."
            )
    return folders


def benchmark_of(folder: Path) -> str:
    """Of a finished run. Raises UserError for one of another kind."""
    from nein.engine.folder import Folder

    name = str(Folder(folder).manifest().get("benchmark"))
    if name not in READERS:
        raise UserError(
            f"'{folder}' is no run of {', '.join(READERS)}; --format csv and parquet take any run."
        )
    return name


def read(folder: Path) -> Iterator[Any]:
    """What a finished run gives away: `nein.reporting.interchange.Exported`."""
    reader: Callable[[Path], Any] = pkgutil.resolve_name(READERS[benchmark_of(folder)])
    yield reader(folder)


def tables(folders: Sequence[Path], out: Path, kind: str) -> list[Path]:
    """The rows of runs by name: those of their blocks, files of rows, scores; and their figures."""
    from nein.benchmarks.nein.runs import of_folder
    from nein.benchmarks.runner import selected
    from nein.engine import atomic
    from nein.engine.folder import Folder
    from nein.reporting import figures as frames
    from nein.reporting import rowtables

    sources: dict[str, list[tuple[str, Any]]] = {}
    figures = {}
    for path in folders:
        label, folder = path.name if len(folders) == 1 else _label(path, folders), Folder(path)
        files = sorted([*path.glob("*.jsonl"), *path.glob("samples/*.jsonl")])
        for file in files:
            rows = functools.partial(atomic.checked_lines, file)
            sources.setdefault(file.name.removesuffix(".jsonl"), []).append((label, rows))
        for output in folder.manifest()["selected"] if not files else ():
            sources.setdefault(output, []).append((label, functools.partial(selected, folder, output)))
        if folder.manifest().get("benchmark") == "nein":
            sources.setdefault("scores", []).append((label, of_folder(folder).scores))
        if (path / "figures.csv").is_file():
            figures[label] = frames.read(path / "figures.csv")
    return rowtables.write(sources, figures, out, kind)


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """The end of a folder that tells it from the others: "ip2p/negative"."""
    for length in range(1, len(folder.parts) + 1):
        ends = ["/".join(other.parts[-length:]) for other in folders]
        if len(set(ends)) == len(ends):
            return "/".join(folder.parts[-length:])
    return str(folder)


def bundle(paths: Sequence[Path], folders: Sequence[Path], out: Path) -> list[Path]:
    """OUT/index.html with all that lies beside it, and the rows as CSV in OUT/data: a folder to put on a
    server."""
    from nein.engine import atomic

    kinds = {benchmark_of(folder) for folder in folders}
    if len(kinds) > 1:
        raise UserError(f"A bundle is of one benchmark, and these runs are of {', '.join(sorted(kinds))}.")
    write_page(kinds.pop(), paths, out / "index.html", PARTS)
    atomic.write_text(out / ".nojekyll", "")  # GitHub's pages pass over files with an underscore otherwise
    return [out / "index.html", *tables(folders, out / "data", "csv")]


#: Benchmark -> configuration and function of the command that reports its runs.
PAGES: dict[str, tuple[str, str]] = {
    "nein": ("nein.benchmarks.nein.config:ReportConfig", "nein.benchmarks.nein.reporting.command:report"),
    "negbench": ("nein.benchmarks.negbench.config:ReportConfig", "nein.benchmarks.negbench.report:run"),
    "negvqa": ("nein.benchmarks.negvqa.config:ReportConfig", "nein.benchmarks.negvqa.report:run"),
}


def write_page(benchmark: str, runs: Sequence[Path], page: Path, formats: Sequence[str]) -> None:
    """The page of finished runs of a benchmark, with further parts of the report beside it."""
    configuration, work = (pkgutil.resolve_name(name) for name in PAGES[benchmark])
    work(configuration(runs=list(runs), out=page, formats=list(formats)))
