"""`nein negbench judge`: asks a calibrated judge whether retrieved images lack what their captions deny."""

from __future__ import annotations

import functools
import sys
from typing import Any

from nein.benchmarks.negbench import estimates, judged, scores
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench.runs import NEGBENCH
from nein.benchmarks.negbench.sections import AVOIDED, JUDGED
from nein.benchmarks.negbench.stages import ModelTasks
from nein.benchmarks.nein import calibrations, stages
from nein.datasets.negbench.records import RetrievalTask
from nein.engine import atomic
from nein.engine.folder import COMPLETE
from nein.engine.machine import Processes
from nein.judges.calibrate import Case, CaseJudge
from nein.judges.config import RetrievedConfig, read_config
from nein.loading.errors import UserError
from nein.models.cached import Services
from nein.models.judges import JudgeOptions
from nein.reporting import figures as frames


def run(options: RetrievedConfig) -> str:
    """Asks the judge, writes estimates and the report; returns the tables. Raises UserError."""
    folders = [folder for folder in files.find(options.run) if folder.manifest().get("status") == COMPLETE]
    dual = [folder for folder in folders if folder.manifest()["summary"]["kind"] == "dual"]
    runs = [run for run in ModelTasks.load(dual) if _list_retrievals(run)]
    if not runs:
        raise UserError(f"'{options.run}' has no finished retrieval of two towers; run nein negbench eval.")
    # The judge and its calibration.
    kind = options.kind
    nein_run, settings = read_config(options.judged_by)
    candidates = calibrations.load([nein_run.out / "calibration"], explicit=True)
    device = Processes().device(options.device)
    services = Services.create(options, settings.cache_dir / "answers.sqlite")
    judge = stages.load_models([f"removal_{kind}"], settings, device, services)[kind]
    judge_options = JudgeOptions(settings.article, settings.threshold)
    wanted = {"fingerprint": judge.fingerprint, **judge_options.decisive(kind)}
    fitting = [item for item in candidates if wanted.items() <= item.manifest.items()]
    if not fitting:
        command = f"nein calibrate {options.judged_by} --judges {kind}"
        raise UserError(f"'{options.judged_by}' has no calibration of its {kind} judge; run {command}.")
    controls = frames.frame(calibrations.check_controls(fitting[0].rows, kind))
    flag = " ".join(calibrations.list_flags(controls, [kind]))  # what is wrong with the judge; "": nothing
    rates = fitting[0].rates(settings.protocol, role="object")
    # A table and estimates per task.
    for tasks in runs:
        folder = tasks.folder.path / "judged"
        figures = []
        case_judge = CaseJudge(kind, judge, judge_options, folder, options.batch_size, options.threads)
        for task in _list_retrievals(tasks):
            pictures, texts = tasks.read_features(task)
            queries = judged.make_queries(task, pictures, texts, most=options.queries, seed=tasks.config.seed)
            # Every image that was found once, with all that is asked about it.
            cases = [
                Case("retrieved", image, image, functools.partial(_first_frame, task, image), tuple(words))
                for image, words in judged.collect_words(queries).items()
            ]
            verdicts = {(row["id"], row["word"]): row for row in case_judge.ask(cases)}
            rows = list(judged.make_verdict_rows(queries, verdicts, settings.protocol))
            atomic.write_lines(folder / f"{task.key}.jsonl", rows)
            label = {"task": task.what, "variant": task.variant, "judge": kind}
            table = scores.make_table({**label, **row} for row in scores.tabulate_judged(rows))
            figures.append(frames.with_columns(estimates.make_estimates(table, rates), judge=kind, flag=flag))
            print(f"{tasks.folder.path}: {task.key}, {len(cases)} images judged", file=sys.stderr)
        frames.write(tasks.folder.path / judged.JUDGED_CSV, frames.concat(figures))
    finished = NEGBENCH.load_finished([folder.path for folder in folders])
    return NEGBENCH.write_report(options.run, finished, options, headline=(JUDGED, AVOIDED))


def _list_retrievals(run: ModelTasks) -> list[RetrievalTask]:
    """The tasks of retrieval by negated captions, without those that a judge defines."""
    retrievals = (task for task in run.tasks if isinstance(task, RetrievalTask))
    return [task for task in retrievals if task.negated and not task.is_judged]


def _first_frame(task: RetrievalTask, name: str) -> Any:
    return task.media.frames(name)[0]
