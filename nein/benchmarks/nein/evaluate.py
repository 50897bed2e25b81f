"""The NeIn benchmark: which images editors make when told what is absent, and how those are scored."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks import runner
from nein.benchmarks.nein import figures, paper_numbers, score
from nein.benchmarks.nein import runs as folders
from nein.benchmarks.nein.config import CompareConfig, EvalConfig, ReportConfig
from nein.benchmarks.nein.edit import editing
from nein.benchmarks.nein.reporting import report
from nein.benchmarks.nein.reporting.comparisons import compare
from nein.benchmarks.nein.runs import EDIT, Records, RunDir, of_folder, scores_of
from nein.benchmarks.nein.score import scorer_model, scoring
from nein.benchmarks.runner import Benchmark
from nein.benchmarks.runs import Run
from nein.datasets.nein import loading
from nein.datasets.nein.samples import Dataset, SamplePlan
from nein.editors import Editor
from nein.engine import atomic
from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError, shortlist
from nein.engine.executors import Executor
from nein.engine.folder import Folder
from nein.engine.stages import Model, Stage, Step, open_blocks, shared
from nein.loading.references import is_served
from nein.metrics import JUDGES, METRICS
from nein.models import editor_choice
from nein.models.editor_choice import EditorChoice
from nein.models.references import identity as identity_of
from nein.models.references import resolve
from nein.reporting import figures as frames
from nein.reporting import interchange
from nein.reporting.interchange import Exported, Result, public
from nein.reporting.scores import ScoreTable

log = logging.getLogger(__name__)


def evaluate(config: EvalConfig, executor: Executor) -> str | int | None:
    """Runs the stages that `config` asks for; the table as text on the main process if "report" is among
    them. Raises UserError, EditorError or MetricError."""
    _dataset.cache_clear()  # a command sees the data as they are now
    if not config.computes:
        folders.below([config.out_dir])
    elif executor.is_main:
        _say_missing(load_plan(config).dataset, config.data)
    return runner.evaluate(NEIN, config, executor)


def _say_missing(dataset: Dataset, name: str) -> None:
    """Warns of images that are not there, whose samples will be unscored. No image is opened: that is done in
    blocks. Raises UserError where every image of a kind is missing: then the folder is another one."""
    if not dataset.missing:
        return
    kinds = {"NeIn": {one.id for one in dataset.samples}, "COCO": {one.source_id for one in dataset.samples}}
    for kind, names in kinds.items():
        if missing := sorted(names & dataset.missing):
            message = f"'{name}' lacks {len(missing)} of {len(names)} {kind} images ({shortlist(missing, 3)})"
            if len(missing) == len(names):
                raise UserError(
                    f"{message}; name their folder with --{'nein' if kind == 'NeIn' else 'source'}-images."
                )
            log.warning("%s; their samples will be unscored.", message)


def load_plan(config: EvalConfig) -> SamplePlan:
    """The data set, read once, the selection, and the blocks they need."""
    given = {name: getattr(config, name) for name in _DATA}
    dataset = _dataset(json.dumps(given))
    return SamplePlan(dataset, dataset.select(config.limit, config.samples), config.batch_size)


_DATA = ("data", "split", "annotations", "source_images", "nein_images", "columns", "families")


@functools.lru_cache(maxsize=1)
def _dataset(given: str) -> Dataset:
    return loading.load(**json.loads(given))


def runs(config: EvalConfig, device: str) -> list[Run]:
    """One run per editor and track, everything looked at and nothing loaded; none for a report alone."""
    if not config.computes:
        return []
    choices = editor_choice.resolve_editors(
        config.editor, config.preset, config.editor_overrides(), config.edited, config.mend,
        config.protocol == "paper",
    )  # fmt: skip
    if "edit" in config.stages:
        for choice in choices:
            choice.check_references()
    if config.debug_zone and not any(choice.has_maps for choice in choices):
        raise UserError(
            "--debug-zone draws ZONE's intermediate maps, and no editor here has any; add --editor zone."
        )
    if "score" in config.stages:
        score.check_references(config.metrics, config)
    plan = load_plan(config)
    for metric in config.metrics if "score" in config.stages else ():
        if METRICS[metric].by_truth and not any(sample.things for sample in plan.dataset.samples):
            raise UserError(
                f"The metric '{metric}' needs data that say which things every picture shows, and "
                f"'{config.data}' does not; take --data nano:scope, or other metrics."
            )
    if config.edited is not None:
        choices = [dataclasses.replace(one, made=one.made.of(plan.dataset.samples)) for one in choices]
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
        load = functools.partial(choice.load, device=device, dtype=config.dtype, batch_size=config.batch_size)
        plain = loaders.setdefault((choice.plain or choice).asked, shared(load))
        made_by = functools.partial(_load, config, choice, device, plain)
        editor = Model.one(name, made_by, choice.place, "editor")
        for track in [choice.external.track] if choice.external else config.tracks:
            folder = RunDir(config.out_dir, choice.slug, track)
            stages = _stages(config, folder, plan, choice, editor, scorer)
            scored += [Step(folder, stage) for stage in stages if stage.model is scorer]
            identity = choice.identity()
            identity |= {"mend.judge": identity_of(config.models.vqa)} if choice.asks_the_run else {}
            identity |= {"track": track, "seed": config.seed, "data": plan.dataset.records_sha256}
            identity |= runner.machine_identity(config, device)
            wanted = config.metrics if "score" in config.stages else []
            outputs = {scores_of(name): score.score_identity(name, config, device) for name in wanted}
            facts = {
                "editor": choice.slug,
                "track": track,
                "config": dataclasses.asdict(config),
                "data": plan.facts(),
            }
            partial = "score" not in config.stages and not folder.whole_metrics(plan.blocks)
            made.append(Run(folder.label, folder.label, identity, stages, facts, outputs, partial))
    return made


def _load(config: EvalConfig, choice: EditorChoice, device: str, plain: Callable[[], Editor]) -> Editor:
    if not choice.remedy:
        return plain()
    from nein.models.remedies.editors import with_remedy
    from nein.models.rewards import RemovalReward

    def removal() -> RemovalReward:
        return RemovalReward(score.load_models(["removal_vqa"], config, device)["vqa"], config.article)

    cache = AnswerCache(config.cache_dir / "answers.sqlite")
    how: dict[str, Any] = {"device": device, "dtype": config.judge_dtype}
    return with_remedy(plain(), choice.remedy, cache=cache, removal=removal, **how)


def _stages(
    config: EvalConfig, run: RunDir, plan: SamplePlan, choice: EditorChoice, editor: Model, scorer: Model
) -> tuple[Stage, ...]:
    stages, done = [], run.done(EDIT)
    if "edit" in config.stages:
        maps = config.debug_zone and choice.has_maps
        stage = editing(
            run, plan, editor, run_seed=config.seed, maps=maps, retry_refused=config.retry_refused,
            without=RunDir(config.out_dir, choice.plain.slug, run.track) if choice.plain else None,
        )  # fmt: skip
        asks = {choice.row: choice.edits} if is_served(choice.row) else {}
        stages.append(dataclasses.replace(stage, asks=asks))
    elif missing := sum(index // plan.batch_size not in done for index in plan.selected):
        raise UserError(
            f"'{run.path}' lacks the edits of {missing} of {len(plan.selected)} samples; "
            "run the stage edit to make them."
        )
    if "score" in config.stages:
        judges = [kind for kind in score.model_kinds(config.metrics) if kind in JUDGES]
        served = any(is_served(resolve(getattr(config.models, kind))) for kind in judges)
        stage = scoring(run, plan, config.metrics, scorer, served, config.protocol == "paper")
        vqa = config.models.vqa
        asks = {vqa: score.QUESTIONS} if is_served(vqa) and "vqa" in judges else {}
        stages.append(dataclasses.replace(stage, asks=asks))
    return tuple(stages)


def scores(folder: Folder) -> ScoreTable:
    """The scores of a run whose blocks are there, by every metric that the whole selection has; also works
    out what exists only for the whole."""
    run = of_folder(folder)
    for part in (run.path / EDIT).rglob("*.part"):  # their blocks are whole
        part.unlink()
    names = run.whole_metrics(run.selection())
    if partial := [name for name in run.metrics() if name not in names and run.done(scores_of(name))]:
        why = "scored on a smaller selection only, and left out; add to --metrics to complete"
        log.warning("%s: %s %s", run.label, ", ".join(partial), why)
    read = folders.read(run)
    whole = {name: figures.of_whole(name, read) for name in names if METRICS[name].kind == "corpus"}
    if whole:
        atomic.write_json(run.path / "corpus.json", whole)
    return read.every


def estimates(table: ScoreTable, folder: Folder) -> pd.DataFrame:
    run = of_folder(folder)
    return frames.label(figures.of_table(table, run.read_corpus()), model=run.editor, variant=run.track)


def decides(table: ScoreTable, folder: Folder) -> ScoreTable:
    """The scores by the metric that lacks most."""
    lacking = table.frame.loc[table.frame["value"].isna(), "metric"].value_counts()
    return table.where(metric=lacking.index[0]) if len(lacking) else table


def exported(path: Path) -> Exported:
    """The run in a folder OUT/<editor>/<track>."""
    run = of_folder(Folder(path))
    read = folders.read(run)
    manifest = public(run.manifest())
    config, identity, data = manifest.get("config", {}), manifest["identity"], manifest.get("data", {})
    rows = frames.records(frames.select(figures.of_run(read), task="results"))
    questions: dict[str, str] = {}  # metric -> what its judge was asked, {object} for what it was asked about
    for row in run.scores():
        question, what = row["detail"].get("question"), row["detail"].get("object")
        if row["metric"] not in questions and question:
            questions[row["metric"]] = question.replace(what, "{object}") if what else question
    results = [_result(row, run.track, config, questions) for row in rows if row["value"] is not None]
    results += _gaps(read)
    shown = ("kind", "split", "records_sha256", "n", "selected", "revision")
    control = path.with_name("remove")
    given = str(config.get("data") or data.get("kind") or "")  # OWNER/NAME, "nano:WORLD", or a folder
    name = str(data.get("name") or (given if given.startswith("nano") else Path(given).name))
    return Exported(
        "nein", "NeIn", run.editor, run.track, str(identity.get("checkpoint") or identity.get("editor")),
        {"name": name, **{key: data.get(key) for key in shown}},
        data.get("name"), str(config.get("preset")),
        str(config.get("protocol")), results, lambda: _samples(read), manifest, path,
        [control] if control.is_dir() else (),
    )  # fmt: skip


def _result(row: dict[str, Any], track: str, config: dict[str, Any], questions: dict[str, str]) -> Result:
    metric = METRICS[row["metric"]]
    models = config.get("models", {})
    asked = "vqa" in metric.models and models.get("vqa") and metric.name in questions
    judge = (models["vqa"], questions[metric.name]) if asked else None
    return Result(
        f"{track}/{metric.name}", metric.name, metric.title, row, metric.better, metric.range,
        100.0 if metric.unit == "per cent" else 1.0, metric.kind == "proportion", judge,
    )  # fmt: skip


def _gaps(denied: Records) -> Iterator[Result]:
    """Of the negative track, where its control is finished too."""
    control = of_folder(Folder(denied.run.path.with_name("remove")))
    if denied.track != "negative" or not control.is_complete:
        return
    told = figures.gaps([denied, folders.read(control)])
    for metric in frames.values(frames.select(told, task="gap"), "metric"):
        rows = frames.records(frames.select(told, task="gap", metric=metric))
        by = {row["statistic"]: row for row in rows}
        yield interchange.gap(METRICS[metric].title, by["remove"], by["negative"], by["gap"])


def _samples(run: Records) -> Iterator[interchange.Sample]:
    for row in run.run.scores():
        edit, detail = run.edits[run.place[row["id"]]], row["detail"]
        answer = detail.get("answer", "" if row["value"] is None else str(row["value"]))
        facts = {key: edit.get(key) for key in ("object", "source_id", "seed", "sha256", "template")}
        yield interchange.Sample(
            f"{run.track}/{row['metric']}", row["id"], edit.get("instruction", ""), edit["image"] or "",
            str(answer), row["metric"], row["value"], row["reason"], facts=facts,
        )  # fmt: skip


NEIN = Benchmark(
    "nein", "NeIn", EvalConfig, runs, scores, command="eval", estimates=estimates, decides=decides,
    page=report.page, whole=True, report_config=ReportConfig, compare=compare, compare_config=CompareConfig,
    read=exported, rows=lambda folder: of_folder(folder).scores(), printed=paper_numbers.gaps,
    published=paper_numbers.published,
    folder=functools.partial(Folder, content_name="edits"),
)  # fmt: skip
