"""Editors that work elsewhere: requests side by side, every result as it comes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError

from nein.editors.base import Editor, EditRequest, EditResult, check_count
from nein.loading.errors import UnavailableError
from nein.loading.service import Pace, parallel_map

PATIENCE = 8  # requests that fail, one after the other, until nothing more is sent


class RemoteEditor(Editor):
    """Sends `concurrency` requests at a time, over all threads that share it; a subclass edits one.

    paid    Every image costs something: it is asked sample by sample.
    seeded  Whether the sample's seed decides the picture.
    """

    paid = True
    seeded = True

    def __init__(self, name: str, concurrency: int, pace: Pace | None = None) -> None:
        check_count("concurrency", concurrency)
        self.name, self.concurrency = name, concurrency
        self.pace = pace or Pace()
        self._seats = threading.BoundedSemaphore(concurrency)
        self._works = False  # a request was answered, be it with a refusal
        self._failed = 0

    def edit_one(self, request: EditRequest) -> EditResult:
        raise NotImplementedError

    def hopeless(self, result: EditResult) -> bool:
        """Whether other requests can be expected to fare alike."""
        return result.transient

    def stop(self) -> None:
        self.pace.stop()

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        """Once the requests on their way have come back, raises UnavailableError where no more can be sent,
        or where of several requests, or of `PATIENCE`, none has succeeded; CancelledError after `stop`."""
        ended: list[BaseException] = []

        def work(index: int) -> EditResult | None:
            with self._seats:
                try:
                    self.pace.go_on()
                    return None if ended else self.edit_one(requests[index])
                except (CancelledError, UnavailableError) as error:
                    ended.append(error)
            return None

        results = dict(parallel_map(work, range(len(requests)), self.concurrency, lambda: None))
        made = [result for index in range(len(requests)) if (result := results[index]) is not None]
        failed = [str(result.error) for result in made if self.hopeless(result)]
        self._works |= len(failed) < len(made)
        self._failed += len(failed)
        if ended:
            raise ended[0]
        if failed and not self._works and (len(requests) > 1 or self._failed >= PATIENCE):
            raise UnavailableError(f"Editor '{self.name}' has made no picture so far: {failed[-1]}.")
        return made
