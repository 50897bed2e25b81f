"""Many questions, one call: every result is a checked object or a counted failure, and no answer is lost.

client = load(LlmOptions("openai:http://localhost:8000/v1#Qwen/Qwen3-8B"), cache=AnswerCache(FILE))
for outcome in client.complete([Request("...", seed=7)], Verdict):
    outcome.value      # a Verdict (a pydantic model), or None
    outcome.failure    # "" or the kind of failure, explained in outcome.reason
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from nein.engine.blocks import sample_seed
from nein.loading.references import expanded, is_served
from nein.loading.service import CONNECTION, PROTOCOL, REFUSED, SERVER, TIMEOUT, NoAnswer
from nein.metrics.backends.endpoint import Endpoint, split_endpoint
from nein.metrics.base import MetricError, Store, without_thoughts
from nein.models.cached import Questions
from nein.models.llm import MODEL_FAILED, Answer, LlmOptions

#: Failures of an answer that did arrive.
NONSENSE, WRONG_SCHEMA, CUT_OFF = "nonsense", "wrong schema", "cut off"
#: Nobody to answer: after HOPELESS such failures, one after the other, the rest is not tried.
SILENT = (TIMEOUT, CONNECTION, SERVER, REFUSED, PROTOCOL, MODEL_FAILED)
HOPELESS = 20

Schema = TypeVar("Schema", bound=BaseModel)


class Request(NamedTuple):
    """A prompt, and the seed of its answer where the temperature is above 0."""

    prompt: str
    seed: int = 0


@dataclass(frozen=True)
class Outcome(Generic[Schema]):
    """What became of a request: `value`, or else the kind of `failure` with its `reason`."""

    value: Schema | None
    failure: str = ""
    reason: str = ""


class Client:
    """Asks a backend and remembers its answers.

    backend   `EndpointModel`, `local.LocalModel` or alike: `answer` raises NoAnswer where there is none,
              `identity` decides an answer besides prompt, temperature and seed, and `concurrent` calls run at
              once, in threads; 0: one, in the thread that asks.
    cache     Where answers are kept (`nein.engine.answers.AnswerCache`), or None. Failures to answer (a
              timeout, a refusal) are asked again; unusable answers are kept, being the model's answers.
    attempts  How often a request is asked, with further seeds, until an answer can be used.
    """

    def __init__(
        self, backend: Any, *, cache: Store | None = None, temperature: float = 0.0,
        max_tokens: int = 512, attempts: int = 1,
    ) -> None:  # fmt: skip
        self.backend = backend
        self.temperature, self.max_tokens, self.attempts = temperature, max_tokens, attempts
        facts = {**backend.identity, "temperature": temperature, "max_tokens": max_tokens}
        space = json.dumps(facts, sort_keys=True)
        self._questions = Questions(cache, space, at_once=backend.concurrent, limit=HOPELESS)

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
            for request, outcome in self._questions.each(lambda item: self._one(item, schema), unique):
                outcomes[request] = outcome
                bar.update()
        return [outcomes[request] for request in requests]

    def stop(self) -> None:
        """Ends all calls, for the program ends; no request is sent again."""
        self._questions.stop()
        if self.backend.concurrent:
            self.backend.stop()

    def usage(self) -> dict[str, Any]:
        """What an endpoint has taken so far: requests, retries, tokens; nothing of a local model."""
        return getattr(self.backend, "usage", dict)()

    def describe(self) -> dict[str, Any]:
        """Everything that decides an outcome but the requests, JSON-serialisable."""
        drawing = {"temperature": self.temperature, "max_tokens": self.max_tokens, "attempts": self.attempts}
        return {**self.backend.identity, **drawing}

    def _one(self, request: Request, schema: type[Schema]) -> Outcome[Schema]:
        outcome: Outcome[Schema] = Outcome(None, NONSENSE, "not asked")
        prompt = "\n\n".join(filter(None, (request.prompt, instructions(schema))))
        for attempt in range(self.attempts):
            seed = request.seed if attempt == 0 else sample_seed(request.seed, "attempt", attempt)
            try:
                answer = self._ask(prompt, schema, seed)
                return Outcome(parse(answer.text, schema, finished=answer.finished))
            except NoAnswer as error:
                return Outcome(None, error.kind, str(error))
            except AnswerError as error:
                outcome = Outcome(None, error.kind, str(error))
        return outcome

    def _ask(self, prompt: str, schema: type[Schema], seed: int) -> Answer:
        def ask() -> dict[str, Any]:
            try:
                answer = self.backend.answer(
                    prompt, schema=schema, temperature=self.temperature, max_tokens=self.max_tokens, seed=seed
                )
            except NoAnswer as error:
                # Prompts are alike: what refuses one refuses all.
                error.silent = error.kind in SILENT
                raise
            return answer._asdict()

        return Answer(**self._questions.answer(json.dumps([prompt, seed]), ask))


# --- models --------------------------------------------------------------------------------------


def load(options: LlmOptions, *, cache: Store | None, device: str = "cpu") -> Client:
    """The client of `options`; its answers are kept in `cache`.

    An endpoint is looked at (address, key, model), a local model is loaded. Raises MetricError.
    """
    return Client(
        backend(options, device), cache=cache, temperature=options.temperature,
        max_tokens=options.max_tokens, attempts=options.attempts,
    )  # fmt: skip


def backend(options: LlmOptions, device: str) -> Any:
    """The model itself. Raises MetricError when it is not there."""
    reference = options.model or ""
    check(reference)
    if is_served(reference):
        remote = EndpointModel(*split_endpoint(reference), **options.thinking)
        remote.endpoint.check()
        return remote
    from nein.models.llm import local

    return local.load(str(expanded(reference)), device=device, dtype=options.dtype)


def check(reference: str) -> None:
    """Says what is wrong with a name before anything is loaded. Raises MetricError."""
    if is_served(reference):
        split_endpoint(reference)
    elif reference.count("/") != 1 or reference.startswith((".", "/", "~")):
        if not reference or not expanded(reference).exists():
            raise MetricError(
                f"There is no language model '{reference}'; give openai:URL#MODEL, a hub id owner/name, or "
                "an existing folder."
            )


class EndpointModel:
    """Chat completions of `model`; `sending` are the options of `metrics.backends.endpoint.Endpoint`.

    The server is asked for structured output (`response_format` with a JSON schema) and a seed. One that
    refuses a request with them is asked without the format, then without both; for a plain answer no format
    is asked for. The identity is the model's name, not the address: a server that moved is the same.
    """

    def __init__(self, url: str, model: str, **sending: Any) -> None:
        self.endpoint = Endpoint(url, model, **sending)
        self.concurrent, self.stop = self.endpoint.concurrency, self.endpoint.stop
        self.usage = self.endpoint.usage
        self.identity = {"backend": "endpoint", **self.endpoint.facts()}

    def answer(
        self, prompt: str, *, schema: type[BaseModel], temperature: float, max_tokens: int, seed: int
    ) -> Answer:
        optional: list[dict[str, Any]] = [{"seed": seed % 2**31}]  # servers differ in how wide a seed may be
        if not issubclass(schema, Plain):
            shape = {"name": schema.__name__, "schema": wire_schema(schema), "strict": True}
            optional.insert(0, {"response_format": {"type": "json_schema", "json_schema": shape}})
        reply = self.endpoint.chat(prompt, optional, max_tokens=max_tokens, temperature=temperature)
        return Answer(reply.answered().text, reply.finished, reply.version)


# --- answers: what is not plainly there is a failure -----------------------------------------------


class Plain(BaseModel):
    """An answer that is no JSON object, for prompts that say themselves what they want.

    END  Where the answer ends: what the model says behind it is not read.
    """

    END: ClassVar[str] = "\n\n"

    @classmethod
    def read(cls, text: str) -> Any:
        """The answer, from a text without white space around it. Raises AnswerError."""
        raise NotImplementedError


class AnswerError(ValueError):
    """An answer that cannot be used. `kind` is NONSENSE, WRONG_SCHEMA or CUT_OFF."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def parse(text: str, schema: type[Schema], *, finished: bool = True) -> Schema:
    """The one JSON object of an answer, checked strictly against `schema`; or what a `Plain` schema reads.

    finished  Whether the model ended the answer itself; an unusable one is otherwise CUT_OFF.

    Text around the object, a code fence and a leading <think> block are allowed, a second object is not: it
    would be unclear which one is meant. So is a key that occurs twice. Raises AnswerError.
    """
    if (body := without_thoughts(text)) is None:
        raise AnswerError(CUT_OFF, "the answer ends within the model's thoughts")
    body = body.strip()
    try:
        if issubclass(schema, Plain):
            return schema.read(body.partition(schema.END)[0].strip())
        return schema.model_validate_json(json.dumps(_only_object(body)), strict=True)
    except AnswerError as error:
        if not finished:
            raise AnswerError(CUT_OFF, f"the answer was cut off before its end ({error})") from None
        raise
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise AnswerError(WRONG_SCHEMA, f"{where + ': ' if where else ''}{first['msg']}") from None


