"""Questions to a model behind an endpoint, several at a time: nothing twice, and never for ever."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from nein.engine.images import pixel_hash
from nein.loading.digests import json_digest
from nein.loading.errors import UnavailableError
from nein.loading.service import NoAnswer, parallel_map
from nein.metrics.base import Store, check_images
from nein.metrics.choices import ChoiceModel, ChoiceQuestion, Reply, answer_each
from nein.metrics.judges.base import Answer

Item = TypeVar("Item")
Result = TypeVar("Result")


class SilentError(UnavailableError):
    """Nobody answers: what isolates a failing question lets this through."""


class Questions:
    """All questions to one model; threads may share it.

    cache    Where answers are kept before `answer` returns, or None. Failures are not kept.
    space    Their address: everything about the model that decides an answer.
    at_once  Questions in flight side by side, over all calls; 0: one, in the thread of the caller.
    limit    So many questions in a row without an answer, and `stop`, end the work: every call raises.
    """

    def __init__(self, cache: Store | None, space: str, *, at_once: int, limit: int) -> None:
        self._cache, self._space = cache, space
        self._at_once, self._limit = at_once, limit
        self._mutex = threading.Lock()
        self._room = threading.BoundedSemaphore(max(1, at_once))
        self._silent = 0
        self._asking: dict[str, tuple[threading.Lock, int]] = {}  # by question, and how many ask it
        self._end: BaseException | None = None

    def answer(self, key: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept answer to the question `key`, or what `ask` returns, a JSON object, which is kept.
        Raises NoAnswer where `ask` does, SilentError once nobody answers, CancelledError after `stop`."""
        if (kept := self._recall(key)) is not None:
            return kept
        with self._seat(), self._only(key):
            if (kept := self._recall(key)) is not None:
                return kept  # answered while this one waited for its turn
            return self._asked(key, ask)

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """(item, work(item)) as they come, `at_once` side by side, or one after the other for 0."""
        if not self._at_once:
            return ((item, work(item)) for item in items)
        return parallel_map(work, items, self._at_once, self._go_on)

    def stop(self) -> None:
        """Ends all calls, for the program ends."""
        self._end = self._end or concurrent.futures.CancelledError("the questions were stopped")

    def _recall(self, key: str) -> dict[str, Any] | None:
        return self._cache.get(self._space, key) if self._cache is not None else None

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

    @contextlib.contextmanager
    def _only(self, key: str) -> Iterator[None]:
        """Whoever else asks the same question waits until the answer is kept."""
        with self._mutex:
            lock, waiting = self._asking.get(key, (threading.Lock(), 0))
            self._asking[key] = lock, waiting + 1
        try:
            with lock:
                yield
        finally:
            with self._mutex:
                lock, waiting = self._asking.pop(key)
                if waiting > 1:
                    self._asking[key] = lock, waiting - 1

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


class _Cached:
    """A model asked one by one, `concurrent` at a time; an answer's address has its name and not the URL."""

    def __init__(self, model: Any, cache: Store, space: str) -> None:
        self.model, self.concurrent, self.fingerprint = model, model.concurrent, space
        limit = 2 * model.concurrent + 4
        self._questions = Questions(cache, space, at_once=model.concurrent, limit=limit)
        self.describe, self.each = model.describe, self._questions.each

    def usage(self) -> dict[str, Any]:
        return getattr(self.model, "usage", dict)()

    def stop(self) -> None:
        if self.concurrent:
            self._questions.stop()
            self.model.stop()

    def _all(
        self, images: Sequence[np.ndarray], rows: Sequence[Sequence[Item]],
        words: Callable[[Item], Sequence[Any]], ask: Callable[[np.ndarray, Item], dict[str, Any]],
    ) -> list[list[dict[str, Any] | NoAnswer]]:  # fmt: skip
        """Per picture and question the kept answer, or that of `ask`; `words` decide it with the picture."""
        keys: list[list[str]] = []
        for image, row in zip(images, rows, strict=True):
            picture = pixel_hash(image) if row else ""
            keys.append([json.dumps([picture, *words(item)]) for item in row])
        longest = max(map(len, rows), default=0)  # the first questions of all pictures go first
        places = ((i, k) for k in range(longest) for i, row in enumerate(rows) if k < len(row))
        calls = {keys[i][k]: functools.partial(ask, images[i], rows[i][k]) for i, k in places}

        def work(key: str) -> dict[str, Any] | NoAnswer:
            try:
                return self._questions.answer(key, calls[key])
            except NoAnswer as error:
                return error

        replies = dict(self.each(work, list(calls)))
        return [[replies[key] for key in row] for row in keys]


