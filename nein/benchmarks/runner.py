"""Runs a benchmark's command: computes missing results, writes scores.csv and figures.csv, and reports.

Parts: the records of a run; `Benchmark`, the base class of all benchmarks; functions for its subclasses.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import itertools
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd

from nein.benchmarks import compare
from nein.benchmarks.config import CompareConfig, ReportConfig
from nein.config.options import Options
from nein.datasets.harness import Question
from nein.engine import atomic, images, machine
from nein.engine.answers import describe_spending
from nein.engine.exits import UNSCORED
from nein.engine.folder import COMPLETE, INCOMPLETE, Blocks, Folder, find_runs, get_row_id
from nein.engine.run import Executor
from nein.engine.stages import Stage, Step
from nein.loading.errors import UserError, shortlist
from nein.reporting import figures as frames
from nein.reporting import page as pages
from nein.reporting import tables, tracking
from nein.reporting.page import Page, Section
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import Table

FIGURES_CSV, SCORES_CSV = "figures.csv", "scores.csv"  # of a run: its estimates, and its values per sample
#: Report formats of an evaluation that has no option for them; `nein report` makes the page.
EVALUATION = ("md", "csv", "plots")
END = "end"  # key of a manifest: {"seal": `_seal` of the command that completed the run, "said": its text}
log = logging.getLogger(__name__)


# --- records ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """One folder of results: a model on a data set."""

    folder: Any  # below the command's OUT, of the benchmark's own class
    name: str  # in progress and tables
    identity: Mapping[str, Any]  # decides its rows: another value of any key is another run
    stages: Sequence[Stage]  # in order: a stage reads the outputs of those before it
    # For the manifest, of the latest command: "preset", "protocol", "reference" (of the model), "data", ...
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Output -> its identity, if another value of these keys makes only this output another one.
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    partial: bool = False  # the command computes only a part of a complete run
    notes: Sequence[str] = ()  # sentences that the command logs when it starts


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    folder: Any  # of the benchmark's own class
    name: str  # in tables
    figures: pd.DataFrame  # the estimates of figures.csv
    unscored: int = 0  # samples; 0 also if another command finished it

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self.folder.manifest()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The model's name, the name or file of the data, and the date of the latest command."""
        facts, data = self.manifest, self.manifest.get("data", {})
        dates = [call["started"] for call in facts.get("invocations", []) if call.get("started")]
        # OWNER/NAME, "nano:WORLD", or a folder
        reference = str(facts.get("config", {}).get("data") or data.get("kind") or "")
        short_reference = reference if reference.startswith("nano") else Path(reference).name
        return {
            "model": str(facts.get("editor", self.name)),
            "data": str(data.get("name") or data.get("world") or data.get("file") or short_reference),
            "date": dates[-1] if dates else "",
        }


class PaperEstimate(NamedTuple):
    """A value that authors print, for `nein reproduce`."""

    row: str  # of their table, with a model
    key: Mapping[str, str]  # column -> entry of our estimate
    value: float  # in the unit of our frame (shares, not per cent)
    unit: str
    n: int | None = None  # samples
    needs_all: bool = False  # depends on the number of samples (FID, recall): a part is not comparable