def instructions(schema: type[BaseModel]) -> str:
    """The end of a prompt, which asks for the form; "" for a `Plain` answer."""
    if issubclass(schema, Plain):
        return ""
    shape = json.dumps(wire_schema(schema), ensure_ascii=False, sort_keys=True)
    return f"Answer with exactly one JSON object and no other text. It must match this JSON schema:\n{shape}"


def wire_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema as servers with structured output take it: every key required, no further keys."""
    shape = schema.model_json_schema()
    for part in (shape, *shape.get("$defs", {}).values()):
        if part.get("type") == "object":
            part["additionalProperties"] = False
            part["required"] = sorted(part.get("properties", {}))
    return shape


def _only_object(body: str) -> dict[str, Any]:
    def constant(name: str) -> Any:
        raise AnswerError(NONSENSE, f"{name} is no JSON value")

    def no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise AnswerError(NONSENSE, "a key occurs twice in the answer")
        return dict(pairs)

    start, end = body.find("{"), body.rfind("}") + 1
    if not 0 <= start < end:
        raise AnswerError(NONSENSE, f"no JSON object in the answer {body[:80]!r}")
    try:
        return json.loads(body[start:end], object_pairs_hook=no_repetition, parse_constant=constant)
    except AnswerError:
        raise
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, endless nesting
        raise AnswerError(NONSENSE, f"the answer is not one JSON object ({error})") from None
