"""The blocks of one process: `--on threads`, `ranks` and `debug`, and what every worker elsewhere does.

On a CPU several blocks run at once, each on one thread: the last bits are then the same on any number of
cores. On a GPU one block runs at a time, and the inputs of the next are read beside it. Questions to an
endpoint go out from two blocks at least, so that none waits for a block's last.

One block's way: `Scheduler.next` lists what is there (`Folder.done`), asks what a block lacks
(`open_task`) and claims it (`Attempts.take`); `Stage.read` reads its inputs; `Worker.make` loads the model,
calls `Stage.work`, writes the rows (`Task.put`) and notes what it took; `Scheduler.finished` gives the claim
back.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from nein.engine.errors import UserError
from nein.engine.executors.progress import Bars, announce
from nein.engine.executors.worker import Worker
from nein.engine.processes import Processes, one_thread, share
from nein.engine.scheduler import Scheduler
from nein.engine.stages import Plan, Step, Task

PATIENCE = 0.05  # seconds between two questions for a block
AHEAD = 2  # blocks that are read before they are asked for


class Threads:
    """See `nein.engine.executors`.

    processes  Which process this is, of how many that are started together.
    at_once    Blocks in work side by side; None: as many as the device allows.
    share      (rank, size): which worker this is, of how many; None: as processes and Slurm's array say.
    group      As of `nein.engine.attempts.Attempts`.
    debug      One block after the other, in order and in this thread: a debugger stops anywhere.
    """

    def __init__(
        self,
        device: str,
        processes: Processes | None = None,
        at_once: int | None = None,
        *,
        share: tuple[int, int] | None = None,
        group: str = "",
        debug: bool = False,
    ) -> None:
        self.processes = processes or Processes()
        self.device = self.processes.device(device)
        self.steps: Sequence[Step] = ()
        self._at_once, self._share, self._group, self._debug = at_once, share, group, debug
        self._worker = Worker(self.device)  # its models are kept from one call of `compute` to the next
        self._on_device = threading.Lock() if self.device != "cpu" else contextlib.nullcontext()

    @property
    def is_main(self) -> bool:
        return self.processes.is_main

    def barrier(self) -> None:
        self.processes.barrier()

    def describe(self) -> dict[str, Any]:
        name = "debug" if self._debug else "ranks" if self.processes.size > 1 else "threads"
        return {"executor": name, "processes": self.processes.size}

    def close(self) -> None:
        self.processes.close()

    def compute(self, steps: Sequence[Step], plan: Plan | None = None) -> list[int]:
        self.steps = steps
        if self.is_main:
            announce(steps)
        at_once = 1 if self._debug else self._at_once or self.processes.workers(self.device)
        if self._at_once is None and not self._debug and "remote" in [s.stage.place for s in self.steps]:
            at_once = max(2, at_once)
        mine = (0, 1) if self._debug else self._share or share(self.processes)
        scheduler = Scheduler(self.steps, mine, in_order=self._debug, group=self._group)
        bars = Bars(scheduler, quiet=not self.is_main)
        try:
            if at_once == 1:
                self._one_by_one(scheduler, bars)
            else:
                self._side_by_side(scheduler, bars, at_once)
            self._worker.note()
        except BaseException:
            self._worker.stop()
            with contextlib.suppress(UserError, OSError):  # the cause is told, and not that of a full disk
                self._worker.note()
            raise
        finally:
            scheduler.close()
            bars.close()
        return bars.made

    def _one_by_one(self, scheduler: Scheduler, bars: Bars) -> None:
        """In this thread; others read ahead."""
        if self.device == "cpu":
            one_thread()
        waiting: deque[tuple[Task, Callable[[], Any]]] = deque()
        with ThreadPoolExecutor(AHEAD, thread_name_prefix="ahead") as pool:
            while waiting or not scheduler.over():
                ahead = min(AHEAD, scheduler.own_left() // 4)  # at the end others may be free to make it
                task = scheduler.next() if len(waiting) <= (0 if self._debug else ahead) else None
                if task is not None:
                    read = functools.partial(task.step.stage.read, task.number)
                    waiting.append((task, read if self._debug else pool.submit(read).result))
                elif waiting:
                    task, inputs = waiting.popleft()
                    self._finish(scheduler, task, bars, made=self._worker.make(task, inputs()))
                elif not scheduler.over():  # it may have seen only now that everything is there
                    time.sleep(PATIENCE)

    def _side_by_side(self, scheduler: Scheduler, bars: Bars, at_once: int) -> None:
        start = one_thread if self.device == "cpu" else None
        running: dict[Future[bool], Task] = {}
        with ThreadPoolExecutor(at_once, thread_name_prefix="block", initializer=start) as pool:
            try:
                while running or not scheduler.over():
                    while len(running) < at_once and (task := scheduler.next()) is not None:
                        running[pool.submit(self._read_and_make, task)] = task
                    if not running and not scheduler.over():  # as above
                        time.sleep(PATIENCE)
                    for future in wait(running, 4 * PATIENCE, FIRST_COMPLETED).done:
                        self._finish(scheduler, running.pop(future), bars, made=future.result())
            except BaseException:
                self._worker.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _read_and_make(self, task: Task) -> bool:
        inputs = task.step.stage.read(task.number)
        with self._on_device if task.step.stage.place == "device" else contextlib.nullcontext():
            return self._worker.make(task, inputs)

    def _finish(self, scheduler: Scheduler, task: Task, bars: Bars, *, made: bool) -> None:
        scheduler.finished(task)
        bars.made[task.index] += made
        bars.show()
        models = [step.stage.model for step in scheduler.steps]
        self._worker.keep({m.name for k, m in enumerate(models) if m is not None and scheduler.unfinished(k)})
