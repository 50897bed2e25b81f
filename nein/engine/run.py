"""The executor: computes the missing blocks of a command, stage after stage, and notes what they cost.

Worker r of n makes the blocks b with b % n == r; workers share only the files of finished blocks. On a CPU
several blocks are computed at once, each on one thread, so that the last bits are the same on any number of
cores. On a GPU one block is computed while the next ones are read. A model behind an address gets as many
blocks at once as it takes requests.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nein.engine import atomic, machine
from nein.engine.folder import Folder
from nein.engine.machine import Processes
from nein.engine.stages import Model, Plan, Step, Task, open_tasks
from nein.loading.digests import Json
from nein.loading.errors import UserError, tracebacks

# --- the share of a command --------------------------------------------------------------------
SHARE_VARIABLE = "NEIN_SHARE"  # environment variable: "r/n", this command makes share r of n and no report


def read_share() -> tuple[int, int]:
    """(r, n) of the environment variable; (0, 1) if it is not set. Raises UserError."""
    text = os.environ.get(SHARE_VARIABLE, "0/1")
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UserError(f"{SHARE_VARIABLE} is '{text}'; it must be r/n, with r from 0 to n - 1.")
    return int(match[1]), int(match[2])


# --- progress and tracebacks ---------------------------------------------------------------
LOG_INTERVAL = 30.0  # seconds between lines of progress in a log


class Bar(tqdm):
    """Progress in samples: a bar on a terminal or in a notebook, else a line every `LOG_INTERVAL` seconds."""

    def __init__(self, title: str, total: int, *, visible: bool = True) -> None:
        self._prints_lines = not (sys.stderr.isatty() or "ipykernel" in sys.modules)
        options: Json = {"desc": title, "total": total, "unit": " samples", "disable": not visible}
        if self._prints_lines:
            line = "{desc}: {n_fmt} of {total_fmt} samples, {rate_noinv_fmt}, {remaining} left"
            options |= {"bar_format": line, "file": io.StringIO()}
            options |= {"mininterval": LOG_INTERVAL, "maxinterval": LOG_INTERVAL}
        super().__init__(smoothing=0, **options)

    def skip(self, count: int) -> None:
        """Counts samples that an earlier command made: the rate leaves them out."""
        if not self.disable:  # an invisible bar keeps no counts
            self.initial += count
            self.update(count)

    def display(self, *args: Any, **options: Any) -> None:  # tqdm calls it at each interval
        if not self._prints_lines:
            super().display(*args, **options)
        elif self.format_dict["elapsed"] >= LOG_INTERVAL:
            print(self, file=sys.stderr, flush=True)


class _Tracebacks(logging.Handler):
    """Keeps the tracebacks of a user's code (`nein.loading.errors.tracebacks`), each once, for the notes."""

    def __init__(self) -> None:
        super().__init__()
        self.by_sentence: dict[str, str] = {}  # the error in one line -> its traceback

    def emit(self, record: logging.LogRecord) -> None:
        self.by_sentence.setdefault(record.getMessage(), self.format(record))


# --- the executor --------------------------------------------------------------------------
READ_AHEAD = 3  # blocks that are read before a GPU asks for them; on a CPU: that wait for a thread


