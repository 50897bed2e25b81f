"""NegBench: what each model encodes or is asked, and what is written when all blocks are there."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from nein.benchmarks import runner
from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import asking, estimates, judged, models, report, sections
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench.asking import MODEL, PICTURE, picture
from nein.benchmarks.negbench.config import CONVERTED, ConvertConfig, EvalConfig, ReportConfig
from nein.benchmarks.negbench.encode import UNUSABLE
from nein.benchmarks.negbench.folder import ModelTasks, ResultsDir
from nein.benchmarks.negbench.models import Choice
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import DETAILS, RECALLS, TEXT_TO_IMAGE
from nein.benchmarks.runner import Benchmark, Finished, Printed, Run
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.records import KINDS, RetrievalTask, Task
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Row
from nein.engine.stages import Functions, Model, Stage, shared
from nein.loading.references import parse_reference
from nein.models import judges, references
from nein.models.cached import Services
from nein.models.remedies import encoders
from nein.reporting.page import Page
from nein.reporting.scores import ScoreTable


@dataclass(frozen=True, kw_only=True)
class ModelRun(Run):
    asked: ModelTasks


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
    chosen = files.selected(config)
    if any(task.asked for _, tasks in chosen for task in tasks):
        judges.check(config.judge)
    all_runs: list[Run] = []
    for choice in {choice.slug: choice for choice in choices}.values():
        models.check(choice)
        how: dict[str, Any] = {"device": device, "dtype": config.dtype, "batch_size": config.batch_size}
        load = shared(functools.partial(models.load, choice, config, **how))
        pairs = [(data, [t for t in tasks if t.answered_by(choice.kind)]) for data, tasks in chosen]
        if not any(tasks for _, tasks in pairs):
            raise UserError(_UNANSWERED[choice.kind].format(choice.asked))
        remedies = ["", *(config.mend if choice.kind == "dual" else ())]
        all_runs += [
            _run(config, models.with_remedy(choice, remedy), data, tasks, device, load)
            for remedy in remedies
            for data, tasks in pairs
            if tasks
        ]
    models.warn_of_lineage(choices)
    return all_runs


#: Kind of a model that can answer none of the tasks -> what is said.
_UNANSWERED = {
    "vlm": "--vlm {} answers questions about one picture only, and there is no such task.",
    "dual": "--model {} scores captions, and every task asks questions instead; say --model none and --vlm.",
    "itm": "--match {} chooses between captions or pictures, and there is no such task.",
}


def _run(
    config: EvalConfig,
    choice: Choice,
    data: DataSet,
    tasks: Sequence[Task],
    device: str,
    load: Callable[[], Any],
) -> ModelRun:
    """load: gives the model without its remedy."""
    identity = {
        "model": references.identity(choice.asked), "kind": choice.kind,
        "revision": parse_reference(choice.reference).revision, "data": f"{data.name} {data.sha256[:16]}",
        "protocol": config.protocol, "seed": config.seed, **runner.machine_identity(config, device),
        **references.contents({"model": choice.reference}),
    }  # fmt: skip
    if choice.remedy:
        identity |= {"mend": choice.remedy}
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
        "summary": {
            "model": choice.name, "dataset": data.name, "title": data.title, "preset": config.preset,
            "protocol": config.protocol, "limit": config.limit, "kind": choice.kind,
            "features": config.features if choice.kind == "dual" else None,
            "row": choice.row.name if choice.row else None,
        },
    }  # fmt: skip
    name = f"{choice.slug}/{data.name}"
    suite = ModelTasks(ResultsDir(config.out_dir / name), config, data, tasks, choice.kind)
    make = _encoding if choice.kind == "dual" else _asking
    judge = {"judge": references.identity(config.judge), **references.contents({"judge": config.judge})}
    outputs = {files.verdicts(task): judge for task in tasks if task.asked}
    stages = tuple(make(suite, choice, device, load))
    return ModelRun(suite.folder, choice.name, identity, stages, facts, outputs, asked=suite)


def _encoding(asked: ModelTasks, choice: Choice, device: str, load: Callable[[], Any]) -> list[Stage]:
    def describe(loaded: Any) -> dict[str, Any]:
        facts = {"scale": loaded.scale, "bias": loaded.bias, "quick_gelu": loaded.quick_gelu}
        return {"model": (loaded.fingerprint, {**loaded.describe(), **facts})}

    def with_remedy() -> Any:
        return encoders.with_remedy(load(), choice.remedy) if choice.remedy else load()

    model = Model(choice.slug, with_remedy, describe)
    encodings = [asked.pictures(), *map(asked.sentences, asked.tasks)]
    judging = [_judging(asked, task, device) for task in asked.tasks if task.asked]
    return [*(encoding.stage(model) for encoding in encodings), *judging]


def _judging(asked: ModelTasks, task: Task, device: str) -> Stage:
    """Asks the judge about what the captions of a task find, once there are features.

    Rows: those of `judged.rows_of`, `failed` (`asking.asking`), and `gallery`, how many pictures have a
    feature: among others, others may be found.
    """
    config, whole, blocks = asked.config, asked.whole(task), asked.blocks(task)
    assert isinstance(whole, RetrievalTask)
    output, pictures, searched = files.verdicts(task), asked.pictures(), set(whole.references)

    def load() -> Any:
        services = Services.of(config, config.cache_dir / "answers.sqlite")
        how = {"device": device.partition(":")[0], "dtype": config.dtype}
        return judges.load("vqa", config.judge, services=services, **how)

    def describe(judge: Any) -> dict[str, Any]:
        return {"judge": (judge.fingerprint, judge.describe())}

    def gallery() -> int:
        return sum(name in searched for name in pictures.keys())

    def part(number: int) -> RetrievalTask:
        return dataclasses.replace(whole, negated=tuple(whole.negated[k] for k in blocks.members(number)))

    def read(number: int) -> tuple[Any, ...]:
        encoded, texts = asked.features(asked.in_blocks(task))
        queries = judged.queries(part(number), encoded, texts, seed=config.seed)
        none = [(query, texts.reasons[text]) for query, text in judged.unfound(part(number))
                if text in texts.reasons]  # fmt: skip
        images = dict.fromkeys(image for query in queries for image in query.shown)
        pictures = {image: picture(whole.media, image) for image in images}
        return queries, pictures, judged.lost_rows(none, len(encoded.rows)), len(encoded.rows)

    def work(judge: Any, found: tuple[Any, ...], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        queries, pictures, lost, size = found
        answers = judged.ask(judge, queries, pictures, blocks.size)
        rows = [*judged.rows_of(queries, answers, config.protocol), *lost]
        for row in rows:
            settled = row["absent"] is not None or row["reason"] == judged.UNPARSED
            why = PICTURE if row["reason"].startswith(UNUSABLE) else MODEL
            row |= {"failed": "" if settled else why, "gallery": size}
        return {output: rows}

    def usable(_: str, number: int, rows: list[Row]) -> bool:
        size = gallery()
        return not any(
            row["gallery"] != size
            or row["failed"] == MODEL
            or (row["failed"] == PICTURE and not isinstance(picture(whole.media, row["image"]), str))
            for row in rows
        )

    model = Model(f"judge {config.judge}", load, describe, references.place(config.judge))
    after = (pictures.output, asked.sentences(task).output)
    return Functions(
        output, (output,), blocks, read, work, model, usable, depends_on_all=after,
        state=lambda records: sorted(pictures.keys().items()),  # what is found depends on every picture
    )  # fmt: skip


def _asking(asked: ModelTasks, choice: Choice, device: str, load: Callable[[], Any]) -> list[Stage]:
    """A stage for the questions of every task, and one for each of its baselines."""
    config, where = asked.config, references.place(choice.reference)

    if choice.kind == "vlm":
        model = Model.one(choice.slug, load, where)
        stage: Callable[..., Stage] = functools.partial(asking.asking, config=config, model=model)
    else:
        stage = functools.partial(asking.scoring, model=Model.one(choice.slug, load, where))
    askings = (each for task in asked.tasks for each in asked.askings(task))
    asks = {choice.reference: 1} if where == "remote" else {}
    stages = [stage(output, task, blocks) for output, task, blocks, _ in askings if task.questions]
    for entry in stages:
        entry.asks = asks
    return stages


def convert(options: ConvertConfig) -> None:
    """The command `nein negbench convert`. Raises UserError or MetricError."""
    if not options.source.is_file():
        raise UserError(f"There is no file '{options.source}'; give the checkpoint to convert.")
    if not options.folder.absolute().parent.is_dir():
        raise UserError(f"The parent of '{options.folder}' does not exist; make it first.")
    from nein.loading.digests import file_sha256
    from nein.metrics.dual import openclip
    from nein.metrics.judges import dcsm

    if options.architecture in CONVERTED:
        facts = dcsm.convert(options.source, options.folder, base=options.base)
    else:
        facts = openclip.convert(
            options.source, options.folder, architecture=options.architecture, quick_gelu=options.quick_gelu
        )
    origin = {"file": options.source.name, "sha256": file_sha256(options.source), **facts}
    atomic.write_text(options.folder / "origin.json", json.dumps(origin, indent=2) + "\n")
    print(f"{options.folder}: {facts['tensors']} tensors of {options.architecture}, as safetensors.")


class NegBench(Benchmark):
    """Captions and questions that deny things."""

    name, title, command = "negbench", "NegBench", "negbench eval"
    config, report_config, folder = EvalConfig, ReportConfig, ResultsDir
    gap, whole = KINDS, True
    sections, headline = sections.SECTIONS, sections.HEADLINE
    exported: ClassVar = {"metric": ("accuracy", *BASELINES, *RECALLS, *(f"satisfied@{k}" for k in KS))}

    def runs(self, config: Any, device: str) -> Sequence[Run]:
        return runs(config, device)

    def scores(self, run: Any) -> ScoreTable:
        scored: ScoreTable = run.asked.scored(run.folder)
        return scored

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return estimates.of_table(table)

    def decides(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """A row per caption, picture and question."""
        return table.where(metric=("accuracy", "recall@1", f"satisfied@{max(KS)}"))

    def compared(self, table: ScoreTable, folder: Any) -> ScoreTable:
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

    def page(self, finished: Sequence[Finished], options: Any) -> Page | None:
        return report.page(finished, options)

    def gaps(self, finished: Sequence[Finished]) -> pd.DataFrame:
        return report.negation_gaps(finished)

    def printed(self) -> Iterator[Mapping[str, Any]]:
        return report.gaps()

    def published(self, source: str, run: Mapping[str, Any] | None) -> Iterator[Printed]:
        return report.published(source, run)


NEGBENCH = NegBench()
