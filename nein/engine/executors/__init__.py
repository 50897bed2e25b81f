"""Where blocks are made: one contract, and the executors of `--on` by name. None knows a benchmark."""

from __future__ import annotations

import pkgutil
from typing import Any, Protocol

from nein.engine import processes
from nein.engine.stages import Plan

#: Name -> class, imported when it is chosen.
EXECUTORS = {
    "threads": "nein.engine.executors.threads:Threads",
    "debug": "nein.engine.executors.debug:Debug",
    "ranks": "nein.engine.executors.ranks:Ranks",
    "ray": "nein.engine.executors.ray:Ray",
    "slurm": "nein.engine.executors.slurm:Slurm",
}
#: Name -> the options that it has beside the device, of those that compute in processes they start.
ELSEWHERE = {"ray": ("address", "workers", "gpus_per_worker"), "slurm": ("slurm", "out_dir")}


class Executor(Protocol):
    """Something that computes what folders lack.

    device   Kind of device that the models get: it is part of what decides a row.
    is_main  Whether this process opens the folders and writes what follows from the blocks.
    """

    device: str

    @property
    def is_main(self) -> bool: ...

    def barrier(self) -> None:
        """Returns when every process that was started together has come here. Before `compute`, once: no
        process reads a folder that another is about to refuse or to remove."""

    def compute(self, plan: Plan) -> list[int]:
        """Makes what the folders lack; per step, how many blocks were made for this command.

        When it returns, every wanted block of every step is there, whoever has made it. Nothing is loaded if
        nothing is missing. Raises UserError, EditorError or MetricError; what is done stays.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Which executor and how large, for the manifest's account of the command: never in a result."""
        ...

    def close(self) -> None: ...


def start(options: Any) -> Executor:
    """The executor that a command's options ask for (`nein.config.groups.Machine`); threads or ranks where
    they leave no choice. Raises UserError."""
    name = getattr(options, "on", None) or ("ranks" if processes.launched() else "threads")
    more = {key: getattr(options, key) for key in ELSEWHERE.get(name, ())}
    return pkgutil.resolve_name(EXECUTORS[name])(options.device, **more)
