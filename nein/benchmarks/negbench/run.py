"""NegBench: what each model encodes or is asked, and what is written when all blocks are there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nein.benchmarks import runner
from nein.benchmarks.baselines import BASELINES, GAIN
from nein.benchmarks.negbench import (
    encode,
    exported,
    figures,
    matching,
    minimal_pairs,
    models,
    paper_numbers,
    requested,
    results,
    retrieved,
    satisfied,
    vlm,
)
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench.blind import Distinct
from nein.benchmarks.negbench.config import EvalConfig, ReportConfig
from nein.benchmarks.negbench.encode import Encoded, Encoding, Searched
from nein.benchmarks.negbench.models import Choice
from nein.benchmarks.runner import Benchmark
from nein.benchmarks.runs import Run
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.records import ChoiceTask, RetrievalTask, Task
from nein.datasets.negbench.registry import BINARY
from nein.engine import atomic
from nein.engine.answers import AnswerCache
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.engine.stages import Model, Stage, shared
from nein.models import judges, references
from nein.models.remedies.encoders import Arm
from nein.models.remembered import Remembered, batched
from nein.reporting import figures as frames


@dataclass(frozen=True, kw_only=True)
class ModelRun(Run):
    """A model on a data set.

    tasks  Those that were asked for, cut to `--limit`; those of `data` are whole.
    """

    choice: Choice
    data: DataSet
    tasks: Sequence[Task]

    def whole(self, task: Task) -> Task:
        """The task before it was cut."""
        return next(t for t in self.data.tasks if (t.name, t.variant) == (task.name, task.variant))


def runs(config: EvalConfig, device: str) -> list[Run]:
    """One run per model and data set, everything looked at and nothing loaded."""
    choices = [models.choose(name) for name in config.model]
    choices += [models.choose(name, "vlm") for name in config.vlm]
    choices += [models.choose(name, "itm") for name in config.match]
    for choice in choices:
        twin = next(other for other in choices if other.slug == choice.slug)
        if twin.asked != choice.asked:
            raise UserError(
                f"'{twin.asked}' and '{choice.asked}' have one name, '{choice.slug}'; give one of them "
                "another: NAME=REFERENCE."
            )
    chosen = requested.selected(config)
    if any(_is_judged(task) for _, tasks in chosen for task in tasks):
        judges.check(config.judge)
    all_runs: list[Run] = []
    for choice in {choice.slug: choice for choice in choices}.values():
        models.check(choice)
        load = shared(functools.partial(_load, config, choice, device))
        asked = [(data, [task for task in tasks if _answers(choice, task)]) for data, tasks in chosen]
        if not any(tasks for _, tasks in asked):
            raise UserError(_UNANSWERED[choice.kind].format(choice.asked))
        cures = ["", *(config.mend if choice.kind == "dual" else ())]
        all_runs += [
            _run(config, models.mended(choice, cure), data, tasks, device, load)
            for cure in cures
            for data, tasks in asked
            if tasks
        ]
    models.warn_of_lineage(choices)
    return all_runs


#: Kind of a model -> what is said where it can answer none of the tasks.
_UNANSWERED = {
    "vlm": "--vlm {} answers questions about one picture only, and there is no such task.",
    "dual": "--model {} scores captions, and every task asks questions instead; say --model none and --vlm.",
    "itm": "--match {} chooses between captions or pictures, and there is no such task.",
}


def _answers(choice: Choice, task: Task) -> bool:
    if isinstance(task, ChoiceTask):
        return task.answered_by(choice.kind)
    return choice.kind == "dual"


def _run(
    config: EvalConfig,
    choice: Choice,
    data: DataSet,
    tasks: Sequence[Task],
    device: str,
    load: Callable[[], Any],
) -> ModelRun:
    """load: gives the model without its cure."""
    identity = {
        "model": choice.identity,
        "weights": models.weights(choice.reference),
        "kind": choice.kind,
        "revision": choice.revision,
        "data": f"{data.name} {data.sha256[:16]}",
        "protocol": config.protocol,
        "seed": config.seed,
        **runner.machine_identity(config, device),
    }
    if choice.cure:
        identity |= {"mend": choice.cure, **Arm.parse(choice.cure).identity}
    if choice.kind == "vlm":
        identity |= {"prompt": config.prompt, "scoring": config.scoring, "letters": config.letters}
    elif choice.kind == "dual":
        identity |= {"features": config.features, "pooling": config.pooling}
    facts = {
        "config": dataclasses.asdict(config),
        "data": {
            "name": data.name,
            "records_sha256": data.sha256,
            "tasks": {f"{t.name}/{t.variant}": {**t.origin, "sha256": t.sha256} for t in data.tasks},
        },
    }
    run = ModelRun(
        f"{choice.slug}/{data.name}", choice.name, identity, (), facts, choice=choice, data=data, tasks=tasks
    )
    stages = {"vlm": _asking, "itm": _matching, "dual": _encoding}[choice.kind](config, run, load)
    return dataclasses.replace(run, stages=tuple(stages), outputs=_judges(config, run))


def _judges(config: EvalConfig, run: ModelRun) -> dict[str, dict[str, Any]]:
    """What decides the verdicts on each task that a judge defines."""
    if run.choice.kind != "dual":
        return {}
    judge = {"judge": references.identity(config.judge), "weights": models.weights(config.judge)}
    return {_verdicts(task): judge for task in run.tasks if _is_judged(task)}


# --- what is computed --------------------------------------------------------------------------


def _encoding(config: EvalConfig, run: ModelRun, load: Callable[[], Any]) -> list[Stage]:
    def describe(loaded: Any) -> dict[str, Any]:
        facts = {"scale": loaded.scale, "bias": loaded.bias, "quick_gelu": loaded.quick_gelu}
        description = {**loaded.describe(), **facts}
        return {"model": (loaded.fingerprint, description)}

    fits = batched if config.fits else None

    def cured() -> Any:
        return models.cure(load(), run.choice, config.protocol, config.seed)

    model = Model(run.choice.slug, cured, describe, fits=fits)
    encoded = [_in_blocks(config, run, task) for task in run.tasks]
    encodings = [_pictures(config, run), *(_sentences(config, run, task) for task in encoded)]
    judged = [_judging(config, run, task) for task in run.tasks if _is_judged(task)]
    return [*(encoding.stage(model) for encoding in encodings), *judged]


def _is_judged(task: Task) -> bool:
    return isinstance(task, RetrievalTask) and task.asked


def _verdicts(task: Task) -> str:
    return f"{files.VERDICTS}/{files.task_name(task)}"


def _in_blocks(config: EvalConfig, run: ModelRun, task: Task) -> Task:
    """With all captions of its blocks, where these are judged as a whole."""
    if not isinstance(task, RetrievalTask) or not task.asked:
        return task
    whole = run.whole(task)
    assert isinstance(whole, RetrievalTask)
    blocks = Blocks.first(len(whole.negated), config.block_size, len(task.negated))
    return dataclasses.replace(whole, negated=tuple(whole.negated[k] for k in blocks.all_members()))


def _judging(config: EvalConfig, run: ModelRun, task: Task) -> Stage:
    """Asks the judge about what the captions of a task find."""
    whole, asked = run.whole(task), _in_blocks(config, run, task)
    assert isinstance(task, RetrievalTask)
    assert isinstance(whole, RetrievalTask)
    pictures, sentences = _pictures(config, run), _sentences(config, run, asked)
    searched = set(whole.references)
    how = {"cache": config.cache_dir, "device": run.identity["device"], "dtype": config.dtype}
    load = functools.partial(judges.load, "vqa", config.judge, **how)

    def describe(judge: Any) -> dict[str, Any]:
        return {"judge": (judge.fingerprint, judge.describe())}

    return satisfied.judging(
        _verdicts(task), whole, Blocks.first(len(whole.negated), config.block_size, len(task.negated)),
        features=functools.partial(features_of, config, run, asked),
        gallery=lambda: sum(name in searched for name in pictures.keys()),
        after=(pictures.output, sentences.output),
        model=Model(f"judge {config.judge}", load, describe, references.place(config.judge)),
        protocol=config.protocol, seed=config.seed,
    )  # fmt: skip


def _pictures(config: EvalConfig, run: ModelRun) -> Encoding:
    """The pictures of all tasks, whole ones where captions adapt to what they search."""
    searched = [_taught(run, task) for task in run.tasks] if _adapts(run) else []
    wanted = {name for task in (*run.tasks, *searched) for name in task.references}
    return encode.of_pictures(
        Folder(config.out_dir / run.folder, row_shapes=files.BLOCKS), files.PICTURES, run.data.references,
        wanted, run.data.media, batch_size=config.block_size, cache=config.cache_dir,
    )  # fmt: skip


def _adapts(run: ModelRun) -> bool:
    return bool(run.choice.cure) and Arm.parse(run.choice.cure).adapts


def _taught(run: ModelRun, task: Task) -> Task:
    """Whose captions and pictures a model adapts to before it encodes the sentences of a task: as released
    those of retrieval, for multiple choice, too; the task's own where the data have none."""
    found = [one for one in run.data.tasks if isinstance(one, RetrievalTask) and one.negated]
    if isinstance(task, RetrievalTask) or not found:
        return run.whole(task)
    return next((one for one in found if one.variant == task.variant), found[0])


