"""`nein leaderboard`: one page of all models and remedies on all benchmarks, by negation gap.

nein leaderboard runs/nano runs/negvqa-nano exported/ --out leaderboard

The one figure that all benchmarks have is the negation gap: of finished runs, of files that others exported
(`nein export --format every-eval-ever`), and of what the papers print.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks import export, registry, report
from nein.benchmarks.config import LeaderboardConfig
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import runs_below
from nein.reporting import figures as frames
from nein.reporting import interchange, plots, tables
from nein.reporting.format import Gap, widest
from nein.reporting.interchange import Exported
from nein.reporting.page import Page, Section
from nein.reporting.report import headline, write
from nein.reporting.tables import Column, Row, Table

#: Models that read nothing, whose small gap is no success.
BASELINES = ("identity", "solid", "random", "constant")
MEASURED, PUBLISHED = "measured here", "as published"
_GAP = {"statistic": "gap"}
#: Where `nein export` writes its files.
EXPORTED = "data/*/*/*/*.json"
NOTES = (
    "Negation gap: score on affirmative inputs minus score on negated ones, in points, with its 95 % "
    "interval clustered by image. A small gap means little if the affirmative score is low: see each table.",
    "Columns differ in data and metric and are not comparable.",
    "Published values are those that the authors print, on the published data, without an interval.",
)


def run(config: LeaderboardConfig) -> str:
    atomic.make_folder(config.out)
    folders, logs = found(config.runs)
    board = frame([*measured(folders, config.out), *reported(logs)])
    tests = [test for test in board["test"].unique() if test]
    ours = board.loc[board["source"] != PUBLISHED, "model"].nunique()
    page = Page(
        "Negation leaderboard", f"{ours} models and remedies, {len(tests)} tests with those of the papers.",
        [*NOTES, *lacking(folders, board)], findings(board), sections=sections(board),
    )  # fmt: skip
    written = write(config.out / "index.html", board, page)
    return f"{headline(board[board['source'] != PUBLISHED], [GAPS])}\nPage: {written[-1]}\n"


def found(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """(folders of finished runs, (exported file, name of its path)) at or below the paths."""
    logs: list[tuple[Path, str]] = []
    below: list[Path] = []
    for path in paths:
        files = [path] if path.suffix == ".json" and path.is_file() else sorted(path.glob(EXPORTED))
        logs += [(file, path.name) for file in files]
        if not files and not runs_below(path):
            raise UserError(
                f"There is no run and no exported file in '{path}'; name the --out of a command or of nein "
                "export."
            )
        below += [] if files else [path]
    return registry.finished(below) if below else [], logs


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows, test by test: models by gap, baselines below them, then those of the papers."""
    if not rows:
        raise UserError(
            "None of these runs has a negation gap: of NeIn it takes both tracks (nein eval --control "
            "remove), of NegBench both kinds of captions or of questions."
        )
    benchmarks = dict.fromkeys(row["benchmark"] for row in rows)
    tests = list(dict.fromkeys(row["test"] for row in rows))
    key = ("test", "model", "source")
    gaps = {tuple(row[k] for k in key): row["value"] for row in rows if row["statistic"] == "gap"}

    def order(row: Mapping[str, Any]) -> tuple[int, bool, float]:
        gap = gaps[tuple(row[k] for k in key)]
        return tests.index(row["test"]), row["model"] in BASELINES, math.inf if gap is None else gap

    together = sorted(rows, key=order)
    return frames.frame([*together, *(row for name in benchmarks for row in printed(name))])


def measured(folders: Sequence[Path], out: Path) -> Iterator[dict[str, Any]]:
    """The gaps of finished runs; writes a page of each, to which their figures are linked."""
    read = [export.read(folder) for folder in folders]
    pages = write_pages([run for run in read if _gaps(run)], out)
    for run in read:
        for result in _gaps(run):
            what = {"benchmark": run.benchmark, "model": run.name, "source": MEASURED, "date": run.when[:10]}
            what["test"] = _test(run.benchmark, run.dataset, result.facts["measure"])
            what["page"] = pages[run.folder].relative_to(out).as_posix()
            numbers = ("value", "low", "high", "n", "unscored", "standard_error")
            yield from _rows(what, result.facts, {name: result.figure[name] for name in numbers})


def _gaps(run: Exported) -> list[interchange.Result]:
    return [result for result in run.results if result.metric == interchange.GAP]


def reported(logs: Sequence[tuple[Path, str]]) -> Iterator[dict[str, Any]]:
    for path, source in logs:
        for gap in interchange.read_gaps(path):
            what = {"benchmark": gap["benchmark"], "model": gap["model"], "date": gap["date"]}
            test = _test(gap["benchmark"], gap["data"], gap["facts"]["measure"])
            yield from _rows({**what, "source": source, "test": test}, gap["facts"], gap["figure"])


