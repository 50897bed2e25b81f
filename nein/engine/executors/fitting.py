"""How many records go through a model together, from the memory that is free: `--batch-size auto`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from nein.engine.executors import memory
from nein.engine.processes import Processes
from nein.loading.isolation import out_of_memory

Result = TypeVar("Result")
SHARE = 0.8  # of the free memory that a pass may take, by what one record took


class Fitting:
    """Sets `batch_size` of the `parts` of a model, each to at most what it was made with.

    The first block goes through record by record, and what that took beyond the model says how many fit; a
    pass that does not fit all the same is halved, and the block done again. Threads may share it.
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
            memory.release(self._device)
            with self._mutex:
                if self.size == size:  # no other thread has halved it meanwhile
                    self._set(size // 2)

    def _first(self, work: Callable[[], Result]) -> Result:
        self._set(1)
        before = memory.held(self._device)
        memory.reset(self._device)
        result = work()
        peak = memory.peak(self._device)
        free = memory.free(self._device)
        if peak is None or before is None or free is None:
            self._set(self.most)
            return result
        each = max(1, peak["bytes"] - before) * Processes().workers(self._device)
        self._set(max(1, min(self.most, int(SHARE * free / each))))
        return result

    def _set(self, size: int) -> None:
        self.size = size
        for part, most in self._parts:
            part.batch_size = min(size, most)
