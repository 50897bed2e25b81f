"""The blocks of one process: `--on threads`, `ranks` and `debug`, and what every worker elsewhere does.

On a CPU several blocks run at once, each on one thread: the last bits are then the same on any number of
cores. On a GPU one block runs at a time, and the inputs of the next are read beside it. Questions to an
endpoint go out from two blocks at least, so that none waits for a block's last.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from nein.engine.executors.progress import Bars, announce
from nein.engine.executors.worker import Loaded, Worker
from nein.engine.processes import Processes, one_thread, share
from nein.engine.scheduler import Scheduler, all_set_aside
from nein.engine.stages import Plan, Step, Task
from nein.loading import batches

PATIENCE = 0.05  # seconds between two questions for a block


class Threads:
    """See `nein.engine.executors`.

    processes  Which process this is, of how many that are started together.
    at_once    Blocks in work side by side; None: as many as the device allows.
    share      (rank, size): which worker this is, of how many; None: as processes and Slurm's array say.
    group      As of `nein.engine.attempts.Attempts`.
    """

    name = "threads"
    ahead = 2  # blocks that are read before they are asked for

    def __init__(
        self,
        device: str,
        processes: Processes | None = None,
        at_once: int | None = None,
        *,
        share: tuple[int, int] | None = None,
        group: str = "",
    ) -> None:
        self.processes = processes or Processes()
        self.device = self.processes.device(device)
        self.at_once, self._share, self._group = at_once, share, group
        self._steps: Sequence[Step] = ()
        self.loaded = Loaded(self.device)  # kept from one call of `compute` to the next
        self._on_device = threading.Lock() if self.device != "cpu" else contextlib.nullcontext()

    @property
    def is_main(self) -> bool:
        return self.processes.is_main

    def barrier(self) -> None:
        self.processes.barrier()

    def set_aside(self) -> dict[Path, int]:
        return all_set_aside(self._steps)

    def describe(self) -> dict[str, Any]:
        several = self.processes.size > 1
        return {"executor": "ranks" if several else self.name, "processes": self.processes.size}

    def close(self) -> None:
        batches.keep(None)
        self.processes.close()

    def compute(self, plan: Plan) -> list[int]:
        made = self._compute(plan)
        while batches.collect():  # rows that waited are made again
            made = [one + more for one, more in zip(made, self._compute(plan), strict=True)]
        return made

    def _compute(self, plan: Plan) -> list[int]:
        steps = self._steps = plan(self.device)
        if self.is_main:
            announce(steps)
        worker = Worker(steps, self.device, self.loaded)
        at_once = self.at_once or self.processes.workers(self.device)
        if any(step.stage.place == "remote" for step in steps) and self.at_once is None:
            at_once = max(2, at_once)
        scheduler = self._scheduler(steps)
        bars = Bars(steps, scheduler, quiet=not self.is_main)
        run = self._one_by_one if at_once == 1 else self._side_by_side
        try:
            run(scheduler, worker, at_once, bars)
        except BaseException:
            self.loaded.stop()
            raise
        finally:
            scheduler.close()
            worker.close()
            bars.close()
        return bars.made

    def _scheduler(self, steps: Any) -> Scheduler:
        return Scheduler(steps, self._share or share(self.processes), group=self._group)

    def _one_by_one(self, scheduler: Scheduler, worker: Worker, at_once: int, bars: Bars) -> None:
        """In this thread; others read ahead."""
        if self.device == "cpu":
            one_thread()
        waiting: deque[tuple[Task, Callable[[], Any]]] = deque()
        with ThreadPoolExecutor(max(1, self.ahead), thread_name_prefix="ahead") as pool:
            while waiting or not scheduler.over():
                ahead = min(self.ahead, scheduler.own_left() // 4)  # at the end others may be free to make it
                task = scheduler.next() if len(waiting) <= ahead else None
                if task is not None:
                    read = functools.partial(worker.read, task)
                    waiting.append((task, pool.submit(read).result if self.ahead else read))
                elif waiting:
                    task, inputs = waiting.popleft()
                    made = worker.make(task, inputs())
                    self._finish(scheduler, task, bars, made=made)
                elif not scheduler.over():  # it may have seen only now that everything is there
                    time.sleep(PATIENCE)

    def _side_by_side(self, scheduler: Scheduler, worker: Worker, at_once: int, bars: Bars) -> None:
        start = one_thread if self.device == "cpu" else None
        running: dict[Future[bool], Task] = {}
        with ThreadPoolExecutor(at_once, thread_name_prefix="block", initializer=start) as pool:
            try:
                while running or not scheduler.over():
                    while len(running) < at_once and (task := scheduler.next()) is not None:
                        on_device = scheduler.steps[task.step].stage.place == "device"
                        running[pool.submit(self._read_and_make, worker, task, on_device)] = task
                    if not running and not scheduler.over():  # as above
                        time.sleep(PATIENCE)
                    for future in wait(running, 4 * PATIENCE, FIRST_COMPLETED).done:
                        self._finish(scheduler, running.pop(future), bars, made=future.result())
            except BaseException:
                self.loaded.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _read_and_make(self, worker: Worker, task: Task, on_device: bool) -> bool:
        inputs = worker.read(task)
        with self._on_device if on_device else contextlib.nullcontext():
            return worker.make(task, inputs)

    def _finish(self, scheduler: Scheduler, task: Task, bars: Bars, *, made: bool) -> None:
        scheduler.finished(task)
        bars.one(task.step, made=made)
        models = [step.stage.model for step in scheduler.steps]
        self.loaded.keep({m.name for k, m in enumerate(models) if m is not None and scheduler.unfinished(k)})


class Debug(Threads):
    """`--on debug`: one block after the other, in order; a debugger stops anywhere."""

    name = "debug"
    ahead = 0

    def __init__(self, device: str) -> None:
        super().__init__(device, at_once=1)

    def _scheduler(self, steps: Any) -> Scheduler:
        return Scheduler(steps, in_order=True)