class CachedModel(_Cached):
    """A `metrics.choices.ChoiceModel` around another one: a question that fails has a reply with the error.

    A local model's questions (`concurrent` 0) go to it in the batches they come in and are not kept one by
    one: the last bits of an answer depend on the batch.
    """

    def __init__(self, model: ChoiceModel, cache: Store) -> None:
        super().__init__(model, cache, model.fingerprint)
        self.scorings = model.scorings

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[ChoiceQuestion]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """See `metrics.choices.ChoiceModel`. Raises UserError when the endpoint is silent."""
        if not self.concurrent:
            return answer_each(self.model, images, asked, scorings)
        check_images(images, asked, "questions")
        ways = sorted(scorings)
        replies = self._all(
            images, asked,
            lambda a: (a.prompt.before, a.prompt.after, a.options, a.question, a.texts, ways),
            lambda image, question: self._ask(image, question, scorings),
        )  # fmt: skip
        return [[_reply(kept) for kept in row] for row in replies]

    def _ask(self, image: np.ndarray, one: ChoiceQuestion, scorings: Sequence[str]) -> dict[str, Any]:
        [[reply]] = answer_each(self.model, [image], [[one]], scorings)
        if reply.error:
            raise NoAnswer(reply.error, silent=reply.silent)
        return {"text": reply.text, "logprobs": reply.logprobs, "each": reply.each, "version": reply.version}


def _reply(kept: dict[str, Any] | NoAnswer) -> Reply:
    if isinstance(kept, NoAnswer):
        return Reply(error=str(kept), silent=kept.silent)
    logprobs, each = (None if kept[name] is None else tuple(kept[name]) for name in ("logprobs", "each"))
    return Reply(kept["text"], logprobs, each, version=kept.get("version", ""))


class CachedJudge(_Cached):
    """A VQA judge behind an endpoint; NoAnswer is raised for a whole call, whose other answers are kept."""

    def __init__(self, judge: Any, cache: Store) -> None:
        super().__init__(judge, cache, judge.fingerprint)
        self.template = judge.template

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """See `metrics.judges.base`. Raises NoAnswer, and UserError when the endpoint is silent."""
        replies = self._all(
            images, questions,
            lambda question: (question,),
            lambda image, question: asdict(self.model.ask([image], [[question]])[0][0]),
        )  # fmt: skip
        for answer in (answer for row in replies for answer in row):
            if isinstance(answer, NoAnswer):
                raise answer
        return [[Answer(**kept) for kept in row] for row in replies]  # type: ignore[arg-type]


class CachedSpeaker(_Cached):
    """A `metrics.rewards.editscore.ServedSpeaker`."""

    def __init__(self, speaker: Any, cache: Store) -> None:
        # As everywhere, where the server is does not count.
        facts = {key: value for key, value in speaker.describe().items() if key != "reference"}
        super().__init__(speaker, cache, json_digest(facts))

    def say(self, pictures: Sequence[np.ndarray], text: str, seed: int, temperature: float) -> str:
        """See `metrics.rewards.editscore`. Raises NoAnswer, and UserError for a silent endpoint."""
        key = json.dumps([[pixel_hash(picture) for picture in pictures], text, seed, temperature])
        ask = lambda: {"text": self.model.say(pictures, text, seed, temperature)}  # noqa: E731
        return str(self._questions.answer(key, ask)["text"])
