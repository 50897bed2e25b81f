"""What everything in this package shares: a score, the stores handed in, checks, and yes or no."""

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

#: Pictures, (H, W, 3) uint8 each, and a list of strings per picture.
Images = Sequence["np.ndarray"]
Texts = Sequence[Sequence[str]]

#: A mistake the user can correct; the message is one clear sentence.
MetricError = UserError


@dataclass(frozen=True)
class Score:
    """One metric of one sample.

    value     In the unit of the metric, never scaled by 100; None: *unscored*.
    reason    Why it is unscored (always set then), or a sentence that explains the verdict.
    detail    JSON-serialisable evidence: raw answer, confidence, threshold, labels.
    features  Of a corpus metric: rows of the edited picture and of its target, (D,) float32 each.
    again     Unscored because an endpoint gave no answer: another time it may.
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
    """A cache of features, or of small JSON objects (what a judge said), handed in; a key names everything
    that changes the value."""

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
    """20 hexadecimal digits over `description` without path, device and batch size, which change no result
    beyond rounding, and without what an endpoint is found to refuse."""
    left_out = ("reference", "device", "batch_size", "adapted")
    decides = {key: value for key, value in description.items() if key not in left_out}
    return json_digest(decides)[:20]


class Described:
    """A model; its `describe()`, JSON-serialisable, holds all that decides a result."""

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.describe())

    def describe(self) -> Json:
        raise NotImplementedError


def check_image(image: Any) -> np.ndarray:
    """(H, W, 3) uint8 with H, W >= 1; raises MetricError otherwise."""
    import numpy as np

    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        array = isinstance(image, np.ndarray)
        got = f"{image.dtype} of shape {image.shape}" if array else type(image).__name__
        raise MetricError(f"An image must be a uint8 array of shape (height, width, 3), not {got}.")
    if image.size == 0:
        raise MetricError(f"An image must have at least one pixel, not shape {image.shape}.")
    return image


def check_finite(*numbers: float | None) -> None:
    """Raises ValueError for a number that is not finite: NaN is above no threshold."""
    if any(number is not None and not math.isfinite(number) for number in numbers):
        raise ValueError("the model gave a number that is not finite")


def check_images(images: Sequence[Any], lists: Sequence[Any], what: str) -> None:
    if len(images) != len(lists):
        raise MetricError(f"{len(images)} pictures but {len(lists)} lists of {what} were given.")
    for image in images:
        check_image(image)


_TAG = r"(?:think|thinking|thought|analysis)>"
#: A tag that begins a reply with thoughts, and one that ends them.
THOUGHTS, THOUGHTS_END = (re.compile(start + _TAG, re.IGNORECASE) for start in (r"\s*<", "</"))


def without_thoughts(text: str) -> str | None:
    """The answer behind thoughts in tags, of which the first may lack; None where the text ends in them."""
    answer = THOUGHTS_END.split(text)[-1]
    return None if THOUGHTS.match(answer) else answer


_IGNORED = string.punctuation + string.whitespace + "“”‘’…"


def chunks(items: Any, size: int) -> list[Any]:
    """The items, at most `size` at a time."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def alike(items: Sequence[Any], key: Callable[[Any], Any], size: int) -> Iterator[list[Any]]:
    """Items of equal key, at most `size` at a time."""
    by_key: dict[Any, list[Any]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return (part for group in by_key.values() for part in chunks(group, size))


def paper_removed(answer: str) -> bool:
    """NeIn's removal_eval.py (github.com/tanbuinhat/NeIn): "No" to the letter, not "no" or "No."."""
    return answer.strip() == "No"


def paper_present(answer: str) -> bool:
    """NeIn's check_obj.py and retention_eval.py: "yes" in any case ("Yes." is not)."""
    return answer.strip().lower() == "yes"


def parse_yes_no(answer: str) -> bool | None:
    """By the first word behind any thoughts: "No, there is no car." -> False; "Nothing", "" -> None."""
    words = (without_thoughts(answer) or "").split()
    first = words[0].strip(_IGNORED).lower() if words else ""
    return {"yes": True, "no": False}.get(first)