def _sentences(config: EvalConfig, run: ModelRun, task: Task) -> Encoding:
    size, among, sentences = config.block_size, None, run.whole(task).sentences
    if _adapts(run):
        taught, size = _taught(run, task), max(1, len(sentences))  # what adapts does so once
        among = Searched(_pictures(config, run), taught.references, config.pooling, taught.sentences)
    return encode.of_sentences(
        Folder(config.out_dir / run.folder, row_shapes=files.BLOCKS),
        f"{files.SENTENCES}/{files.task_name(task)}",
        sentences, set(task.sentences), batch_size=size, cache=config.cache_dir, among=among,
    )  # fmt: skip


def features_of(config: EvalConfig, run: ModelRun, task: Task) -> tuple[Encoded, Encoded]:
    """Of the pictures and of the sentences of a task, once they are encoded."""
    pictures = _pictures(config, run).read(set(task.references), config.pooling)
    return pictures, _sentences(config, run, task).read(set(task.sentences))


def _asking(config: EvalConfig, run: ModelRun, load: Callable[[], Any]) -> list[Stage]:
    def remembered() -> Remembered:
        return Remembered(load(), AnswerCache(config.cache_dir / "answers.sqlite"))

    place, fits = references.place(run.choice.reference), batched if config.fits else None
    model = Model.one(run.choice.slug, remembered, place, fits)
    manner = vlm.Manner(config.prompt, config.scoring, config.letters, config.protocol, config.seed)
    return _stages(config, run, files.ANSWERS, functools.partial(vlm.asking, manner=manner, model=model))


