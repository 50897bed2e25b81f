"""What steps will take, from a short calibration: a few blocks of each, made in a folder of its own."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from nein.engine.executors.worker import Worker
from nein.engine.processes import one_thread
from nein.engine.stages import Step, Task, open_blocks

SECONDS = 20.0  # that a calibration is given, beyond a block of every step
PLAN = "plan.json"


@dataclass(frozen=True)
class Rate:
    """What a step takes.

    loading     Seconds until its model is loaded, 0 where an earlier step has loaded it.
    block       Seconds from one finished block to the next, with as many side by side as there are workers.
    operations  Floating-point operations of a block, a multiply-add being two; 0 without a model here.
    """

    loading: float
    block: float
    operations: float


@dataclass(frozen=True)
class Forecast:
    """What a step is still to take: `blocks` of them, at `rate`."""

    label: str
    stage: str
    blocks: int
    rate: Rate

    @property
    def seconds(self) -> float:
        return self.rate.loading + self.blocks * self.rate.block if self.blocks else 0.0

    @property
    def operations(self) -> float:
        return self.blocks * self.rate.operations


def calibrate(steps: Sequence[Step], device: str, at_once: int, seconds: float = SECONDS) -> list[Rate]:
    """The rate of every step, whose folders are to be empty ones of their own: blocks are written there.

    The first block of a step warms its model up and is counted operation by operation; then as many as there
    are workers are made side by side, again and again until the step's share of `seconds` is over.
    """
    worker = Worker(steps, device)
    warm = one_thread if device == "cpu" and at_once > 1 else None
    ends: dict[Any, int] = {}
    rates = []
    with ThreadPoolExecutor(at_once, thread_name_prefix="calibrate", initializer=warm) as pool:
        for index, step in enumerate(steps):
            numbers = list(islice(step.stage.blocks.numbers, ends.get(step.folder.path)))
            rate, made = _rate(
                worker, step, [_task(index, step, number) for number in numbers], at_once, pool,
                seconds / len(steps),
            )  # fmt: skip
            rates.append(rate)
            ends[step.folder.path] = made
    worker.close()
    return rates


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


def forecasts(steps: Sequence[Step], rates: Sequence[Rate]) -> list[Forecast]:
    """What each step lacks, at the rate of the calibration."""
    return [
        Forecast(step.label, step.stage.name, len(open_blocks(step)), rate)
        for step, rate in zip(steps, rates, strict=True)
    ]


def table(planned: Sequence[Forecast], device: str) -> str:
    """The plan in lines, with the hours of the device in all."""
    lines = [f"{'':<40}{'blocks':>8}{'TFLOP':>12}{'time':>12}"]
    lines += [
        f"{f'{one.label}: {one.stage}':<40}{one.blocks:>8}{one.operations / 1e12:>12.3f}"
        f"{duration(one.seconds):>12}"
        for one in planned
    ]
    seconds, operations = (sum(getattr(one, name) for one in planned) for name in ("seconds", "operations"))
    hours = f"{seconds / 3600:.2f} {'GPU ' if device != 'cpu' else ''}hours"
    lines.append(f"{'in all':<40}{sum(one.blocks for one in planned):>8}{operations / 1e12:>12.3f}"
                 f"{duration(seconds):>12}   {hours} of {device}")  # fmt: skip
    return "\n".join([*lines, "Figures and the report at the end come on top."]) + "\n"


def duration(seconds: float) -> str:
    """ "42 s", "12.5 min", "3.2 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def record(planned: Sequence[Forecast], device: str, at_once: int) -> dict[str, Any]:
    """The plan as it is kept beside the results."""
    steps = [
        {**dataclasses.asdict(one), "seconds": one.seconds, "operations": one.operations} for one in planned
    ]
    totals = {key: sum(step[key] for step in steps) for key in ("blocks", "seconds", "operations")}
    return {**totals, "device": device, "side_by_side": at_once, "steps": steps}


def _task(index: int, step: Step, number: int) -> Task:
    return Task(index, number, step.stage.outputs, dict.fromkeys(step.stage.outputs))


def _rate(
    worker: Worker, step: Step, tasks: Sequence[Task], at_once: int, pool: ThreadPoolExecutor, budget: float
) -> tuple[Rate, int]:
    """The rate of a step, and how many of its `tasks` were made."""
    loading = operations = 0.0
    if step.stage.model is not None:
        loading = _timed(lambda: worker.loaded.get(step.stage.model))  # type: ignore[arg-type]
    if step.stage.place == "device":
        start = time.perf_counter()
        operations = count_operations(lambda: _make(worker, tasks[0]))
        block = time.perf_counter() - start
    else:
        block = _timed(lambda: _make(worker, tasks[0]))
    made, spent = 1, 0.0
    while made < len(tasks) and spent < budget:
        part = tasks[made : made + at_once]
        spent += _timed(lambda part=part: list(pool.map(lambda task: _make(worker, task), part)))  # type: ignore[misc]
        made += len(part)
    return Rate(loading, spent / (made - 1) if made > 1 else block, operations), made


def _make(worker: Worker, task: Task) -> None:
    worker.make(task, worker.read(task))


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
