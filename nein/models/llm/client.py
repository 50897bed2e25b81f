"""Many questions, one call: every result is a checked object or a counted failure, and no answer is lost."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol

from metrics.sender import CONNECTION, PROTOCOL, REFUSED, SERVER, TIMEOUT, WITHHELD
from nein.engine.errors import UserError
from nein.engine.seeds import sample_seed
from nein.models.llm.cache import Answers
from nein.models.llm.parsing import (
    CUT_OFF,
    NONSENSE,
    WRONG_SCHEMA,
    AnswerError,
    Schema,
    instructions,
    parse,
)

MODEL_FAILED = "model failed"
#: Nobody to answer: after HOPELESS such failures, one after the other, the rest is not tried.
SILENT = (TIMEOUT, CONNECTION, SERVER, REFUSED, PROTOCOL, MODEL_FAILED)
HOPELESS = 20
#: Every kind of failure. The first three are answers that cannot be used.
FAILURES = (NONSENSE, WRONG_SCHEMA, CUT_OFF, WITHHELD, *SILENT)


@dataclass(frozen=True)
class Request:
    """A prompt, and the seed of its answer where the temperature is above 0 (take `nein.engine.seeds`)."""

    prompt: str
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """The text of an answer; finished: the model ended it itself, not the limit of tokens."""

    text: str
    finished: bool = True


@dataclass(frozen=True)
class Outcome(Generic[Schema]):
    """What became of a request: `value`, or else `failure` (of FAILURES) with its `reason`.

    text  The answer as it came, of the last attempt; None where none came.
    """

    value: Schema | None
    failure: str = ""
    reason: str = ""
    text: str | None = None


class Backend(Protocol):
    """A model. `answer` raises `BackendError` (a kind of FAILURES) where there is no answer.

    identity     What decides an answer besides prompt, temperature and seed; part of every cache key.
    concurrency  Calls of `answer` that may run at once, in threads.
    """

    @property
    def identity(self) -> Mapping[str, Any]: ...

    @property
    def concurrency(self) -> int: ...

    def answer(
        self, prompt: str, *, schema: type[Any], temperature: float, max_tokens: int, seed: int
    ) -> Answer: ...


class BackendError(RuntimeError):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Client:
    """Asks a backend and remembers its answers.

    cache        Folder of the answers, or None. An answer is on disk before `complete` goes on; the same
                 command after a kill asks only what has none. Failures to answer (a timeout, a refusal) are
                 not kept and are asked again; unusable answers are kept, being the model's answers.
    temperature  0 for the likeliest answer; above, the seed of the request decides.
    max_tokens   Length of an answer.
    attempts     How often a request is asked, with further seeds, until an answer can be used. More than one
                 needs a temperature above 0: the same question would get the same answer.

    `counts` adds up over all calls: "ok" and every kind of failure, once per request.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        cache: Path | None = None,
        temperature: float = 0.0,
        max_tokens: int = 512,
        attempts: int = 1,
    ) -> None:
        if temperature < 0 or max_tokens < 1 or attempts < 1:
            raise UserError(
                f"temperature {temperature}, max_tokens {max_tokens} and attempts {attempts} of a language "
                "model must be at least 0, 1 and 1."
            )
        if attempts > 1 and temperature == 0:
            raise UserError(
                f"{attempts} attempts at temperature 0 would give one answer {attempts} times; "
                "raise the temperature or take 1 attempt."
            )
        self.backend = backend
        self.temperature, self.max_tokens, self.attempts = temperature, max_tokens, attempts
        self.counts: Counter[str] = Counter()
        self._answers = Answers(cache) if cache is not None else None
        self._room = threading.BoundedSemaphore(max(1, backend.concurrency))
        self._silent = 0  # requests without an answer since the last one with, over all calls
        self._mutex = threading.Lock()

    def complete(
        self, requests: Sequence[Request], schema: type[Schema], *, progress: str = ""
    ) -> list[Outcome[Schema]]:
        """An outcome per request, in order; equal requests are asked once.

        progress  Title of a progress bar on standard error; none if empty.

        Raises UserError when so many requests in a row, over all calls, get no answer at all (HOPELESS) that
        the rest would not either; answers so far are kept. Threads may call it side by side: the backend sees
        `concurrency` questions at a time all the same.
        """
        unique = list(dict.fromkeys(requests))
        found: dict[Request, Outcome[Schema]] = {}
        with _bar(len(unique), progress) as bar:
            for request, outcome in self._each(unique, schema):
                found[request] = outcome
                bar.update()
                with self._mutex:
                    self._silent = silent = self._silent + 1 if outcome.failure in SILENT else 0
                    self._silent %= HOPELESS
                if silent >= HOPELESS:
                    raise UserError(
                        f"The language model gave no answer to {silent} requests in a row "
                        f"({outcome.failure}: {outcome.reason}); mend that and run the same command again, "
                        "answers so far are kept."
                    )
        with self._mutex:
            self.counts.update(found[request].failure or "ok" for request in requests)
        return [found[request] for request in requests]

    def describe(self) -> dict[str, Any]:
        """Everything that decides an outcome but the requests, JSON-serialisable."""
        return {
            **self.backend.identity,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "attempts": self.attempts,
        }

    def close(self) -> None:
        if self._answers is not None:
            self._answers.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _each(
        self, requests: Sequence[Request], schema: type[Schema]
    ) -> Iterator[tuple[Request, Outcome[Schema]]]:
        """(request, outcome) as they come."""
        if self.backend.concurrency == 1:
            for request in requests:
                yield request, self._one(request, schema)
            return
        # Daemon threads, not a pool: whoever interrupts the program need not wait for open requests.
        waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[Request, Outcome[Schema] | BaseException]] = queue.SimpleQueue()
        stop = threading.Event()
        for request in requests:
            waiting.put(request)

        def work() -> None:
            while not stop.is_set():
                try:
                    request = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((request, self._one(request, schema)))
                except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                    done.put((request, error))
                    return

        for _ in range(min(self.backend.concurrency, len(requests))):
            threading.Thread(target=work, daemon=True, name="llm").start()
        try:
            for _ in requests:
                request, outcome = done.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield request, outcome
        finally:
            stop.set()

    def _one(self, request: Request, schema: type[Schema]) -> Outcome[Schema]:
        outcome: Outcome[Schema] = Outcome(None, NONSENSE, "not asked")
        for attempt in range(self.attempts):
            seed = request.seed if attempt == 0 else sample_seed(request.seed, "attempt", attempt)
            try:
                answer = self._ask(f"{request.prompt}\n\n{instructions(schema)}", schema, seed)
            except BackendError as error:
                return Outcome(None, error.kind, str(error))
            try:
                return Outcome(parse(answer.text, schema, finished=answer.finished), text=answer.text)
            except AnswerError as error:
                outcome = Outcome(None, error.kind, str(error), answer.text)
        return outcome

    def _ask(self, prompt: str, schema: type[Schema], seed: int) -> Answer:
        facts = {**self.backend.identity, "temperature": self.temperature, "max_tokens": self.max_tokens}
        key = hashlib.sha256(json.dumps([facts, prompt, seed], sort_keys=True).encode()).hexdigest()
        kept = self._answers.get(key) if self._answers is not None else None
        if kept is not None:
            return Answer(kept["text"], kept["finished"])
        with self._room:
            answer = self.backend.answer(
                prompt, schema=schema, temperature=self.temperature, max_tokens=self.max_tokens, seed=seed
            )
        # Half of a character that took two, as a model that is cut off may leave, is in no UTF-8 text.
        answer = replace(answer, text=answer.text.encode("utf-8", "replace").decode())
        if self._answers is not None:
            self._answers.put(key, {"text": answer.text, "finished": answer.finished})
        return answer


def summary(counts: Mapping[str, int]) -> str:
    """ "98 answered, 1 nonsense, 1 timeout": the counts of a client in words."""
    parts: Iterable[str] = (f"{counts[kind]} {kind}" for kind in FAILURES if counts.get(kind))
    return ", ".join([f"{counts.get('ok', 0)} answered", *parts])


def _bar(total: int, title: str) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc=title or None, unit="answer", disable=not title)