def _matching(config: EvalConfig, run: ModelRun, load: Callable[[], Any]) -> list[Stage]:
    model = Model.one(run.choice.slug, load, references.place(run.choice.reference))
    return _stages(config, run, files.SCORES, functools.partial(matching.scoring, model=model))


def _stages(config: EvalConfig, run: ModelRun, output: str, stage: Callable[..., Stage]) -> list[Stage]:
    """A stage for the questions of every task, and one for each of its baselines.

    stage  (output, task, blocks) -> the stage.
    """
    stages = []
    for task in run.tasks:
        whole = run.whole(task)
        assert isinstance(task, ChoiceTask)
        assert isinstance(whole, ChoiceTask)
        blocks = Blocks.first(len(whole.questions), config.block_size, len(task.questions))
        name = f"{output}/{files.task_name(task)}"
        stages.append(stage(name, whole, blocks))
        for distinct in _baselines(config, whole):
            if not distinct.task.questions:
                continue
            blocks = distinct.blocks(config.block_size, task.questions, config.blind)
            stages.append(stage(f"{name}.{distinct.name.replace(' ', '-')}", distinct.task, blocks))
    return stages


def _baselines(config: EvalConfig, whole: ChoiceTask) -> list[Distinct]:
    """What a model that is asked is asked besides."""
    return [Distinct.without_pictures(whole), Distinct.without_words(whole)] if config.blind else []


def _load(config: EvalConfig, choice: Choice, device: str) -> Any:
    return models.load(choice, device=device, dtype=config.dtype, batch_size=config.block_size)


# --- what is written ---------------------------------------------------------------------------


def figures_of_run(config: EvalConfig, run: Run, folder: Folder) -> pd.DataFrame:
    """The figures of a run; writes samples/<task>.jsonl, and what tables say of it."""
    assert isinstance(run, ModelRun)
    figures_of_tasks = []
    scored = _scored(config, run, folder) if run.choice.kind == "dual" else _answered(config, run, folder)
    for task, rows in scored:
        path = files.samples(folder, files.task_name(task))
        atomic.write_lines(path, rows)
        figures_of_tasks += _figures(task, results.read(path))
    folder.update(summary=_summary(config, run, folder))
    return frames.frame(figures_of_tasks)


