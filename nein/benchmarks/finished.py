"""Commands that read finished runs of any benchmark: report, compare, export, leaderboard.

The leaderboard is one page of all models and remedies by negation gap, the one figure that all benchmarks
have: of finished runs, and of what the papers print. manifest.json, figures.csv and scores.csv are enough.
"""

from __future__ import annotations

import dataclasses
import os.path
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks import compare as comparing
from nein.benchmarks import registry
from nein.benchmarks.config import CompareConfig, ExportConfig, LeaderboardConfig, ReportConfig
from nein.benchmarks.runner import FIGURES, SCORES, Benchmark, Finished
from nein.engine import atomic
from nein.engine.folder import Folder, runs_at
from nein.loading.errors import UserError
from nein.reporting import figures as frames
from nein.reporting import plots, tables
from nein.reporting.figures import Figure
from nein.reporting.page import Page, Section, headline, write
from nein.reporting.tables import Column, Row, Table, widest

#: Models that read nothing, whose small gap is no success.
BASELINES = ("identity", "solid", "random", "constant")
MEASURED, PUBLISHED = "measured here", "as published"
_GAP = {"statistic": "gap"}
NOTES = (
    "Negation gap: score on affirmative inputs minus score on negated ones, in points, with its 95 % "
    "interval clustered by image. A small gap means little if the affirmative score is low: see each table.",
    "Columns differ in data and metric and are not comparable.",
    "Published values are those that the authors print, on the published data, without an interval.",
)


def report(options: ReportConfig) -> str:
    """`nein report`: the report of the complete runs of one benchmark."""
    benchmark = registry.of_runs(options.runs)
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
    figures, shown, form = frames.frame(rows, benchmark=benchmark.name), comparing.table(rows), options.format
    if form == "csv":
        return frames.to_csv(figures)
    if form == "text":
        return headline(figures, [shown], [shown.note], ["Every row: --format md, csv or tex"])
    [sheet] = tables.sheets([shown], figures)
    return tables.latex(sheet) if form == "tex" else tables.markdown([sheet], "Comparison")


def _finished(benchmark: Benchmark, paths: list[Path]) -> tuple[list[Finished], list[Path]]:
    """The complete runs at or below the paths, and the folders of the others. Raises UserError for none."""
    folders = runs_at(paths)
    complete = [path for path in folders if Folder(path).is_complete] or registry.finished(folders)
    return benchmark.of_folders(complete), [path for path in folders if path not in complete]


def _own(benchmark: Benchmark, options: Any, kind: type[Any]) -> Any:
    """The options as the benchmark's command takes them. Raises UserError for one that it does not have."""
    known = {item.name for item in dataclasses.fields(kind)}
    for item in dataclasses.fields(options):
        default = item.default_factory() if callable(item.default_factory) else item.default
        if item.name not in known and getattr(options, item.name) != default:
            raise UserError(f"--{item.name.replace('_', '-')} does not apply to runs of {benchmark.title}.")
    own = (item.name for item in dataclasses.fields(options) if item.name in known)
    return options if type(options) is kind else kind(**{name: getattr(options, name) for name in own})


def export(config: ExportConfig) -> str:
    """`nein export`: scores.csv and figures.csv of all runs, below each other, with a column `run`."""
    atomic.make_folder(config.out)
    folders = registry.finished(config.runs)
    top = os.path.commonpath([*folders]) if len(folders) > 1 else folders[0].parent
    runs = [Path(os.path.relpath(folder, top)).as_posix() for folder in folders]
    for name in (SCORES, FIGURES):
        each = [pd.read_csv(folder / name, dtype=str, keep_default_na=False) for folder in folders]
        whole = pd.concat(each, keys=runs, names=["run"]).reset_index("run").fillna("")
        atomic.write_text(config.out / name, whole.to_csv(index=False, lineterminator="\n"))
    return "".join(f"{config.out / name}\n" for name in (SCORES, FIGURES))


# --- the leaderboard ------------------------------------------------------------------------


def leaderboard(config: LeaderboardConfig) -> str:
    atomic.make_folder(config.out)
    groups = registry.by_data(registry.finished(config.runs))
    board = frame([row for group in groups for row in measured(*group, config)])
    tests = [test for test in board["test"].unique() if test]
    ours = board[board["source"] != PUBLISHED]
    names = dict.fromkeys(run.about["model"] for _, members in groups for run in members)
    lacking = ", ".join(name for name in names if name not in set(ours["model"]))
    note = f"Without a gap, and so not here: {lacking} (NeIn: nein eval --control remove)."
    page = Page(
        "Negation leaderboard",
        f"{ours['model'].nunique()} models and remedies, {len(tests)} tests with those of the papers.",
        [*NOTES, *([note] if lacking else [])],
        findings(ours),
        sections=sections(board),
    )
    written = write(config.out / "index.html", board, page)
    return f"{headline(ours, [GAPS])}\nPage: {written[-1]}\n"


