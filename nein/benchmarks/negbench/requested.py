"""What a configuration, or a run that was made with one, asks of which data."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.folder import ResultsDir
from nein.datasets.negbench import loading
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.records import Task
from nein.engine.errors import UserError

log = logging.getLogger(__name__)


def config_of(folder: ResultsDir) -> EvalConfig:
    """The configuration that a run was made with."""
    fields = {item.name for item in dataclasses.fields(EvalConfig)}
    given = {key: value for key, value in folder.manifest()["config"].items() if key in fields}
    return EvalConfig(**{**given, "out": str(folder.path.parents[1])})


def selected(config: EvalConfig) -> list[tuple[DataSet, list[Task]]]:
    """The data sets with the tasks that are asked for."""
    sets = loading.load(
        config.data,
        names=config.datasets,
        image_roots=config.image_root,
        scenes=config.scenes,
        split=config.split,
        seed=config.seed,
        protocol=config.protocol,
    )
    selected = []
    for data in sets:
        tasks = loading.select(data.tasks, config.tasks, config.variants)
        if tasks:
            loading.check_pictures(data)
            cut = [task for task in (loading.limited(t, config.limit) for t in tasks) if loading.asks(task)]
            if not cut:
                raise UserError(
                    f"{data.title} holds no caption and no question of these tasks; ask for more."
                )
            selected.append((data, cut))
    if not selected:
        there = ", ".join(f"{task.name} ({task.variant})" for data in sets for task in data.tasks)
        raise UserError(f"None of the tasks and variants asked for is there; there are: {there}.")
    return selected


def sets_of(folders: Sequence[ResultsDir]) -> list[DataSet]:
    """The data sets that runs were asked about, as far as they are still there; what is not is said."""
    found: dict[str, DataSet] = {}
    for folder in folders:
        if folder.manifest()["data"]["records_sha256"] in found:
            continue
        try:
            found.update((data.sha256, data) for data, _ in selected(config_of(folder)))
        except UserError as error:
            log.warning("without its data, no question of '%s' is shown: %s", folder.path, error)
    return list(found.values())
