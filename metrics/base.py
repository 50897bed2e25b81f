"""Shared by all metrics and judges: Score, Store, fingerprints, checks of images, parsing of yes and no."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from nein.loading.digests import Json, json_digest
from nein.loading.errors import UserError

if TYPE_CHECKING:
    import numpy as np

#: Images, each (H, W, 3) uint8 RGB, and a list of strings per image.
Images = Sequence["np.ndarray"]
Texts = Sequence[Sequence[str]]

#: Error the user can correct; the message is one sentence.
MetricError = UserError


@dataclass(frozen=True)
class Score:
    """One metric of one sample.

    value     In the metric's unit, never scaled by 100; None: *unscored*.
    reason    Why it is unscored (then always set), or an explanation of the value.
    detail    JSON-serializable evidence: raw answer, confidence, threshold, labels.
    features  For a corpus metric: rows of edited image and target, (D,) float32 each.
    again     Unscored because an endpoint did not answer; worth a retry.
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


class Store(Protocol):
    """Cache of features, or of JSON objects such as a judge's replies. The caller provides it; a key must
    name everything that changes the value."""

    def get(self, space: str, key: str) -> Any: ...

    def put(self, space: str, key: str, value: Any) -> None: ...


@dataclass
class MemoryStore:
    """A `Store` that lives as long as the object."""

    _data: dict[tuple[str, str], Any] = field(default_factory=dict)

    def get(self, space: str, key: str) -> Any:
        return self._data.get((space, key))

    def put(self, space: str, key: str, value: Any) -> None:
        self._data[space, key] = value


def fingerprint(description: dict[str, Any]) -> str:
    """20 hexadecimal digits over `description`, except path, device and batch size, which change results by
    rounding at most, and except parameters that an endpoint has refused."""
    ignored = ("reference", "device", "batch_size", "adapted")
    return json_digest({key: value for key, value in description.items() if key not in ignored})[:20]


class Described:
    """Base of models. `describe()` is JSON-serializable and holds all that decides a result."""

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.describe())

    def describe(self) -> Json:
        raise NotImplementedError


def check_image(image: Any) -> np.ndarray:
    """Returns the image. Raises MetricError unless it is (H, W, 3) uint8 with H, W >= 1."""
    import numpy as np

    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        array = isinstance(image, np.ndarray)
        actual = f"{image.dtype} of shape {image.shape}" if array else type(image).__name__
        raise MetricError(f"An image must be a uint8 array of shape (height, width, 3), not {actual}.")
    if image.size == 0:
        raise MetricError(f"An image must have at least one pixel, not shape {image.shape}.")
    return image


def check_finite(*numbers: float | None) -> None:
    """Raises ValueError for a number that is not finite: NaN would count as below every threshold."""
    if any(number is not None and not math.isfinite(number) for number in numbers):
        raise ValueError("the model gave a number that is not finite")


def check_images(images: Sequence[Any], lists: Sequence[Any], kind: str) -> None:
    if len(images) != len(lists):
        raise MetricError(f"{len(images)} images but {len(lists)} lists of {kind} were given.")
    for image in images:
        check_image(image)


_TAG = r"(?:think|thinking|thought|analysis)>"
#: Opening tag of thoughts at the start of a reply, and a closing tag anywhere.
THOUGHTS, THOUGHTS_END = (re.compile(start + _TAG, re.IGNORECASE) for start in (r"\s*<", "</"))


def strip_thoughts(text: str) -> str | None:
    """Text after the last closing tag of thoughts; None if thoughts are opened but never closed."""
    answer = THOUGHTS_END.split(text)[-1]
    return None if THOUGHTS.match(answer) else answer


def split_chunks(items: Any, size: int) -> list[Any]:
    """Consecutive slices of at most `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def group_by(items: Sequence[Any], key: Callable[[Any], Any], size: int) -> Iterator[list[Any]]:
    """Lists of at most `size` items with equal key."""
    by_key: dict[Any, list[Any]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return (part for group in by_key.values() for part in split_chunks(group, size))


def paper_says_removed(answer: str) -> bool:
    """Exactly "No", not "no" or "No.", as NeIn's removal_eval.py reads it (github.com/tanbuinhat/NeIn)."""
    return answer.strip() == "No"


def paper_says_present(answer: str) -> bool:
    """ "yes" in any case, not "Yes.", as NeIn's check_obj.py and retention_eval.py read it."""
    return answer.strip().lower() == "yes"


_PUNCTUATION = string.punctuation + string.whitespace + "“”‘’…"


def parse_yes_no(answer: str) -> bool | None:
    """Read the first word after any thoughts: "No, there is no car." -> False; "Nothing", "" -> None."""
    words = (strip_thoughts(answer) or "").split()
    first = words[0].strip(_PUNCTUATION).lower() if words else ""
    return {"yes": True, "no": False}.get(first)
