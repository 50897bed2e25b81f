"""Jobs of Slurm: `nein slurm COMMAND`.

submitit writes the batch script and requeues a job that is pre-empted or runs out of time (SIGUSR1).
"""

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
from nein.engine.run import SHARE
from nein.loading.errors import UserError

SIGNAL = "USR1"


@dataclass(frozen=True)
class Whole:
    """A job: the command itself.

    words  After `nein`. `given`: what was typed, for the manifest.
    share  "r/n": it makes this share; "": whatever is lacking, and the report.
    """

    words: tuple[str, ...]
    given: tuple[str, ...]
    share: str = ""

    def __call__(self) -> None:
        line = [sys.executable, "-m", "nein", *self.words]
        env = {**os.environ, machine.GIVEN: json.dumps(self.given)}
        process = subprocess.Popen(line, env={**env, **({SHARE: self.share} if self.share else {})})
        try:
            code = process.wait()
        finally:  # also where submitit ends this job to begin it again
            process.terminate()
            process.wait()
        if code:
            raise RuntimeError(f"nein {' '.join(self.words)} ended with code {code}")

    def checkpoint(self) -> Any:
        """What submitit gives back to the queue: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    tasks: Sequence[Whole], settings: Any, folder: Path, *, cluster: str = "slurm", after: str = ""
) -> list[Any]:
    """The jobs of an array, one for each task. after: the job that has to end before, however it ends. Raises
    UserError with what Slurm says if it refuses them."""
    _submitit()
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        submitter = executor(settings, folder, cluster)
        if after:
            more = {**settings.options, "requeue": True, "dependency": f"afterany:{after}"}
            submitter.update_parameters(slurm_additional_parameters=more)
        with submitter.batch():
            jobs = [submitter.submit(task) for task in tasks]
        return jobs
    except (FailedJobError, FailedSubmissionError) as error:
        lines = [line for line in str(error).splitlines() if "error" in line.lower()] or [str(error)]
        raise UserError(f"Slurm does not take the jobs ({lines[-1].strip()}).") from None


def executor(settings: Any, folder: Path, cluster: str) -> Any:
    """submitit's. Raises UserError where it or Slurm is missing."""
    submitit = _submitit()
    if cluster == "slurm" and shutil.which("srun") is None:
        raise UserError("There is no Slurm here (no srun on PATH); give the command on a login node.")
    submitter = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=100)
    given = {"slurm_partition": settings.partition, "slurm_gres": settings.gres}
    submitter.update_parameters(
        name="nein",
        timeout_min=minutes(settings.time),
        slurm_array_parallelism=settings.array,
        slurm_setup=[f"export SUBMITIT_PREEMPT_SIGNAL={SIGNAL}"],
        slurm_additional_parameters={"requeue": True, **settings.options},
        **{key: value for key, value in given.items() if value is not None},
    )
    return submitter


def _submitit() -> Any:
    os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", SIGNAL)  # read when it is imported
    try:
        import submitit
    except ImportError:
        raise UserError("Slurm jobs need submitit: pip install -e '.[slurm]'.") from None
    return submitit


def minutes(text: str) -> int:
    """Of a time as Slurm writes it: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.

    >>> minutes("4:00:00"), minutes("1-12"), minutes("90")
    (240, 2160, 90)
    """
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in [*parts, days or "0"]) or len(parts) > 3:
        raise UserError(f"--time is '{text}'; Slurm writes 4:00:00, 90 (minutes) or 1-12 (days and hours).")
    units = (60.0, 1.0, 1 / 60) if dash or len(parts) == 3 else (1.0, 1 / 60)
    total = 1440 * int(days or 0) + sum(int(part) * unit for part, unit in zip(parts, units, strict=False))
    return max(1, math.ceil(total))
