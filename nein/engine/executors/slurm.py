"""`--on slurm`: the jobs of an array make the blocks, this process waits for the first that ends well."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.engine import environment, jobs
from nein.engine.executors.threads import Threads
from nein.engine.processes import Processes
from nein.engine.progress import announce
from nein.engine.stages import Plan, open_blocks
from nein.engine.walk import Order, Walk


@dataclass(frozen=True)
class Share(jobs.Again):
    """A job of `--on slurm`: blocks until there are none."""

    plan: Plan
    device: str
    rank: int
    size: int

    def __call__(self) -> None:
        environment.look_for_garbage_seldom()
        Threads(self.device, Processes(self.rank, self.size)).compute(self.plan)


class Slurm:
    """See `nein.engine.executors.Executor`.

    slurm   The options of that name (`nein.config.groups.SlurmConfig`).
    folder  For the jobs' scripts and logs.
    """

    name, is_main = "slurm", True

    def __init__(self, device: str, *, slurm: Any, out_dir: Path, cluster: str = "slurm") -> None:
        self._settings, self._folder, self._cluster = slurm, out_dir / "slurm", cluster
        self.device = device
        if device == "auto":
            self.device = "cuda" if "gpu" in (slurm.gres or "") else "cpu"
        environment.say_device(device, self.device)
        jobs.executor(slurm, self._folder, cluster)  # what is missing is said before there is work

    def barrier(self) -> None:
        """There is one process that opens folders."""

    def describe(self) -> dict[str, Any]:
        return {"executor": self.name, "jobs": self._settings.array}

    def close(self) -> None:
        """Jobs end by themselves when there are no more blocks."""

    def compute(self, plan: Plan) -> list[int]:
        steps = plan(self.device)
        announce(steps)
        open_before = [sum(1 for _ in open_blocks(step)) for step in steps]
        if not any(open_before):
            return open_before
        size = self._settings.array
        shares = [Share(plan, self.device, rank, size) for rank in range(size)]
        submitted = jobs.submit(shares, self._settings, self._folder, self._cluster)
        print(jobs.described(submitted, self._folder), file=sys.stderr, flush=True)
        try:
            jobs.wait_for_one(submitted)
        finally:
            for job in submitted:
                if not job.done():
                    job.cancel(check=False)
        Walk(steps, Order()).over()
        return open_before
