"""Where blocks are made: the executors of `--on`. None knows a benchmark. Each has

device       Kind of device that the models get: it is part of what decides a row.
is_main      Whether this process opens the folders and writes what follows from the blocks.
barrier()    Returns when every process that was started together has come here; once, before `compute`.
compute(steps, plan)  Makes what the folders lack; per step, how many blocks were made for this command.
             Nothing is loaded if nothing is missing. Raises UserError, EditorError or MetricError; what is
             done stays. plan: how a worker elsewhere makes the steps again.
steps        What it computed last.
describe()   Which executor and how large, for the manifest's account of the command: never in a result.
close()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from nein.engine import processes
from nein.engine.errors import UserError

if TYPE_CHECKING:
    from nein.engine.executors.ray import Ray
    from nein.engine.executors.threads import Threads

Executor: TypeAlias = "Threads | Ray"


def start(options: Any) -> Executor:
    """The executor that options ask for (`nein.config.groups.RuntimeOptions`); threads or ranks where they
    leave no choice. Raises UserError."""
    on = getattr(options, "on", None) or ("ranks" if processes.launched() else "threads")
    if on == "ray":
        from nein.engine.executors.ray import Ray

        return Ray(options.device, options.address, options.workers, options.gpus_per_worker)
    from nein.engine.executors.threads import Threads

    if on != "ranks":
        return Threads(options.device, debug=on == "debug")
    if not processes.launched():
        raise UserError("--on ranks is for commands that accelerate launch or torchrun starts.")
    return Threads(options.device, processes.from_environment())
