"""`ModelTasks`: the tasks of a NegBench run, a model on a data set, with the stages that compute them.

`runs` makes it from the tasks that a command selects; `report` makes it again from a finished folder."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.encoding import Encoded, Encoding
from nein.benchmarks.negbench.folder import ANSWERS, PICTURES, SCORES, SENTENCES
from nein.benchmarks.negbench.questions import Asking, BlindTask, FileAnswers, Matching, Questions
from nein.datasets.negbench import loading
from nein.datasets.negbench.loading import DataSet
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
        if not loading.select_tasks(data, config.tasks, config.variants):
            continue
        loading.check_images(data)
        tasks = _limit_tasks(config, data)
        if not tasks:
            raise UserError(f"{data.title} has no caption and no question of these tasks; ask for more.")
        selection.append((data, tasks))
    if not selection:
        available = ", ".join(f"{task.name} ({task.variant})" for data in sets for task in data.tasks)
        raise UserError(f"--tasks and --variants match nothing; available: {available}.")
    return selection


def _limit_tasks(config: Any, data: DataSet) -> list[Task]:
    """The selected tasks of a data set, cut to `--limit`; without tasks that have no sentence."""
    tasks = loading.select_tasks(data, config.tasks, config.variants, config.limit)
    return [task for task in tasks if task.sentences]


@dataclass(frozen=True)
class ModelTasks:
    """The tasks of a run, with the stages of each and the features that they leave."""

    folder: Folder
    config: EvalConfig
    data: DataSet
    tasks: Sequence[Task]  # the selected ones, cut to `--limit`; those of `data` are complete
    kind: str  # of the model: "dual", "vlm", "itm" or "log" (`models.Choice`)
    model: Model | None = None  # None: the run is only read
    answers: Mapping[str, str] = field(default_factory=dict)  # of a log: `question_key` -> answer

    @classmethod
    def load(cls, folders: Sequence[Folder]) -> list[ModelTasks]:
        """The tasks of finished runs, read again from their data; a warning for data that have vanished."""
        sets: dict[str, DataSet] = {}  # digest of the records -> data set
        names = {field.name for field in dataclasses.fields(EvalConfig)}
        loaded = []
        for folder in folders:
            manifest = folder.manifest()
            values = {key: value for key, value in manifest["config"].items() if key in names}
            config = EvalConfig(**{**values, "out": str(folder.path.parents[1])})
            digest, kind = manifest["data"]["records_sha256"], manifest["summary"]["kind"]
            if digest not in sets:
                try:
                    sets.update((data.sha256, data) for data, _ in select_tasks(config))
                except UserError as error:
                    log.warning("no sample of '%s' is shown; its data are missing: %s", folder.path, error)
            if digest in sets:
                tasks = [task for task in _limit_tasks(config, sets[digest]) if task.fits_model(kind)]
                loaded.append(cls(folder, config, sets[digest], tasks, kind))
        return loaded

    def find_complete(self, task: Task) -> Task:
        """The same task, of the same wording, without a limit."""
        return next(other for other in self.data.tasks if (other.name, other.key) == (task.name, task.key))

    def blocks(self, task: Task) -> Blocks:
        """The blocks of a task's questions, or of the captions that a judge is asked about."""
        field_name = task.parts[-1]  # "questions" or "negated"
        size, limit = len(getattr(self.find_complete(task), field_name)), len(getattr(task, field_name))
        return Blocks.first(size, self.config.batch_size, limit)

    def encode_images(self) -> Encoding:
        """The stage that encodes the images of all tasks."""
        selection = {name for task in self.tasks for name in task.references}
        names = self.data.references
        return Encoding(PICTURES, names, selection, self.data.media, **self._encoding_options)

    def encode_sentences(self, task: Task) -> Encoding:
        """The stage that encodes the captions of a task, or the texts of its options."""
        names = list(dict.fromkeys(self.find_complete(task).sentences))
        selection = set(self.complete_blocks(task).sentences)
        return Encoding(f"{SENTENCES}/{task.key}", names, selection, None, **self._encoding_options)

    @property
    def _encoding_options(self) -> dict[str, Any]:
        return {"folder": self.folder, "config": self.config, "model": self.model}

    def read_features(self, task: Task) -> tuple[Encoded, Encoded]:
        """The features of the images and of the sentences of a task, once both stages are finished."""
        pictures = self.encode_images().read_features(set(task.references))
        return pictures, self.encode_sentences(task).read_features(set(task.sentences))

    def complete_blocks(self, task: Task) -> Task:
        """The task with all captions of its blocks, if a judge is asked: a block is judged as a whole."""
        complete = self.find_complete(task)
        if not task.is_judged or not isinstance(complete, RetrievalTask):
            return task
        blocks = self.blocks(task)
        members = (index for number in blocks.numbers for index in blocks.members(number))
        return replace(complete, negated=tuple(complete.negated[index] for index in members))

    def ask_questions(self, task: Task) -> Iterator[tuple[Questions, BlindTask | None]]:
        """Yields (stage that asks a task's questions, None), then (stage, blind task) of each baseline."""
        complete = self.find_complete(task)
        assert isinstance(complete, ChoiceTask)
        options: dict[str, Any] = {"config": self.config, "model": self.model}
        blocks = self.blocks(task)
        if self.kind == "log":  # its model was asked no baseline
            output = f"{ANSWERS}/{task.key}"
            yield FileAnswers(output, complete, blocks, answers=self.answers, **options), None
            return
        stage_type, kind = (Matching, SCORES) if self.kind == "itm" else (Asking, ANSWERS)
        output = f"{kind}/{task.key}"
        yield stage_type(output, complete, blocks, **options), None
        for baseline in BASELINES if self.config.blind else ():
            blind = BlindTask.make(baseline, complete)
            questions: Any = task.records
            blocks = blind.blocks(self.config.batch_size, questions, self.config.blind)
            yield stage_type(f"{output}.{baseline.replace(' ', '-')}", blind.task, blocks, **options), blind

    def count_cut(self) -> dict[str, int]:
        """How many of the captions the model truncates: "count", and how many there are: "of"."""
        counts = {"count": 0, "of": 0}
        for stage in map(self.encode_sentences, self.tasks):
            rows = self.folder.rows(stage.name, stage.blocks.numbers)
            counts["count"] += sum(bool(row.get("cut")) for row in rows if row["name"] in stage.selection)
            counts["of"] += len(stage.selection)
        return counts
