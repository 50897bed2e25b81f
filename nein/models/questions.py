"""Questions to a model that answers them one by one, several at a time: nothing twice, and never for ever."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from nein.loading.errors import UnavailableError
from nein.metrics.base import RecordStore
from nein.metrics.served.endpoint import NoAnswer, side_by_side

CLAIMED = 0.2  # seconds between two looks at a question that another command asks
Item = TypeVar("Item")
Result = TypeVar("Result")


class SilentError(UnavailableError):
    """Nobody answers; what isolates a failing question lets that through."""


class Questions:
    """What is kept, counted and ended for all questions to one model; threads may share it.

    cache    Where answers are kept, or None; an answer is there before `answer` returns.
    space    Their address: everything about the model that decides an answer.
    at_once  Questions in flight side by side, over all calls; 0: one, in the thread of the caller.
    limit    So many questions in a row, over all calls, without an answer end the work.

    After that, and after `stop`, nothing is asked any more: every call that is still waiting, and every later
    one, raises at once.
    """

    def __init__(self, cache: RecordStore | None, space: str, *, at_once: int, limit: int) -> None:
        self._cache, self._space = cache, space
        self._at_once, self._limit = at_once, limit
        self._mutex = threading.Lock()
        self._change, self._in_flight = threading.Condition(), set[str]()
        self._room = threading.BoundedSemaphore(max(1, at_once))
        self._silent = 0
        self._end: BaseException | None = None

    def answer(self, key: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept answer to the question `key`, or what `ask` returns, a JSON object, which is kept.

        Raises NoAnswer where `ask` does, SilentError once nobody answers, and CancelledError after `stop`.
        """
        if (remembered := self._recall(key)) is not None:
            return remembered
        with self._alone(key), self._seat():
            while True:
                with self._claimed(key) as mine:
                    if (remembered := self._recall(key)) is not None:
                        return remembered  # answered while this one waited for its turn
                    if mine:
                        return self._asked(key, ask)
                time.sleep(CLAIMED)  # another command asks it
                self._go_on()

    def _asked(self, key: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            value = ask()
        except NoAnswer as error:
            self._count(error)
            raise
        self._count(None)
        if self._cache is not None:  # at a kill, no more is lost than was on its way
            self._cache.put(self._space, key, value)
        return value

    def _claimed(self, key: str) -> contextlib.AbstractContextManager[bool]:
        claimed = getattr(self._cache, "claimed", None)
        return claimed(self._space, key) if claimed is not None else contextlib.nullcontext(True)

    def _recall(self, key: str) -> dict[str, Any] | None:
        return self._cache.get(self._space, key) if self._cache is not None else None

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """(item, work(item)) as they come, on threads of their own (`side_by_side`), or
        one after the other where `at_once` is 0."""
        if not self._at_once:
            return ((item, work(item)) for item in items)
        return side_by_side(work, items, self._at_once, self._go_on)

    def stop(self) -> None:
        """Ends all calls, for the program ends."""
        self._end = self._end or concurrent.futures.CancelledError("the questions were stopped")

    @contextlib.contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Nobody else here asks `key` meanwhile: of equal questions the first is asked, the others find its
        answer."""
        with self._change:
            while key in self._in_flight:
                self._change.wait(0.2)
                self._go_on()
            self._in_flight.add(key)
        try:
            yield
        finally:
            with self._change:
                self._in_flight.remove(key)
                self._change.notify_all()

    @contextlib.contextmanager
    def _seat(self) -> Iterator[None]:
        """One of the places for questions in flight, unless all is over meanwhile."""
        while not self._room.acquire(timeout=0.2):
            self._go_on()
        try:
            self._go_on()
            yield
        finally:
            self._room.release()

    def _go_on(self) -> None:
        if self._end is not None:
            raise self._end

    def _count(self, failure: NoAnswer | None) -> None:
        with self._mutex:
            self._silent = self._silent + 1 if failure is not None and failure.silent else 0
            if self._silent < self._limit:
                return
            self._end = self._end or SilentError(
                f"The model left {self._silent} questions in a row without an answer ({failure}); see that "
                "it runs, then give the same command again to go on: answers so far are kept."
            )
        self._go_on()