class Executor:
    """Computes the blocks of this process. Knows no benchmark.

    device     The device of the models (`Processes.device`); it decides the last bits of rows.
    processes  The processes that were started together; each is a rank.
    share      (r, n): this command makes share r of n; a later command makes the rest and the report.
    threads    PyTorch threads in all. On a CPU: parallel blocks, one thread each (None: one per core). On a
               GPU: threads of the one block (None: PyTorch's default).
    requests   Parallel blocks of a model behind an address, unless the model says (`Model.requests`).
    debug      One block after the other in this thread, so that a debugger can stop anywhere.
    """

    def __init__(
        self,
        device: str,
        processes: Processes | None = None,
        *,
        share: tuple[int, int] = (0, 1),
        threads: int | None = None,
        requests: int = 8,
        debug: bool = False,
    ) -> None:
        self.processes = processes or Processes()
        self.device = self.processes.device(device)
        self._share, self._share_count = share
        self.threads, self._requests, self._debug = threads, requests, debug
        self.is_main = self.processes.rank == 0  # this process opens the folders
        self.concludes = self.is_main and self._share_count == 1  # it writes scores and report of all blocks
        self._mutex = threading.Lock()  # guards the fields below, which threads of blocks change
        self._model: Model | None = None  # the model in memory, and the object that its `load` returned
        self._loaded: Any = None
        self._described: set[tuple[Path, str]] = set()  # (folder that notes this model, its kind there)
        self._notes: dict[Path, tuple[Folder, Json]] = {}  # path of a folder -> it, and this worker's note
        self._tracebacks = _Tracebacks()

    def describe(self) -> Json:
        """Facts for the manifest; they decide no row."""
        name = "ranks" if self.processes.size > 1 else "threads"
        return {"executor": "debug" if self._debug else name, "processes": self.processes.size}

    @contextlib.contextmanager
    def lock(self, folders: Iterable[Folder]) -> Iterator[None]:
        """Keeps other commands out of folders, but not other shares of this command. The system drops a lock
        when its process ends. Without locks (some file systems, Windows) two equal commands do the same work
        twice. Raises UserError if another command holds a lock."""
        with contextlib.ExitStack() as stack:
            for folder in folders if self.is_main else ():
                path = atomic.make_folder(folder.path)
                try:
                    import fcntl

                    file = os.open(path, os.O_RDONLY)
                    stack.callback(os.close, file)
                    kind = fcntl.LOCK_SH if self._share_count > 1 else fcntl.LOCK_EX
                    fcntl.flock(file, kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UserError(
                        f"Another command is using '{path}'; wait until it ends, or choose another --out.",
                        "locked",
                    ) from None
                except (ImportError, OSError):
                    pass  # no locks here
            yield

    def close(self) -> None:
        if self.processes.size > 1:
            import torch

            torch.distributed.destroy_process_group()

    def compute(self, steps: Sequence[Step], plan: Plan | None = None) -> list[int]:
        """Makes the missing blocks of all steps; returns the number of blocks made here, by step. Loads no
        model if nothing is missing. Raises UserError, EditorError or MetricError; finished blocks stay.

        plan  Makes the steps again in a process on another node; only `nein.engine.ray` uses it.
        """
        counts = [0] * len(steps)
        tracebacks.addHandler(self._tracebacks)
        try:
            for index, step in enumerate(steps):
                if step.stage.depends_on_all:
                    inputs = [other for other in steps[:index] if reads_all_of(step, other)]
                    if self.processes.size > 1:
                        self._wait_for_ranks(inputs)
                    if self._share_count > 1 and not all(map(_is_done, inputs)):
                        continue  # the last command makes it, when all shares have ended
                counts[index] = self._make_blocks(step)
                needed_later = {other.stage.model.name for other in steps[index + 1 :] if other.stage.model}
                if self._model is not None and self._model.name not in needed_later:
                    self._release_model()
        except BaseException:
            self._stop_model()
            raise
        finally:
            self._note_usage()
            for folder, note in self._notes.values():
                if self._tracebacks.by_sentence:
                    note["tracebacks"] = self._tracebacks.by_sentence
                with contextlib.suppress(UserError, OSError):  # a full disk must not hide the first error
                    folder.write_note(note)
            self._model = self._loaded = None
            self._notes.clear()
            self._described.clear()
            tracebacks.removeHandler(self._tracebacks)
        if self.processes.size > 1:
            self._wait_for_ranks(steps)
        return counts

    def _wait_for_ranks(self, steps: Sequence[Step]) -> None:
        """Waits for the other ranks, and until their blocks are seen: a network disk shows files late."""
        self.processes.barrier()
        deadline = time.monotonic() + 120  # seconds
        while self._share_count == 1 and not all(map(_is_done, steps)):
            if time.monotonic() > deadline:
                raise UserError("Blocks of other processes are still missing here; rerun the command.")
            time.sleep(1)

    # --- blocks ----------------------------------------------------------------------------
    def _make_blocks(self, step: Step) -> int:
        """Makes the open blocks of this worker's share; returns how many."""
        worker = self._share * self.processes.size + self.processes.rank
        workers = self._share_count * self.processes.size
        count_samples = step.stage.blocks.count_selected  # function of the number of a block, for the bar
        total = sum(map(count_samples, step.stage.blocks.share(worker, workers)))
        bar = Bar(f"{step.stage.name} {step.label}".strip(), total, visible=self.is_main)
        tasks = open_tasks(step, worker, workers, lambda number: bar.skip(count_samples(number)))
        if (first := next(tasks, None)) is None:
            bar.close()
            return 0
        self._notes.setdefault(step.folder.path, (step.folder, {"stages": {}, "usage": {}}))

        # --- choose parallel blocks and threads
        model = step.stage.model
        on_gpu = model is not None and model.place == "device" and self.device != "cpu"
        at_once = self.threads or max(1, machine.count_cores() // self.processes.size)
        if on_gpu or self._debug:
            at_once = 1
        elif model is not None and model.place == "remote":
            at_once = model.requests or self._requests
        block_threads = (self.threads or 0) if on_gpu else 1  # PyTorch's threads per block; 0: its default
        set_threads = functools.partial(machine.set_threads, block_threads)
        set_threads()  # models are loaded in this thread

        # --- compute
        def finish_blocks(running: set[Future[int]], limit: int) -> set[Future[int]]:
            """Waits until at most `limit` blocks are running, and returns those."""
            while len(running) > limit:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    bar.update(count_samples(future.result()))
            return running

        count = 0  # blocks
        running = set[Future[int]]()
        with (
            bar,
            ThreadPoolExecutor(READ_AHEAD, "ahead") as readers,
            ThreadPoolExecutor(at_once, "block", set_threads) as pool,
        ):
            try:
                for task in itertools.chain([first], tasks):
                    count += 1
                    if self._debug:
                        bar.update(count_samples(self._make_block(task)))
                    else:
                        self._load_model(step)
                        reading = readers.submit(step.stage.read, task.number) if on_gpu else None
                        running.add(pool.submit(self._make_block, task, reading))
                        running = finish_blocks(running, at_once + READ_AHEAD - 1)
                finish_blocks(running, 0)
            except BaseException:
                self._stop_model()
                for threads in (pool, readers):
                    threads.shutdown(wait=False, cancel_futures=True)
                raise
        return count

    def _make_block(self, task: Task, reading: Future[Any] | None = None) -> int:
        """Makes a block and writes its files; returns its number. reading: its `Stage.read`, if begun."""
        folder, stage = task.step.folder, task.step.stage
        loaded = self._load_model(task.step)
        inputs = stage.read(task.number) if reading is None else reading.result()
        start = time.perf_counter()
        rows = stage.work(loaded, inputs, task.missing)
        seconds = time.perf_counter() - start
        with self._mutex:
            # The description of a model is in the folder before its first rows.
            descriptions = stage.model.describe(loaded) if stage.model else {}
            for kind, facts in descriptions.items():
                if (folder.path, kind) not in self._described:
                    folder.note_model(kind, *facts)
                    self._described.add((folder.path, kind))
            note = self._notes[folder.path][1]
            cost = note["stages"].setdefault(stage.name, {"blocks": 0, "rows": 0, "seconds": 0.0})
            cost["blocks"] += 1
            cost["rows"] += max(map(len, rows.values()))
            cost["seconds"] = round(cost["seconds"] + seconds, 3)
            cost["peak_memory"] = machine.peak_memory(self.device)  # grows from block to block
        task.put(rows)
        return task.number

    # --- models and notes ------------------------------------------------------------------
    def _load_model(self, step: Step) -> Any:
        """The loaded model of a step. The one before is dropped first if it leaves a GPU less than half."""
        model = step.stage.model
        if model is None:
            return None
        if self._model is not None and self._model.name == model.name:
            return self._loaded
        if self.device != "cpu" and model.place == "device":
            import torch

            is_full = True  # assumed of mps, which does not tell
            if self.device.startswith("cuda"):
                torch.cuda.empty_cache()
                free, total = torch.cuda.mem_get_info(self.device)  # bytes
                is_full = free < total / 2
                torch.cuda.reset_peak_memory_stats(self.device)
            if is_full:
                self._release_model()
        self._note_usage()
        self._model, self._loaded, self._described = model, model.load(), set()
        return self._loaded

    def _release_model(self) -> None:
        self._note_usage()
        self._model = self._loaded = None
        # Below 4 GiB a garbage collection is not worth the third of a second that it takes.
        if self.device == "cpu" and 0 < machine.peak_memory().get("host", 0) < 4 * 2**30:
            return
        gc.collect()
        torch = sys.modules.get("torch")  # never the reason to import it
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _stop_model(self) -> None:
        if hasattr(self._loaded, "stop"):  # a model behind an address: sends no further request
            self._loaded.stop()

    def _note_usage(self) -> None:
        """Adds the usage of the current model to the notes of every folder that it worked for."""
        used = self._model.usage(self._loaded) if self._model is not None else {}
        for path in {path for path, _ in self._described}:
            self._notes[path][1]["usage"] |= {kind: dict(usage) for kind, usage in used.items()}


# --- questions about steps and folders -----------------------------------------------------
def reads_all_of(step: Step, other: Step) -> bool:
    """Whether a step reads all blocks of another one."""
    outputs = set(other.stage.outputs) & set(step.stage.depends_on_all)
    return bool(outputs) and other.folder.path == step.folder.path


def is_locked(path: Path) -> bool:
    """Whether a command on this machine is using a folder (`Executor.lock`)."""
    try:
        import fcntl

        file = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(file)
    except (ImportError, OSError) as error:
        return isinstance(error, BlockingIOError)
    return False


def _is_done(step: Step) -> bool:
    numbers = step.stage.blocks.numbers
    return all(step.folder.list_blocks(output).issuperset(numbers) for output in step.stage.outputs)
