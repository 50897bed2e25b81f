"""Computes what is lacking: worker r of n makes the blocks b with b % n == r, stage after stage.

A block whose file is there and valid is done; nothing else is shared, and no file says who is at what. What a
worker that died has not made is made when the command is given again.

On a CPU several blocks are computed at once, each on one thread: the last bits are then the same on any
number of cores. On a GPU one block is computed at a time, and the next ones are read meanwhile. A model
behind an address works on as many blocks as it takes requests.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nein.engine import atomic, environment
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.engine.processes import Processes, one_thread
from nein.engine.stages import Model, Plan, Step, Task, open_tasks

AHEAD = 3  # blocks that are read before a GPU asks for them
LATE = 120.0  # seconds until a file of another node is seen
SHARE = "NEIN_SHARE"  # environment variable: "r/n", this command makes share r of n and no report
SMALL = 4 * 2**30  # bytes: for less, no collection of garbage is worth the third of a second that it takes


def share() -> tuple[int, int]:
    """(r, n) of the environment: (0, 1) where it names none. Raises UserError."""
    given = os.environ.get(SHARE, "0/1")
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", given)
    if found is None or int(found[1]) >= int(found[2]):
        raise UserError(f"{SHARE} is '{given}'; it must be r/n, with r from 0 to n - 1.")
    return int(found[1]), int(found[2])


class Executor:
    """The blocks of this process. None knows a benchmark.

    device     Of the models (`Processes.device`): part of what decides a row.
    processes  Which process this is, of how many that were started together.
    share      (r, n): this command is one of n, and a later one does the rest and the report.
    at_once    Blocks side by side on a CPU; None: as many as there are cores.
    requests   Blocks side by side of a model behind an address.
    debug      One block after the other in this thread: a debugger stops anywhere.
    """

    def __init__(
        self,
        device: str,
        ranks: Processes | None = None,
        *,
        share: tuple[int, int] = (0, 1),
        at_once: int | None = None,
        requests: int = 8,
        debug: bool = False,
    ) -> None:
        self.processes = ranks or Processes()
        self.device = self.processes.device(device)
        self._job, self._jobs = share
        self._at_once, self._requests, self._debug = at_once, requests, debug
        self._loaded: Loaded | None = None
        self._notes: dict[Path, Notes] = {}

    @property
    def is_main(self) -> bool:
        """Whether this process opens the folders."""
        return self.processes.is_main

    @property
    def concludes(self) -> bool:
        """Whether this process writes what follows from all blocks."""
        return self.is_main and self._jobs == 1

    def barrier(self) -> None:
        """Returns when every process that was started together has come here."""
        self.processes.barrier()

    def describe(self) -> dict[str, Any]:
        """For the manifest's account of the command: never in a result."""
        name = "debug" if self._debug else "ranks" if self.processes.size > 1 else "threads"
        return {"executor": name, "processes": self.processes.size}

    def locked(self, folders: Iterable[Folder]) -> contextlib.AbstractContextManager[None]:
        """See `locked`; shares of one command go together."""
        return locked(folders if self.is_main else (), shared=self._jobs > 1)

    def close(self) -> None:
        self.processes.close()

    def compute(self, steps: Sequence[Step], plan: Plan | None = None) -> list[int]:
        """Makes what the folders lack; how many blocks of each step were made here. Nothing is loaded if
        nothing is lacking. Raises UserError, EditorError or MetricError; what is done stays.

        plan  Makes the steps again, in a process elsewhere.
        """
        made = [0] * len(steps)
        try:
            for index, step in enumerate(steps):
                if step.stage.depends_on_all:
                    before = [other for other in steps[:index] if needs(step, other)]
                    self._meet(before)
                    if self._jobs > 1 and not all(map(_is_done, before)):
                        continue  # the last command makes it, when all shares have ended
                made[index] = self._make_all(step)
                names = {other.stage.model.name for other in steps[index + 1 :] if other.stage.model}
                if self._loaded is not None and self._loaded.model.name not in names:
                    self._release()
            self._write_notes()
        except BaseException:
            self._stop()
            with contextlib.suppress(UserError, OSError):  # the cause is told, and not that of a full disk
                self._write_notes()
            raise
        finally:
            self._loaded = None
            self._notes.clear()
        self._meet(steps)
        return made

    def _meet(self, steps: Sequence[Step]) -> None:
        """Waits for the other ranks, and until their blocks are seen: a network disk shows files late."""
        self.barrier()
        late = time.monotonic() + LATE
        while self.processes.size > 1 and self._jobs == 1 and not all(map(_is_done, steps)):
            if time.monotonic() > late:
                raise UserError(
                    "Blocks that other processes have made are not seen here; give the command again."
                )
            time.sleep(1)

    # --- blocks ----------------------------------------------------------------------------

    def _make_all(self, step: Step) -> int:
        """Makes the open blocks of this worker's share; how many. An exception, as Ctrl-C is, comes when
        those in work have ended."""
        rank, size = self._job * self.processes.size + self.processes.rank, self._jobs * self.processes.size
        bar = _bar(step, rank, size, quiet=not self.is_main)
        tasks = open_tasks(step, rank, size, bar.update)
        if (first := next(tasks, None)) is None:
            bar.close()
            return 0
        on_gpu = step.stage.place == "device" and self.device != "cpu"
        if step.stage.place == "remote":
            at_once = step.stage.model.requests or self._requests if step.stage.model else self._requests
        else:
            at_once = 1 if on_gpu or self._debug else self._at_once or self.processes.workers("cpu")
        count, running = 0, set[Future[None]]()
        with (
            bar,
            ThreadPoolExecutor(AHEAD, "ahead") as readers,
            ThreadPoolExecutor(at_once, "block", None if on_gpu else one_thread) as pool,
        ):
            try:
                for task in itertools.chain([first], tasks, [None]):
                    if task is not None and self._debug:
                        self._make(task)
                    elif task is not None:
                        self._load(step)
                        inputs = readers.submit(step.stage.read, task.number) if on_gpu else None
                        running.add(pool.submit(self._make, task, inputs))
                    while len(running) >= (1 if task is None else at_once + AHEAD):
                        done, running = wait(running, return_when=FIRST_COMPLETED)
                        for future in done:
                            future.result()
                        bar.update(len(done))
                    count += task is not None
            except BaseException:
                self._stop()
                for each in (pool, readers):
                    each.shutdown(wait=False, cancel_futures=True)
                raise
        return count

    def _make(self, task: Task, inputs: Future[Any] | None = None) -> None:
        """The files of a block are there when this returns."""
        step, stage = task.step, task.step.stage
        loaded = self._load(step)
        block = stage.read(task.number) if inputs is None else inputs.result()
        start = time.perf_counter()
        rows = stage.work(loaded.thing if loaded else None, block, task.missing)
        seconds = time.perf_counter() - start
        if loaded is not None:
            loaded.describe_in(step.folder)
        task.put(rows)
        count = max(map(len, rows.values()))
        self._note(step.folder).add(stage.name, count, seconds, environment.peak_memory(self.device))

    # --- models and notes ------------------------------------------------------------------

    def _load(self, step: Step) -> Loaded | None:
        """The model of a step, loaded once. On a GPU with less than half of its memory free the one before is
        dropped first."""
        model = step.stage.model
        if model is None:
            return None
        if self._loaded is not None and self._loaded.model.name == model.name:
            return self._loaded
        if model.place == "device" and _free_share(self.device) < 0.5:
            self._release()
        before, self._loaded = self._loaded, Loaded(model, self.device)
        del before
        return self._loaded

    def _release(self) -> None:
        """Frees the memory of the model at hand."""
        if self._loaded is None:
            return
        self._note_usage()
        self._loaded = None
        if self.device == "cpu" and 0 < environment.peak_memory().get("host", 0) < SMALL:
            return
        gc.collect()
        torch = sys.modules.get("torch")  # never the reason to import it
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _stop(self) -> None:
        """Ends waiting for answers."""
        if self._loaded is not None:
            getattr(self._loaded.thing, "stop", lambda: None)()

    def _note(self, folder: Folder) -> Notes:
        return self._notes.setdefault(folder.path, Notes(folder))

    def _note_usage(self) -> None:
        if self._loaded is not None:
            for kind, usage in self._loaded.model.usage(self._loaded.thing).items():
                for folder in self._loaded.folders.values():
                    self._note(folder).usage[kind] = dict(usage)

    def _write_notes(self) -> None:
        self._note_usage()
        for notes in self._notes.values():
            notes.folder.note({"stages": notes.stages, "usage": notes.usage})