def frame(rows: Sequence[Figure]) -> pd.DataFrame:
    """The rows, test by test: models by gap, baselines below them, then those of the papers."""
    if not rows:
        raise UserError(
            "None of these runs has a negation gap: of NeIn it takes both tracks (nein eval --control "
            "remove), of NegBench both kinds of captions or of questions."
        )
    board = frames.frame(rows)
    gaps = board["value"].where(board["statistic"] == "gap")
    order = {
        "at": pd.factorize(board["test"])[0],
        "is_baseline": board["model"].isin(BASELINES),
        "gap": gaps.groupby([board[name] for name in ("test", "model", "source")]).transform("max"),
    }
    together = board.assign(**order).sort_values([*order], kind="stable")[board.columns]
    names = frames.values(board, "benchmark")
    return frames.concat(
        [together, frames.frame(row for name in names for row in printed(registry.get(name)))]
    )


def measured(
    benchmark: Benchmark, members: Sequence[Finished], config: LeaderboardConfig
) -> Iterator[Figure]:
    """The gaps of finished runs on the same data; those without their blocks are of others."""
    by_name = {run.name: run for run in members}
    for row in frames.records(benchmark.gaps(members)):
        run = by_name[row["run"]]
        what = {"benchmark": benchmark.name, "model": row["model"], "date": run.about["date"][:10]}
        what["source"] = MEASURED
        if not any(map(run.folder.done, run.manifest["selected"])):
            given = next(path for path in config.runs if run.folder.path.is_relative_to(path))
            what |= {"source": given.name, "elsewhere": given.name}
        ends = ("statistic", "value", "low", "high", "n", "unscored", "standard_error", "unit")
        test = f"{benchmark.title} {run.about['data'] or 'own data'}: {row['measure']}"
        yield {**what, "task": "field", "test": test, **{name: row[name] for name in ends}}


def printed(benchmark: Benchmark) -> Iterator[Figure]:
    for row in benchmark.printed():
        affirmed, negated = row["affirmed"], row["negated"]
        gap = {"value": None if affirmed is None else affirmed - negated}
        what = {"benchmark": benchmark.name, "source": PUBLISHED, "task": "field", "model": row["model"]}
        what["test"] = f"{benchmark.title} {row['data']}: {row['measure']}"
        yield from frames.gap(affirmed, negated, gap, **what)


_ENDS = (
    Column("affirmed ↑", {"statistic": "affirmed"}, tables.value()),
    Column("negated ↑", {"statistic": "negated"}, tables.value()),
    Column("gap ↓", _GAP, tables.estimate()),
    Column("n", _GAP, tables.count()),
    Column("unscored", _GAP, tables.count("unscored")),
)
#: What the command prints.
GAPS = Table("gaps", "Negation gaps, points", (Row("test"), Row("model"), Row("source")), _ENDS, {})


def sections(board: pd.DataFrame) -> list[Section]:
    """All in one table, then table and plot of each benchmark with what the papers print."""
    ours = tuple(source for source in frames.values(board, "source") if source != PUBLISHED)
    field = Table(
        "field",
        "Negation gap of every model in every test, points",
        (Row("model"), Row("source")),
        (Column(by="test", where=_GAP),),
        {"source": ours},
    )
    columns = (*_ENDS, Column("date", _GAP, tables.entry("date")))
    found = [Section("field", "All tests", [field])]
    for name in frames.values(board, "benchmark"):
        key, title, where = f"of_{name}", registry.get(name).title, {"benchmark": name}
        table = Table(key, title, GAPS.rows, columns, where)
        plot = plots.plot(
            key,
            f"{title}: negation gap, with 95 % intervals",
            {**_GAP, **where, "source": ours},
            plots.bars,
            place=("model", "elsewhere"),
            series="test",
            axis="points",
            limits=None,
        )
        found.append(Section(key, title, [table], [plot]))
    return found


def findings(board: pd.DataFrame) -> list[str]:
    """The widest gap of each test, in a sentence."""
    tests = ((test, frames.select(board, test=test)) for test in frames.values(board, "test"))
    sentences = [widest(gaps, what=test, change="the input is negated") for test, gaps in tests]
    return [sentence for sentence in sentences if sentence]
