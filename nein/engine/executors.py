"""Computing what folders lack: blocks are handed to the threads of this process, and shared with others.

A process walks all open blocks, its own share first and then what others have left, and passes over what has
come to be in the meantime. Nobody waits for anybody: a process that dies leaves its blocks to the others, one
that joins finds some to do, and where two make the same block both write the same bytes.

On a CPU several blocks run at once, each on one thread, rather than one block on several: its arithmetic is
then the same on any number of cores (the order in which threads add up decides the last bits), and it is
faster. On a GPU one block runs at a time, and the inputs of the next are read beside it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from tqdm import tqdm

from nein.engine import memory
from nein.engine.blocks import Blocks
from nein.engine.environment import peak_memory
from nein.engine.folder import Folder, Row
from nein.engine.processes import Processes

Item = TypeVar("Item")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Model:
    """Something to be loaded, once for all stages and folders that name it alike.

    describe  The loaded thing -> kind -> (fingerprint, description), to be noted in every folder it is used
              for.
    """

    name: str
    load: Callable[[], Any]
    describe: Callable[[Any], Mapping[str, tuple[str, Mapping[str, Any]]]]

    @classmethod
    def one(cls, name: str, load: Callable[[], Any]) -> Model:
        """A single model that has `fingerprint` and `describe()` itself."""
        return cls(name, load, lambda loaded: {"model": (loaded.fingerprint, loaded.describe())})


@dataclass(frozen=True)
class Stage:
    """One step of the work on a folder: a function of a block that gives rows.

    name      As the progress bar shows it, and the key of its costs.
    outputs   The files it writes of each block: FOLDER/<output>/<block>.jsonl.
    blocks    The blocks that are wanted.
    model     What `work` needs; loaded when the first block is open. None: nothing is needed.
    read      Block number -> the inputs of `work`.
    work      (model, inputs, outputs still to make) -> output -> rows. A failing record becomes a row that
              says so: what is raised here ends the command.
    usable    (output, rows) -> whether a block that is there still counts. False, for one whose pictures have
              vanished or whose failed records are worth another try, makes it again as a whole.
    after     The output of an earlier stage that these rows are made of: a block that is older than that
              block is made again. Empty where a block made again has the same rows.
    """

    name: str
    outputs: tuple[str, ...]
    blocks: Blocks
    read: Callable[[int], Any]
    work: Callable[[Any, Any, tuple[str, ...]], Mapping[str, Rows]]
    model: Model | None = None
    usable: Callable[[str, list[Row]], bool] | None = None
    after: str = ""


@dataclass(frozen=True)
class OpenBlock:
    """A block that lacks outputs. `stamps`: when each was written that is there all the same."""

    number: int
    missing: tuple[str, ...]
    stamps: Mapping[str, int | None]


class Loaded:
    """Models by name, made when first needed and kept. With `one_at_a_time` (a GPU) the last is dropped
    before the next comes."""

    def __init__(self, *, one_at_a_time: bool) -> None:
        self._one_at_a_time = one_at_a_time
        self._models: dict[str, Any] = {}

    def get(self, model: Model) -> Any:
        if model.name not in self._models:
            if self._one_at_a_time:
                self.clear()
            self._models[model.name] = model.load()
        return self._models[model.name]

    def clear(self) -> None:
        """Gives the memory of all models back."""
        self.keep(())

    def keep(self, names: Collection[str]) -> None:
        """Gives the memory of all other models back."""
        import gc

        if self._models.keys() <= set(names):
            return
        self._models = {name: model for name, model in self._models.items() if name in names}
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@dataclass
class Threads:
    """The threads of this process, one of those that `processes` counts.

    device   Of the models: "cpu" decides how many blocks run at once.
    at_once  Blocks in work side by side; None: as many as the device allows. With 1 PyTorch's own threads
             stay as they are.
    loaded   Keeps the models from one stage and folder to the next.
    """

    processes: Processes
    device: str
    at_once: int | None = None
    loaded: Loaded = field(init=False)

    def __post_init__(self) -> None:
        self.loaded = Loaded(one_at_a_time=self.device != "cpu")

    def compute(self, folder: Folder, stage: Stage, *, label: str = "") -> int:
        """Makes what a folder lacks of a stage; returns how many blocks that were.

        Loads nothing if nothing is missing. When it returns, every wanted block is there.
        """
        todo = open_blocks(folder, stage)
        if not todo:
            return 0
        memory.reset(self.device)
        model = self._model(folder, stage)
        # Questions to an endpoint wait, they do not work: with two blocks none waits for a block's last.
        side_by_side = getattr(model, "concurrent", 0)
        workers = 2 if side_by_side else self.at_once or self.processes.workers(self.device)

        def make(block: OpenBlock, inputs: Any) -> None:
            start = time.perf_counter()
            made = stage.work(model, inputs, block.missing)
            for output in block.missing:
                folder.write(output, block.number, made[output])
            seconds = round(time.perf_counter() - start, 3)
            cost = {"seconds": seconds, "at": round(time.time(), 1), "peak_memory": peak_memory()}
            folder.cost(stage.name, block.number, cost)

        def read(block: OpenBlock) -> Any:
            return None if made_elsewhere(folder, block) else (stage.read(block.number),)

        def read_and_make(block: OpenBlock) -> None:
            inputs = read(block)
            if inputs is not None:
                make(block, *inputs)

        stop = getattr(model, "stop", None)
        mine = shared_out(todo, self.processes.rank, self.processes.size)
        quiet = None if self.processes.is_main else True  # None: no bar where nobody looks
        with tqdm(total=len(mine), desc=f"{stage.name} {label}".strip(), unit="block", disable=quiet) as bar:
            if workers > 1:
                start_thread = one_thread if self.device == "cpu" and not side_by_side else None
                for _ in in_any_order(read_and_make, mine, workers, start_thread, stop):
                    bar.update(1)
            else:
                for block, inputs in read_ahead(read, mine):
                    if inputs is not None:
                        make(block, *inputs)
                    bar.update(1)
        if self.processes.is_main and (peak := memory.peak(self.device)) is not None:
            folder.note("peak_memory", stage.name, peak)
        return len(mine)

    def _model(self, folder: Folder, stage: Stage) -> Any:
        if stage.model is None:
            return None
        model = self.loaded.get(stage.model)
        for kind, (fingerprint, description) in stage.model.describe(model).items():
            folder.note_model(kind, fingerprint, description)
        return model


def open_blocks(folder: Folder, stage: Stage) -> list[OpenBlock]:
    """The blocks that lack an output of the stage, or hold one that does not count any more."""
    done = {output: folder.done(output) for output in stage.outputs}
    todo = []
    for number in stage.blocks.numbers:
        missing = tuple(
            output
            for output in stage.outputs
            if number not in done[output]
            or (stage.after and _is_older(folder, number, output, stage.after))
            or (stage.usable is not None and not stage.usable(output, folder.read(output, number)))
        )
        if missing:
            todo.append(OpenBlock(number, missing, {name: _stamp(folder, name, number) for name in missing}))
    return todo


def made_elsewhere(folder: Folder, block: OpenBlock) -> bool:
    """Whether another process has made the block since it was found open."""
    now = {output: _stamp(folder, output, block.number) for output in block.missing}
    return all(now[output] is not None and now[output] != block.stamps[output] for output in block.missing)


def _is_older(folder: Folder, number: int, output: str, than: str) -> bool:
    return (_stamp(folder, output, number) or 0) < (_stamp(folder, than, number) or 0)


def _stamp(folder: Folder, output: str, number: int) -> int | None:
    try:
        return folder.block_path(output, number).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def share(items: Sequence[Item], rank: int, size: int) -> list[Item]:
    """The part of the items that process `rank` of `size` takes: every size-th, beginning with its own."""
    return list(items[rank::size])


def shared_out(items: Sequence[Item], rank: int, size: int) -> list[Item]:
    """All items, in the order in which process `rank` of `size` takes them: every size-th, beginning with its
    own, then those of the others, from the last, to which they come late.

    A process that was started by itself may share the folder with others of which it knows nothing. It takes
    the items in an order of its own, so that two that began together do not make each item twice.
    """
    if size == 1:
        return random.Random(os.getpid()).sample(items, len(items))
    rest = [item for other in range(size) if other != rank for item in share(items, other, size)]
    return [*share(items, rank, size), *reversed(rest)]


def one_thread() -> None:
    """For worker threads: PyTorch's own threads off. The setting belongs to the thread that makes it."""
    import torch

    torch.set_num_threads(1)