class Loaded:
    """A model in memory, and the folders that it has been described in."""

    def __init__(self, model: Model, device: str) -> None:
        if device.startswith("cuda"):
            import torch

            torch.cuda.reset_peak_memory_stats(device)
        self.model, self.thing = model, model.load()
        self.folders: dict[Path, Folder] = {}
        self._described: set[tuple[Path, str]] = set()
        self._mutex = threading.Lock()

    def describe_in(self, folder: Folder) -> None:
        """Notes what the model is, before its first rows are written. Raises UserError for another one."""
        with self._mutex:
            self.folders[folder.path] = folder
            for kind, (fingerprint, description) in self.model.describe(self.thing).items():
                if (folder.path, kind) not in self._described:
                    folder.note_model(kind, fingerprint, description)
                    self._described.add((folder.path, kind))


class Notes:
    """What this worker did in a folder: its note, written once at the end. Threads may share it."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.stages: dict[str, dict[str, Any]] = {}
        self.usage: dict[str, dict[str, Any]] = {}
        self._mutex = threading.Lock()

    def add(self, stage: str, rows: int, seconds: float, peaks: dict[str, int]) -> None:
        with self._mutex:
            sums = self.stages.setdefault(stage, {"blocks": 0, "rows": 0, "seconds": 0.0})
            sums["blocks"] += 1
            sums["rows"] += rows
            sums["seconds"] = round(sums["seconds"] + seconds, 3)
            sums["peak_memory"] = peaks  # it only grows


def needs(step: Step, other: Step) -> bool:
    """Whether a step reads all that another one writes."""
    outputs = set(other.stage.outputs).intersection(step.stage.depends_on_all)
    return bool(outputs) and other.folder.path == step.folder.path


def _is_done(step: Step) -> bool:
    """Whether all wanted blocks are there."""
    numbers = step.stage.blocks.numbers
    return all(step.folder.done(output).issuperset(numbers) for output in step.stage.outputs)


def _bar(step: Step, rank: int, size: int, *, quiet: bool) -> tqdm[Any]:
    """Of the blocks of a share; shown in a terminal, or in a notebook."""
    shown = not quiet and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    total = len(step.stage.blocks.share(rank, size))
    return tqdm(total=total, desc=f"{step.stage.name} {step.label}".strip(), unit="block", disable=not shown)


def _free_share(device: str) -> float:
    """How much of a device's memory is free, 0 to 1; 0 where it does not tell, 1 for a CPU."""
    if not device.startswith("cuda"):
        return float(device == "cpu")
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free / total


@contextlib.contextmanager
def locked(folders: Iterable[Folder], *, shared: bool = False) -> Iterator[None]:
    """Keeps other commands out of folders; a lock dies with its process. Where there are none (a file system,
    Windows) two equal commands do the same work twice. Raises UserError."""
    with contextlib.ExitStack() as stack:
        for path in (atomic.make_folder(folder.path) for folder in folders):
            try:
                import fcntl

                file = os.open(path, os.O_RDONLY)
                stack.callback(os.close, file)
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"Another command is at work on '{path}'; wait until it ends, or choose another --out."
                ) from None
            except (ImportError, OSError):
                pass
        yield
