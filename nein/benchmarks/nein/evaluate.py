"""The NeIn benchmark: which images editors make when told what is absent, and how those are scored."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from nein.benchmarks import runner
from nein.benchmarks.nein import corpus, exported, models, paper_numbers, records
from nein.benchmarks.nein import figures as of_run
from nein.benchmarks.nein.config import CompareConfig, EvalConfig, ReportConfig
from nein.benchmarks.nein.edit import editing, editor_model
from nein.benchmarks.nein.records import Records
from nein.benchmarks.nein.reporting import tables as report
from nein.benchmarks.nein.runs import EDIT, RunDir, of_folder, scores_of
from nein.benchmarks.nein.score import scorer_model, scoring
from nein.benchmarks.runner import Benchmark
from nein.benchmarks.runs import Run
from nein.datasets.nein import loading
from nein.datasets.nein.samples import Dataset, Plan
from nein.editors import Editor
from nein.engine import atomic
from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError, shortlist
from nein.engine.executors import Executor
from nein.engine.folder import Folder
from nein.engine.stages import Model, Stage, Step, open_blocks, shared
from nein.metrics import METRICS
from nein.models import editor_choice
from nein.models.editor_choice import EditorChoice
from nein.models.external_edits import check_names
from nein.models.references import identity as identity_of
from nein.models.remedies import best_of
from nein.models.rewards import RemovalReward
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable

log = logging.getLogger(__name__)


def evaluate(config: EvalConfig, executor: Executor) -> str | int | None:
    """Runs the stages that `config` asks for; the table as text on the main process if "report" is among
    them. What can be wrong with names and folders is found before a model is loaded. Raises UserError,
    EditorError or MetricError."""
    if not {"edit", "score"} & set(config.stages):
        return write_report(config, {}) if executor.is_main else None
    _dataset.cache_clear()  # a command sees the data as they are now
    if executor.is_main:
        _say_missing(load_plan(config).dataset, config.data)
    held: dict[Path, Records] = {}  # what is read of the runs, for their report
    benchmark = dataclasses.replace(
        NEIN,
        scores=functools.partial(scores, held=held),
        report_of=lambda config, runs, folders: write_report(config, held),
    )
    return runner.evaluate(benchmark, config, executor)


def _say_missing(dataset: Dataset, name: str) -> None:
    """Warns of images that are not there, whose samples will be unscored. No image is opened: that is done in
    blocks. Raises UserError where every image of a kind is missing: then the folder is another one."""
    kinds = {"NeIn": {one.id for one in dataset.samples}, "COCO": {one.source_id for one in dataset.samples}}
    for kind, names in kinds.items():
        if missing := sorted(names & dataset.missing):
            said = f"'{name}' lacks {len(missing)} of {len(names)} {kind} images ({shortlist(missing, 3)})"
            if len(missing) == len(names):
                raise UserError(
                    f"{said}; name their folder with --{'nein' if kind == 'NeIn' else 'source'}-images."
                )
            log.warning("%s; their samples will be unscored.", said)


def load_plan(config: EvalConfig) -> Plan:
    """The data set, read once, the selection, and the blocks they need."""
    given = {name: getattr(config, name) for name in _DATA}
    dataset = _dataset(json.dumps(given))
    return Plan(dataset, tuple(dataset.select(config.limit, config.samples)), config.block_size)


_DATA = ("data", "split", "annotations", "source_images", "nein_images", "columns", "families")


@functools.lru_cache(maxsize=1)
def _dataset(given: str) -> Dataset:
    return loading.load(**json.loads(given))


def runs(config: EvalConfig, device: str) -> list[Run]:
    """One run per editor and track, everything looked at and nothing loaded."""
    choices = editor_choice.resolve_editors(
        config.editor, config.preset, config.editor_overrides(), config.edited, config.mend
    )
    if "edit" in config.stages:
        for choice in choices:
            choice.check_references()
    if config.debug_zone and not any(choice.has_maps for choice in choices):
        raise UserError(
            "--debug-zone draws ZONE's intermediate maps, and no editor here has any; add --editor zone."
        )
    if "score" in config.stages:
        models.check_references(config.metrics, config)
    plan = load_plan(config)
    for metric in config.metrics if "score" in config.stages else ():
        if METRICS[metric].by_truth and not any(sample.things for sample in plan.dataset.samples):
            raise UserError(
                f"The metric '{metric}' needs data that say which things every picture shows, and "
                f"'{config.data}' does not; take --data nano:scope, or other metrics."
            )
    if config.edited is not None:
        external = [choice.external for choice in choices if choice.external is not None]
        for warning in check_names(external, [sample.id for sample in plan.dataset.samples]):
            log.warning("%s", warning)
    scored: list[Step] = []

    def lacking() -> list[str]:
        """The metrics that any block of any run lacks: only their models are loaded."""
        missing = {output for step in scored for task in open_blocks(step) for output in task.missing}
        return [name for name in config.metrics if scores_of(name) in missing]

    scorer = scorer_model(config, device, lacking)
    made = []
    loaders: dict[str, Callable[[], Editor]] = {}
    for choice in choices:
        name = f"{choice.asked}/{choice.external.track}" if choice.external else choice.asked
        load = functools.partial(choice.load, device=device, dtype=config.dtype, batch_size=config.block_size)
        plain = loaders.setdefault(choice.plain, shared(load))
        editor = editor_model(name, functools.partial(_load, config, choice, device, plain), fits=config.fits)
        for track in [choice.external.track] if choice.external else config.tracks:
            folder = RunDir(config.out_dir, choice.slug, track)
            stages = _stages(config, folder, plan, choice, editor, scorer)
            scored += [Step(folder, stage) for stage in stages if stage.model is scorer]
            asks = best_of.asks_the_run(choice.remedy)
            identity = choice.identity() | ({"mend.judge": identity_of(config.models.vqa)} if asks else {})
            identity |= {"track": track, "seed": config.seed, "data": plan.dataset.records_sha256}
            identity |= runner.machine_identity(config, device)
            wanted = config.metrics if "score" in config.stages else []
            outputs = {scores_of(name): models.score_identity(name, config, device) for name in wanted}
            facts = {"editor": choice.slug, "track": track, "config": config.as_dict(), "data": plan.facts()}
            partial = "score" not in config.stages and not folder.whole_metrics(plan.blocks)
            made.append(Run(folder.label, folder.label, identity, stages, facts, outputs, partial))
    return made


def _load(config: EvalConfig, choice: EditorChoice, device: str, plain: Callable[[], Editor]) -> Editor:
    cache = AnswerCache(config.cache_dir / "answers.sqlite") if choice.remedy else None

    def removal() -> RemovalReward:
        return RemovalReward(models.load_models(["removal_vqa"], config, device)["vqa"], config.article)

    return choice.with_remedy(plain(), cache=cache, device=device, dtype=config.judge_dtype, removal=removal)


def _stages(
    config: EvalConfig, run: RunDir, plan: Plan, choice: EditorChoice, editor: Model, scorer: Model
) -> tuple[Stage, ...]:
    stages, done = [], run.done(EDIT)
    if "edit" in config.stages:
        maps = config.debug_zone and choice.has_maps
        stages.append(editing(run, plan, editor, run_seed=config.seed, maps=maps))
    elif missing := sum(index // plan.batch_size not in done for index in plan.selected):
        raise UserError(
            f"'{run.path}' lacks the edits of {missing} of {len(plan.selected)} samples; "
            "run the stage edit to make them."
        )
    if "score" in config.stages:
        served = bool(models.served_kinds(config.metrics, config))
        stages.append(scoring(run, plan, config.metrics, scorer, served))
    return tuple(stages)


def scores(folder: Folder, held: dict[Path, Records] | None = None) -> ScoreTable:
    """The scores of a run whose blocks are there, by every metric that the whole selection has; also works
    out what exists only for the whole. held: takes what was read."""
    run = of_folder(folder)
    names = run.whole_metrics(run.selection())
    if partial := [name for name in run.metrics() if name not in names and run.done(scores_of(name))]:
        why = "scored on a smaller selection only, and left out; add to --metrics to complete"
        log.warning("%s: %s %s", run.label, ", ".join(partial), why)
    read = records.read(run)
    whole = {name: corpus.figure(name, read) for name in names if METRICS[name].kind == "corpus"}
    if whole:
        atomic.write_json(run.path / "corpus.json", whole)
    if held is not None:
        held[run.path] = read
    return read.every


def estimates(table: ScoreTable, folder: Folder) -> pd.DataFrame:
    run = of_folder(folder)
    return frames.label(of_run.of_table(table, run.read_corpus()), model=run.editor, variant=run.track)


def decides(table: ScoreTable, folder: Folder) -> ScoreTable:
    """The scores by the metric that lacks most."""
    lacking = table.frame.loc[table.frame["value"].isna(), "metric"].value_counts()
    return table.where(metric=lacking.index[0]) if len(lacking) else table


def write_report(config: EvalConfig, held: Mapping[Path, Records]) -> str | None:
    """The tables of all runs in the output folder, where the command asks for them."""
    return report.report(config.out_dir, held) if "report" in config.stages else None


def report_command(options: ReportConfig) -> int:
    from nein.benchmarks.nein.reporting.command import report

    return report(options)


def compare(options: CompareConfig) -> int:
    from nein.benchmarks.nein.reporting import command

    return command.compare(options)


NEIN = Benchmark(
    "nein", "NeIn", EvalConfig, runs, scores, command="eval", estimates=estimates, decides=decides,
    report=report_command, report_config=ReportConfig, compare=compare, compare_config=CompareConfig,
    read=exported.read, rows=lambda folder: of_folder(folder).scores(), printed=paper_numbers.gaps,
    folder=functools.partial(Folder, holds="edits"),
)  # fmt: skip
