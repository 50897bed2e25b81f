"""A language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from nein.metrics.served.endpoint import Endpoint
from nein.models.llm.client import Answer
from nein.models.llm.parsing import Plain, wire_schema


class EndpointModel:
    """Chat completions of `model`; `sending` are the options of `metrics.served.endpoint.Endpoint`.

    The server is asked for structured output (`response_format` with a JSON schema) and a seed. One that
    refuses a request with them is asked without the format, then without both; for a plain answer no format
    is asked for. The identity is the model's name, not the address: a server that moved is the same.
    """

    def __init__(self, url: str, model: str, **sending: Any) -> None:
        self.endpoint = Endpoint(url, model, **sending)
        self.concurrent = self.endpoint.concurrency
        self.stop = self.endpoint.stop
        self.identity = {"backend": "endpoint", "model": model}

    def answer(
        self, prompt: str, *, schema: type[BaseModel], temperature: float, max_tokens: int, seed: int
    ) -> Answer:
        optional: list[dict[str, Any]] = [{"seed": seed % 2**31}]  # servers differ in how wide a seed may be
        if not issubclass(schema, Plain):
            shape = {"name": schema.__name__, "schema": wire_schema(schema), "strict": True}
            optional.insert(0, {"response_format": {"type": "json_schema", "json_schema": shape}})
        said = self.endpoint.chat(prompt, optional, max_tokens=max_tokens, temperature=temperature)
        return Answer(said.text, said.finished)
