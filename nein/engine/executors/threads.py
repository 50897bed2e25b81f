"""`--on threads`: the blocks of this process, side by side.

On a CPU several blocks run at once, each on one thread, rather than one block on several: its arithmetic is
then the same on any number of cores (the order in which threads add up decides the last bits), and it is
faster. On a GPU one block runs at a time, and the inputs of the next are read beside it. Questions to an
endpoint go out from two blocks at least: with two, none waits for a block's last.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from nein.engine.ahead import one_thread
from nein.engine.processes import Processes
from nein.engine.progress import Bars, announce
from nein.engine.stages import Plan, Task
from nein.engine.walk import Order, Walk
from nein.engine.worker import Loaded, Worker

PATIENCE = 0.2  # seconds between two looks at what others do


class Threads:
    """See `nein.engine.executors.Executor`.

    processes  Which process this is, of how many that share the folders.
    at_once    Blocks in work side by side; None: as many as the device allows. With 1 PyTorch's own threads
               stay as they are, and all work is done by the thread that calls.
    loaded     Keeps the models from one call of `compute` to the next.
    """

    name = "threads"
    ahead = 2  # blocks that are read before they are asked for

    def __init__(self, device: str, processes: Processes | None = None, at_once: int | None = None) -> None:
        self.processes = processes or Processes()
        self.device = self.processes.device(device)
        self.at_once = at_once
        self.loaded = Loaded(self.device)
        self._on_device = threading.Lock() if self.device != "cpu" else contextlib.nullcontext()

    @property
    def is_main(self) -> bool:
        return self.processes.is_main

    def barrier(self) -> None:
        self.processes.barrier()

    def describe(self) -> dict[str, Any]:
        return {"executor": self.name, "processes": self.processes.size}

    def close(self) -> None:
        self.processes.close()

    def compute(self, plan: Plan) -> list[int]:
        steps = plan(self.device)
        if self.is_main:
            announce(steps)
        worker = Worker(steps, self.device, self.loaded)
        least = 2 if any(step.stage.place == "remote" for step in steps) else 1
        at_once = self.at_once or max(least, self.processes.workers(self.device))
        walk = Walk(steps, self.order(), {worker.name}, together=at_once > 1)
        bars = Bars(steps, walk, quiet=not self.is_main)
        done = self._one_by_one if at_once == 1 else self._side_by_side
        try:
            done(walk, worker, at_once, bars)
        except BaseException:
            self.loaded.stop()
            raise
        finally:
            worker.close()
            bars.close()
        return bars.made

    def order(self) -> Order:
        return Order(self.processes.rank, self.processes.size)

    def _one_by_one(self, walk: Walk, worker: Worker, at_once: int, bars: Bars) -> None:
        """In this thread; others read ahead."""
        waiting: deque[tuple[Task, Callable[[], tuple[Any] | None]]] = deque()
        with ThreadPoolExecutor(max(1, self.ahead), thread_name_prefix="ahead") as pool:
            while waiting or not walk.over():
                task = walk.next() if len(waiting) <= self.ahead else None
                if task is not None:
                    read = functools.partial(worker.read, task)
                    waiting.append((task, pool.submit(read).result if self.ahead else read))
                elif waiting:
                    first, inputs = waiting.popleft()
                    self._make(walk, worker, first, inputs(), bars)
                elif not walk.over():  # as below
                    time.sleep(PATIENCE)

    def _side_by_side(self, walk: Walk, worker: Worker, at_once: int, bars: Bars) -> None:
        start = one_thread if self.device == "cpu" else None
        places = [step.stage.place for step in walk.steps]
        running: dict[Future[bool], Task] = {}
        with ThreadPoolExecutor(at_once, thread_name_prefix="block", initializer=start) as pool:
            try:
                while running or not walk.over():
                    while len(running) < at_once and (task := walk.next()) is not None:
                        running[pool.submit(self._read_and_make, worker, task, places[task.step])] = task
                    if not running:
                        if not walk.over():  # it may have seen only now that everything is there
                            time.sleep(PATIENCE)
                        continue
                    for future in wait(running, PATIENCE, FIRST_COMPLETED).done:
                        task = running.pop(future)
                        made = future.result()
                        walk.finished(task)
                        bars.one(task.step, made=made)
                        self._let_go(walk)
            except BaseException:
                self.loaded.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _make(self, walk: Walk, worker: Worker, task: Task, inputs: tuple[Any] | None, bars: Bars) -> None:
        if inputs is not None:
            worker.make(task, inputs)
        walk.finished(task)
        bars.one(task.step, made=inputs is not None)
        self._let_go(walk)

    def _read_and_make(self, worker: Worker, task: Task, place: str) -> bool:
        inputs = worker.read(task)
        if inputs is not None:
            with self._on_device if place == "device" else contextlib.nullcontext():
                worker.make(task, inputs)
        return inputs is not None

    def _let_go(self, walk: Walk) -> None:
        """Gives back the memory of models that no step needs any more."""
        needed = {
            step.stage.model.name
            for index, step in enumerate(walk.steps)
            if step.stage.model is not None and walk.unfinished(index)
        }
        self.loaded.keep(needed)