def _scored(config: EvalConfig, run: ModelRun, folder: Folder) -> Iterator[tuple[Task, Iterator[Row]]]:
    """The rows of every task, from features."""
    model = folder.notes("models")["model"]
    how = {"scale": model["scale"], "bias": model["bias"], "protocol": config.protocol}
    for task in run.tasks:
        if _is_judged(task):
            yield task, _judged(run, folder, task)
            continue
        pictures, texts = features_of(config, run, task)
        if isinstance(task, RetrievalTask):
            rows = results.retrieval_rows(task, pictures, texts, **how)
        else:
            rows = results.choice_rows(
                task, pictures, texts, **how, features=config.features, seed=config.seed
            )
        yield task, rows


def _judged(run: ModelRun, folder: Folder, task: Task) -> Iterator[Row]:
    """The rows of the captions of a task that were asked for, of its whole blocks."""
    assert isinstance(task, RetrievalTask)
    stage = next(stage for stage in run.stages if stage.name == _verdicts(task))
    asked = {query.id for query, _ in retrieved.unfound(task)}
    return (row for row in folder.rows(stage.name, stage.blocks.numbers) if row["id"] in asked)


def _answered(config: EvalConfig, run: ModelRun, folder: Folder) -> Iterator[tuple[Task, Iterator[Row]]]:
    """The rows of every task, from answers."""
    rows_of = results.matched_rows if run.choice.kind == "itm" else results.answer_rows
    stages = iter(run.stages)
    for task in run.tasks:
        whole = run.whole(task)
        assert isinstance(task, ChoiceTask)
        assert isinstance(whole, ChoiceTask)
        answers = _by_id(folder, next(stages))
        asked = [
            (one, _by_id(folder, next(stages)) if one.task.questions else {})
            for one in _baselines(config, whole)
        ]
        yield task, rows_of(task, answers, asked, protocol=config.protocol, seed=config.seed)


def _by_id(folder: Folder, stage: Stage) -> dict[str, Row]:
    return {row["id"]: row for row in folder.rows(stage.name, stage.blocks.numbers)}


#: What is measured where nothing is known of two captions but which is right.
_OF_BINARY = ("accuracy", "chance", GAIN, *BASELINES)


def _figures(task: Task, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(task, RetrievalTask):
        measured = retrieved.of_judged(rows, None) if task.asked else figures.of_retrieval(rows)
    else:
        measured = figures.of_choices(rows)
        if task.kind == BINARY:
            measured = [figure for figure in measured if figure["metric"] in _OF_BINARY]
        measured += [*figures.of_groups(rows), *minimal_pairs.of_pairs(rows)]
    label = {"task": task.name.partition("/")[2], "variant": task.variant}
    return [{**label, **figure} for figure in measured]


def _summary(config: EvalConfig, run: ModelRun, folder: Folder) -> dict[str, Any]:
    """What a table says about a run."""
    choice = run.choice
    return {
        "model": choice.name,
        "dataset": run.data.name,
        "title": run.data.title,
        "preset": config.preset,
        "protocol": config.protocol,
        "features": config.features if choice.kind == "dual" else None,
        "limit": config.limit,
        "kind": choice.kind,
        "row": choice.row.name if choice.row else None,
        "quick_gelu": folder.notes("models")["model"].get("quick_gelu"),
    }


def write_report(config: EvalConfig, runs: Sequence[ModelRun], folders: Sequence[Folder]) -> str:
    """Tables and plots of every finished run in OUT, also those of earlier commands."""
    from nein.benchmarks.negbench import report

    return report.report(
        config.out_dir, folders, lambda: list({run.data.sha256: run.data for run in runs}.values())
    )


def failed(run: Run, folder: Folder) -> int:
    """How many pictures, sentences and questions a model, or the reading of a picture, failed on."""
    rows = (folder.rows(stage.name, stage.blocks.numbers) for stage in run.stages)
    return sum(bool(row.get("failed") or row.get("key") == "") for each in rows for row in each)


def report_command(options: ReportConfig) -> str:
    from nein.benchmarks.negbench import report

    return report.run(options)


NEGBENCH = Benchmark(
    "negbench",
    "NegBench",
    EvalConfig,
    runs,
    command="negbench eval",
    figures=figures_of_run,
    report_of=write_report,
    failed=failed,
    report=report_command,
    report_config=ReportConfig,
    read=exported.read,
    printed=paper_numbers.gaps,
    folder=functools.partial(Folder, holds="results", row_shapes=files.BLOCKS),
)
