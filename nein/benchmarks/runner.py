"""A benchmark is a value that every command reads; here its runs are made."""

from __future__ import annotations

import bisect
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from nein.benchmarks.config import CompareConfig, ReportConfig
from nein.config.groups import FORMATS, ScoreOptions, TrackerOptions
from nein.config.options import Options
from nein.engine import atomic, environment, images
from nein.engine.blocks import Blocks
from nein.engine.errors import UNSCORED, UserError, shortlist
from nein.engine.folder import COMPLETE, INCOMPLETE, Folder, Row, runs_below
from nein.engine.run import Executor
from nein.engine.stages import Stage, Step
from nein.loading.spending import sentences
from nein.reporting import figures as frames
from nein.reporting import report, tracking
from nein.reporting.page import Page, Section
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import Table

FIGURES, SCORES = "figures.csv", "scores.csv"
END = "end"  # in a manifest: what a command left that finished everything, and what it printed
FINISHED = "finished"  # in a manifest: output -> the largest selection of which all blocks were made
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """One folder of results: a model on a data set.

    folder    Below the command's OUT.
    name      In progress and tables.
    identity  Decides its rows: another value of any key is another run.
    stages    In order: a stage reads what those before it have written.
    facts     For the manifest, of the latest command; "preset", "protocol", "reference" (of the model) and
              "data" (`name`, `sha256`) are shown by every command.
    outputs   Output -> identity, if it may differ from the folder's (a metric, say).
    partial   The command asks for a part of what makes a run complete.
    scores    Its table of scores, from what the command has read; None: the benchmark's.
    notes     Sentences that the command says when it begins.
    """

    folder: str
    name: str
    identity: Mapping[str, Any]
    stages: tuple[Stage, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    partial: bool = False
    scores: Callable[[Any], ScoreTable] | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Finished:
    """A finished run, by its name in tables, in the benchmark's own `folder`. run: that of the command at
    hand, if it is one."""

    folder: Any
    name: str
    figures: pd.DataFrame
    run: Run | None = None

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self.folder.manifest()

    @cached_property
    def about(self) -> dict[str, Any]:
        """Of the manifest what every benchmark has: `model` (its name), `reference` (a hub id, a folder, an
        address), `preset`, `data` (a name, or a file), `date` of the latest command, `protocol`, `models` by
        what they do."""
        facts, config, data = self.manifest, self.manifest.get("config", {}), self.manifest.get("data", {})
        identity = facts.get("identity", {})
        named = [facts.get("reference"), *(identity.get(key) for key in ("checkpoint", "editor", "model"))]
        dates = [call["started"] for call in facts.get("invocations", []) if call.get("started")]
        given = str(config.get("data") or data.get("kind") or "")  # OWNER/NAME, "nano:WORLD", or a folder
        where = [data.get("name"), data.get("world"), data.get("file")]
        models = {kind: str(model.get("reference", "")) for kind, model in facts.get("models", {}).items()}
        return {
            "model": str(facts.get("editor", self.name)),
            "reference": str(next(filter(None, named), self.name)),
            "preset": facts.get("preset"),
            "data": str(next(filter(None, where), given if given.startswith("nano") else Path(given).name)),
            "date": dates[-1] if dates else "",
            "protocol": str(facts.get("protocol") or config.get("protocol", "fixed")),
            "models": models,
        }


class Printed(NamedTuple):
    """A figure that authors print, for `nein reproduce`.

    row    Of their table, with a model; `of`: the columns and entries of our figure.
    value  In the unit of the frame of figures (shares, not per cent).
    whole  Depends on how many samples there are (FID, recall): not comparable with a part.
    """

    row: str
    of: Mapping[str, str]
    value: float
    unit: str
    n: int | None = None
    whole: bool = False


@dataclass(frozen=True)
class Benchmark:
    """Only the first five fields have no default.

    name      In manifests, in the column "benchmark" of figures, and for commands that take runs.
    config    The options of its command, a `nein.config.options.Options`; `needs` says what to fetch.
    runs      (config, device) -> the runs. Finds everything that can be wrong with names, data and models;
              loads nothing.
    scores    Folder of a run that has all its blocks -> its table of scores.
    about     Its line of `nein --help`.
    command   What is typed, if not the name.
    estimates (scores, folder) -> the figures; by default one of every metric and variant, and of every metric
              the `gap`.
    decides   (scores, folder) -> the rows that say whether a sample is unscored; by default all.
    compared  (scores, folder) -> the rows by which runs are compared, one of every sample, metric and
              variant; by default those of `decides`.
    gap       Two variants, affirmed and negated, whose difference sample by sample is the negation gap.
    sections  Tables and plots of a report.
    headline  The tables that a command prints when it ends; none: those of the first section.
    page      (finished runs, options of the command or of the report) -> what else a report says; None: no
              report is made. The options' `formats` name the files; by default all.
    whole     A command's report is of every finished run in its OUT, its own first.
    compare   `nein compare`, if not `paired.comparisons`.
    gaps      Finished runs on the same data -> their negation gaps: rows of `figures.gap` with the columns
              run (its name), model and measure.
    exported  Which figures are means of scores, for `nein export`.
    printed   The gaps that its authors print: `model`, `data`, `measure`, `affirmed` and `negated` (shares).
    published   (source, manifest of a run) -> the figures printed of that model and data; without a manifest
              all.
    """

    name: str
    title: str
    config: type[Options]
    runs: Callable[[Any, str], Sequence[Run]]
    scores: Callable[[Any], ScoreTable]
    about: str = ""
    command: str = ""
    estimates: Callable[[ScoreTable, Any], pd.DataFrame] | None = None
    decides: Callable[[ScoreTable, Any], ScoreTable] = lambda table, folder: table
    compared: Callable[[ScoreTable, Any], ScoreTable] | None = None
    gap: tuple[str, str] | None = None
    sections: Sequence[Section] = ()
    headline: Sequence[Table] = ()
    page: Callable[[Sequence[Finished], Any], Page | None] | None = None
    whole: bool = False
    report_config: type[ReportConfig] = ReportConfig
    compare: Callable[[Sequence[Finished], Any], str] | None = None
    compare_config: type[CompareConfig] = CompareConfig
    gaps: Callable[[Sequence[Finished]], pd.DataFrame] = lambda finished: gaps_of_metrics(finished)
    exported: Mapping[str, Any] = field(default_factory=lambda: {"task": "results"})
    printed: Callable[[], Iterator[Mapping[str, Any]]] = lambda: iter(())
    published: Callable[[str, Mapping[str, Any] | None], Iterator[Printed]] = lambda source, run: iter(())
    folder: Callable[[Path], Any] = Folder

    @property
    def typed(self) -> str:
        return f"nein {self.command or self.name}"

    def __call__(self, config: Any, executor: Executor) -> str | int | None:
        """Computes what is missing, then figures and report; returns its text on the main process, or the
        exit code of `--fail-on-unscored`. Several processes may work on the same folders. Raises UserError,
        EditorError or MetricError."""
        if executor.is_main:
            tracking.check(config.trackers if isinstance(config, TrackerOptions) else [])
            _check_out(self.name, config.out_dir)
        runs = self.runs(config, executor.device)
        atomic.make_folder(config.out_dir)
        folders = [self.folder(config.out_dir / run.folder) for run in runs]
        if (said := _said_before(self, config, runs, folders)) is not None:
            if executor.is_main:
                print(_NOTHING.format(config.out_dir), file=sys.stderr, flush=True)
            return said if executor.concludes else None
        with executor.locked(folders):
            return self._run(config, executor, runs, folders)

    def _run(
        self, config: Any, executor: Executor, runs: Sequence[Run], folders: Sequence[Any]
    ) -> str | int | None:
        if executor.is_main:
            atomic.remove_drafts(config.out_dir, below=False)
            for note in dict.fromkeys(note for run in runs for note in run.notes):
                log.warning(note)
            anew = config.overwrite and all(map(_is_complete, folders))  # else it goes on after a kill
            for run, folder in zip(runs, folders, strict=True):
                _open(self, config, executor, run, folder, anew)
        executor.barrier()  # no process reads a folder that another is about to refuse or to remove
        steps = by_model(runs, folders)
        blocks = executor.compute(steps, functools.partial(planned, self.runs, self.folder, config))
        if not executor.concludes:
            return None
        for sentence in _computed(config, steps, blocks):
            print(sentence, file=sys.stderr, flush=True)
        finished, lacking, out = [], False, config.out_dir
        for run, folder in zip(runs, folders, strict=True):
            finish_blocks(folder, run.stages)
            figures, reasons = _finish(self, run, folder)
            finished.append(Finished(folder, run.name, figures, run))
            lacking |= bool(reasons)
        if isinstance(config, TrackerOptions) and config.trackers:
            figures = frames.concat(entry.figures for entry in finished)
            tracking.log(config.trackers, out, dataclasses.asdict(config), figures)
        text = _report(self, config, finished)
        if not lacking and not any(run.partial for run in runs):
            end = {"seal": _seal(self, config, runs, folders), "said": text}
            for folder in folders:
                folder.update(**{END: end})
        if not (lacking and isinstance(config, ScoreOptions) and config.fail_on_unscored):
            return text
        print(text or "", end="", flush=True)
        return UNSCORED


def _check_out(benchmark: str, out: Path) -> None:
    """Raises UserError where `out` holds runs of another benchmark, whose tables ours would replace."""
    for path in runs_below(out):
        if (other := Folder(path).kind() or benchmark) != benchmark:
            raise UserError(f"'{out}' holds runs of {other}; choose another --out.")


#: What is said where there was nothing to do.
_NOTHING = "Nothing was computed: results read from '{}'; remove it to compute them again."


def _said_before(
    benchmark: Benchmark, config: Any, runs: Sequence[Run], folders: Sequence[Any]
) -> str | None:
    """What the same command printed when it had finished these runs, if nothing has changed since; None else.
    No block is read."""
    if config.overwrite or not runs or (isinstance(config, TrackerOptions) and config.trackers):
        return None
    ends = [
        atomic.read_json(folder.manifest_path, dict).get(END, {}) if folder.manifest_path.exists() else {}
        for folder in folders
    ]
    if len({end.get("seal") for end in ends}) > 1 or not isinstance(said := ends[0].get("said"), str):
        return None
    return said if ends[0]["seal"] == _seal(benchmark, config, runs, folders) else None


def _seal(benchmark: Benchmark, config: Any, runs: Sequence[Run], folders: Sequence[Any]) -> str:
    """Changes with the options, the data and models, this package's version, and every file of the runs and
    of the report."""
    facts: dict[str, Any] = {
        "version": importlib.metadata.version("nein"),
        "options": dataclasses.asdict(config),
    }
    facts["runs"] = [[run.identity, _facts(config, run), run.outputs] for run in runs]
    facts["data"] = [
        [stage.state(stage.records(number)) for number in stage.blocks.numbers]
        for run in runs for stage in run.stages
        if not stage.depends_on_all  # what those read may be blocks
    ]  # fmt: skip
    others = [path / FIGURES for path in runs_below(config.out_dir)] if benchmark.whole else []
    report = [path for path in [*config.out_dir.iterdir(), *others] if path.is_file()]
    facts["files"] = [*map(atomic.stamps, (folder.path for folder in folders)), atomic.stamps_of(report)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _is_complete(folder: Folder) -> bool:
    path = folder.manifest_path
    return path.exists() and atomic.read_json(path, dict).get("status") == COMPLETE


def _open(
    benchmark: Benchmark, config: Any, executor: Executor, run: Run, folder: Folder, anew: bool
) -> None:
    """Begins a run, or goes on with it."""
    facts = _facts(config, run)
    facts |= {"benchmark": benchmark.name, "name": run.name, "invocation": invocation(executor)}
    folder.open(run.identity, facts, overwrite=config.overwrite, anew=anew)
    opened = functools.partial(folder.open_output, overwrite=config.overwrite)
    atomic.parallel_map(lambda output: opened(*output), list(run.outputs.items()))


def _facts(config: Any, run: Run) -> dict[str, Any]:
    """What the manifest of a run says of the command at hand."""
    selected = {**run.facts.get("selected", {}), **selection(run.stages)}
    return {**run.facts, "selected": selected, "preset": getattr(config, "preset", None)}


def _computed(config: Any, steps: Sequence[Step], blocks: Sequence[int]) -> Iterator[str]:
    """That nothing was computed, or the peak memory of every model that worked, in its latest run."""
    if blocks and not any(blocks):
        yield _NOTHING.format(config.out_dir)
    peaks: dict[str, dict[str, Any]] = {}
    for step, count in zip(steps, blocks, strict=True):
        if count and step.stage.model is not None:
            peaks[step.stage.model.name] = step.folder.costs()[step.stage.name]["peak_memory"]
    for name, peak in peaks.items():
        for where, of in (("device", "the model on the device"), ("host", "the process")):
            if where in peak:
                yield f"Peak memory, {name}: {peak[where] / 2**30:.1f} GiB ({of})."
                break


def finish_blocks(folder: Folder, stages: Iterable[Stage]) -> None:
    """Notes of what all blocks are there."""
    finished = dict(atomic.read_json(folder.manifest_path, dict).get(FINISHED, {}))
    for output, entry in selection(stages).items():
        before = Blocks.read(finished[output], f"'{folder.manifest_path}'") if output in finished else None
        if before is None or not before.covers(Blocks.read(entry, "")):
            finished[output] = entry
    folder.update(**{FINISHED: finished})


def _finish(benchmark: Benchmark, run: Run, folder: Any) -> tuple[pd.DataFrame, Counter[str]]:
    """Writes scores and figures of a run, whose blocks are read once; its figures, and why samples are
    unscored."""
    table = (run.scores or benchmark.scores)(folder)
    table.write(folder.path / SCORES)
    if benchmark.estimates is not None:
        figures = benchmark.estimates(table, folder)
    else:  # a figure of every metric and variant, and the negation gap of every metric
        groups = table.groups("metric") if benchmark.gap else ()
        gaps = [rows.gap(*benchmark.gap or ("", ""), metric=metric, task="gap") for (metric,), rows in groups]
        figures = frames.concat([table.figures(task="results"), *map(frames.frame, gaps)])
    figures = frames.label(figures, benchmark=benchmark.name, model=run.name)
    atomic.write_text(folder.path / FIGURES, frames.to_csv(figures))
    folder.update(status=INCOMPLETE if run.partial else COMPLETE)
    if reasons := benchmark.decides(table, folder).unscored():
        failed = 0
        if "failed" in table.frame:
            lost = table.frame.dropna(subset="failed")
            failed = len(lost.drop_duplicates(["id", "metric", "variant"]))
        print(unscored_sentence(run.name, reasons, failed), file=sys.stderr, flush=True)
    return figures, reasons


def _report(benchmark: Benchmark, config: Any, finished: Sequence[Finished]) -> str:
    """The report of a command: of its own runs, and of the others in its OUT where the benchmark's is
    `whole`."""
    unfinished = [entry.folder.path for entry in finished if entry.run and entry.run.partial]
    visible = [entry for entry in finished if entry.folder.path not in unfinished]
    if benchmark.whole:
        own = {entry.folder.path for entry in finished}
        others = {path: Folder(path).manifest() for path in runs_below(config.out_dir) if path not in own}
        ours = {path: facts for path, facts in others.items() if facts.get("benchmark") == benchmark.name}
        complete = [path for path, facts in ours.items() if facts["status"] == COMPLETE]
        unfinished += [path for path in ours if path not in complete]
        visible += of_folders(benchmark, complete)
    return write_report(benchmark, config.out_dir, visible, config, unfinished)


def selection(stages: Iterable[Stage]) -> dict[str, dict[str, Any]]:
    """Output -> which records are selected."""
    return {output: stage.blocks.selection for stage in stages for output in stage.outputs}


def selected_blocks(manifest: Mapping[str, Any], output: str) -> Blocks:
    """What the latest command selected. Raises UserError for a manifest without it."""
    atomic.check(manifest, {"selected": {output: dict}}, "'manifest.json'")
    return Blocks.read(manifest["selected"][output], "'manifest.json'")


def selected(
    folder: Folder, output: str, blocks: Blocks | None = None, numbers: Iterable[int] | None = None
) -> Iterator[Row]:
    """The rows of an output of the records that the run's latest command selected, in data order. A selection
    may end inside a block. numbers: only of these blocks."""
    blocks = blocks or selected_blocks(folder.manifest(), output)
    seen: set[str] = set()
    for number in blocks.numbers if numbers is None else numbers:
        rows_of = itertools.groupby(folder.rows(output, [number]), lambda row: row.get("id", ""))
        records = [[*rows] for _, rows in rows_of]
        ids = {rows[0].get("id", "") for rows in records}
        twice = any(a == b for rows in records for a, b in itertools.pairwise(rows))
        first = number * blocks.size
        inside = (bisect.bisect_left(blocks.wanted, end) for end in (first, first + blocks.size))
        wanted = [index - first for index in blocks.wanted[slice(*inside)]]
        if "" in ids or twice or ids & seen or len(ids) != len(records) or len(records) <= max(wanted):
            raise UserError(
                f"'{folder.block_path(output, number)}', or a block before it, is damaged: records are "
                "missing or repeated. Remove it and give the command of the run again, which makes it again."
            )
        seen |= ids
        for index in wanted:
            yield from records[index]


def unscored_sentence(name: str, reasons: Counter[str], failed: int) -> str:
    total = sum(reasons.values())
    counts = [f"{count} x {reason}" for reason, count in reasons.most_common(3) if reason]
    why = f" ({'; '.join(counts)}{'; ...' if len(reasons) > 3 else ''})" if counts else ""
    again = f" {failed} failed; retry with: {environment.typed()}" if failed else ""
    return f"{name}: {total} {'has' if total == 1 else 'have'} no score{why}.{again}"


def of_folders(benchmark: Benchmark, folders: Sequence[Path]) -> list[Finished]:
    """Finished runs by their name, or by their path where another one has it."""
    found: dict[str, Finished] = {}
    for path in folders:
        folder = benchmark.folder(path)
        name = str(folder.manifest().get("name", path.name))
        name = str(path) if name in found else name
        figures = frames.label(frames.read(path / FIGURES), benchmark=benchmark.name, model=name)
        found[name] = Finished(folder, name, figures)
    return list(found.values())


def gaps_of_metrics(finished: Sequence[Finished]) -> pd.DataFrame:
    """The gap of every metric of every run, from figures of the task "gap"."""
    rows: list[dict[str, Any]] = []
    for run in finished:
        for metric in frames.values(found := frames.select(run.figures, task="gap"), "metric"):
            affirmed, negated, lost = frames.records(found, metric=metric)
            what = {"run": run.name, "model": run.name, "measure": metric}
            rows += frames.gap(affirmed["value"], negated["value"], lost, **what)
    return frames.frame(rows)


def write_report(
    benchmark: Benchmark,
    out: Path,
    finished: Sequence[Finished],
    options: Any,
    unfinished: Sequence[Path] = (),
) -> str:
    """Writes the report of finished runs to a folder or a page (`report.write`); what is printed.
    unfinished: runs that a note says are not shown."""
    page = benchmark.page(finished, options) if benchmark.page else Page(benchmark.title)
    if page is None:
        return ""
    figures = page.frame
    if figures is None:
        figures = frames.concat([*(entry.figures for entry in finished), *page.figures])
    costs = (sentence for entry in finished for sentence in sentences(entry.manifest["spent"]))
    own = [*dict.fromkeys(costs)]
    if unfinished:
        names = shortlist(("/".join(path.parts[-2:]) for path in unfinished), 3)
        own.insert(0, f"not shown because not complete: {names}.")
    notes = [*page.notes, *changed_versions(finished), *own]
    page = dataclasses.replace(page, notes=notes, sections=page.sections or benchmark.sections)
    files = report.write(out, figures, page, getattr(options, "formats", FORMATS))
    tables = page.headline or benchmark.headline or next((part.tables for part in page.sections or ()), ())
    texts = [*dict.fromkeys(page.findings), page.subtitle, *own[:3]]
    return report.headline(figures, tables, texts, report.places(out, files, len(notes)))


def changed_versions(finished: Sequence[Finished]) -> Iterator[str]:
    """A sentence for every model behind an endpoint that was not of one version during a run."""
    for run in finished:
        versions: dict[str, Counter[str]] = {}
        for name, usage in run.manifest["usage"].items():
            versions.setdefault(name.partition("-")[0], Counter()).update(usage.get("versions", {}))
        for kind, counts in versions.items():
            if len(counts) > 1:
                text = " and ".join(
                    f"{version} ({count:,} answers)" for version, count in sorted(counts.items())
                )
                yield f"{run.name}: the version behind '{kind}' changed during the run: {text}."


def planned(
    runs: Callable[[Any, str], Sequence[Run]], folder: Callable[[Path], Folder], config: Any, device: str
) -> list[Step]:
    """The steps of a configuration, as a worker elsewhere makes them again."""
    found = runs(config, device)
    return by_model(found, [folder(config.out_dir / run.folder) for run in found])


def by_model(runs: Sequence[Run], folders: Sequence[Folder]) -> list[Step]:
    """Every stage of every run, those of a run in their order: first all that the model at hand can make,
    then those of the model that the earliest stage needs."""
    left = [
        [(position, Step(folder, stage, run.name)) for position, stage in enumerate(run.stages)]
        for run, folder in zip(runs, folders, strict=True)
    ]
    order: list[Step] = []
    name = ""
    while waiting := [stages for stages in left if stages]:
        names = [stages[0][1].stage.model.name if stages[0][1].stage.model else "" for stages in waiting]
        at_hand = [stages for stages, needed in zip(waiting, names, strict=True) if needed in (name, "")]
        if not at_hand:
            first = min(range(len(waiting)), key=lambda index: waiting[index][0][0])
            at_hand, name = [waiting[first]], names[first]
        order += [stages.pop(0)[1] for stages in at_hand]
    return order


def machine_identity(config: Any, device: str) -> dict[str, Any]:
    """What of the machine and its settings decides the last bits of every row."""
    return {
        "batch_size": config.batch_size,
        "dtype": config.dtype,
        "device": device.partition(":")[0],
        "image_rule": images.RULE,
    }


def invocation(executor: Executor) -> dict[str, Any]:
    """When and how the command at hand was given, and on what."""
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": environment.command_line(),
        "directory": str(Path.cwd()),
        **executor.describe(),
        "environment": environment.describe(executor.device),
    }
