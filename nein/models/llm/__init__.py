"""Asking a language model for facts in a fixed form. `client.py` asks and reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from nein.config.options import option
from nein.engine.errors import UserError


@dataclass
class LlmOptions:
    """The language model and its sampling; the defaults are NegVQA's."""

    model: str | None = option(None, "openai:URL#MODEL, hub id owner/name[@revision], or folder")
    temperature: NonNegativeFloat = option(0.0, "sampling temperature (0: greedy)")
    max_tokens: PositiveInt = option(512, "max tokens per answer")
    attempts: PositiveInt = option(1, "max tries until an answer is usable (temperature above 0)")
    reasoning_effort: str = option("", "endpoint: reasoning effort (none, low, ...)")
    extra_body: dict[str, Any] = option({}, "endpoint: extra request fields: --llm.extra_body.KEY VALUE")
    thinking_tokens: NonNegativeInt = option(0, "endpoint: extra tokens for thinking")
    dtype: Literal["float32", "float16", "bfloat16"] = option("float32", "local model: dtype")

    @property
    def thinking(self) -> dict[str, Any]:
        """The options on thinking that are given: they decide an answer."""
        given = {key: getattr(self, key) for key in ("reasoning_effort", "extra_body", "thinking_tokens")}
        return {key: value for key, value in given.items() if value}

    def check(self, asks: str) -> None:
        """Raises UserError where the option `asks` would ask nobody, or the same answer several times."""
        if not self.model:
            raise UserError(
                f"{asks} asks a language model, and --llm.model names none; give openai:URL#MODEL, a hub id "
                "owner/name or a folder."
            )
        if self.attempts > 1 and self.temperature == 0:
            raise UserError(
                f"--llm.attempts {self.attempts} at --llm.temperature 0 would draw one answer again and "
                "again; raise the temperature or take 1 attempt."
            )
