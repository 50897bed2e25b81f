"""What every editor with a model does around it: sort out bad requests, group, batch, isolate failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch

from editors.base import EditorError, EditRequest, EditResult, find_fault

Prepared = TypeVar("Prepared")
# What a bad sample can raise; a bug in the editor's own names should not become a "failed sample".
SAMPLE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError)

logger = logging.getLogger(__name__)


def edit_in_batches(
    requests: Sequence[EditRequest],
    prepare: Callable[[EditRequest], tuple[Hashable, Prepared] | str],
    edit: Callable[[list[Prepared]], list[EditResult]],
    *,
    batch_size: int,
    device: torch.device,
) -> list[EditResult]:
    """One result per request, in order.

    prepare  The group of a request and what `edit` needs of it, or a sentence saying why it cannot be done,
             given or raised as EditorError.
    edit     Results for at most `batch_size` requests of one group. When it fails, they are tried one by one,
             so that only the culprit has an error.

    Running out of memory is about the batch, not about a sample, and goes through: smaller batches would
    differ in the last bits from those of an undisturbed run, so the run ends and the user chooses.
    """
    results: dict[int, EditResult] = {}
    groups: dict[Hashable, list[tuple[int, str, Prepared]]] = {}
    for index, request in enumerate(requests):
        fault = find_fault(request)
        try:
            ready = fault if fault is not None else prepare(request)
        except EditorError as error:
            ready = str(error)
        if isinstance(ready, str):
            results[index] = EditResult(request.id, None, ready)
        else:
            groups.setdefault(ready[0], []).append((index, request.id, ready[1]))
    for members in groups.values():
        for start in range(0, len(members), batch_size):
            chunk = members[start : start + batch_size]
            edited = _isolated([(name, item) for _, name, item in chunk], edit, device)
            results.update(zip((index for index, _, _ in chunk), edited, strict=True))
    return [results[index] for index in range(len(requests))]


def _isolated(
    items: list[tuple[str, Prepared]],
    edit: Callable[[list[Prepared]], list[EditResult]],
    device: torch.device,
) -> list[EditResult]:
    try:
        return edit([item for _, item in items])
    except torch.OutOfMemoryError:
        raise
    except SAMPLE_ERRORS as error:
        if device.type == "cuda":
            # A broken CUDA context fails every later call too: that is the end of the run, not a sample.
            torch.cuda.synchronize(device)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if len(items) == 1:
        return [EditResult(items[0][0], None, reason)]
    logger.warning("a batch of %d failed (%s); trying its samples one by one", len(items), reason)
    return [result for item in items for result in _isolated([item], edit, device)]
