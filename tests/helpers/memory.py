"""What the fixture `peak` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: A call -> the bytes that it holds at most.
Peak: TypeAlias = Callable[[Callable[[], object]], int]
