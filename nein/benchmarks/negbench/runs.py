"""NegBench: what each model encodes or is asked, and what is written when all blocks are there."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nein.benchmarks import runner
from nein.benchmarks.negbench import data as models
from nein.benchmarks.negbench import estimates, report, scores, sections, stages
from nein.benchmarks.negbench.config import ConvertConfig, EvalConfig
from nein.benchmarks.negbench.data import Choice, ResultsDir, select_tasks
from nein.benchmarks.negbench.judged import Judging, verdicts
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import DETAILS, TEXT_TO_IMAGE
from nein.benchmarks.negbench.stages import ModelTasks
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
    asked: ModelTasks


def _model(choice: Choice, load: Callable[[], Any]) -> Model:
    """load: gives the model without its remedy."""
    if choice.kind != "dual":
        return Model.one(choice.slug, load, references.place(choice.reference))

    def describe(loaded: Any) -> Row:
        facts = {"scale": loaded.scale, "bias": loaded.bias, "quick_gelu": loaded.quick_gelu}
        return {"model": (loaded.fingerprint, {**loaded.describe(), **facts})}

    def add_remedy() -> Any:
        return encoders.add_remedy(load(), choice.remedy) if choice.remedy else load()

    return Model(choice.slug, add_remedy, describe)


def _judge(config: EvalConfig, device: str) -> Model:
    def load() -> Any:
        services = Services.create(config, config.cache_dir / "answers.sqlite")
        how = {"device": device.partition(":")[0], "dtype": config.dtype}
        return judges.load("vqa", config.judge, services=services, **how)

    return Model.one(f"judge {config.judge}", load, references.place(config.judge), kind="judge")


def _run(
    config: EvalConfig,
    choice: Choice,
    model: Model | None,
    data: DataSet,
    tasks: Sequence[Task],
    device: str,
    answers: Mapping[str, str],
) -> ModelRun:
    """answers: of a log, by key."""
    identity: Row = {
        "model": references.identity(choice.asked),
        "kind": choice.kind,
        "protocol": config.protocol,
        "revision": parse_reference(choice.reference).revision,
        "seed": config.seed,
        "data": f"{data.name} {data.sha256[:16]}",
        **runner.machine_identity(config, device),
        **references.contents({"model": choice.reference}),
    }
    if choice.kind == "log":
        identity["model"] = f"answers {json_digest(dict(answers))[:12]}"
    if choice.remedy:
        identity["mend"] = choice.remedy
    if choice.kind == "vlm":
        identity |= {"prompt": config.prompt, "scoring": config.scoring}
    elif choice.kind == "dual":
        identity["features"] = config.features
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
    about = {"name": data.name, "records_sha256": data.sha256, "tasks": origins}
    facts = {"config": dataclasses.asdict(config), "data": about, "summary": summary}
    folder = ResultsDir(config.out_dir / choice.slug / data.name)
    asked = ModelTasks(folder, config, data, tasks, choice.kind, model, answers)
    judge = {"judge": references.identity(config.judge), **references.contents({"judge": config.judge})}
    outputs, stages = {}, list[Stage]()
    if choice.kind == "dual":  # the features, then what a judge says of what they find
        stages = [asked.pictures(), *map(asked.sentences, asked.tasks)]
        for task in tasks:
            if isinstance(task, RetrievalTask) and task.asked:
                outputs[verdicts(task)] = judge
                stages.append(Judging(asked=asked, task=task, model=_judge(config, device)))
    else:  # the questions of every task, and those of its baselines
        remote = references.place(choice.reference) == "remote"
        for stage, _ in (each for task in tasks for each in asked.askings(task)):
            if stage.task.questions:
                stage.asks = {choice.reference: 1} if remote else {}
                stages.append(stage)
    return ModelRun(folder, choice.name, identity, stages, facts, outputs, asked=asked)


def convert(options: ConvertConfig) -> None:
    """The command `nein negbench convert`. Raises UserError or MetricError."""
    if not options.source.is_file():
        raise UserError(f"There is no file '{options.source}'; give the checkpoint to convert.")
    if not options.folder.absolute().parent.is_dir():
        raise UserError(f"The parent of '{options.folder}' does not exist; make it first.")
    from nein.loading.digests import file_sha256
    from nein.metrics.dual import openclip

    facts = openclip.convert(
        options.source, options.folder, architecture=options.architecture, quick_gelu=options.quick_gelu
    )
    origin = {"file": options.source.name, "sha256": file_sha256(options.source), **facts}
    atomic.write_text(options.folder / "origin.json", json.dumps(origin, indent=2) + "\n")
    print(f"{options.folder}: {facts['tensors']} tensors of {options.architecture}, as safetensors.")


class NegBench(Benchmark):
    """Captions and questions that deny things."""

    name, title, command = "negbench", "NegBench", "negbench eval"
    config, folder = EvalConfig, ResultsDir
    gap, reports_all = KINDS, True
    sections, headline = sections.SECTIONS, sections.HEADLINE
    page, gaps = staticmethod(report.page), staticmethod(report.negation_gaps)
    paper_gaps = staticmethod(report.paper_gaps)
    paper_estimates = staticmethod(report.paper_estimates)

    def runs(self, config: Any, device: str) -> list[Run]:
        """One run per model and data set, everything looked at and nothing loaded."""
        given = {"dual": config.model, "vlm": config.vlm, "itm": config.match, "log": config.answers_from}
        choices = [models.choose(name, kind) for kind, names in given.items() for name in names]
        runner.name_folders((choice.slug, choice.asked) for choice in choices)
        chosen = select_tasks(config)
        if any(task.asked for _, tasks in chosen for task in tasks):
            judges.check(config.judge)
        all_runs: list[Run] = []
        for choice in {choice.slug: choice for choice in choices}.values():
            models.check(choice)
            load = Shared(functools.partial(models.load, choice, config, device))
            pairs = [(data, [t for t in tasks if t.fits_model(choice.kind)]) for data, tasks in chosen]
            if not any(tasks for _, tasks in pairs):
                raise UserError(
                    f"'{choice.asked}' can answer none of these tasks: --model scores captions, --vlm and "
                    "--match answer questions; choose another model, or other --tasks."
                )
            answers: dict[str, str] = {}
            if choice.kind == "log":
                asked = [task for _, tasks in pairs for task in tasks]
                questions = stages.export_questions(asked, config.seed)
                answers = harness.read_answers(expand_user(choice.reference), questions)
            for remedy in ("", *(config.mend if choice.kind == "dual" else ())):
                arm = models.add_remedy(choice, remedy)
                model = None if choice.kind == "log" else _model(arm, load)
                for data, tasks in pairs:
                    all_runs += [_run(config, arm, model, data, tasks, device, answers)] if tasks else []
        return all_runs

    def scores(self, run: Any) -> ScoreTable:
        return scores.make_scores(run.asked)

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return estimates.make_estimates(table)

    def harness_questions(self, run: Finished, options: Any) -> Iterator[harness.Question]:
        for asked in ModelTasks.load([run.folder]):
            yield from stages.export_questions(asked.tasks, asked.config.seed)

    def primary_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """A row per caption, picture and question."""
        return table.where(metric=("accuracy", "recall@1", f"satisfied@{max(KS)}"))

    def comparable_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """Recall at 1 of pictures, by kind of caption, and accuracy, by what the right option says, of each
        task and wording."""
        chosen = table.where(metric=("accuracy", "recall@1")).frame
        chosen = chosen.reindex(columns=list(dict.fromkeys([*chosen, *DETAILS])))
        chosen = chosen[chosen["direction"].isna() | (chosen["direction"] == TEXT_TO_IMAGE)]
        task, wording, metric, kind, type_ = (
            chosen[name].astype(object).fillna("") for name in ("task", "variant", "metric", "kind", "type")
        )
        named = (metric + ", " + task + " " + wording).str.strip()
        return ScoreTable(
            chosen.assign(metric=named.astype("category"), variant=(kind + type_).astype("category"))
        )


NEGBENCH = NegBench()
