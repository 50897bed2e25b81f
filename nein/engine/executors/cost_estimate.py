"""What a command will take, from a short calibration: a few blocks of each step, made in a folder aside."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from nein.engine.executors.worker import Worker
from nein.engine.processes import one_thread
from nein.engine.stages import Step, Task, open_blocks

SECONDS = 20.0  # that a calibration is given, beyond a block of every step
PLAN = "plan.json"


@dataclass(frozen=True)
class Forecast:
    """What a step is still to take.

    blocks      That it lacks.
    loading     Seconds until its model is loaded, 0 where an earlier step has loaded it.
    block       Seconds from one finished block to the next, with as many side by side as there are workers.
    operations  Floating-point operations of a block, a multiply-add being two; 0 without a model here.
    """

    label: str
    stage: str
    blocks: int
    loading: float
    block: float
    operations: float

    @property
    def seconds(self) -> float:
        return self.loading + self.blocks * self.block if self.blocks else 0.0


def forecasts(
    steps: Sequence[Step], aside: Sequence[Step], device: str, at_once: int, seconds: float = SECONDS
) -> list[Forecast]:
    """For every step what it lacks, at the rate of the same step `aside`, whose folder is an empty one. Of
    each the first block is counted; then `at_once` are made together until its share of `seconds` is over.
    """
    worker, found = Worker(aside, device), []

    def make(task: Task) -> None:
        worker.make(task, worker.read(task))

    made: dict[Any, int] = {}  # folder -> blocks that are there, which later steps may read
    with ThreadPoolExecutor(at_once, initializer=one_thread if device == "cpu" else None) as pool:
        for index, (step, other) in enumerate(zip(steps, aside, strict=True)):
            wanted = list(other.stage.blocks.numbers[: made.get(other.folder.path)])
            outputs = other.stage.outputs
            tasks = [Task(index, number, outputs, dict.fromkeys(outputs)) for number in wanted]
            operations, start = 0.0, time.perf_counter()
            if (model := other.stage.model) is not None:
                worker.loaded.get(model)
            loaded = time.perf_counter()
            if other.stage.place == "device":
                operations = count_operations(functools.partial(make, tasks[0]))
            else:
                make(tasks[0])
            begun = time.perf_counter()
            loading, block, done = loaded - start, begun - loaded, 1
            while done < len(tasks) and time.perf_counter() - begun < seconds / len(steps):
                part = tasks[done : done + at_once]
                list(pool.map(make, part))
                done += len(part)
                block = (time.perf_counter() - begun) / (done - 1)
            made[other.folder.path] = done
            lacking = len(open_blocks(step))
            found.append(Forecast(step.label, step.stage.name, lacking, loading, block, operations))
    worker.close()
    return found


def count_operations(work: Callable[[], Any]) -> float:
    """Floating-point operations of models in `work`, in this thread; a multiply-add is two. torch's counter,
    and attention on a CPU, which that leaves out."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    def attention(query: Any, key: Any, value: Any, *more: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={on_cpu: attention}) as counter:
        work()
    return float(counter.get_total_flops())


def record(planned: Sequence[Forecast], device: str, at_once: int) -> dict[str, Any]:
    """The plan as it is kept beside the results."""
    return {
        "blocks": sum(one.blocks for one in planned),
        "seconds": sum(one.seconds for one in planned),
        "operations": sum(one.blocks * one.operations for one in planned),
        "device": device,
        "side_by_side": at_once,
        "steps": [{**dataclasses.asdict(one), "seconds": one.seconds} for one in planned],
    }


def table(plan: dict[str, Any]) -> str:
    """A plan in lines, with the hours of the device in all."""
    rows = [(f"{s['label']}: {s['stage']}", s["blocks"], s["blocks"] * s["operations"], s["seconds"])
            for s in plan["steps"]]  # fmt: skip
    rows.append(("in all", plan["blocks"], plan["operations"], plan["seconds"]))
    lines = [f"{'':<40}{'blocks':>8}{'TFLOP':>12}{'time':>12}"]
    lines += [
        f"{name:<40}{blocks:>8}{count / 1e12:>12.3f}{duration(time):>12}"
        for name, blocks, count, time in rows
    ]
    hours = f"{plan['seconds'] / 3600:.2f} {'GPU ' if plan['device'] != 'cpu' else ''}hours"
    lines[-1] += f"   {hours} of {plan['device']}"
    return "\n".join([*lines, "Figures and the report at the end come on top."]) + "\n"


def duration(seconds: float) -> str:
    """ "42 s", "12.5 min", "3.2 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
