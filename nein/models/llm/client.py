"""Many questions, one call: every result is a checked object or a counted failure, and no answer is lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.metrics.backends.endpoint import CONNECTION, PROTOCOL, REFUSED, SERVER, TIMEOUT, WITHHELD, NoAnswer
from nein.metrics.base import RecordStore
from nein.models.cached import Questions
from nein.models.llm.parsing import CUT_OFF, NONSENSE, WRONG_SCHEMA, AnswerError, Schema, instructions, parse

MODEL_FAILED = "model failed"
#: Nobody to answer: after HOPELESS such failures, one after the other, the rest is not tried.
SILENT = (TIMEOUT, CONNECTION, SERVER, REFUSED, PROTOCOL, MODEL_FAILED)
HOPELESS = 20
#: Every kind of failure. The first three are answers that cannot be used.
FAILURES = (NONSENSE, WRONG_SCHEMA, CUT_OFF, WITHHELD, *SILENT)


class Request(NamedTuple):
    """A prompt, and the seed of its answer where the temperature is above 0 (take `nein.engine.blocks`)."""

    prompt: str
    seed: int = 0


class Answer(NamedTuple):
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
    """A model. `answer` raises `NoAnswer` (of a kind in FAILURES) where there is no answer.

    identity    What decides an answer besides prompt, temperature and seed; part of every cache key.
    concurrent  Calls of `answer` that may run at once, in threads; 0: one, in the thread that asks.
    """

    @property
    def identity(self) -> Mapping[str, Any]: ...

    @property
    def concurrent(self) -> int: ...

    def answer(
        self, prompt: str, *, schema: type[Any], temperature: float, max_tokens: int, seed: int
    ) -> Answer: ...


class Client:
    """Asks a backend and remembers its answers.

    cache        Where answers are kept (`nein.engine.answers.AnswerCache`), or None. Failures to answer (a
                 timeout, a refusal) are asked again; unusable answers are kept, being the model's answers.
    temperature  0 for the likeliest answer; above, the seed of the request decides.
    max_tokens   Length of an answer.
    attempts     How often a request is asked, with further seeds, until an answer can be used. More than one
                 needs a temperature above 0.

    `counts` adds up over all calls: "ok" and every kind of failure, once per request.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        cache: RecordStore | None = None,
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
        facts = {**backend.identity, "temperature": temperature, "max_tokens": max_tokens}
        space = json.dumps(facts, sort_keys=True)
        self._questions = Questions(cache, space, at_once=backend.concurrent, limit=HOPELESS)
        self._mutex = threading.Lock()

    def complete(
        self, requests: Sequence[Request], schema: type[Schema], *, progress: str = ""
    ) -> list[Outcome[Schema]]:
        """An outcome per request, in order; equal requests are asked once.

        progress  Title of a progress bar on standard error; none if empty.

        Raises UserError when so many requests in a row, over all calls, get no answer at all (HOPELESS) that
        the rest would not either; answers so far are kept. Threads may call it side by side: the backend sees
        `concurrent` questions at a time all the same.
        """
        from tqdm import tqdm

        unique = list(dict.fromkeys(requests))
        outcomes: dict[Request, Outcome[Schema]] = {}
        with tqdm(total=len(unique), desc=progress or None, unit="answer", disable=not progress) as bar:
            for request, outcome in self._questions.each(lambda one: self._one(one, schema), unique):
                outcomes[request] = outcome
                bar.update()
        with self._mutex:
            self.counts.update(outcomes[request].failure or "ok" for request in requests)
        return [outcomes[request] for request in requests]

    def stop(self) -> None:
        """Ends all calls, for the program ends; no request is sent again."""
        self._questions.stop()
        if self.backend.concurrent:
            self.backend.stop()  # type: ignore[attr-defined]  # those that wait for a server have it

    def usage(self) -> dict[str, Any]:
        """What an endpoint has taken so far: requests, retries, tokens; nothing of a local model."""
        return getattr(self.backend, "usage", dict)()

    def describe(self) -> dict[str, Any]:
        """Everything that decides an outcome but the requests, JSON-serialisable."""
        drawing = {"temperature": self.temperature, "max_tokens": self.max_tokens, "attempts": self.attempts}
        return {**self.backend.identity, **drawing}

    def _one(self, request: Request, schema: type[Schema]) -> Outcome[Schema]:
        outcome: Outcome[Schema] = Outcome(None, NONSENSE, "not asked")
        for attempt in range(self.attempts):
            seed = request.seed if attempt == 0 else sample_seed(request.seed, "attempt", attempt)
            try:
                parts = filter(None, (request.prompt, instructions(schema)))
                answer = self._ask("\n\n".join(parts), schema, seed)
            except NoAnswer as error:
                return Outcome(None, error.kind, str(error))
            try:
                return Outcome(parse(answer.text, schema, finished=answer.finished), text=answer.text)
            except AnswerError as error:
                outcome = Outcome(None, error.kind, str(error), answer.text)
        return outcome

    def _ask(self, prompt: str, schema: type[Schema], seed: int) -> Answer:
        def ask() -> dict[str, Any]:
            try:
                answer = self.backend.answer(
                    prompt, schema=schema, temperature=self.temperature, max_tokens=self.max_tokens, seed=seed
                )
            except NoAnswer as error:
                error.silent = error.kind in SILENT  # prompts are alike: what refuses one refuses all
                raise
            return answer._asdict()

        return Answer(**self._questions.answer(json.dumps([prompt, seed]), ask))
