"""Commands that read finished runs of any benchmark: report, compare, export, leaderboard.

They need manifest.json, figures.csv and scores.csv only. The second part, the leaderboard, ranks the models
and remedies of all runs and of the papers by negation gap, the one measure that all benchmarks have.
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
from nein.benchmarks.runner import FIGURES_CSV, SCORES_CSV, Benchmark, Finished
from nein.config.groups import FORMATS
from nein.datasets import harness
from nein.engine import atomic
from nein.engine.folder import Folder, collect_runs
from nein.loading.errors import UserError
from nein.reporting import figures as frames
from nein.reporting import plots, tables
from nein.reporting.page import Page, Section, format_headline, list_files, write
from nein.reporting.tables import Column, Row, Table, describe_widest


# --- report, compare, export -----------------------------------------------------------------
def report(options: ReportConfig) -> str:
    """`nein report`: a page per benchmark; for several benchmarks, also a page of their gaps."""
    atomic.make_folder(options.out.parent)
    by_benchmark: dict[str, list[Path]] = {}  # name -> run folders
    for folder in collect_runs(options.runs):
        by_benchmark.setdefault(registry.get_of_run(folder).name, []).append(folder)
    page = options.out.with_suffix(".html")
    complete: list[Path] = []
    links: list[tuple[str, str]] = []  # (file, title) of the pages of several benchmarks; []: one benchmark
    for name, folders in by_benchmark.items():
        benchmark = registry.get(name)
        out = page
        if len(by_benchmark) > 1:
            out = page.with_stem(f"{page.stem}-{name}")
            links.append((out.name, f"{benchmark.title} in full"))
        benchmark_options = select_options(options, benchmark, benchmark.report_config, [*by_benchmark])
        finished, unfinished = _load_complete(benchmark, folders)
        complete += [run.folder.path for run in finished]
        text = benchmark.write_report(out, finished, benchmark_options, unfinished)
    if not links:
        return text
    title = f"Negation in {len(links)} benchmarks"
    return write_overview(complete, options.runs, page, title, links, options.formats)


WORSE = 3  # exit code of --fail-if-worse


def compare(options: CompareConfig) -> str | int:
    """`nein compare`: tests every pair of runs, corrected for the number of tests."""
    benchmark = registry.get_shared(options.runs)
    options = select_options(options, benchmark, benchmark.compare_config)
    finished, unfinished = _load_complete(benchmark, collect_runs(options.runs))
    if unfinished:
        names = ", ".join("/".join(path.parts[-2:]) for path in unfinished)
        print(f"not compared because not complete: {names}", file=sys.stderr)
    sides = benchmark.sides(finished, options)
    if len(sides) < 2:
        track = getattr(options, "track", "all")
        of_track = "" if track == "all" else f" of track '{track}' (--track all compares every track)"
        raise UserError(f"A comparison needs two complete runs, not {len(sides)}{of_track}.")
    pairs = comparing.choose_pairs([*sides], options.baseline)
    rows = comparing.compare_runs(sides, pairs, options.metrics, options.family)
    if not rows:
        raise UserError("These runs have no metric in common; score them with the same --metrics.")
    figures = frames.frame(rows, benchmark=benchmark.name)
    table = comparing.make_table(rows)
    [sheet] = tables.make_sheets([table], figures)
    if options.format == "csv":
        text = frames.to_csv(figures)
    elif options.format == "text":
        text = format_headline(figures, [table], [table.note], ["Every row: --format md, csv or tex"])
    elif options.format == "tex":
        text = tables.format_latex(sheet)
    else:
        text = tables.format_markdown([sheet], "Comparison")
    worse = [] if options.fail_if_worse is None else comparing.list_worse(rows, options.fail_if_worse)
    if not worse:
        return text
    print(text, end="")
    print("\n".join(worse), file=sys.stderr, flush=True)
    return WORSE


def _load_complete(benchmark: Benchmark, folders: Sequence[Path]) -> tuple[list[Finished], list[Path]]:
    """(the complete runs, the folders of the others). Raises UserError if none is complete."""
    complete = [path for path in folders if Folder(path).is_complete] or registry.find_finished(folders)
    return benchmark.load_finished(complete), [path for path in folders if path not in complete]


def select_options(options: Any, benchmark: Benchmark, config: type[Any], others: Sequence[str] = ()) -> Any:
    """The options as the benchmark's class `config`. Raises UserError for a given option that it lacks; in a
    report of several benchmarks, that the classes of all `others` lack, too."""
    configs = [config, *(registry.get(name).report_config for name in others)]
    accepted = {field.name for each in configs for field in dataclasses.fields(each)}
    for field in dataclasses.fields(options):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.name not in accepted and getattr(options, field.name) != default:
            raise UserError(f"--{field.name.replace('_', '-')} does not apply to runs of {benchmark.title}.")
    if type(options) is config:
        return options
    names = {field.name for field in dataclasses.fields(config)}
    return config(**{name: value for name, value in vars(options).items() if name in names})


def export(config: ExportConfig) -> str:
    """`nein export`: scores.csv and figures.csv of all runs, or their questions as a task of a harness."""
    folders = registry.find_finished(config.runs)
    if config.format != "csv":
        benchmark = registry.get_shared(config.runs)
        finished = benchmark.load_finished(folders)
        questions = (question for run in finished for question in benchmark.harness_questions(run, config))
        written = harness.write(questions, config.format, config.out, f"nein_{benchmark.name}")
        return "".join(f"{path}\n" for path in written)
    atomic.make_folder(config.out)
    top = os.path.commonpath([*folders]) if len(folders) > 1 else folders[0].parent
    runs = [Path(os.path.relpath(folder, top)).as_posix() for folder in folders]
    for name in (SCORES_CSV, FIGURES_CSV):
        parts = [pd.read_csv(folder / name, dtype=str, keep_default_na=False) for folder in folders]
        joined = pd.concat(parts, keys=runs, names=["run"]).reset_index("run").fillna("")
        atomic.write_text(config.out / name, joined.to_csv(index=False, lineterminator="\n"))
    return "".join(f"{config.out / name}\n" for name in (SCORES_CSV, FIGURES_CSV))


# --- the leaderboard -------------------------------------------------------------------------
#: Models that do not read their input: their small gap means nothing.
BASELINES = ("identity", "solid", "random", "constant")
MEASURED, PUBLISHED = "measured here", "as published"  # entries of the column "source"
NOTES = (
    "Negation gap: score on affirmative inputs minus score on negated ones, in points, with its 95 % "
    "interval clustered by image. A small gap means little if the affirmative score is low: see each table.",
    "Columns differ in data and metric and are not comparable.",
    "Published values are those that the authors print, on the published data, without an interval.",
)


def leaderboard(config: LeaderboardConfig) -> str:
    """`nein leaderboard`: the page of the gaps of all runs; returns the text to print."""
    folders = registry.find_finished(config.runs)
    return write_overview(folders, config.runs, config.out / "index.html", "Negation leaderboard")


def write_overview(
    folders: Sequence[Path],
    given: Sequence[Path],
    out: Path,
    title: str,
    links: Sequence[tuple[str, str]] = (),
    formats: Sequence[str] = FORMATS,
) -> str:
    """Writes the page of the gaps of runs; returns the text to print. given: paths of the command line."""
    atomic.make_folder(out.parent)
    groups = registry.group_by_data(folders)  # gaps are compared within a benchmark and its data
    board = sort_board([row for benchmark, runs in groups for row in _measure_gaps(benchmark, runs, given)])
    tests = [test for test in board["test"].unique() if test]
    ours = board[board["source"] != PUBLISHED]
    names = dict.fromkeys(run.summary["model"] for _, runs in groups for run in runs)
    without_gap = ", ".join(name for name in names if name not in set(ours["model"]))
    notes = [*NOTES]
    if without_gap:
        notes.append(f"Without a gap, and so not here: {without_gap} (NeIn: nein eval --control remove).")
    subtitle = f"{ours['model'].nunique()} models and remedies, {len(tests)} tests with those of the papers."
    sections = make_sections(board)
    page = Page(title, subtitle, notes, findings=list_findings(ours), links=links, sections=sections)
    files = write(out, board, page, formats)
    last = list_files(out, files, len(page.notes))
    last += [f"Pages: {', '.join(file for file, _ in links)}"] if links else []
    return format_headline(ours, [GAPS], last=last)


def sort_board(rows: Sequence[frames.Figure]) -> pd.DataFrame:
    """The rows of a test together: models by gap, then baselines; the papers' models at the end."""
    if not rows:
        needs = "NeIn needs nein eval --control remove, NegBench both kinds of captions or of questions"
        raise UserError(f"None of these runs has a negation gap: {needs}.")
    board = frames.frame(rows)
    gaps = board["value"].where(board["statistic"] == "gap")
    order = {
        "test_index": pd.factorize(board["test"])[0],
        "is_baseline": board["model"].isin(BASELINES),
        "gap": gaps.groupby([board[name] for name in ("test", "model", "source")]).transform("max"),
    }
    ordered = board.assign(**order).sort_values([*order], kind="stable")[board.columns]
    names = frames.list_entries(board, "benchmark")
    published = [row for name in names for row in _list_paper_gaps(registry.get(name))]
    return frames.concat([ordered, frames.frame(published)])


