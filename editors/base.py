"""The one contract of this package: a batch of edit requests in, one result per request out, in order.

An image is always a NumPy array of shape (H, W, 3), dtype uint8, RGB. Nothing here reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class EditRequest:
    """One edit to make.

    id           Identifies the sample; comes back unchanged in the result.
    image        (H, W, 3) uint8 RGB, the picture to edit. Never modified.
    instruction  Given to the model verbatim.
    seed         0 <= seed < 2**63. Belongs to the sample: the same seed, image, instruction and editor give
                 the same result whatever else is in the batch.
    """

    id: str
    image: np.ndarray
    instruction: str
    seed: int


@dataclass(frozen=True)
class EditResult:
    """What came of one request: `image` (H', W', 3) uint8 RGB, or None and a one-sentence `error`."""

    id: str
    image: np.ndarray | None
    error: str | None = None


class EditorError(ValueError):
    """A mistake the user can mend (unknown editor, unusable checkpoint); the message is one clear sentence."""


class Editor(Protocol):
    """Anything that edits.

    `describe()` returns a JSON-serialisable dictionary with everything that decides the result: class,
    checkpoint and revision, steps, guidance scales, resize rule, effective scheduler configuration, dtype.
    """

    name: str

    def describe(self) -> dict[str, Any]: ...

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]: ...
