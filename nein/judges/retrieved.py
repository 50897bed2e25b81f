"""The command `nein negbench judge`: what a calibrated judge says of the pictures that captions find."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench import report, requested, retrieved
from nein.benchmarks.negbench import run as negbench
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.folder import ResultsDir
from nein.benchmarks.negbench.retrieved import Query
from nein.benchmarks.negbench.run import ModelRun
from nein.benchmarks.nein.config import EvalConfig as NeinConfig
from nein.benchmarks.nein.reporting import judge_tables
from nein.benchmarks.nein.reporting.judge_tables import Calibration
from nein.datasets.negbench.records import RetrievalTask
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE
from nein.engine.processes import Processes
from nein.judges.calibrate import ask_all, manner_of
from nein.judges.config import RetrievedConfig
from nein.judges.known_presence import Case
from nein.judges.scored import read_config
from nein.reporting import figures as frames
from nein.statistics.calibration import Rates


def run(options: RetrievedConfig) -> str:
    """Asks the judge, writes figures beside those of every run, and the report again; returns the tables.
    Raises UserError for anything the user can mend."""
    from nein.benchmarks.nein import models

    found = [one for one in files.find(options.run) if one.manifest().get("status") == COMPLETE]
    asked = [(one, *retrieval) for one in found if (retrieval := _retrievals(one)) is not None]
    if not asked:
        raise UserError(
            f"'{options.run}' holds no finished retrieval of a two-tower model whose captions deny things by "
            "name; run nein negbench eval first."
        )
    directory, manner = read_config(options.judged_by)
    calibrations = judge_tables.load([directory.out / "calibration"], explicit=True)
    device = Processes().device(options.device)
    judge = models.load_models([f"removal_{options.kind}"], manner, device)[options.kind]
    known = _calibrated(options, judge, calibrations, manner)
    for folder, config, made, tasks in asked:
        rates = known.rates(manner.protocol, role="object")
        _judge(options, folder, config, made, tasks, judge, manner, rates)
    return report.report(options.run, found, lambda: requested.sets_of(found))


def _retrievals(folder: ResultsDir) -> tuple[EvalConfig, ModelRun, list[RetrievalTask]] | None:
    """A run with the configuration it was made with and its tasks of retrieval; None without any."""
    manifest = folder.manifest()
    if manifest["summary"]["kind"] != "dual":
        return None
    config = requested.config_of(folder)
    name = f"{folder.path.parent.name}/{folder.path.name}"
    made = next(one for one in negbench.runs(config, manifest["identity"]["device"]) if one.folder == name)
    assert isinstance(made, ModelRun)
    tasks = [
        task for task in made.tasks if isinstance(task, RetrievalTask) and task.negated and not task.asked
    ]
    return (config, made, tasks) if tasks else None


def _calibrated(
    options: RetrievedConfig, judge: Any, calibrations: Sequence[Calibration], manner: NeinConfig
) -> Calibration:
    """The calibration of this judge, asked in this way."""
    how = ("article", manner.article) if options.kind == "vqa" else ("threshold", manner.threshold)
    for one in calibrations:
        if one.manifest["fingerprint"] == judge.fingerprint and one.manifest[how[0]] == how[1]:
            return one
    raise UserError(
        f"'{options.judged_by}' holds no calibration of its {options.kind} judge; make one with "
        f"nein calibrate {options.judged_by} --judges {options.kind}."
    )


def _judge(
    options: RetrievedConfig,
    folder: ResultsDir,
    config: EvalConfig,
    run: ModelRun,
    tasks: Sequence[RetrievalTask],
    judge: Any,
    manner: NeinConfig,
    rates: Rates,
) -> None:
    """Writes the rows of every task of a run, and their figures."""
    made = []
    for task in tasks:
        asked = retrieved.queries(
            task, *negbench.features_of(config, run, task), most=options.queries, seed=config.seed
        )
        cases, how, place = _cases(task, asked), manner_of(manner), folder.path / "judged"
        said = ask_all(options.kind, judge, cases, how, place, options.batch_size)
        verdicts = {(row["id"], row["word"]): row for row in said}
        rows = list(retrieved.rows_of(asked, verdicts, manner.protocol))
        name = files.task_name(task)
        atomic.write_lines(retrieved.rows_file(folder, name), rows)
        label = {"task": task.name.partition("/")[2], "variant": task.variant, "judge": options.kind}
        made += [{**label, **figure} for figure in retrieved.of_judged(rows, rates)]
        print(f"{folder.path}: {name}, {len(cases)} pictures judged", file=sys.stderr)
    atomic.write_text(retrieved.figures_file(folder), frames.to_csv(frames.frame(made)))


def _cases(task: RetrievalTask, asked: Sequence[Query]) -> list[Case]:
    """Every picture that was found once, with all that is asked about it."""

    def picture(image: str) -> Any:
        return lambda: task.media.frames(image)[0]

    return [
        Case("retrieved", image, image, picture(image), tuple(words))
        for image, words in retrieved.words(asked).items()
    ]
