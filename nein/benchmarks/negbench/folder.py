"""One run, a model on a data set: its files (docs/reference/files.md), its questions and their results.

<task> in a path is its name and its wording: "mcq.rephrased".
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import judged, scores
from nein.benchmarks.negbench.asking import Distinct
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.encode import Encoded, Encoding
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import TEXT_TO_IMAGE
from nein.benchmarks.runner import FIGURES
from nein.datasets.negbench import loading, records
from nein.datasets.negbench.loading import DataSet
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row, runs_below
from nein.engine.shapes import Shape
from nein.metrics.letters import LETTERS
from nein.reporting import figures as frames
from nein.reporting import interchange
from nein.reporting.interchange import Exported, Result, Sample, public
from nein.reporting.scores import ScoreTable

log = logging.getLogger(__name__)
PICTURES = "pictures"  # outputs; the others are of tasks
SENTENCES, ANSWERS, SCORES, VERDICTS = "sentences", "answers", "scores", "verdicts"
_SUMMARY = {
    "model": str, "dataset": str, "title": str, "preset": str, "protocol": str, "kind": str,
    "features": (str, None), "limit": (int, None), "row": (str, None),
}  # fmt: skip
_WHY = {"reason": str, "failed": str}  # failed: see `asking.asking`
_ENCODED = {"name": str, "key": str, "reason": str}
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
    facts: ClassVar[Mapping[str, Shape]] = {"summary?": _SUMMARY, "data?": {"records_sha256": str}}

    def __init__(self, path: Path) -> None:
        super().__init__(path, "results", BLOCKS)


def task_name(task: records.Task) -> str:
    return f"{task.name.partition('/')[2]}.{task.variant}"


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
        output, how = f"{SENTENCES}/{task_name(task)}", (self.config.batch_size, self.config.cache_dir)
        return Encoding(self.folder, output, names, wanted, *how)

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
        output = f"{ANSWERS if self.kind == 'vlm' else SCORES}/{task_name(task)}"
        yield output, whole, self.blocks(task), None
        for name in BASELINES if self.config.blind else ():
            distinct = Distinct.of_task(name, whole)
            blocks = distinct.blocks(self.config.batch_size, task.questions, self.config.blind)
            yield f"{output}.{name.replace(' ', '-')}", distinct.task, blocks, distinct

    # rows

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

    def every_row(self) -> Iterator[Row]:
        for task in self.tasks:
            what = {"task": task.name.partition("/")[2], "variant": task.variant}
            yield from ({"id": row["id"], **what, **row} for row in self.rows(task))

    def table(self) -> ScoreTable:
        return scores.table(row for task in self.tasks for row in scores.of_task(task, self.rows(task)))


def model_tasks_of(folder: Folder) -> ModelTasks:
    """Raises UserError where the data have gone."""
    if (found := ModelTasks.of_folder(folder, sets_of([folder]))) is None:
        raise UserError(f"The data of '{folder.path}' have gone, and with them what was asked.")
    return found


def verdicts(task: records.Task) -> str:
    return f"{VERDICTS}/{task_name(task)}"


_SEEN = "what the judge sees in the picture found"
_SHARES = ("accuracy", "recall", "satisfied", *BASELINES)


def read(path: Path) -> Exported:
    manifest = public(Folder(path, "answers").manifest())
    summary, config = manifest.get("summary", {}), manifest.get("config", {})
    figures = frames.read(path / FIGURES)
    results = []
    for row in frames.records(figures):
        if row["value"] is not None and row["metric"].partition("@")[0] in _SHARES:
            words = [row.get(name) for name in ("kind", "direction", "type", "template")]
            suffix = "".join(f", {str(word).replace('_', ' ')}" for word in words if word)
            title = f"{row['metric'].capitalize()}, {row['task']} ({row['variant']}){suffix}"
            results.append(interchange.share(_key(row), row, title))
    data = {key: manifest["data"].get(key) for key in ("name", "records_sha256")}
    return Exported(
        "negbench", f"NegBench {summary.get('title', '')}", str(manifest["name"]), str(data["name"]),
        str(manifest["identity"]["model"]), data, None, str(config.get("preset")),
        str(summary.get("protocol")),
        [*results, *_gaps(figures)],
        lambda: _samples(path), manifest, path,
    )  # fmt: skip


def _key(row: Mapping[str, Any]) -> str:
    parts = (
        row.get(name, "") for name in ("task", "variant", "metric", "kind", "direction", "type", "template")
    )
    return "/".join(str(part) for part in parts if part)


def _gaps(figures: pd.DataFrame) -> Iterator[Result]:
    """What is lost in retrieval and in multiple choice, by the wording of the captions."""
    parts = {
        "recall@5": ("gap@5", "kind", (records.ORIGINAL, records.NEGATED), {"direction": TEXT_TO_IMAGE}),
        "choices": ("gap", "type", (records.AFFIRMATION, records.NEGATION), {}),
    }
    tasks = figures.reindex(columns=["task", "variant"]).drop_duplicates()
    for task, variant in tasks.itertuples(index=False):
        for name, (metric, column, ends, where) in parts.items():
            of_task = frames.select(figures, task=task, variant=variant, **where)
            own = {"metric": "accuracy" if name == "choices" else name}
            affirmed, denied = (frames.pick(of_task, **own, **{column: end}) for end in ends)
            gap = frames.pick(of_task, metric=metric)
            if affirmed and denied and gap and gap["value"] is not None:
                yield interchange.gap(f"{name}, {task} ({variant})", affirmed, denied, gap)


def _samples(path: Path) -> Iterator[Sample]:
    folder = ResultsDir(path)
    run = ModelTasks.of_folder(folder, sets_of([folder]))
    if run is None:  # its data have gone, which is said
        return
    for task in run.tasks:
        of_task = {"task": task.name.rpartition("/")[2], "variant": task.variant}
        texts: dict[Any, Any] = {}  # id of a question -> its options; (kind, id of a caption) -> the caption
        if isinstance(task, records.ChoiceTask):
            texts = {query.id: tuple(option.text for option in query.options) for query in task.questions}
        else:
            for item in (*task.original, *task.negated):
                texts |= {(item.kind, f"{item.id}#{k}"): text for k, text in enumerate(item.captions)}
        for row in run.rows(task):
            yield from _of_row(row, of_task, texts)


def _of_row(row: Mapping[str, Any], task: dict[str, str], texts: Mapping[Any, Any]) -> Iterator[Sample]:
    if "correct" in row:
        shares = row.get("shares") or []
        best = ", ".join(LETTERS[n] for n, share in enumerate(shares) if share == max(shares) and share > 0)
        about = {"source": row["source"], "type": row.get("type"), "scores": row.get("scores")}
        yield Sample(
            _key({**task, "metric": "accuracy", "type": "all"}), row["id"],
            "Which of the captions describes the picture?", best, best, "highest score", row.get("credit"),
            row["reason"], (LETTERS[row["correct"]],), texts.get(row["id"]), about,
        )  # fmt: skip
        return
    if "absent" in row:
        text, answer, method = texts.get((records.NEGATED, row["id"].partition("/")[0])), row["image"], _SEEN
        values = {f"satisfied@{k}": row["absent"] for k in KS if row["rank"] < k}
        where, end, facts = {"kind": row["kind"]}, row["rank"], ["source", "thing", "gallery"]
    else:
        text, answer = texts.get((row["kind"], row["id"])), "" if row["rank"] is None else str(row["rank"])
        values, method = {f"recall@{k}": row[f"recall@{k}"] for k in KS}, "rank of the first right one"
        where, end = {name: row[name] for name in ("kind", "direction")}, row["direction"]
        facts = ["source", "item", "tied", "score"]
    for metric, value in values.items():
        yield Sample(
            _key({**task, "metric": metric, **where}), f"{row['id']}.{row['kind']}.{end}",
            str(text or row["id"]), answer, answer, method, value, row["reason"],
            facts={name: row[name] for name in facts},
        )  # fmt: skip
