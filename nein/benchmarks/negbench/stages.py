"""The tasks that a command selects, and `ModelTasks`: the stages of a NegBench run, a model on a data set."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.encoding import Encoded, Encoding
from nein.benchmarks.negbench.questions import Asking, Distinct, FileAnswers, Matching, Questions
from nein.datasets.negbench import loading
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.media import Media
from nein.datasets.negbench.records import ChoiceTask, RetrievalTask, Task
from nein.engine.folder import Blocks, Folder
from nein.engine.stages import Model
from nein.loading.errors import UserError

log = logging.getLogger(__name__)


def select_tasks(config: Any) -> list[tuple[DataSet, list[Task]]]:
    """The data sets and tasks of a `config.EvalConfig`. Raises UserError if there is none."""
    sets = loading.load(
        config.data,
        names=config.datasets,
        image_roots=config.image_root,
        scenes=config.scenes,
        split=config.split,
        seed=config.seed,
        protocol=config.protocol,
    )
    selection = []
    for data in sets:
        if loading.select_tasks(data, config.tasks, config.variants):
            loading.check_images(data)
            if not (tasks := tasks_of(config, data)):
                raise UserError(f"{data.title} has no caption and no question of these tasks; ask for more.")
            selection.append((data, tasks))
    if not selection:
        available = ", ".join(f"{task.name} ({task.variant})" for data in sets for task in data.tasks)
        raise UserError(f"--tasks and --variants match nothing; available: {available}.")
    return selection


def tasks_of(config: Any, data: DataSet) -> list[Task]:
    tasks = loading.select_tasks(data, config.tasks, config.variants, config.limit)
    return [task for task in tasks if task.sentences]


def config_of(folder: Folder) -> EvalConfig:
    """The configuration of a finished run, from its manifest."""
    names = {field.name for field in dataclasses.fields(EvalConfig)}
    values = {key: value for key, value in folder.manifest()["config"].items() if key in names}
    return EvalConfig(**{**values, "out": str(folder.path.parents[1])})


@dataclass(frozen=True)
class ModelTasks:
    """The tasks of a run, with the stages and features of each."""

    folder: Folder
    config: EvalConfig
    data: DataSet
    tasks: Sequence[Task]  # the selected ones, cut to `--limit`; those of `data` are complete
    kind: str  # of the model (`data.Choice`)
    model: Model | None = None  # None: the run is only read
    answers: Mapping[str, str] = field(default_factory=dict)  # of a log, by `question_key`

    @classmethod
    def load(cls, folders: Sequence[Folder]) -> list[ModelTasks]:
        """The tasks of finished runs, read again from their data; a warning for data that have vanished."""
        sets: dict[str, DataSet] = {}  # by the digest of the records
        loaded = []
        for folder in folders:
            manifest, config = folder.manifest(), config_of(folder)
            digest, kind = manifest["data"]["records_sha256"], manifest["summary"]["kind"]
            if digest not in sets:
                try:
                    sets |= {data.sha256: data for data, _ in select_tasks(config)}
                except UserError as error:
                    log.warning(
                        "no sample of '%s' is shown, since its data are missing: %s", folder.path, error
                    )
            if digest in sets:
                tasks = tasks_of(config, sets[digest])
                tasks = [task for task in tasks if task.fits_model(kind)]
                loaded.append(cls(folder, config, sets[digest], tasks, kind))
        return loaded

    def find_complete(self, task: Task) -> Task:
        """The same task without a limit."""
        return next(other for other in self.data.tasks if (other.name, other.key) == (task.name, task.key))

    def blocks(self, task: Task) -> Blocks:
        """The blocks of a task's questions, or of the captions that a judge is asked about."""
        size, cut = (len(getattr(part, part.parts[-1])) for part in (self.find_complete(task), task))
        return Blocks.first(size, self.config.batch_size, cut)

    def pictures(self) -> Encoding:
        """The images of all tasks."""
        names = {name for task in self.tasks for name in task.references}
        return self._encoding(files.PICTURES, self.data.references, names, self.data.media)

    def sentences(self, task: Task) -> Encoding:
        """The captions of a task, or the texts of its options."""
        names = list(dict.fromkeys(self.find_complete(task).sentences))
        selection = set(self.complete_blocks(task).sentences)
        return self._encoding(f"{files.SENTENCES}/{task.key}", names, selection, None)

    def _encoding(
        self, output: str, names: Sequence[str], selection: set[str], media: Media | None
    ) -> Encoding:
        options: Any = {"folder": self.folder, "config": self.config, "model": self.model}
        return Encoding(output, names, selection, media, **options)

    def features(self, task: Task) -> tuple[Encoded, Encoded]:
        """The features of the images and of the sentences of a task."""
        pictures = self.pictures().features(set(task.references))
        return pictures, self.sentences(task).features(set(task.sentences))

    def complete_blocks(self, task: Task) -> Task:
        """The task with all captions of its blocks, if a judge is asked: a block is judged as a whole."""
        complete = self.find_complete(task)
        if not task.asked or not isinstance(complete, RetrievalTask):
            return task
        blocks = self.blocks(task)
        members = (index for number in blocks.numbers for index in blocks.members(number))
        return replace(complete, negated=tuple(complete.negated[index] for index in members))

    def askings(self, task: Task) -> Iterator[tuple[Questions, Distinct | None]]:
        """Yields (stage of a task's questions, None), then (stage, distinct questions) of each baseline."""
        complete = self.find_complete(task)
        assert isinstance(complete, ChoiceTask)
        kind, output = (Matching, files.SCORES) if self.kind == "itm" else (Asking, files.ANSWERS)
        output, options = f"{output}/{task.key}", dict[str, Any](config=self.config, model=self.model)
        if self.kind == "log":  # its model saw no baseline
            yield FileAnswers(output, complete, self.blocks(task), answers=self.answers, **options), None
            return
        yield kind(output, complete, self.blocks(task), **options), None
        for name in BASELINES if self.config.blind else ():
            distinct = Distinct.make(name, complete)
            questions: Any = task.records
            blocks = distinct.blocks(self.config.batch_size, questions, self.config.blind)
            yield kind(f"{output}.{name.replace(' ', '-')}", distinct.task, blocks, **options), distinct

    def count_cut(self) -> dict[str, int]:
        """How many of the captions the model truncates: {"count": ..., "of": all}."""
        counts = {"count": 0, "of": 0}
        for part in map(self.sentences, self.tasks):
            rows = part.folder.rows(part.name, part.blocks.numbers)
            counts["count"] += sum(bool(row.get("cut")) for row in rows if row["name"] in part.selection)
            counts["of"] += len(part.selection)
        return counts
