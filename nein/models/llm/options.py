"""Options of a language model on a command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config.options import about


@dataclass
class LlmOptions:
    """Which language model, and how it is asked; the defaults are NegVQA's (temperature 0)."""

    model: str | None = field(
        default=None, metadata=about("openai:URL#MODEL, a hub id owner/name[@revision], or a local folder")
    )
    temperature: NonNegativeFloat = field(
        default=0.0, metadata=about("0: the likeliest answer; above: drawn with the sample's own seed")
    )
    max_tokens: PositiveInt = field(default=512, metadata=about("length of an answer"))
    attempts: PositiveInt = field(
        default=1, metadata=about("how often an unusable answer is drawn again (temperature above 0)")
    )
    concurrency: PositiveInt = field(default=8, metadata=about("endpoint: questions in flight at a time"))
    timeout: PositiveFloat = field(default=60.0, metadata=about("endpoint: seconds to wait for an answer"))
    retries: NonNegativeInt = field(
        default=5, metadata=about("endpoint: how often a failed request is sent again")
    )
    dtype: Literal["float32", "float16", "bfloat16"] = field(
        default="float32", metadata=about("local model: number type")
    )