# --- the base class --------------------------------------------------------------------------
class Benchmark:
    """Base of benchmarks: a subclass defines `name`, `title`, `config`, `runs` and `scores`, and may more."""

    name: ClassVar[str]  # in manifests, in the column "benchmark" of figures, and for commands that take runs
    title: ClassVar[str]  # in reports and messages
    config: ClassVar[type[Options]]  # the options of its command; `needs` says what to fetch
    about: ClassVar[str] = ""  # its line of `nein --help`
    command: ClassVar[str] = ""  # the words after `nein`; "": the name
    folder: ClassVar[type[Any]] = Folder  # reads a run's folder
    gap: ClassVar[tuple[str, str] | None] = None  # the affirmed and the negated variant; None: it has no gap
    sections: ClassVar[Sequence[Section]] = ()  # tables and plots of a report
    headline: ClassVar[Sequence[Table]] = ()  # what a command prints at its end; (): the first section's
    reports_all: ClassVar[bool] = False  # a report covers every finished run in OUT, the command's own first
    report_config: ClassVar[type[ReportConfig]] = ReportConfig  # options of `nein report` for its runs
    compare_config: ClassVar[type[CompareConfig]] = CompareConfig  # options of `nein compare` for its runs

    @property
    def typed(self) -> str:
        """The command as a user types it."""
        return f"nein {self.command or self.name}"

    # --- what a subclass defines ---------------------------------------------------------------
    def runs(self, config: Any, device: str) -> Sequence[Run]:
        """The runs of a command. Checks names, data and models; loads no model."""
        raise NotImplementedError

    def scores(self, run: Run) -> ScoreTable:
        """The table of scores of a run that has all its blocks."""
        raise NotImplementedError

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        """The estimates: one per metric and variant, and the `gap` of every metric that has both variants."""
        parts = [table.figures(task="results")]
        if self.gap:
            affirmed, negated = self.gap
            for (metric,), rows in table.groups("metric"):
                if {affirmed, negated} <= {*rows.names("variant")}:
                    parts.append(frames.frame(rows.gap(affirmed, negated, metric=metric, task="gap")))
        return frames.concat(parts)

    def page(self, finished: Sequence[Finished], options: Any) -> Page | None:
        """What a report has besides `sections`; None: no report. options: of the command or `nein report`."""
        return Page(self.title)

    def primary_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """The rows that decide whether a sample counts as unscored."""
        return table

    def comparable_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """The rows by which runs are compared: one per sample, metric and variant."""
        return self.primary_scores(table, folder)

    def sides(self, finished: Sequence[Finished], options: Any) -> dict[str, compare.Side]:
        """Name of a run -> what `nein compare` compares of it."""
        sides = {}
        for run in finished:
            table = self.comparable_scores(ScoreTable.read(run.folder.path / SCORES_CSV), run.folder)
            gaps = None
            if self.gap:
                affirmed, negated = (table.where(variant=name) for name in self.gap)
                gaps = affirmed.subtract(negated)
            sides[run.name] = compare.Side(table, gaps)
        return sides

    def gaps(self, finished: Sequence[Finished]) -> pd.DataFrame:
        """The negation gaps of runs on the same data: rows of `frames.gap` with run, model and measure."""
        rows: list[frames.Figure] = []
        for run in finished:
            gap_rows = frames.select(run.figures, task="gap")
            for metric in frames.list_entries(gap_rows, "metric"):
                affirmed, negated, difference = frames.records(gap_rows, metric=metric)  # of `ScoreTable.gap`
                labels = {"run": run.name, "model": run.name, "measure": metric}
                rows += frames.gap(affirmed["value"], negated["value"], difference, **labels)
        return frames.frame(rows)

    def paper_gaps(self) -> Iterator[Mapping[str, Any]]:
        """The gaps that the authors print: `model`, `data`, `measure`, `affirmed`, `negated` (shares)."""
        return iter(())

    def paper_estimates(self, source: str, run: Mapping[str, Any] | None) -> Iterator[PaperEstimate]:
        """The values that the authors print, for the model and data of a run (its manifest), or all."""
        return iter(())

    def harness_questions(self, run: Finished, options: Any) -> Iterable[Question]:
        """The questions of a run, for `nein export --format HARNESS`. Raises UserError without their data."""
        raise UserError(f"{self.title} has no questions for another harness; omit --format.")

    # --- what a command does -------------------------------------------------------------------
    def __call__(self, config: Any, executor: Executor) -> str | int | None:
        """Runs the benchmark's command: computes what is missing, then estimates and report. Returns the text
        to print on the main process, or the exit code of `--fail-on-unscored`. Several processes may work on
        the same folders. Raises UserError, EditorError or MetricError."""
        out, trackers = config.out_dir, getattr(config, "trackers", [])
        if executor.is_main:
            tracking.check(trackers)
            for path in find_runs(out):
                if (other := Folder(path).entries().get("benchmark", self.name)) != self.name:
                    raise UserError(f"'{out}' holds runs of {other}; choose another --out.")
        runs = self.runs(config, executor.device)
        atomic.make_folder(out)
        # If nothing has changed: print the same text again, and read no block.
        unchanged = f"Nothing was computed: results read from '{out}'; remove it to compute them again."
        ends = [run.folder.entries().get(END) or {} for run in runs]  # of the command that finished each run
        if len({end.get("seal") for end in ends}) == 1 and not (config.overwrite or trackers):
            if "said" in ends[0] and ends[0]["seal"] == _seal(config, runs):
                if executor.is_main:
                    print(unchanged, file=sys.stderr, flush=True)
                return str(ends[0]["said"]) if executor.concludes else None
        with executor.lock([run.folder for run in runs]):
            if executor.is_main:
                self._open(config, executor, runs)
            executor.processes.barrier()  # before others read a folder, the main process may refuse it
            results = executor.compute(order_steps(runs), functools.partial(plan_steps, self, config))
            if not executor.concludes:  # another process writes scores and report
                return None
            if results and not any(results):
                print(unchanged, file=sys.stderr, flush=True)
            return self._conclude(config, runs)

    def _conclude(self, config: Any, runs: Sequence[Run]) -> str | int:
        """Writes the estimates of computed runs and the report of OUT; returns as `__call__`."""
        finished = [self._finish(run) for run in runs]
        unfinished = [run.folder.path for run in runs if run.partial]
        reported = [entry for entry in finished if entry.folder.path not in unfinished]
        if self.reports_all:
            own_paths = {run.folder.path for run in runs}
            others = [path for path in find_runs(config.out_dir) if path not in own_paths]
            complete = [path for path in others if Folder(path).is_complete]
            unfinished += [path for path in others if path not in complete]
            reported += self.load_finished(complete)
        text = self.write_report(config.out_dir, reported, config, unfinished)
        if getattr(config, "trackers", []):
            self._track(config, finished)
        unscored = any(entry.unscored for entry in finished)
        if not unscored and not any(run.partial for run in runs):
            end = {"seal": _seal(config, runs), "said": text}
            for run in runs:
                run.folder.update(**{END: end})
        if unscored and getattr(config, "fail_on_unscored", False):
            print(text, end="", flush=True)
            return UNSCORED
        return text

    def _open(self, config: Any, executor: Executor, runs: Sequence[Run]) -> None:
        """Creates the folders of the runs, or resumes them."""
        atomic.remove_drafts(config.out_dir, below=False)
        for note in dict.fromkeys(note for run in runs for note in run.notes):
            log.warning(note)
        # --overwrite discards finished runs; of a killed command it resumes the rest.
        anew = config.overwrite and all(run.folder.is_complete for run in runs)
        call = invocation(executor)
        for run in runs:
            facts = {**_facts(config, run), "benchmark": self.name, "name": run.name, "invocation": call}
            run.folder.open(run.identity, facts, overwrite=config.overwrite, anew=anew)
            for output, identity in run.outputs.items():
                run.folder.open_output(output, identity, overwrite=config.overwrite)

    def _finish(self, run: Run) -> Finished:
        """Writes scores.csv and figures.csv of a run from its blocks; prints why samples are unscored."""
        folder, table = run.folder, self.scores(run)
        table.write(folder.path / SCORES_CSV)
        figures = frames.with_columns(self.estimates(table, folder), benchmark=self.name, model=run.name)
        atomic.write_text(folder.path / FIGURES_CSV, frames.to_csv(figures))
        folder.update(status=INCOMPLETE if run.partial else COMPLETE)
        if reasons := self.primary_scores(table, folder).count_reasons():
            counts = [f"{count} x {reason}" for reason, count in reasons.most_common(3) if reason]
            counts += ["..."] if counts and len(reasons) > 3 else []
            why = f" ({'; '.join(counts)})" if counts else ""
            failed = table.frame.dropna(subset="failed") if "failed" in table.frame else table.frame[:0]
            failures = len(failed.drop_duplicates(["id", "metric", "variant"]))
            retry = f" {failures} failed; retry with: {machine.shell_command()}" if failures else ""
            have = "has" if reasons.total() == 1 else "have"
            print(f"{run.name}: {reasons.total()} {have} no score{why}.{retry}", file=sys.stderr, flush=True)
        return Finished(folder, run.name, figures, reasons.total())

    def _track(self, config: Any, finished: Sequence[Finished]) -> None:
        """Sends estimates, headline tables, plots and the first edits of every run to the trackers."""
        estimates = frames.concat(entry.figures for entry in finished)
        page, figures = self._make_page(finished, config)
        sheets = tables.make_sheets(page.headline or (), figures) if page else []
        paths = sorted(config.out_dir.glob("*.png"))
        for entry in finished:
            paths += sorted(entry.folder.path.glob("images/*/*.png"))[:4]
        tracking.log(config.trackers, config.out_dir, dataclasses.asdict(config), estimates, sheets, paths)

    def load_finished(self, paths: Sequence[Path]) -> list[Finished]:
        """The finished runs in these folders; a second run of the same name goes by its path."""
        finished: dict[str, Finished] = {}
        for path in paths:
            folder = self.folder(path)
            own_name = str(folder.manifest().get("name", path.name))
            name = str(path) if own_name in finished else own_name
            figures = frames.with_columns(frames.read(path / FIGURES_CSV), benchmark=self.name, model=name)
            finished[name] = Finished(folder, name, figures)
        return list(finished.values())

    def write_report(
        self,
        out: Path,
        finished: Sequence[Finished],
        options: Any,
        unfinished: Sequence[Path] = (),
        headline: Sequence[Table] = (),
    ) -> str:
        """Writes the report of finished runs to a folder or a page (`page.write`); returns the text to print.
        unfinished: runs that are not shown, as a note says. headline: tables instead of the benchmark's."""
        page, figures = self._make_page(finished, options, unfinished)
        if page is None:
            return ""
        page = dataclasses.replace(page, headline=headline or page.headline)
        files = pages.write(out, figures, page, getattr(options, "formats", EVALUATION))
        texts = [*dict.fromkeys(page.findings), page.subtitle, *_list_notes(finished, unfinished)[:3]]
        lines = pages.list_files(out, files, len(page.notes))
        return pages.format_headline(figures, page.headline or (), texts, lines)

    def _make_page(
        self, finished: Sequence[Finished], options: Any, unfinished: Sequence[Path] = ()
    ) -> tuple[Page | None, pd.DataFrame]:
        """`page` with the notes, sections and headline that every benchmark has, and its estimates."""
        page = self.page(finished, options)
        if page is None:
            return None, frames.frame([])
        figures = page.frame
        if figures is None:
            figures = frames.concat([*(entry.figures for entry in finished), *page.figures])
        # A note for every served model whose service changed its version during a run.
        notes = [*page.notes]
        for run in finished:
            versions: dict[str, Counter[str]] = {}  # kind of served model -> version -> answers
            for name, usage in run.manifest["usage"].items():
                versions.setdefault(name.partition("-")[0], Counter()).update(usage.get("versions", {}))
            for kind, counts in versions.items():
                text = " and ".join(f"{name} ({count:,} answers)" for name, count in sorted(counts.items()))
                if len(counts) > 1:
                    notes.append(f"{run.name}: the version behind '{kind}' changed during the run: {text}.")
        notes += _list_notes(finished, unfinished)
        sections = page.sections or self.sections
        headline = page.headline or self.headline or next((part.tables for part in sections), ())
        return dataclasses.replace(page, notes=notes, sections=sections, headline=headline), figures


