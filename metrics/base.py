"""What everything in this package shares: a score, the stores handed in, checks, and failing one by one.

Images are NumPy arrays (H, W, 3), uint8, RGB. Nothing here reads or writes a file.
"""

from __future__ import annotations

import difflib
import functools
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Failed = TypeVar("Failed")


class MetricError(ValueError):
    """A mistake the user can mend; the message is one clear sentence."""


class UnavailableError(MetricError):
    """A model cannot be asked at all: that is about no single item, and ends the command."""


@dataclass(frozen=True)
class Score:
    """One metric of one sample.

    value   The number, in the unit of the metric's docstring (never scaled by 100), or None: *unscored*.
    reason  Why it is unscored (always set then), or a short sentence that explains the verdict.
    detail  JSON-serialisable evidence: raw answer, confidence, threshold, labels.
    again   Unscored because an endpoint gave no answer: another time it may.
    features
            What the sample adds to a metric that has a value for the whole only: a row of its edited picture
            and one of its target, (D,) float32 each. Such a score has neither value nor reason.
    """

    value: float | None
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[np.ndarray, np.ndarray] | None = None
    again: bool = False

    def __post_init__(self) -> None:
        if self.value is None and not self.reason and self.features is None:
            raise AssertionError("an unscored value needs a reason")
        if self.value is not None and not math.isfinite(self.value):
            raise AssertionError(f"a score must be finite or None, not {self.value}")


class FeatureStore(Protocol):
    """A cache of float32 vectors, handed in by the caller; a key names everything that changes the value."""

    def get(self, space: str, key: str) -> np.ndarray | None: ...

    def put(self, space: str, key: str, value: np.ndarray) -> None: ...


class RecordStore(Protocol):
    """A cache of small JSON objects (what a judge said), handed in; keys as in `FeatureStore`."""

    def get(self, space: str, key: str) -> dict[str, Any] | None: ...

    def put(self, space: str, key: str, value: dict[str, Any]) -> None: ...


class MemoryRecords:
    """A `RecordStore` that lives as long as the object."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, str], dict[str, Any]] = {}

    def get(self, space: str, key: str) -> dict[str, Any] | None:
        return self._data.get((space, key))

    def put(self, space: str, key: str, value: dict[str, Any]) -> None:
        self._data[space, key] = value


class MemoryFeatures:
    """A `FeatureStore` that lives as long as the object."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, str], np.ndarray] = {}

    def get(self, space: str, key: str) -> np.ndarray | None:
        return self._data.get((space, key))

    def put(self, space: str, key: str, value: np.ndarray) -> None:
        import numpy as np  # not for a command line, which needs the words of this package alone

        self._data[space, key] = np.array(value, dtype=np.float32)


#: What a model or an image library raises on input that it cannot digest. Caught around single calls, so that
#: one bad image becomes one unscored sample; a mistake in our own code (TypeError, AttributeError, ...) is
#: not caught.
MODEL_ERRORS = (RuntimeError, ValueError, OSError, IndexError)


#: Entry points of this group give models by name: `nano = "package.module:path"` makes `nano:NAME` the folder
#: that `path(NAME)` returns.
REFERENCES = "nein.references"


def located(reference: str) -> str:
    """The folder of an installed package's model ("nano:clip"); any other reference as it is.

    Raises MetricError for a name that the package does not have.
    """
    scheme, colon, name = reference.partition(":")
    for point in _offered(scheme, tuple(sys.path)) if colon else ():
        try:
            return str(point.load()(name))
        except (ValueError, FileNotFoundError) as error:
            raise MetricError(f"'{reference}' cannot be had: {error}") from None
    return reference


@functools.lru_cache(maxsize=16)
def _offered(scheme: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Looked for once, since every look reads a file of every installed package. path: `sys.path`."""
    return tuple(metadata.entry_points(group=REFERENCES, name=scheme))


class Origin(NamedTuple):
    """Where something comes from that a model is loaded from.

    layout     Which of its files are read: "transformers", "text" (its configuration and tokenizer alone),
               "open_clip", or "open_clip:FILE" for weights of that name, "sentence"; or "torch", a file at an
               address.
    reference  OWNER/NAME of a repository on the hub; of "torch" the address.
    revision   Commit, branch or tag; None is the main branch. Of "torch" how its SHA-256 begins.
    """

    layout: str
    reference: str
    revision: str | None

    @classmethod
    def of(cls, layout: str, path_or_id: str, revision: str | None) -> Origin:
        """Of `owner/name` or `owner/name@revision`."""
        name, _, given = path_or_id.partition("@")
        return cls(layout, name, revision or given or None)


def reason(error: BaseException) -> str:
    """One line for an unscored sample: the kind of error and its first line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of a device. PyTorch's class is known by its name: this
    package is imported without PyTorch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


@overload
def isolated(
    work: Callable[[Sequence[Item]], Iterable[Result]], items: Sequence[Item]
) -> list[Result | str]: ...


@overload
def isolated(
    work: Callable[[Sequence[Item]], Iterable[Result]],
    items: Sequence[Item],
    failed: Callable[[BaseException], Failed],
) -> list[Result | Failed]: ...


def isolated(
    work: Callable[[Sequence[Item]], Iterable[Any]],
    items: Sequence[Item],
    failed: Callable[[BaseException], Any] = reason,
) -> list[Any]:
    """`work(items)`, one result per item; where that raises, one item at a time: only the culprit has
    `failed(error)`, by default a sentence, in place of a result.

    Only `MODEL_ERRORS` are caught. Lack of memory and a model that is not available are about the batch and
    not about an item: they pass through and end the command, which then says what helps.
    """
    if not items:
        return []
    try:
        results = list(work(items))
    except MODEL_ERRORS as error:
        if out_of_memory(error) or isinstance(error, UnavailableError):
            raise
        if len(items) == 1:
            return [failed(error)]
        log.warning("%d items together failed (%s); trying them one by one", len(items), reason(error))
        return [result for item in items for result in isolated(work, [item], failed)]
    if len(results) != len(items):
        raise AssertionError(f"{len(items)} items were given and {len(results)} results came back")
    return results


def check_image(image: Any) -> np.ndarray:
    """Return `image` if it is (H, W, 3) uint8 with H, W >= 1; raise MetricError otherwise."""
    import numpy as np

    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = (
            f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        )
        raise MetricError(f"An image must be a uint8 array of shape (height, width, 3), not {got}.")
    if image.size == 0:
        raise MetricError(f"An image must have at least one pixel, not shape {image.shape}.")
    return image


def choose(what: str, value: str, allowed: Iterable[str]) -> str:
    """Return `value` if it is allowed; else raise MetricError naming the near match and what is allowed."""
    names = list(allowed)
    if value in names:
        return value
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise MetricError(f"Unknown {what} '{value}'.{hint} Allowed: {', '.join(names)}.")
