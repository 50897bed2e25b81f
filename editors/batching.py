"""What every editor with a model does around it: sort out bad requests, group, batch, isolate failures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch

from nein.editors.base import EditorError, EditRequest, EditResult, find_fault
from nein.loading.isolation import MODEL_ERRORS, isolated, reason

Prepared = TypeVar("Prepared")
#: What a bad sample can raise inside a pipeline of diffusers.
SAMPLE_ERRORS = (*MODEL_ERRORS, TypeError)


def edit_in_batches(
    requests: Sequence[EditRequest],
    prepare: Callable[[EditRequest], tuple[Hashable, Prepared] | str],
    edit: Callable[[list[Prepared]], list[EditResult]],
    *,
    batch_size: int,
    device: torch.device,
) -> list[EditResult]:
    """One result per request, in order.

    prepare  The group of a request and what `edit` needs of it, or why it cannot be done, given or raised.
    edit     Results for at most `batch_size` requests of one group. When it fails, they are tried one by one.

    Out of memory goes through: smaller batches would differ in the last bits from an undisturbed run's.
    """
    results: dict[int, EditResult] = {}
    groups: dict[Hashable, list[tuple[int, Prepared]]] = {}
    for index, request in enumerate(requests):
        fault = find_fault(request)
        try:
            ready = fault if fault is not None else prepare(request)
        except EditorError as error:
            ready = str(error)
        if isinstance(ready, str):
            results[index] = EditResult(request.id, None, ready)
        else:
            groups.setdefault(ready[0], []).append((index, ready[1]))

    def failed(error: BaseException) -> str:
        if device.type == "cuda":
            # A broken CUDA context fails every later call too: that is the end of the run, not a sample.
            torch.cuda.synchronize(device)
        return reason(error)

    for members in groups.values():
        for start in range(0, len(members), batch_size):
            indices, items = zip(*members[start : start + batch_size], strict=True)
            edited = isolated(lambda some: edit(list(some)), items, failed, SAMPLE_ERRORS)
            for index, one in zip(indices, edited, strict=True):
                if isinstance(one, str):
                    one = EditResult(requests[index].id, None, one)
                results[index] = one
    return [results[index] for index in range(len(requests))]
