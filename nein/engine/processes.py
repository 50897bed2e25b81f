"""Which process this is and how many there are; alone unless `accelerate launch` (or torchrun) started us."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from nein.engine import environment
from nein.engine.errors import UserError

#: The devices by their names, as PyTorch has them, or "auto"; and in words.
DEVICES = r"auto|cpu|mps|cuda(:\d+)?"
DEVICES_SAID = "auto, cpu, cuda, cuda:N or mps"


@dataclass
class Processes:
    """`rank` of `size` processes. `barrier()` waits for all of them, as training has to and as a command does
    once, when it has opened its folders; without others it does nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    _state: Any = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        if self._state is not None:
            import torch

            # The gloo group is used also on GPUs: we only ever synchronise, and it needs no device memory.
            try:
                torch.distributed.barrier()
            except RuntimeError as error:
                raise UserError(
                    f"Process {self.rank} of {self.size} timed out waiting for the others to start "
                    f"({str(error).splitlines()[0]}); give the same command again."
                ) from None

    def device(self, wanted: str) -> str:
        """The device of this process: `auto` is its GPU (cuda, which is NVIDIA's or AMD's, or Apple's mps) if
        there is one, else cpu, and the main process says which. Raises UserError for one that is absent."""
        if not re.fullmatch(DEVICES, wanted):
            raise UserError(f"--device is '{wanted}'; it must be {DEVICES_SAID}.")
        if wanted == "cpu":
            return wanted
        import torch

        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        kind = wanted.partition(":")[0]
        if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
            maker = "Apple GPU" if kind == "mps" else "GPU of NVIDIA or AMD"
            raise UserError(f"--device is '{wanted}', but this PyTorch sees no {maker}; use --device cpu.")
        device = wanted if wanted != "auto" else "cuda" if cuda else "mps" if mps else "cpu"
        if device == "cuda" and self.size > 1:
            device = f"cuda:{self.local_rank}"
        if self.is_main:
            environment.say_device(wanted, device)
        return device

    def workers(self, device: str) -> int:
        """How many blocks to work on at once: one on a GPU, one per core (shared by the processes) on a CPU,
        where PyTorch gets one thread per block: the number of cores decides the time and no bit of a result.
        """
        if device != "cpu":
            return 1
        one_thread()
        return max(1, cores() // self.size)

    def close(self) -> None:
        if self._state is not None:
            self._state.destroy_process_group()
            self._state = None


def share(processes: Processes) -> tuple[int, int]:
    """(rank, size) among all workers that are numbered: by launched processes, and by the array of Slurm's
    jobs that this is one of."""
    given = {key: int(os.environ.get(f"SLURM_ARRAY_TASK_{key}", 0)) for key in ("ID", "MIN", "COUNT")}
    jobs = max(1, given["COUNT"])
    return (given["ID"] - given["MIN"]) % jobs * processes.size + processes.rank, jobs * processes.size


def launched() -> bool:
    """Whether a launcher has started several of us."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def from_environment() -> Processes:
    """Joins the process group announced by the launcher's environment."""
    from accelerate import PartialState

    # They meet once, before there is any work: the first looks through the data, and no one waits later.
    state = PartialState(cpu=True, timeout=timedelta(minutes=30))
    return Processes(
        rank=state.process_index, size=state.num_processes, local_rank=state.local_process_index, _state=state
    )


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Item = TypeVar("Item")


def one_thread() -> None:
    """PyTorch's own threads off, in the thread that calls. Where the environment says one thread, PyTorch is
    not loaded for that."""
    limits = os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS", "1")
    if "torch" not in sys.modules and limits == ("1", "1"):
        return
    import torch

    torch.set_num_threads(1)


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
