"""What the fixture `peak` gives."""

from collections.abc import Callable

#: A call -> the bytes that it holds at most.
Peak = Callable[[Callable[[], object]], int]