def _list_notes(finished: Sequence[Finished], unfinished: Sequence[Path]) -> list[str]:
    """Notes on runs that are not shown, and on the cost of served models."""
    notes = []
    if unfinished:
        names = shortlist(("/".join(path.parts[-2:]) for path in unfinished), 3)
        notes = [f"not shown because not complete: {names}."]
    costs = [sentence for run in finished for sentence in describe_spending(run.manifest["spent"])]
    return [*notes, *dict.fromkeys(costs)]


def _seal(config: Any, runs: Sequence[Run]) -> str:
    """A digest of the options, data, models, this package's version, and every file of the runs and of the
    report. While it stays the same, the command would change nothing."""
    # A stage that depends on whole outputs reads blocks only, which are among the files of the run.
    stages = [stage for run in runs for stage in run.stages if not stage.depends_on_all]
    records = [(stage, [*map(stage.records, stage.blocks.numbers)]) for stage in stages]
    data = {path for stage, blocks in records for block in blocks for path in stage.files(block)}  # user's
    files = {*config.out_dir.iterdir(), *(path / FIGURES_CSV for path in find_runs(config.out_dir))}
    for run in runs:
        files |= {path for path in run.folder.path.rglob("*") if path.parent.name != "notes"}
    files = {path for path in files if path.name != "manifest.json" and path.is_file()}
    facts = {
        "version": importlib.metadata.version("nein"),
        "options": dataclasses.asdict(config),
        "runs": [[run.identity, _facts(config, run), run.outputs] for run in runs],
        "state": [[*map(stage.state, blocks)] for stage, blocks in records],
        "files": [*map(atomic.stamp, sorted(data | files))],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _facts(config: Any, run: Run) -> dict[str, Any]:
    """The facts of the current command for the manifest of a run."""
    stages = {output: stage.blocks.selection for stage in run.stages for output in stage.outputs}
    selected = {**run.facts.get("selected", {}), **stages}
    return {**run.facts, "selected": selected, "preset": getattr(config, "preset", None)}


# --- rows, names of folders, the order of stages ---------------------------------------------
def select_rows(
    folder: Folder, output: str, blocks: Blocks | None = None, numbers: Iterable[int] | None = None
) -> Iterator[Any]:
    """Yields the rows of an output for the records selected by the run's latest command, in data order; a
    selection may end inside a block. numbers: only these blocks. Raises UserError for a damaged block."""
    blocks = blocks or Blocks.read(folder.manifest(), output)
    indices = blocks.indices if isinstance(blocks.indices, range) else set(blocks.indices)
    ids_seen: set[str] = set()
    for number in blocks.numbers if numbers is None else numbers:
        records = [[*rows] for _, rows in itertools.groupby(folder.rows(output, [number]), get_row_id)]
        ids = {get_row_id(rows[0]) for rows in records}
        row_repeats = any(a == b for rows in records for a, b in itertools.pairwise(rows))
        id_repeats = len(ids) != len(records) or bool(ids & ids_seen)
        needed = blocks.needed(number)
        if "" in ids or row_repeats or id_repeats or len(records) < len(needed):
            raise UserError(
                f"'{folder.block_path(output, number)}', or a block before it, is damaged: records are "
                "missing or repeated. Remove it and rerun the command of the run."
            )
        ids_seen |= ids
        for index, rows in zip(needed, records, strict=False):
            if index in indices:
                yield from rows


def name_folders(names_and_models: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Folder name -> model as given. Raises UserError for two models with the same name."""
    model_of: dict[str, str] = {}
    for name, model in names_and_models:
        if (other := model_of.setdefault(name, model)) != model:
            names = f"'{other}' and '{model}' have the same name, '{name}'"
            raise UserError(f"{names}; pass NAME=REFERENCE for one.")
    return model_of


def plan_steps(benchmark: Benchmark, config: Any, device: str) -> list[Step]:
    """The steps of a configuration, made again by a worker elsewhere."""
    return order_steps(benchmark.runs(config, device))


def order_steps(runs: Sequence[Run]) -> list[Step]:
    """All stages of all runs, in an order that seldom swaps models: first every stage that the current model
    can make, then those of the model that the longest queue needs. The stages of a run keep their order."""
    queues = [[Step(run.folder, stage, run.name) for stage in run.stages] for run in runs]
    order: list[Step] = []
    loaded = ""  # name of the model in memory; "": none
    while waiting := [steps for steps in queues if steps]:
        names = [steps[0].stage.model.name if steps[0].stage.model else "" for steps in waiting]
        ready = [steps for steps, needed in zip(waiting, names, strict=True) if needed in (loaded, "")]
        if not ready:
            longest = waiting.index(max(waiting, key=len))
            ready, loaded = [waiting[longest]], names[longest]
        order += [steps.pop(0) for steps in ready]
    return order


def machine_identity(config: Any, device: str) -> dict[str, Any]:
    """The settings of the machine that decide the last bits of every row."""
    settings = {"batch_size": config.batch_size, "dtype": config.dtype}
    return {**settings, "device": device.partition(":")[0], "image_rule": images.RULE}


def invocation(executor: Executor) -> dict[str, Any]:
    """Time, command line and machine of the current command."""
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": machine.command_line(),
        "directory": str(Path.cwd()),
        **executor.describe(),
        "environment": machine.describe_environment(executor.device),
    }
