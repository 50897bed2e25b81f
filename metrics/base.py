"""Defines what all metrics and judges share: the `Score` of a metric, the `Store` that caches, fingerprints
of models (`Described`), checks of images, and splitting into batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from nein.loading.digests import Json, json_digest
from nein.loading.errors import UserError

if TYPE_CHECKING:
    import numpy as np

Images = Sequence["np.ndarray"]  # each (H, W, 3) uint8 RGB
Texts = Sequence[Sequence[str]]  # a list of strings per image
MetricError = UserError  # the user can correct the cause; the message is one sentence


@dataclass(frozen=True)
class Score:
    """Value of one metric for one sample."""

    value: float | None  # in the metric's unit, never scaled by 100; None: *unscored*
    reason: str = ""  # why it is unscored (then always set), or an explanation of the value ("": none)
    detail: Mapping[str, Any] = field(default_factory=dict)  # evidence as JSON: answer, threshold, labels
    features: tuple[np.ndarray, np.ndarray] | None = None  # FID: of edited image and target, (D,) each
    again: bool = False  # whether a retry may score it, since an endpoint did not answer

    def __post_init__(self) -> None:
        if self.value is None and not self.reason and self.features is None:
            raise AssertionError("an unscored value needs a reason")
        if self.value is not None and not math.isfinite(self.value):
            raise AssertionError(f"a score must be finite or None, not {self.value}")


# --- caches --------------------------------------------------------------------------------
class Store(Protocol):
    """Cache of features, or of JSON objects such as a judge's replies, that the caller provides. `space` (a
    model's fingerprint) and `key` together stand for all that changes the value."""

    def get(self, space: str, key: str) -> Any: ...  # None if missing

    def put(self, space: str, key: str, value: Any) -> None: ...


@dataclass
class MemoryStore:
    """A `Store` in memory."""

    _data: dict[tuple[str, str], Any] = field(default_factory=dict)

    def get(self, space: str, key: str) -> Any:
        return self._data.get((space, key))

    def put(self, space: str, key: str, value: Any) -> None:
        self._data[space, key] = value


# --- models --------------------------------------------------------------------------------
def fingerprint(description: dict[str, Any]) -> str:
    """Digest a `describe()` to 20 hexadecimal digits. Ignores path, device and batch size, which change
    results by rounding at most, and the parameters that an endpoint has refused ("adapted")."""
    ignored = ("reference", "device", "batch_size", "adapted")
    return json_digest({key: value for key, value in description.items() if key not in ignored})[:20]


class Described:
    """Base of models. `describe()` is JSON-serializable and names all that decides a result."""

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.describe())  # the function above

    def describe(self) -> Json:
        raise NotImplementedError


# --- checks --------------------------------------------------------------------------------
def check_image(image: Any) -> np.ndarray:
    """Return the image. Raises MetricError unless it is (H, W, 3) uint8 with H, W >= 1."""
    import numpy as np

    is_array = isinstance(image, np.ndarray)
    if not is_array or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        actual = f"{image.dtype} of shape {image.shape}" if is_array else type(image).__name__
        raise MetricError(f"An image must be a uint8 array of shape (height, width, 3), not {actual}.")
    if image.size == 0:
        raise MetricError(f"An image must have at least one pixel, not shape {image.shape}.")
    return image


def check_finite(*numbers: float | None) -> None:
    """Raise ValueError for NaN and infinities: NaN would count as below every threshold. None is allowed."""
    if any(number is not None and not math.isfinite(number) for number in numbers):
        raise ValueError("the model gave a number that is not finite")


def check_images(images: Sequence[Any], lists: Sequence[Any], kind: str) -> None:
    """Raise MetricError unless the images are valid and as many as `lists` (kind: plural noun for them)."""
    if len(images) != len(lists):
        raise MetricError(f"{len(images)} images but {len(lists)} lists of {kind} were given.")
    for image in images:
        check_image(image)


# --- batches -------------------------------------------------------------------------------
def split_chunks(items: Any, size: int) -> list[Any]:
    """Split into consecutive slices of at most `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def group_by(items: Sequence[Any], key: Callable[[Any], Any], size: int) -> Iterator[list[Any]]:
    """Yield batches of at most `size` items with equal key."""
    by_key: dict[Any, list[Any]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    for group in by_key.values():
        yield from split_chunks(group, size)