def _measure_gaps(
    benchmark: Benchmark, members: Sequence[Finished], paths: Sequence[Path]
) -> Iterator[frames.Figure]:
    """The gaps of finished runs on the same data. A run without its blocks was made elsewhere: its source is
    then the one of the `paths`, of the command line, that holds it."""
    by_name = {run.name: run for run in members}
    for row in frames.records(benchmark.gaps(members)):
        run = by_name[row["run"]]
        labels = {"benchmark": benchmark.name, "model": row["model"], "date": run.summary["date"][:10]}
        labels["source"] = MEASURED
        if not any(map(run.folder.list_blocks, run.manifest["selected"])):
            origin = next(path.name for path in paths if run.folder.path.is_relative_to(path))
            labels |= {"source": origin, "elsewhere": origin}
        ends = ("statistic", "value", "low", "high", "n", "unscored", "standard_error", "unit")
        test = f"{benchmark.title} {run.summary['data'] or 'own data'}: {row['measure']}"
        yield {**labels, "task": "field", "test": test, **{name: row[name] for name in ends}}


def _list_paper_gaps(benchmark: Benchmark) -> Iterator[frames.Figure]:
    """The gaps that the authors of a benchmark print."""
    for row in benchmark.paper_gaps():
        affirmed, negated = row["affirmed"], row["negated"]
        gap = {"value": None if affirmed is None else affirmed - negated}
        labels = {"benchmark": benchmark.name, "source": PUBLISHED, "task": "field", "model": row["model"]}
        labels["test"] = f"{benchmark.title} {row['data']}: {row['measure']}"
        yield from frames.gap(affirmed, negated, gap, **labels)


