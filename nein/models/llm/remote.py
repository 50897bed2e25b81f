"""A language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from metrics.sender import EndpointError, Sender, choice_of
from nein.models.llm.client import Answer, BackendError
from nein.models.llm.parsing import wire_schema


class EndpointModel:
    """Chat completions of `model`; `sending` are the options of `metrics.sender.Sender`.

    The server is asked for structured output (`response_format` with a JSON schema) and a seed. One that
    refuses a request with them is asked without the format, then without both; a form that was answered is
    kept for what follows. The identity is the model's name, not the address: a server that moved is the
    same.
    """

    def __init__(self, url: str, model: str, **sending: Any) -> None:
        self.sender = Sender(url, **sending)
        self.model = model
        self.concurrency = self.sender.concurrency
        self.identity = {"backend": "endpoint", "model": model}
        self._form = 0

    def answer(
        self, prompt: str, *, schema: type[BaseModel], temperature: float, max_tokens: int, seed: int
    ) -> Answer:
        plain: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        seeded = {**plain, "seed": seed % 2**31}  # servers differ in how wide a seed may be
        shape = {"name": schema.__name__, "schema": wire_schema(schema), "strict": True}
        formed = {**seeded, "response_format": {"type": "json_schema", "json_schema": shape}}
        forms = (formed, seeded, plain)
        try:
            for form in range(self._form, len(forms)):
                last = form == len(forms) - 1
                reply = self.sender.chat(forms[form], tolerate=() if last else (400, 422))
                if reply is not None:
                    text, choice = choice_of(reply)
                    self._form = max(self._form, form)
                    return Answer(text, choice.get("finish_reason") != "length")
        except EndpointError as error:
            raise BackendError(error.kind, str(error)) from None
        raise AssertionError("the last form is never tolerated to fail")
