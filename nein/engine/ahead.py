"""Doing things in threads before they are asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def one_thread() -> None:
    """PyTorch's own threads off, in the thread that calls. Where the environment says one thread, PyTorch is
    not loaded for that."""
    said = os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS", "1")
    if "torch" not in sys.modules and said == ("1", "1"):
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
