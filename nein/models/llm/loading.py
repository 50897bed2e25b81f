"""From the name of a language model to a client; the model behind an endpoint."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from nein.engine.errors import UserError
from nein.loading.references import expanded
from nein.metrics.backends import is_served
from nein.metrics.backends.endpoint import Endpoint, is_endpoint, key, split_endpoint
from nein.metrics.base import MetricError, RecordStore
from nein.models.llm.client import Answer, Backend, Client
from nein.models.llm.options import LlmOptions
from nein.models.llm.parsing import Plain, wire_schema


def load(options: LlmOptions, *, cache: RecordStore | None, device: str = "cpu") -> Client:
    """The client of `options`; its answers are kept in `cache`.

    An endpoint is looked at (address, key, model), a local model is loaded. Raises UserError or MetricError.
    """
    return Client(
        backend(options, device=device), cache=cache, temperature=float(options.temperature),
        max_tokens=int(options.max_tokens), attempts=int(options.attempts),
    )  # fmt: skip


def backend(options: LlmOptions, *, device: str = "cpu") -> Backend:
    """The model itself. Raises UserError without a name, MetricError when it is not there."""
    check(options.model)
    reference = str(options.model)
    if is_endpoint(reference):
        remote = EndpointModel(
            *split_endpoint(reference), key=key(), concurrency=int(options.concurrency),
            timeout=float(options.timeout), retries=int(options.retries),
        )  # fmt: skip
        remote.endpoint.check()
        return remote
    from nein.metrics.loading import split_reference
    from nein.models.llm import local

    where, revision = split_reference(str(expanded(reference)), None)
    return local.load(where, revision=revision, device=device, dtype=options.dtype)


def check(reference: str | None) -> None:
    """Says what is wrong with a name before anything is loaded. Raises UserError or MetricError."""
    if not reference:
        raise UserError(
            "No language model is named; give --llm.model openai:URL#MODEL, a hub id owner/name, or the "
            "folder of an instruction-tuned model."
        )
    if is_endpoint(reference):
        split_endpoint(reference)
        return
    if is_served(reference):
        raise MetricError(f"'{reference}': language models are asked through vLLM's server: vllm:URL#MODEL.")
    path = expanded(reference)
    if not path.exists() and (reference.count("/") != 1 or reference.startswith((".", "/", "~"))):
        raise MetricError(
            f"There is no language model '{reference}'; give openai:URL#MODEL, a hub id owner/name, or an "
            "existing folder."
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
        self.identity = {"backend": "endpoint", "model": model}

    def answer(
        self, prompt: str, *, schema: type[BaseModel], temperature: float, max_tokens: int, seed: int
    ) -> Answer:
        optional: list[dict[str, Any]] = [{"seed": seed % 2**31}]  # servers differ in how wide a seed may be
        if not issubclass(schema, Plain):
            shape = {"name": schema.__name__, "schema": wire_schema(schema), "strict": True}
            optional.insert(0, {"response_format": {"type": "json_schema", "json_schema": shape}})
        reply = self.endpoint.chat(prompt, optional, max_tokens=max_tokens, temperature=temperature)
        return Answer(reply.text, reply.finished)
