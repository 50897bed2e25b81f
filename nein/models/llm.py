"""Asks a language model many questions in one call, and checks every answer against a schema.

client = load(LlmOptions("openai:http://localhost:8000/v1#Qwen/Qwen3-8B"), services=...)
for outcome in client.complete([Request("...", seed=7)], Verdict):
    outcome.value      # a Verdict (a pydantic model), or None
    outcome.failure    # "" or the kind of failure, explained in outcome.reason

Parts: options and client; checks of answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from nein.config.options import option
from nein.engine.folder import sample_seed
from nein.loading.digests import Json
from nein.loading.errors import UserError, reason
from nein.loading.references import expand_user, is_served
from nein.loading.service import CONNECTION, PROTOCOL, REFUSED, SERVER, TIMEOUT, NoAnswer
from nein.metrics.chat import Chat, Completion, Message, Sampling, strip_thoughts
from nein.models.cached import CachedChat, Services

#: Failures of an answer that arrived: another attempt may help.
UNUSABLE = NONSENSE, WRONG_SCHEMA, CUT_OFF = ("nonsense", "wrong schema", "cut off")
MODEL_FAILED = "model failed"  # a local model raised an exception
#: Failures to get any answer, not caused by the question: when the command is repeated, it asks again.
SILENT = (TIMEOUT, CONNECTION, SERVER, REFUSED, PROTOCOL, MODEL_FAILED)

Schema = TypeVar("Schema", bound=BaseModel)


@dataclass
class LlmOptions:
    """The language model and its sampling; the defaults are NegVQA's."""

    model: str | None = option(None, "openai:URL#MODEL, hub id owner/name[@revision], or folder")
    temperature: NonNegativeFloat = option(0.0, "sampling temperature (0: greedy)")
    max_tokens: PositiveInt = option(512, "max tokens per answer")
    attempts: PositiveInt = option(1, "max tries until an answer is usable (temperature above 0)")
    reasoning_effort: str = option("", "endpoint: reasoning effort (none, low, ...)")
    extra_body: Json = option({}, "endpoint: extra request fields: --llm.extra_body.KEY VALUE")
    thinking_tokens: NonNegativeInt = option(0, "endpoint: extra tokens for thinking")
    dtype: Literal["float32", "float16", "bfloat16"] = option("float32", "local model: dtype")

    @property
    def thinking(self) -> Json:
        """The options of thinking that are set: they decide an answer."""
        names = ("reasoning_effort", "extra_body", "thinking_tokens")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def check(self, asks: str) -> None:
        """Raises UserError without a model, or if every attempt would draw the same answer. asks: the option
        that needs the model."""
        if not self.model:
            forms = "openai:URL#MODEL, a hub id owner/name or a folder"
            raise UserError(f"{asks} asks a language model; pass --llm.model {forms}.")
        if self.attempts > 1 and self.temperature == 0:
            raise UserError(
                f"--llm.attempts {self.attempts} at --llm.temperature 0 would draw the same answer every "
                "time; raise the temperature or take 1 attempt."
            )


class Request(NamedTuple):
    prompt: str
    seed: int = 0  # of its answer, if the temperature is above 0


@dataclass(frozen=True)
class Outcome(Generic[Schema]):
    """A request's checked answer, or the kind of `failure` and its `reason`."""

    value: Schema | None
    failure: str = ""
    reason: str = ""


class Client:
    """Asks a chat for answers in a fixed form. attempts: maximum tries of a request, each with another seed,
    until its answer can be used. Unusable answers are cached, too."""

    def __init__(
        self, chat: Chat, *, temperature: float = 0.0, max_tokens: int = 512, attempts: int = 1
    ) -> None:
        self.chat = chat
        self.temperature, self.max_tokens, self.attempts = temperature, max_tokens, attempts
        self.usage, self.stop = chat.usage, chat.stop  # methods

    def complete(self, requests: Sequence[Request], schema: type[Schema]) -> list[Outcome[Schema]]:
        """An outcome per request, in order; equal requests are asked once. Threads may call it in parallel.
        Raises UserError once nobody answers; earlier answers are kept in the cache."""
        form = None  # the schema that the server enforces; if it refuses, it is asked without
        if not issubclass(schema, Plain):
            form = {"name": schema.__name__, "schema": make_strict_schema(schema), "strict": True}
        sampling = Sampling(self.max_tokens, self.temperature, form=form)
        outcomes: dict[Request, Outcome[Schema]] = {}
        pending = list(dict.fromkeys(requests))
        for attempt in range(self.attempts):
            messages = [_make_message(request, schema, attempt) for request in pending]
            for index, completion in self.chat.stream(messages, sampling):
                outcomes[pending[index]] = _make_outcome(completion, schema)
            pending = [request for request in pending if outcomes[request].failure in UNUSABLE]
        return [outcomes[request] for request in requests]

    def describe(self) -> Json:
        """Everything besides the requests that decides an outcome, JSON-serializable."""
        facts = {key: value for key, value in self.chat.describe().items() if key != "reference"}
        sampling = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {**facts, **sampling, "attempts": self.attempts}


