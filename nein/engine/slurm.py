"""Submits a command as jobs of a Slurm cluster, for `nein slurm COMMAND`. The package submitit writes the
batch script, and requeues a job that is pre-empted or runs out of time (SIGUSR1)."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.engine import machine
from nein.engine.run import SHARE_VARIABLE
from nein.loading.errors import UserError


@dataclass(frozen=True)
class Job:
    """One run of a command on a node, where submitit calls this object."""

    words: tuple[str, ...]  # the command line after `nein`
    typed: tuple[str, ...]  # what the user typed instead, for the manifest
    share: str = ""  # "r/n": the job makes this share; "": all missing blocks and the report

    def __call__(self) -> None:
        line = [sys.executable, "-m", "nein", *self.words]
        env = {**os.environ, machine.COMMAND_VARIABLE: json.dumps(self.typed)}
        if self.share:
            env[SHARE_VARIABLE] = self.share
        process = subprocess.Popen(line, env=env)
        try:
            code = process.wait()
        finally:  # also when submitit stops this job to requeue it
            process.terminate()
            process.wait()
        if code:
            raise RuntimeError(f"nein {' '.join(self.words)} ended with code {code}")

    def checkpoint(self) -> Any:
        """The same job again: submitit calls this to put it back into the queue."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    jobs: Sequence[Job], settings: Any, folder: Path, *, cluster: str = "slurm", after: str = ""
) -> list[Any]:
    """Submits jobs as one array; returns submitit's objects. Raises UserError if Slurm refuses.

    settings  A `nein.config.groups.SlurmJobs`.
    folder    For scripts and logs.
    cluster   submitit's name of a scheduler; "local": processes of this machine, for tests.
    after     The id of a job that has to end first, successful or not; "": none.
    """
    submitter = make_submitter(settings, folder, cluster)  # explains a missing submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        if after:
            options = {**settings.options, "requeue": True, "dependency": f"afterany:{after}"}
            submitter.update_parameters(slurm_additional_parameters=options)
        with submitter.batch():
            return [submitter.submit(job) for job in jobs]
    except (FailedJobError, FailedSubmissionError) as error:
        lines = [line for line in str(error).splitlines() if "error" in line.lower()] or [str(error)]
        raise UserError(f"Slurm refuses the jobs ({lines[-1].strip()}).") from None


SIGNAL = "USR1"  # sent to a job that is to be requeued


def make_submitter(settings: Any, folder: Path, cluster: str) -> Any:
    """submitit's executor for `submit`. Raises UserError if submitit or Slurm is missing."""
    os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", SIGNAL)  # read when submitit is imported
    try:
        import submitit
    except ImportError:
        raise UserError("Slurm jobs need submitit: pip install -e '.[slurm]'.") from None
    if cluster == "slurm" and shutil.which("srun") is None:
        raise UserError("There is no Slurm here (no srun on PATH); run the command on a login node.")
    submitter = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=100)  # requeues
    resources = {"slurm_partition": settings.partition, "slurm_gres": settings.gres}
    submitter.update_parameters(
        name="nein",
        timeout_min=parse_minutes(settings.time),
        slurm_array_parallelism=settings.array,
        slurm_setup=[f"export SUBMITIT_PREEMPT_SIGNAL={SIGNAL}"],
        slurm_additional_parameters={"requeue": True, **settings.options},
        **{key: value for key, value in resources.items() if value is not None},
    )
    return submitter


def parse_minutes(text: str) -> int:
    """Minutes of a time in Slurm's form: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.

    >>> parse_minutes("4:00:00"), parse_minutes("1-12"), parse_minutes("90")
    (240, 2160, 90)
    """
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in [*parts, days or "0"]) or len(parts) > 3:
        raise UserError(f"--time is '{text}'; Slurm writes 4:00:00, 90 (minutes) or 1-12 (days and hours).")
    begins_with_hours = dash or len(parts) == 3
    units = (60.0, 1.0, 1 / 60) if begins_with_hours else (1.0, 1 / 60)  # minutes in a unit of each part
    minutes = sum(int(part) * unit for part, unit in zip(parts, units, strict=False))
    return max(1, math.ceil(1440 * int(days or 0) + minutes))
