"""Work is cut into fixed blocks of consecutive samples; a block is computed as a whole, by one process.

Blocks are cut over the whole data set, not over the selection: a batch then has the same members whatever
`--limit`, `--samples`, a kill or the number of processes, and with the same members every last bit of a
result is the same. The price is that a selection is rounded up to whole blocks; tables count the selected
samples only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from nein.datasets.nein.samples import Dataset, Sample

Item = TypeVar("Item")


def one_thread() -> None:
    """For worker threads: PyTorch's own threads off. The setting belongs to the thread that makes it."""
    import torch

    torch.set_num_threads(1)


@dataclass(frozen=True)
class Plan:
    """A data set, the selected indices in data order, and the block size."""

    dataset: Dataset
    selected: tuple[int, ...]
    batch_size: int

    @property
    def blocks(self) -> list[int]:
        """Numbers of the blocks that hold a selected sample, ascending; block b is samples [b*B, (b+1)*B)."""
        return sorted({index // self.batch_size for index in self.selected})

    def members(self, block: int) -> list[Sample]:
        start = block * self.batch_size
        return list(self.dataset.samples[start : start + self.batch_size])

    def all_members(self) -> list[Sample]:
        """The samples of every needed block: what will really be read."""
        return [sample for block in self.blocks for sample in self.members(block)]

    def selection(self) -> list[Sample]:
        """The selected samples: what tables count."""
        return [self.dataset.samples[index] for index in self.selected]


def share(items: Sequence[Item], rank: int, size: int) -> list[Item]:
    """The part of the items that process `rank` of `size` takes: every size-th, beginning with its own."""
    return list(items[rank::size])


def prefetch(
    work: Callable[[int], Item],
    numbers: Iterable[int],
    ahead: int = 2,
    initializer: Callable[[], None] | None = None,
) -> Iterator[tuple[int, Item]]:
    """Yields (number, work(number)) in order, running up to `ahead` calls before they are asked for.

    Used for reading files beside a GPU, and for whole blocks of work on a CPU: there several blocks run at
    once, each on one thread, rather than one block on several. A block's arithmetic is then the same on any
    number of cores (the order in which threads add up decides the last bits), and it is faster.
    """
    with ThreadPoolExecutor(
        max_workers=max(1, ahead), thread_name_prefix="block", initializer=initializer
    ) as pool:
        waiting: list[tuple[int, Future[Item]]] = []
        try:
            for number in numbers:
                waiting.append((number, pool.submit(work, number)))
                if len(waiting) > ahead:
                    first, future = waiting.pop(0)
                    yield first, future.result()
            while waiting:
                first, future = waiting.pop(0)
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
