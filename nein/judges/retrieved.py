"""The command `nein negbench judge`: what a calibrated judge says of the pictures that captions find."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

from nein.benchmarks import controls, runner
from nein.benchmarks.negbench import estimates, judged, scores
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench.folder import ModelTasks
from nein.benchmarks.negbench.sections import AVOIDED, JUDGED
from nein.benchmarks.nein.reporting import calibrations
from nein.datasets.negbench.records import RetrievalTask
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE
from nein.engine.processes import Processes
from nein.judges.asking import read_config
from nein.judges.calibrate import ask_all
from nein.judges.config import RetrievedConfig
from nein.judges.known import Case
from nein.models.cached import Services
from nein.models.judges import JudgeOptions
from nein.reporting import figures as frames
from nein.statistics.calibration import Rates


def run(options: RetrievedConfig) -> str:
    """Asks the judge, writes figures beside those of every run, and the report again; returns the tables.
    Raises UserError for anything the user can mend."""
    from nein.benchmarks.negbench.run import NEGBENCH
    from nein.benchmarks.nein import score

    found = [one for one in files.find(options.run) if one.manifest().get("status") == COMPLETE]
    dual = [one for one in found if one.manifest()["summary"]["kind"] == "dual"]
    sets = files.sets_of(dual)
    runs = [run for one in dual if (run := ModelTasks.of_folder(one, sets)) is not None and _retrievals(run)]
    if not runs:
        raise UserError(
            f"'{options.run}' holds no finished retrieval of a two-tower model whose captions deny things by "
            "name; run nein negbench eval first."
        )
    directory, settings = read_config(options.judged_by)
    known_judges = calibrations.load([directory.out / "calibration"], explicit=True)
    device = Processes().device(options.device)
    services = Services.of(options, settings.cache_dir / "answers.sqlite")
    judge = score.load_models([f"removal_{options.kind}"], settings, device, services)[options.kind]
    how = JudgeOptions(settings.article, settings.threshold)
    for known in known_judges:
        asked_so = how.of(options.kind).items() <= known.manifest.items()
        if known.manifest["fingerprint"] == judge.fingerprint and asked_so:
            break
    else:
        raise UserError(
            f"'{options.judged_by}' holds no calibration of its {options.kind} judge; make one with "
            f"nein calibrate {options.judged_by} --judges {options.kind}."
        )
    controlled = frames.frame(controls.figures(known.rows, known.controls, options.kind))
    flag = " ".join(controls.flags(controlled, [options.kind]))
    for one in runs:
        _judge(
            options, one, judge, how, settings.protocol, known.rates(settings.protocol, role="object"), flag
        )
    finished = runner.of_folders(NEGBENCH, [one.path for one in found])
    benchmark = dataclasses.replace(NEGBENCH, headline=(JUDGED, AVOIDED))
    return runner.write_report(benchmark, options.run, finished, options)


def _retrievals(run: ModelTasks) -> list[RetrievalTask]:
    """Its tasks of retrieval that no judge defines."""
    return [t for t in run.tasks if isinstance(t, RetrievalTask) and t.negated and not t.asked]


def _first_frame(task: RetrievalTask, name: str) -> Any:
    return task.media.frames(name)[0]


def _judge(
    options: RetrievedConfig, run: ModelTasks, judge: Any, how: JudgeOptions, protocol: str, rates: Rates,
    flag: str,
) -> None:  # fmt: skip
    """Writes the rows of every task of a run, and their figures. flag: what the judge fails."""
    figures, folder = [], run.folder
    for task in _retrievals(run):
        queries = judged.queries(task, *run.features(task), most=options.queries, seed=run.config.seed)
        # Every picture that was found once, with all that is asked about it.
        cases = [
            Case("retrieved", image, image, functools.partial(_first_frame, task, image), tuple(words))
            for image, words in judged.words(queries).items()
        ]
        answers = ask_all(options.kind, judge, cases, how, folder.path / "judged", options.batch_size)
        verdicts = {(row["id"], row["word"]): row for row in answers}
        rows = list(judged.rows_of(queries, verdicts, protocol))
        name = files.task_name(task)
        atomic.write_lines(folder.path / "judged" / f"{name}.jsonl", rows)
        label = {"task": task.name.partition("/")[2], "variant": task.variant, "judge": options.kind}
        table = scores.table({**label, **row} for row in scores.of_judged(rows))
        figures.append(frames.label(estimates.of_table(table, rates), judge=options.kind, flag=flag))
        print(f"{folder.path}: {name}, {len(cases)} pictures judged", file=sys.stderr)
    frames.write(folder.path / judged.FIGURES, frames.concat(figures))
