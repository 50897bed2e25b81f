"""One run, a model on a data set: its files (docs/reference/files.md), its questions and their results.

<task> in a path is its name and its wording: "mcq.rephrased".
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import judged, scores
from nein.benchmarks.negbench.asking import Distinct
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.encode import Encoded, Encoding
from nein.datasets.negbench import loading, records
from nein.datasets.negbench.loading import DataSet
from nein.engine.atomic import Shape
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row, runs_below
from nein.reporting.scores import ScoreTable

log = logging.getLogger(__name__)
PICTURES = "pictures"  # outputs; the others are of tasks
SENTENCES, ANSWERS, SCORES, VERDICTS = "sentences", "answers", "scores", "verdicts"
_SUMMARY = {
    "model": str, "dataset": str, "title": str, "preset": str, "protocol": str, "kind": str,
    "features": (str, None), "limit": (int, None), "row": (str, None),
}  # fmt: skip
_WHY = {"reason": str, "failed": str}  # failed: see `asking.asking`
_ENCODED = {"name": str, "key": str, "reason": str, "cut?": bool}
_ANSWER = {"id": str, "answer": (str, None), "letter": (str, None), "chosen": (int, None), **_WHY}
_SCORED = {"id": str, "scores": ([float], None), **_WHY}
_JUDGED = {
    "id": str, "source": str, "kind": str, "thing": str, "asked": bool, "rank": int, "image": str,
    "absent": (float, None), "gallery": int, **_WHY,
}  # fmt: skip
BLOCKS: Mapping[str, Shape] = {
    PICTURES: _ENCODED, SENTENCES: _ENCODED, ANSWERS: _ANSWER, SCORES: _SCORED, VERDICTS: _JUDGED,
}  # fmt: skip


class ResultsDir(Folder):
    """The folder OUT/<model>/<data set>."""

    benchmark = "negbench"
    row_types = BLOCKS
    facts: ClassVar[Mapping[str, Shape]] = {
        "summary?": _SUMMARY,
        "data?": {"records_sha256": str},
        "counts?": {f"{what}?": {"count": int, "of": int} for what in ("cut", "turned")},
    }


def find(out: Path) -> list[ResultsDir]:
    """Ordered by model, then data set."""
    return [ResultsDir(path) for path in runs_below(out)]


def config_of(folder: Folder) -> EvalConfig:
    fields = {item.name for item in dataclasses.fields(EvalConfig)}
    given = {key: value for key, value in folder.manifest()["config"].items() if key in fields}
    return EvalConfig(**{**given, "out": str(folder.path.parents[1])})


def selected(config: EvalConfig) -> list[tuple[DataSet, list[records.Task]]]:
    """Raises UserError where no task is there."""
    sets = loading.load(
        config.data, names=config.datasets, image_roots=config.image_root, scenes=config.scenes,
        split=config.split, seed=config.seed, protocol=config.protocol,
    )  # fmt: skip
    chosen = []
    for data in sets:
        if loading.chosen(data, config.tasks, config.variants):
            loading.check_pictures(data)
            if not (tasks := _tasks(config, data)):
                raise UserError(f"{data.title} has no caption and no question of these tasks; ask for more.")
            chosen.append((data, tasks))
    if not chosen:
        available = ", ".join(f"{task.name} ({task.variant})" for data in sets for task in data.tasks)
        raise UserError(f"--tasks and --variants choose nothing; available: {available}.")
    return chosen


def _tasks(config: EvalConfig, data: DataSet) -> list[records.Task]:
    tasks = loading.chosen(data, config.tasks, config.variants, config.limit)
    return [task for task in tasks if task.sentences]


def sets_of(folders: Sequence[Folder]) -> list[DataSet]:
    """The data sets of runs, with a warning for those that have gone."""
    found: dict[str, DataSet] = {}
    for folder in folders:
        if folder.manifest()["data"]["records_sha256"] in found:
            continue
        try:
            found.update((data.sha256, data) for data, _ in selected(config_of(folder)))
        except UserError as error:
            log.warning("without its data, no question of '%s' is shown: %s", folder.path, error)
    return list(found.values())


@dataclass(frozen=True)
class ModelTasks:
    """What a run asks of a data set, and what came of it."""

    folder: Folder
    config: EvalConfig
    data: DataSet
    tasks: Sequence[records.Task]  # those asked for, cut to `--limit`; those of `data` are whole
    kind: str  # of the model (`models.Choice`)

    @classmethod
    def of_folder(cls, folder: Folder, sets: Sequence[DataSet]) -> ModelTasks | None:
        """None where the run's data are not among the sets."""
        manifest, config = folder.manifest(), config_of(folder)
        for data in sets:
            if data.sha256 == manifest["data"]["records_sha256"]:
                kind = manifest["summary"]["kind"]
                tasks = [task for task in _tasks(config, data) if task.answered_by(kind)]
                return cls(folder, config, data, tasks, kind)
        return None

    def whole(self, task: records.Task) -> records.Task:
        return next(t for t in self.data.tasks if (t.name, t.variant) == (task.name, task.variant))

    def blocks(self, task: records.Task) -> Blocks:
        """Of questions, or of captions that a judge is asked about."""
        both = (self.whole(task), task)
        whole, cut = (len(t.questions if isinstance(t, records.ChoiceTask) else t.negated) for t in both)
        return Blocks.first(whole, self.config.batch_size, cut)

    # features

    def pictures(self) -> Encoding:
        """The pictures of all tasks."""
        wanted = {name for task in self.tasks for name in task.references}
        how = self.config.batch_size, self.config.cache_dir, self.data.media
        return Encoding(self.folder, PICTURES, self.data.references, wanted, *how)

    def sentences(self, task: records.Task) -> Encoding:
        names, wanted = list(dict.fromkeys(self.whole(task).sentences)), set(self.in_blocks(task).sentences)
        output, how = f"{SENTENCES}/{task.key}", (self.config.batch_size, self.config.cache_dir)
        return Encoding(self.folder, output, names, wanted, *how)

    def counts(self) -> dict[str, dict[str, int]]:
        """What a reader should know of captions and images -> how many, of how many."""
        references = list(dict.fromkeys(name for task in self.tasks for name in task.references))
        found = {"turned": {"count": self.data.media.turned(references), "of": len(references)}}
        if self.kind == "dual":
            sentences = [self.sentences(task) for task in self.tasks]
            cut, total = sum(part.cut() for part in sentences), sum(len(part.wanted) for part in sentences)
            found["cut"] = {"count": cut, "of": total}
        return found

    def features(self, task: records.Task) -> tuple[Encoded, Encoded]:
        """Of the pictures and of the sentences of a task."""
        pictures = self.pictures().read(set(task.references), self.config.pooling)
        return pictures, self.sentences(task).read(set(task.sentences))

    def in_blocks(self, task: records.Task) -> records.Task:
        """With all captions of its blocks, where these are judged as a whole."""
        whole = self.whole(task)
        if not task.asked or not isinstance(whole, records.RetrievalTask):
            return task
        members = self.blocks(task).all_members()
        return dataclasses.replace(whole, negated=tuple(whole.negated[k] for k in members))

    # answers

    def askings(
        self, task: records.Task
    ) -> Iterator[tuple[str, records.ChoiceTask, Blocks, Distinct | None]]:
        """(output, whole task, blocks, None) of a task's questions; then of each baseline."""
        whole = self.whole(task)
        assert isinstance(whole, records.ChoiceTask)
        assert isinstance(task, records.ChoiceTask)
        output = f"{ANSWERS if self.kind == 'vlm' else SCORES}/{task.key}"
        yield output, whole, self.blocks(task), None
        for name in BASELINES if self.config.blind else ():
            distinct = Distinct.of_task(name, whole)
            blocks = distinct.blocks(self.config.batch_size, task.questions, self.config.blind)
            yield f"{output}.{name.replace(' ', '-')}", distinct.task, blocks, distinct

    # rows

    def scored(self, folder: Folder) -> ScoreTable:
        """The table of scores; the manifest gets the counts."""
        folder.update(counts=self.counts())
        return self.table()

    def rows(self, task: records.Task) -> Iterator[Row]:
        """Of a task (`scores`), from the blocks."""
        how = {"protocol": self.config.protocol}
        if self.kind != "dual":
            assert isinstance(task, records.ChoiceTask)
            answers: list[tuple[Distinct | None, dict[str, Row]]] = []
            for output, choice_task, blocks, distinct in self.askings(task):
                rows = self.folder.rows(output, blocks.numbers) if choice_task.questions else ()
                answers.append((distinct, {row["id"]: row for row in rows}))
            baselines = [(distinct, rows) for distinct, rows in answers if distinct is not None]
            yield from scores.asked_rows(task, answers[0][1], baselines, seed=self.config.seed, **how)
        elif isinstance(task, records.RetrievalTask) and task.asked:
            names = {query.id for query, _ in judged.unfound(task)}
            found = self.folder.rows(verdicts(task), self.blocks(task).numbers)
            yield from (row for row in found if row["id"] in names)
        else:
            model = self.folder.models()["model"]
            pictures, texts = self.features(task)
            more = {**how, "scale": model["scale"], "bias": model["bias"]}
            if isinstance(task, records.RetrievalTask):
                yield from scores.retrieval_rows(task, pictures, texts, **more)
            else:
                more |= {"features": self.config.features, "seed": self.config.seed}
                yield from scores.choice_rows(task, pictures, texts, **more)

    def table(self) -> ScoreTable:
        return scores.table(row for task in self.tasks for row in scores.of_task(task, self.rows(task)))


def model_tasks_of(folder: Folder) -> ModelTasks:
    """Raises UserError where the data have gone."""
    if (found := ModelTasks.of_folder(folder, sets_of([folder]))) is None:
        raise UserError(f"The data of '{folder.path}' have gone, and with them what was asked.")
    return found


def verdicts(task: records.Task) -> str:
    return f"{VERDICTS}/{task.key}"
