"""Memory: the peak of a stage, what is free, and how many records go through a model together
(`--batch-size auto`)."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import psutil

from nein.engine.environment import peak_memory
from nein.engine.processes import Processes
from nein.loading.errors import out_of_memory

Result = TypeVar("Result")
SHARE = 0.8  # of the free memory that a pass may take, by what one record took
CUDA = "largest amount allocated on the device during the stage"
PROCESS = "largest resident set of the process since its start"
SMALL = 4 * 2**30  # bytes: for less, no collection of garbage is worth the third of a second that it takes


def reset(device: str) -> None:
    """Begin to measure a stage anew, where the device can."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def free_share(device: str) -> float:
    """How much of a device's memory is free, 0 to 1; 0 where it does not tell, 1 for a CPU."""
    if not device.startswith("cuda"):
        return float(device == "cpu")
    import torch

    return free(device) / torch.cuda.mem_get_info(device)[1]


def free(device: str) -> int:
    """Bytes that may still be taken."""
    if not device.startswith("cuda"):
        return int(psutil.virtual_memory().available)
    import torch

    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def held(device: str) -> int:
    """Bytes that this process holds now."""
    if not device.startswith("cuda"):
        return int(psutil.Process().memory_info().rss)
    import torch

    return int(torch.cuda.memory_allocated(device))


def release(device: str) -> None:
    """Gives back the memory of models that nobody names any more, and to the device what PyTorch holds of it
    and does not use."""
    if device == "cpu" and (used := peak(device)) is not None and used["bytes"] < SMALL:
        return
    gc.collect()
    torch = sys.modules.get("torch")  # never the reason to import it
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak(device: str) -> dict[str, Any] | None:
    """{"bytes": int, "what": CUDA or PROCESS} of this process; None where the system does not tell.

    A CPU has no counter that could be reset, so what was needed before the stage is in its figure.
    """
    if device.startswith("cuda"):
        import torch

        return {"bytes": int(torch.cuda.max_memory_allocated(device)), "what": CUDA}
    used = peak_memory().get("host")
    return None if used is None else {"bytes": used, "what": PROCESS}


def sentence(label: str, used: dict[str, Any]) -> str:
    """ "ip2p: 1.3 GiB, the largest resident set of the process since its start"."""
    return f"{label}: {used['bytes'] / 2**30:.1f} GiB, the {used['what']}"


class Fitting:
    """Sets `batch_size` of the `parts` of a model, each to at most what it was made with.

    The first block goes through record by record; the memory that took says how many fit. A pass that does
    not fit all the same is halved, and the block done again. Threads may share it.
    """

    def __init__(self, parts: Iterable[Any], device: str) -> None:
        self._parts = [(part, int(part.batch_size)) for part in parts if hasattr(part, "batch_size")]
        self._device = device
        self._mutex = threading.Lock()
        self.most = max((size for _, size in self._parts), default=1)
        self.size: int | None = None  # not known yet

    def run(self, work: Callable[[], Result]) -> Result:
        """What `work` gives, at a size that fits. Raises what it raises, if a single record does not fit."""
        with self._mutex:
            if self.size is None:
                return self._first(work)
        while True:
            size = self.size
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or size == 1:
                    raise
            release(self._device)
            with self._mutex:
                if self.size == size:  # no other thread has halved it meanwhile
                    self._set(size // 2)

    def _first(self, work: Callable[[], Result]) -> Result:
        self._set(1)
        before = held(self._device)
        reset(self._device)
        result = work()
        used = peak(self._device)
        each = max(1, used["bytes"] - before if used else 1) * Processes().workers(self._device)
        self._set(max(1, min(self.most, int(SHARE * free(self._device) / each))))
        return result

    def _set(self, size: int) -> None:
        self.size = size
        for part, most in self._parts:
            part.batch_size = min(size, most)
