"""Doing things in threads before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def one_thread() -> None:
    """For worker threads: PyTorch's own threads off. The setting belongs to the thread that makes it."""
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
