"""The order of data as a function of (seed, position), and which positions a process takes.

A position counts what all processes have seen since the beginning: a resumed run, or one on another number of
processes, sees the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch

from nein.engine.blocks import sample_seed


class Passes:
    """Which thing stands at a position: all of them in a new order, before any comes again.

    length    Positions that a pass takes.
    shuffled  Number of a pass -> the things in its order, (at least `length`,) of whole numbers.

    Threads may share one.
    """

    def __init__(self, length: int, shuffled: Callable[[int], np.ndarray]) -> None:
        self.length = length
        # Threads reading ahead may still be in the pass before.
        self._shuffled = functools.lru_cache(2)(shuffled)

    def at(self, position: int) -> int:
        number, inner = divmod(position, self.length)
        return int(self._shuffled(number)[inner])


def generator(seed: int, name: str) -> np.random.Generator:
    """NumPy's PCG64, seeded by the run's seed and a name."""
    return np.random.Generator(np.random.PCG64(sample_seed(seed, name)))


def share(step: int, batch: int, rank: int, size: int) -> range:
    """The positions of one process in one step: of the step's `batch` the r-th part for process r of R."""
    per_process = batch // size
    first = step * batch + rank * per_process
    return range(first, first + per_process)


def reseed(seed: int, rank: int, seen: int) -> None:
    """Sets the global generators for one step, for whatever draws inside a model (dropout)."""
    torch.manual_seed(sample_seed(seed, f"step/{rank}/{seen}"))