def in_any_order(
    work: Callable[[Item], Any],
    items: Iterable[Item],
    workers: int,
    start_thread: Callable[[], None] | None = None,
    stop: Callable[[], None] | None = None,
) -> Iterator[Any]:
    """The results of `work` as they come, `workers` calls at a time.

    stop  Called when one has failed or the program is interrupted: ends what others wait for.
    """
    source = iter(items)
    with ThreadPoolExecutor(workers, thread_name_prefix="block", initializer=start_thread) as pool:
        running: set[Future[Any]] = set()
        try:
            while True:
                running |= {pool.submit(work, item) for item in islice(source, workers - len(running))}
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except BaseException:
            if stop is not None:
                stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def read_ahead(
    work: Callable[[Item], Any],
    items: Iterable[Item],
    ahead: int = 2,
    start_thread: Callable[[], None] | None = None,
) -> Iterator[tuple[Item, Any]]:
    """(item, work(item)) in order, doing up to `ahead` of them in threads before they are asked for."""
    with ThreadPoolExecutor(max(1, ahead), thread_name_prefix="ahead", initializer=start_thread) as pool:
        waiting: list[tuple[Item, Future[Any]]] = []
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > ahead:
                    first, future = waiting.pop(0)
                    yield first, future.result()
            while waiting:
                first, future = waiting.pop(0)
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
