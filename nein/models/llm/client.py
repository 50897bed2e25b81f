"""Many questions to a language model, one call: every result is a checked object or a counted failure.

client = load(LlmOptions("openai:http://localhost:8000/v1#Qwen/Qwen3-8B"), services=Services.of(config, FILE))
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
from nein.loading.errors import reason
from nein.loading.references import expanded, is_served
from nein.loading.service import CONNECTION, PROTOCOL, REFUSED, SERVER, TIMEOUT, NoAnswer
from nein.metrics.base import without_thoughts
from nein.metrics.chat import Chat, Completion, Message, Sampling, endpoint
from nein.metrics.chat.endpoint import check as check
from nein.models.cached import CachedChat, Services
from nein.models.llm import LlmOptions

#: Failures of an answer that did arrive.
NONSENSE, WRONG_SCHEMA, CUT_OFF = "nonsense", "wrong schema", "cut off"
MODEL_FAILED = "model failed"
#: Failures that say nothing of the question: the same command asks again.
SILENT = (TIMEOUT, CONNECTION, SERVER, REFUSED, PROTOCOL, MODEL_FAILED)

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
    """Asks a chat for answers in a fixed form; unusable answers are the model's answers, and kept as such.

    attempts  How often a request is asked, with further seeds, until an answer can be used.
    """

    def __init__(
        self, chat: Chat, *, temperature: float = 0.0, max_tokens: int = 512, attempts: int = 1
    ) -> None:
        self.chat = chat
        self.temperature, self.max_tokens, self.attempts = temperature, max_tokens, attempts
        self.usage, self.stop = chat.usage, chat.stop

    def complete(
        self, requests: Sequence[Request], schema: type[Schema], *, progress: str = ""
    ) -> list[Outcome[Schema]]:
        """An outcome per request, in order; equal requests are asked once.

        progress  Title of a progress bar on standard error; none if empty.

        A server asked for structured output that refuses it is asked without. Raises UserError once nobody
        answers; answers so far are kept. Threads may call it side by side.
        """
        from tqdm import tqdm

        form = None
        if not issubclass(schema, Plain):
            form = {"name": schema.__name__, "schema": wire_schema(schema), "strict": True}
        sampling = Sampling(self.max_tokens, self.temperature, form=form)
        outcomes: dict[Request, Outcome[Schema]] = {}
        open_ = list(dict.fromkeys(requests))
        with tqdm(total=len(open_), desc=progress or None, unit="answer", disable=not progress) as bar:
            for attempt in range(self.attempts):
                messages = [_message(request, schema, attempt) for request in open_]
                for index, completion in self.chat.stream(messages, sampling):
                    outcomes[open_[index]] = _outcome(completion, schema)
                    bar.update(attempt == 0)
                unusable = (NONSENSE, WRONG_SCHEMA, CUT_OFF)
                open_ = [request for request in open_ if outcomes[request].failure in unusable]
        return [outcomes[request] for request in requests]

    def describe(self) -> dict[str, Any]:
        """Everything that decides an outcome but the requests, JSON-serialisable."""
        drawing = {"temperature": self.temperature, "max_tokens": self.max_tokens, "attempts": self.attempts}
        facts = {key: value for key, value in self.chat.describe().items() if key != "reference"}
        return {**facts, **drawing}


def _message(request: Request, schema: type[BaseModel], attempt: int) -> Message:
    seed = request.seed if attempt == 0 else sample_seed(request.seed, "attempt", attempt)
    return Message(("\n\n".join(filter(None, (request.prompt, instructions(schema)))),), seed)


def _outcome(completion: Completion, schema: type[Schema]) -> Outcome[Schema]:
    if isinstance(completion.error, NoAnswer):
        return Outcome(None, completion.error.kind, str(completion.error))
    if completion.error is not None:
        return Outcome(None, MODEL_FAILED, reason(completion.error))
    try:
        return Outcome(parse(completion.text, schema, finished=completion.finished))
    except AnswerError as error:
        return Outcome(None, error.kind, str(error))


def load(options: LlmOptions, *, services: Services | None, device: str = "cpu") -> Client:
    """The client of `options`; services: of an endpoint, and where answers are kept.

    An endpoint is looked at (address, key, model), a local model is loaded. Raises MetricError.
    """
    reference = options.model or ""
    check(reference)
    chat: Chat
    if is_served(reference):
        chat = endpoint.connect(reference, **options.thinking, **(services.options if services else {}))
    else:
        from nein.metrics.chat import local

        chat = local.load_text(str(expanded(reference)), device=device, dtype=options.dtype)
    if services is not None and services.cache is not None:
        chat = CachedChat(chat, services.cache)
    how = {name: getattr(options, name) for name in ("temperature", "max_tokens", "attempts")}
    return Client(chat, **how)


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
