"""Makes the runs of `nein negbench eval` and defines the benchmark NegBench; then `nein negbench convert`.

A run is a model, alone or with a remedy, on a data set. Making one checks names and loads no model."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nein.benchmarks import runner
from nein.benchmarks.negbench import estimates, models, questions, report, scores, sections
from nein.benchmarks.negbench.config import ConvertConfig, EvalConfig
from nein.benchmarks.negbench.folder import ResultsDir
from nein.benchmarks.negbench.judged import Judging, name_output
from nein.benchmarks.negbench.models import Choice
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import DETAILS
from nein.benchmarks.negbench.scoring import TEXT_TO_IMAGE
from nein.benchmarks.negbench.stages import ModelTasks, select_tasks
from nein.benchmarks.runner import Benchmark, Finished, Run
from nein.datasets import harness
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.records import KINDS, RetrievalTask, Task
from nein.engine import atomic
from nein.engine.folder import Row
from nein.engine.stages import Model, Shared, Stage
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.loading.references import expand_user, parse_reference
from nein.models import judges, references
from nein.models.cached import Services
from nein.models.remedies import encoders
from nein.reporting.scores import ScoreTable


@dataclass(frozen=True, kw_only=True)
class ModelRun(Run):
    """A run, and the tasks that its scores are made of."""

    tasks: ModelTasks


def _make_model(choice: Choice, load: Callable[[], Any]) -> Model:
    """The model of a stage, with the remedy of `choice`. load: loads it without the remedy."""
    if choice.kind != "dual":
        return Model.one(choice.slug, load, references.find_place(choice.reference))

    def load_with_remedy() -> Any:
        return encoders.add_remedy(load(), choice.remedy) if choice.remedy else load()

    def describe(loaded: Any) -> Row:
        facts = {"scale": loaded.scale, "bias": loaded.bias, "quick_gelu": loaded.quick_gelu}
        return {"model": (loaded.fingerprint, {**loaded.describe(), **facts})}

    return Model(choice.slug, load_with_remedy, describe)


def _make_judge(config: EvalConfig, device: str) -> Model:
    """The judge of the images that encoders find for a caption."""

    def load() -> Any:
        services = Services.create(config, config.cache_dir / "answers.sqlite")
        options = {"device": device.partition(":")[0], "dtype": config.dtype}
        return judges.load("vqa", config.judge, services=services, **options)

    return Model.one(f"judge {config.judge}", load, references.find_place(config.judge), kind="judge")


def _make_run(
    config: EvalConfig,
    choice: Choice,
    device: str,
    *,
    model: Model | None,
    data: DataSet,
    tasks: Sequence[Task],
    answers: Mapping[str, str],
) -> ModelRun:
    """The run of a model on a data set.

    model    None for a log of another harness.
    answers  Of a log: `questions.question_key` -> answer."""
    # What decides the rows.
    identity: Row = {
        "model": references.identify(choice.asked),
        "kind": choice.kind,
        "protocol": config.protocol,
        "revision": parse_reference(choice.reference).revision,
        "seed": config.seed,
        "data": f"{data.name} {data.sha256[:16]}",
        **runner.machine_identity(config, device),
        **references.digest_models({"model": choice.reference}),
    }
    if choice.kind == "log":
        identity["model"] = f"answers {json_digest(dict(answers))[:12]}"
    if choice.remedy:
        identity["mend"] = choice.remedy
    if choice.kind == "vlm":
        identity |= {"prompt": config.prompt, "scoring": config.scoring}
    elif choice.kind == "dual":
        identity["features"] = config.features

    # What tables and pages tell of the run.
    summary = {
        "model": choice.name,
        "dataset": data.name,
        "title": data.title,
        "kind": choice.kind,
        "preset": config.preset,
        "protocol": config.protocol,
        "limit": config.limit,
        "features": identity.get("features"),
        "row": choice.row.name if choice.row else None,
    }
    origins = {f"{task.name}/{task.variant}": {**task.origin, "sha256": task.sha256} for task in data.tasks}
    data_facts = {"name": data.name, "records_sha256": data.sha256, "tasks": origins}
    facts = {"config": dataclasses.asdict(config), "data": data_facts, "summary": summary}
    folder = ResultsDir(config.out_dir / choice.slug / data.name)
    model_tasks = ModelTasks(folder, config, data, tasks, choice.kind, model, answers)

    outputs, run_stages = {}, list[Stage]()  # outputs with an identity of their own
    if choice.kind == "dual":
        run_stages = [model_tasks.encode_images(), *map(model_tasks.encode_sentences, model_tasks.tasks)]
        judge = {"judge": references.identify(config.judge)}
        judge |= references.digest_models({"judge": config.judge})
        for task in tasks:
            if isinstance(task, RetrievalTask) and task.is_judged:
                outputs[name_output(task)] = judge
                judge_model = _make_judge(config, device)
                run_stages.append(Judging(model_tasks=model_tasks, task=task, model=judge_model))
    else:
        is_remote = references.find_place(choice.reference) == "remote"
        for task in tasks:
            for stage, _ in model_tasks.ask_questions(task):
                if stage.task.questions:
                    stage.asks = {choice.reference: 1} if is_remote else {}
                    run_stages.append(stage)
    return ModelRun(folder, choice.name, identity, run_stages, facts, outputs, tasks=model_tasks)


class NegBench(Benchmark):
    """Captions and questions with negations, for encoders, vision-language models and matchers."""

    # What `Benchmark` declares:
    name, title, command = "negbench", "NegBench", "negbench eval"
    config, folder = EvalConfig, ResultsDir
    gap = KINDS
    reports_all = True
    sections, headline = sections.SECTIONS, sections.HEADLINE
    page, gaps = staticmethod(report.make_page), staticmethod(report.negation_gaps)
    paper_gaps = staticmethod(report.paper_gaps)
    paper_estimates = staticmethod(report.paper_estimates)

    def runs(self, config: Any, device: str) -> list[Run]:
        """One run per model, remedy and data set."""
        choices = [
            *(models.choose(name, "dual") for name in config.model),
            *(models.choose(name, "vlm") for name in config.vlm),
            *(models.choose(name, "itm") for name in config.match),
            *(models.choose(name, "log") for name in config.answers_from),
        ]
        runner.name_folders((choice.slug, choice.asked) for choice in choices)  # raises for two of one name
        selected = select_tasks(config)
        if any(task.is_judged for _, tasks in selected for task in tasks):
            judges.check(config.judge)
        all_runs: list[Run] = []
        for choice in {choice.slug: choice for choice in choices}.values():
            models.check(choice)
            load = Shared(functools.partial(models.load, choice, config, device))  # once for all its runs
            fitting = []  # (data set, its tasks that the model can do)
            for data, tasks in selected:
                if own_tasks := [task for task in tasks if task.fits_model(choice.kind)]:
                    fitting.append((data, own_tasks))
            if not fitting:
                rule = "--model scores captions, --vlm and --match answer questions"
                advice = "pass another model, or other --tasks"
                raise UserError(f"'{choice.asked}' fits none of these tasks: {rule}; {advice}.")
            answers: dict[str, str] = {}
            if choice.kind == "log":
                all_tasks = [task for _, tasks in fitting for task in tasks]
                exported = questions.export_questions(all_tasks, config.seed)
                answers = harness.read_answers(expand_user(choice.reference), exported)
            for remedy in ("", *(config.mend if choice.kind == "dual" else ())):
                variant = models.add_remedy(choice, remedy)
                model = None if choice.kind == "log" else _make_model(variant, load)
                inputs: dict[str, Any] = {"model": model, "answers": answers}
                for data, tasks in fitting:
                    all_runs.append(_make_run(config, variant, device, data=data, tasks=tasks, **inputs))
        return all_runs

    def scores(self, run: Any) -> ScoreTable:
        return scores.make_scores(run.tasks)

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return estimates.make_estimates(table)

    def harness_questions(self, run: Finished, options: Any) -> Iterator[harness.Question]:
        for model_tasks in ModelTasks.load([run.folder]):
            yield from questions.export_questions(model_tasks.tasks, model_tasks.config.seed)

    def primary_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """One row per caption, image and question."""
        return table.where(metric=("accuracy", "recall@1", f"satisfied@{max(KS)}"))

    def comparable_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """Recall at 1, text to image, by kind of caption; accuracy by type; each by task and wording."""
        rows = table.where(metric=("accuracy", "recall@1")).frame
        rows = rows.reindex(columns=list(dict.fromkeys([*rows, *DETAILS])))
        rows = rows[rows["direction"].isna() | (rows["direction"] == TEXT_TO_IMAGE)]
        names = ("task", "variant", "metric", "kind", "type")
        task, wording, metric, kind, type_ = (rows[name].astype(object).fillna("") for name in names)
        metrics = (metric + ", " + task + " " + wording).str.strip().astype("category")
        # A row has a kind (recall) or a type (accuracy), never both.
        return ScoreTable(rows.assign(metric=metrics, variant=(kind + type_).astype("category")))


NEGBENCH = NegBench()


def convert(options: ConvertConfig) -> None:
    """The command `nein negbench convert`. Raises UserError or MetricError."""
    if not options.source.is_file():
        raise UserError(f"There is no file '{options.source}'; pass the checkpoint to convert.")
    if not options.folder.absolute().parent.is_dir():
        raise UserError(f"The parent of '{options.folder}' does not exist; make it first.")
    from nein.loading.digests import file_sha256
    from nein.metrics.dual import openclip

    settings: Any = {"architecture": options.architecture, "quick_gelu": options.quick_gelu}
    facts = openclip.convert(options.source, options.folder, **settings)
    origin = {"file": options.source.name, "sha256": file_sha256(options.source), **facts}
    atomic.write_text(options.folder / "origin.json", json.dumps(origin, indent=2) + "\n")
    print(f"{options.folder}: {facts['tensors']} tensors of {options.architecture}, as safetensors.")
