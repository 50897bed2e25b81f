"""The command `nein negbench judge`: what a calibrated judge says of the pictures that captions find."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench import report, retrieved
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
from nein.judges.calibrate import ask_all
from nein.judges.config import RetrievedConfig
from nein.judges.known_presence import Case, Word
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
            f"'{options.run}' holds no finished retrieval of a two-tower model; run nein negbench eval first."
        )
    directory, manner = read_config(options.judged_by)
    calibrations = judge_tables.load([directory.out / "calibration"], explicit=True)
    device = Processes().device(options.device)
    judge = models.load_models([f"removal_{options.kind}"], manner, device)[options.kind]
    known = _calibrated(options, judge, calibrations, manner)
    for folder, config, made, tasks in asked:
        rates = known.rates(manner.protocol, role="object")
        _judge(options, folder, config, made, tasks, judge, manner, rates)
    configs = {config_of(one).data: config_of(one) for one in found}
    return report.report(
        options.run, found, lambda: [data for one in configs.values() for data, _ in negbench.selected(one)]
    )


def config_of(folder: ResultsDir) -> EvalConfig:
    """The configuration that a run was made with."""
    fields = {item.name for item in dataclasses.fields(EvalConfig)}
    given = {key: value for key, value in folder.manifest()["config"].items() if key in fields}
    return EvalConfig(**{**given, "out": str(folder.path.parents[1])})


def _retrievals(folder: ResultsDir) -> tuple[EvalConfig, ModelRun, list[RetrievalTask]] | None:
    """A run with the configuration it was made with and its tasks of retrieval; None without any."""
    manifest = folder.manifest()
    if manifest["summary"]["kind"] != "dual":
        return None
    config = config_of(folder)
    name = f"{folder.path.parent.name}/{folder.path.name}"
    made = next(one for one in negbench.runs(config, manifest["identity"]["device"]) if one.folder == name)
    assert isinstance(made, ModelRun)
    tasks = [task for task in made.tasks if isinstance(task, RetrievalTask) and task.negated]
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
        if options.kind != "vqa" and any(item.asked for item in task.negated):
            raise UserError(f"The questions of '{task.name}' are for a judge that answers: --kind vqa.")
        asked = retrieved.queries(
            task, *negbench.features_of(config, run, task), most=options.queries, seed=config.seed
        )
        cases = _cases(folder, task, asked)
        said = ask_all(options.kind, judge, cases, manner, folder.path / "judged", options.batch_size)
        verdicts = {(row["id"], row["word"]): row for row in said}
        rows = list(_rows(asked, verdicts, manner.protocol))
        name = files.task_name(task)
        atomic.write_lines(retrieved.rows_file(folder, name), rows)
        label = {"task": task.name.partition("/")[2], "variant": task.variant, "judge": options.kind}
        made += [{**label, **figure} for figure in retrieved.of_judged(rows, rates)]
        print(f"{folder.path}: {name}, {len(cases)} pictures judged", file=sys.stderr)
    atomic.write_text(retrieved.figures_file(folder), frames.to_csv(frames.frame(made)))


def _cases(folder: ResultsDir, task: RetrievalTask, asked: Sequence[Query]) -> list[Case]:
    """Every picture that was found once, with all that is asked about it."""
    words: dict[str, dict[str, None]] = {}
    role = "question" if any(query.also for query in asked) else "object"
    for query in asked:
        for image in query.shown:
            for text in filter(None, (query.thing, query.also)):
                words.setdefault(image, {})[text] = None

    def picture(image: str) -> Any:
        return lambda: task.media.frames(image)[0]

    return [
        Case("retrieved", image, image, picture(image), tuple(Word(name, None, role) for name in names))
        for image, names in words.items()
    ]


def _rows(
    asked: Sequence[Query], verdicts: Mapping[tuple[str, str], Mapping[str, Any]], protocol: str
) -> Iterator[dict[str, Any]]:
    for query in asked:
        for rank, image in enumerate(query.shown):
            asked_of = [verdicts[image, text] for text in (query.thing, query.also) if text]
            said = [row[f"verdict_{protocol}"] for row in asked_of]
            lost = next((row for row, verdict in zip(asked_of, said, strict=True) if verdict is None), None)
            absent = None if lost else float(not said[0] and all(said[1:]))
            yield {
                "id": query.id, "source": query.source, "kind": query.kind, "thing": query.thing,
                "asked": bool(query.also), "rank": rank, "image": image, "absent": absent,
                "reason": lost["reply"].get("error", "neither yes nor no") if lost else "",
            }  # fmt: skip
