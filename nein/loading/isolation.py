"""A batch that fails is narrowed down to the items that fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from nein.loading.errors import UnavailableError

log = logging.getLogger(__name__)

Item = TypeVar("Item")

#: What a model or an image library raises on input that it cannot digest. A mistake in our own code
#: (TypeError, AttributeError, ...) is not caught.
MODEL_ERRORS = (RuntimeError, ValueError, OSError, IndexError, ArithmeticError)


def reason(error: BaseException) -> str:
    """One line for an unscored sample: the kind of error and its first line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of a device. PyTorch's class is known by its name: this
    package is imported without PyTorch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def isolated(
    work: Callable[[Sequence[Item]], Iterable[Any]],
    items: Sequence[Item],
    failed: Callable[[BaseException], Any] = reason,
    errors: tuple[type[BaseException], ...] = MODEL_ERRORS,
) -> list[Any]:
    """`work(items)`, one result per item; where that raises, one item at a time: only the culprit has
    `failed(error)`, by default a sentence, in place of a result. Only `errors` are caught; out of memory, and
    a model that is not available, end the command."""
    if not items:
        return []
    try:
        results = list(work(items))
    except errors as error:
        if out_of_memory(error) or isinstance(error, UnavailableError):
            raise
        if len(items) == 1:
            return [failed(error)]
        log.warning("%d items together failed (%s); trying them one by one", len(items), reason(error))
        return [result for item in items for result in isolated(work, [item], failed, errors)]
    if len(results) != len(items):
        raise AssertionError(f"{len(items)} items were given and {len(results)} results came back")
    return results