def _make_message(request: Request, schema: type[BaseModel], attempt: int) -> Message:
    seed = request.seed if attempt == 0 else sample_seed(request.seed, "attempt", attempt)
    text = "\n\n".join(part for part in (request.prompt, write_form(schema)) if part)
    return Message((text,), seed)  # one part, no image


def _make_outcome(completion: Completion, schema: type[Schema]) -> Outcome[Schema]:
    if isinstance(completion.error, NoAnswer):
        return Outcome(None, completion.error.kind, str(completion.error))
    if completion.error is not None:
        return Outcome(None, MODEL_FAILED, reason(completion.error))
    try:
        return Outcome(parse(completion.text, schema, finished=completion.finished))
    except AnswerError as error:
        return Outcome(None, error.kind, str(error))


def check(reference: str) -> None:
    """Raises MetricError for a reference that names no chat model; loads nothing."""
    from nein.metrics.chat import endpoint

    endpoint.check_chat(reference)


def load(options: LlmOptions, *, services: Services | None, device: str = "cpu") -> Client:
    """The client for `options.model`: checks an endpoint (address, key, model), or loads a local model.
    services: settings of an endpoint, and the cache of answers. Raises MetricError."""
    reference = options.model or ""
    check(reference)
    chat: Chat
    if is_served(reference):
        from nein.metrics.chat import endpoint

        chat = endpoint.connect(reference, **options.thinking, **(services.options if services else {}))
    else:
        from nein.metrics.chat import local

        chat = local.load_text(str(expand_user(reference)), device=device, dtype=options.dtype)
    if services is not None and services.cache is not None:
        chat = CachedChat(chat, services.cache)
    return Client(
        chat, temperature=options.temperature, max_tokens=options.max_tokens, attempts=options.attempts
    )


# --- answers ---------------------------------------------------------------------------------------------


class Plain(BaseModel):
    """Base of schemas of answers that are no JSON objects, for prompts that ask for a form of their own."""

    END: ClassVar[str] = "\n\n"  # ends the answer; later text is ignored

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
    """The one JSON object of an answer, checked strictly against `schema`, or what a `Plain` schema reads.
    Text around the object, a code fence and a leading <think> block are allowed, but no second object, since
    either could be meant. finished: whether the model ended the answer itself. Raises AnswerError."""
    if (body := strip_thoughts(text)) is None:
        raise AnswerError(CUT_OFF, "the answer ends within the model's thoughts")
    body = body.strip()
    start, end = body.find("{"), body.rfind("}") + 1
    try:
        if issubclass(schema, Plain):
            return schema.read(body.partition(schema.END)[0].strip())
        if not 0 <= start < end:
            raise AnswerError(NONSENSE, f"no JSON object in the answer {body[:80]!r}")
        return schema.model_validate_json(body[start:end], strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        kind = NONSENSE if first["type"] == "json_invalid" else WRONG_SCHEMA
        failure = AnswerError(kind, f"{location}: {first['msg']}" if location else first["msg"])
    except AnswerError as error:
        failure = error
    if failure.kind == WRONG_SCHEMA or finished:
        raise failure
    # Nonsense may be the beginning of a good answer.
    raise AnswerError(CUT_OFF, f"the answer was cut off before its end ({failure})")


def write_form(schema: type[BaseModel]) -> str:
    """The end of a prompt, which asks for JSON; "" for a `Plain` answer."""
    if issubclass(schema, Plain):
        return ""
    text = json.dumps(make_strict_schema(schema), ensure_ascii=False, sort_keys=True)
    return f"Answer with exactly one JSON object and no other text. It must match this JSON schema:\n{text}"


def make_strict_schema(schema: type[BaseModel]) -> Json:
    """The JSON schema for servers with structured output: every key required, no further keys."""
    strict = schema.model_json_schema()
    for part in (strict, *strict.get("$defs", {}).values()):
        if part.get("type") == "object":
            part["additionalProperties"] = False
            part["required"] = sorted(part.get("properties", {}))
    return strict
