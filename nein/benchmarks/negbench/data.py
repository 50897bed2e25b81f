"""The data sets of a command, and the folder of a run, a model on a data set (docs/reference/files.md)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import NotRequired

from nein.benchmarks.negbench.config import EvalConfig
from nein.datasets.negbench import loading
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.records import Task
from nein.engine.atomic import record
from nein.engine.errors import UserError
from nein.engine.folder import Folder, runs_below

log = logging.getLogger(__name__)
PICTURES = "pictures"  # outputs; the others are of tasks: "answers/mcq.rephrased"
SENTENCES, ANSWERS, SCORES, VERDICTS = "sentences", "answers", "scores", "verdicts"
PICTURE, MODEL = "picture", "model"  # why a row has no value (`failed`), which may be mended; "": as it is
_WHY = {"reason": str, "failed": str}
_ENCODED = record({"name": str, "key": str, "reason": str, "cut": NotRequired[bool]})
_FOUND = {"id": str, "source": str, "kind": str, "thing": str, "asked": bool, "rank": int, "image": str}
BLOCKS: Mapping[str, Any] = {
    PICTURES: _ENCODED,
    SENTENCES: _ENCODED,
    ANSWERS: record({"id": str, "answer": str | None, "letter": str | None, "chosen": int | None, **_WHY}),
    SCORES: record({"id": str, "scores": list[float] | None, **_WHY}),
    VERDICTS: record({**_FOUND, "absent": float | None, **_WHY}),
}
_SUMMARY: dict[str, Any] = dict.fromkeys(("model", "dataset", "title", "preset", "protocol", "kind"), str)
_COUNT = record({"count": int, "of": int})
_SUMMARY |= {"features": str | None, "limit": int | None, "row": str | None}


class ResultsDir(Folder):
    """The folder OUT/<model>/<data set>."""

    benchmark = "negbench"
    row_types = BLOCKS
    facts: ClassVar[Mapping[str, Any]] = {
        "summary": NotRequired[record(_SUMMARY)],
        "data": NotRequired[record({"records_sha256": str})],
        "counts": NotRequired[record(dict.fromkeys(("cut", "turned"), NotRequired[_COUNT]))],
    }


def find(out: Path) -> list[ResultsDir]:
    """Ordered by model, then data set."""
    return [ResultsDir(path) for path in runs_below(out)]


def config_of(folder: Folder) -> EvalConfig:
    fields = {item.name for item in dataclasses.fields(EvalConfig)}
    given = {key: value for key, value in folder.manifest()["config"].items() if key in fields}
    return EvalConfig(**{**given, "out": str(folder.path.parents[1])})


def selected(config: EvalConfig) -> list[tuple[DataSet, list[Task]]]:
    """Raises UserError where no task is there."""
    drawn: dict[str, Any] = {"scenes": config.scenes, "split": config.split, "seed": config.seed}
    drawn |= {"protocol": config.protocol, "image_roots": config.image_root}
    sets = loading.load(config.data, names=config.datasets, **drawn)
    found = []
    for data in sets:
        if loading.chosen(data, config.tasks, config.variants):
            loading.check_pictures(data)
            if not (tasks := tasks_of(config, data)):
                raise UserError(f"{data.title} has no caption and no question of these tasks; ask for more.")
            found.append((data, tasks))
    if not found:
        available = ", ".join(f"{task.name} ({task.variant})" for data in sets for task in data.tasks)
        raise UserError(f"--tasks and --variants choose nothing; available: {available}.")
    return found


def tasks_of(config: EvalConfig, data: DataSet) -> list[Task]:
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