_GAP = {"statistic": "gap"}  # selects the rows of gaps, without their two ends
_GAP_COLUMNS = (
    Column("affirmed ↑", {"statistic": "affirmed"}, tables.value()),
    Column("negated ↑", {"statistic": "negated"}, tables.value()),
    Column("gap ↓", _GAP, tables.estimate()),
    Column("n", _GAP, tables.count()),
    Column("unscored", _GAP, tables.count("unscored")),
)
#: What the command prints.
GAPS = Table("gaps", "Negation gaps, points", (Row("test"), Row("model"), Row("source")), _GAP_COLUMNS, {})


def make_sections(board: pd.DataFrame) -> list[Section]:
    """One table of all tests, then per benchmark a table and a plot with the papers' models."""
    ours = tuple(source for source in frames.list_entries(board, "source") if source != PUBLISHED)
    title, by_test = "Negation gap of every model in every test, points", Column(by="test", where=_GAP)
    field = Table("field", title, (Row("model"), Row("source")), (by_test,), {"source": ours})
    columns = (*_GAP_COLUMNS, Column("date", _GAP, tables.entry("date")))
    sections = [Section("field", "All tests", [field])]
    for name in frames.list_entries(board, "benchmark"):
        key, title, selection = f"of_{name}", registry.get(name).title, {"benchmark": name}
        table = Table(key, title, GAPS.rows, columns, selection)
        caption, where = f"{title}: negation gap, with 95 % intervals", {**_GAP, **selection, "source": ours}
        layout: Any = {"place": ("model", "elsewhere"), "series": "test", "axis": "points", "limits": None}
        plot = plots.plot(key, caption, where, plots.bars, **layout)
        sections.append(Section(key, title, [table], [plot]))
    return sections


def list_findings(board: pd.DataFrame) -> list[str]:
    """A sentence per test on its widest gap."""
    findings = []
    for test in frames.list_entries(board, "test"):
        gaps = frames.select(board, test=test)
        if sentence := describe_widest(gaps, quantity=test, change="the input is negated"):
            findings.append(sentence)
    return findings
