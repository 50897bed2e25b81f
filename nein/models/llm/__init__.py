"""Asking a language model for facts in a fixed form. `client.py` asks, reads, remembers and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config.options import option
from nein.engine.errors import UserError

MODEL_FAILED = "model failed"


class Answer(NamedTuple):
    """The text of an answer; finished: the model ended it itself, not the limit of tokens; version: of the
    model behind an endpoint."""

    text: str
    finished: bool = True
    version: str = ""


@dataclass
class LlmOptions:
    """Which language model, and how it is asked; the defaults are NegVQA's (temperature 0)."""

    model: str | None = option(None, "openai:URL#MODEL, a hub id owner/name[@revision], or a local folder")
    temperature: NonNegativeFloat = option(
        0.0, "0: the likeliest answer; above: drawn with the sample's own seed"
    )
    max_tokens: PositiveInt = option(512, "length of an answer")
    attempts: PositiveInt = option(1, "how often an unusable answer is drawn again (temperature above 0)")
    concurrency: PositiveInt = option(8, "endpoint: questions in flight at a time")
    timeout: PositiveFloat = option(60.0, "endpoint: seconds to wait for an answer")
    retries: NonNegativeInt = option(5, "endpoint: how often a failed request is sent again")
    dtype: Literal["float32", "float16", "bfloat16"] = option("float32", "local model: number type")

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
