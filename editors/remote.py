"""Editors that work elsewhere: requests side by side, every result as it comes."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Iterator, Sequence

from nein.editors.base import Editor, EditRequest, EditResult, check_count
from nein.loading.errors import UnavailableError
from nein.loading.service import side_by_side


class RemoteEditor(Editor):
    """Sends `concurrency` requests at a time, over all threads that share it; a subclass edits one.

    paid    Every picture costs something: nothing is asked for because its neighbours are.
    seeded  Whether the sample's seed decides the picture.
    """

    paid = True
    seeded = True

    def __init__(self, name: str, concurrency: int) -> None:
        check_count("concurrency", concurrency)
        self.name, self.concurrency = name, concurrency
        self._seats = threading.BoundedSemaphore(concurrency)
        self._stopped = threading.Event()
        self._works = False  # a request was answered, be it with a refusal

    def edit_one(self, request: EditRequest) -> EditResult:
        raise NotImplementedError

    def hopeless(self, result: EditResult) -> bool:
        """Whether other requests can be expected to fare alike."""
        return result.transient

    def stop(self) -> None:
        """From now on no request is sent."""
        self._stopped.set()

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        made = dict(self.as_made(requests))
        return [made[index] for index in range(len(requests))]

    def as_made(self, requests: Sequence[EditRequest]) -> Iterator[tuple[int, EditResult]]:
        """(place among the requests, result) as they come. Raises UnavailableError, a sentence, where nothing
        has succeeded so far."""

        def work(index: int) -> EditResult:
            with self._seats:
                self._go_on()
                return self.edit_one(requests[index])

        failed = ""
        for index, result in side_by_side(work, range(len(requests)), self.concurrency, self._go_on):
            if self.hopeless(result):
                failed = str(result.error)
            else:
                self._works = True
            yield index, result
        if failed and not self._works:
            raise UnavailableError(f"No request to editor '{self.name}' succeeded: {failed}.")

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise concurrent.futures.CancelledError("the editor was stopped")