def printed(benchmark: str) -> Iterator[dict[str, Any]]:
    for row in registry.get(benchmark).printed() if benchmark in registry.names() else ():
        what = {"benchmark": benchmark, "model": row["model"], "source": PUBLISHED}
        test = _test(benchmark, {"name": row["data"]}, row["measure"])
        affirmed, negated = row["affirmed"], row["negated"]
        gap = None if affirmed is None else affirmed - negated
        yield from _rows({**what, "test": test}, row, {"value": gap})


def _rows(
    what: Mapping[str, Any], ends: Mapping[str, Any], gap: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """ends: `affirmed` and `negated`, shares; gap: a figure."""
    elsewhere = "" if what["source"] in (MEASURED, PUBLISHED) else what["source"]
    same = {**what, "task": "field", "metric": interchange.GAP, "elsewhere": elsewhere}
    for name in ("affirmed", "negated"):
        yield {**same, "statistic": name, "value": ends[name], "n": gap.get("n"), "unit": "%"}
    yield {**same, **gap, "statistic": "gap", "unit": "points"}


def _title(benchmark: str) -> str:
    return registry.get(benchmark).title if benchmark in registry.names() else benchmark


def _test(benchmark: str, data: Mapping[str, Any], measure: str) -> str:
    return f"{_title(benchmark)} {data.get('name') or data.get('kind') or 'own data'}: {measure}"


def write_pages(runs: Sequence[Exported], out: Path) -> dict[Path, Path]:
    """Folder of a run -> page: one for all runs of a benchmark on the same data, or on any (`mixed`)."""
    groups: dict[tuple[str, str], dict[Path, None]] = {}
    for run in runs:
        key = run.benchmark, "" if registry.get(run.benchmark).mixed else run.digest
        groups.setdefault(key, {}).update(dict.fromkeys((run.folder, *run.beside)))
    pages: dict[Path, Path] = {}
    for number, ((benchmark, _), members) in enumerate(groups.items(), start=1):
        page = out / f"{benchmark}-{number}" / "index.html"
        own = registry.get(benchmark)
        report.write(own, own.report_config(runs=list(members), out=page, formats=["html"]))
        pages |= dict.fromkeys(members, page)
    return pages


_ENDS = (
    Column("affirmed ↑", {"statistic": "affirmed"}, tables.value()),
    Column("negated ↑", {"statistic": "negated"}, tables.value()),
    Column("gap ↓", _GAP, tables.estimate(), link="page"),
    Column("n", _GAP, tables.count()),
    Column("unscored", _GAP, tables.count("unscored")),
)
#: What the command prints.
GAPS = Table("gaps", "Negation gaps, points", (Row("test"), Row("model"), Row("source")), _ENDS)


def sections(board: pd.DataFrame) -> list[Section]:
    """All in one table, then table and plot of each benchmark with what the papers print."""
    ours = tuple(source for source in frames.values(board, "source") if source != PUBLISHED)
    field = Table(
        "field", "Negation gap of every model in every test, points", (Row("model"), Row("source")),
        (Column(by="test", where=_GAP, link="page"),), {"source": ours},
    )  # fmt: skip
    columns = (*_ENDS, Column("date", _GAP, tables.entry("date")))
    found = [Section("field", "All tests", [field])]
    for name in frames.values(board, "benchmark"):
        where = {"benchmark": name}
        table = Table(f"of_{name}", _title(name), GAPS.rows, columns, where)
        plot = plots.plot(
            f"of_{name}", f"{_title(name)}: negation gap, with 95 % intervals",
            {**_GAP, **where, "source": ours},
            plots.bars, place=("model", "elsewhere"), series="test", axis="points", limits=None, dots=True,
        )  # fmt: skip
        found.append(Section(f"of_{name}", _title(name), [table], [plot]))
    return found


def findings(board: pd.DataFrame) -> list[str]:
    """The widest gap of each test, in a sentence."""
    sentences = []
    for test in frames.values(board, "test"):
        members = board[(board["test"] == test) & (board["source"] != PUBLISHED)]
        gaps = []
        for (model, _), part in members.groupby(["model", "source"], sort=False):
            by = {figure["statistic"]: figure for figure in frames.records(part)}
            gaps.append(Gap(str(model), by["affirmed"], by["negated"], by["gap"]))
        sentences.append(widest(gaps, what=test, change="the input is negated"))
    return [sentence for sentence in sentences if sentence]


def lacking(folders: Sequence[Path], board: pd.DataFrame) -> list[str]:
    names = dict.fromkeys(export.read(folder).name for folder in folders)
    listed = ", ".join(name for name in names if name not in set(board["model"]))
    return [f"Without a gap, and so not here: {listed} (NeIn: nein eval --control remove)."] if listed else []
