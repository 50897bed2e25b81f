"""Editors that work elsewhere: requests side by side, every result as it comes."""

from __future__ import annotations

from collections.abc import Sequence

from nein.editors.base import Editor, EditRequest, EditResult, check_count
from nein.loading.errors import UnavailableError
from nein.loading.service import Pace, parallel_map

PATIENCE = 8  # requests that fail, one after the other, until nothing more is sent


class RemoteEditor(Editor):
    """Sends `concurrency` requests at a time; a subclass edits one, at the `pace` that all threads share.

    paid    Every image costs something: it is asked sample by sample.
    seeded  Whether the sample's seed decides the picture.
    """

    paid = True
    seeded = True

    def __init__(self, name: str, concurrency: int, pace: Pace | None = None) -> None:
        check_count("concurrency", concurrency)
        self.name, self.concurrency = name, concurrency
        self.pace = pace or Pace(concurrency)
        self._failed: int | None = 0  # so many failed since the start; None: one was answered

    def edit_one(self, request: EditRequest) -> EditResult:
        raise NotImplementedError

    def hopeless(self, result: EditResult) -> bool:
        """Whether other requests can be expected to fare alike."""
        return result.transient

    def stop(self) -> None:
        self.pace.stop()

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        """Raises UnavailableError where no more can be sent, or where of several requests, or of `PATIENCE`,
        none has succeeded; CancelledError after `stop`."""
        numbers = range(len(requests))
        by_number = parallel_map(
            lambda number: self.edit_one(requests[number]), numbers, self.concurrency, self.pace.go_on
        )
        results = [result for _, result in sorted(by_number, key=lambda pair: pair[0])]
        failed = [result for result in results if self.hopeless(result)]
        if len(failed) < len(results):
            self._failed = None
        elif self._failed is not None and failed:
            self._failed += len(failed)
            if len(requests) > 1 or self._failed >= PATIENCE:
                why = f"Editor '{self.name}' has made no picture so far: {failed[-1].error}."
                raise UnavailableError(why) from failed[-1].cause
        return results
