"""Asking a language model for facts in a fixed form, a thousand times, without losing or inventing one.

    options = llm.LlmOptions("openai:http://localhost:8000/v1#Qwen/Qwen3-8B")
    client = llm.load(options, cache=AnswerCache(OUT / "answers.sqlite"))
    for outcome in client.complete([llm.Request("...", seed=7)], Verdict):
        outcome.value      # a Verdict (a pydantic model), or None
        outcome.failure    # "" or one of llm.FAILURES, explained in outcome.reason

`client.py` asks, remembers and counts; `parsing.py` reads answers; `remote.py` and `local.py` are the models.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nein.models.llm.client import FAILURES, Backend, Client, Outcome, Request
    from nein.models.llm.loading import load
    from nein.models.llm.options import LlmOptions

_PLACES = {
    "FAILURES": "nein.models.llm.client:FAILURES",
    "Backend": "nein.models.llm.client:Backend",
    "Client": "nein.models.llm.client:Client",
    "Outcome": "nein.models.llm.client:Outcome",
    "Request": "nein.models.llm.client:Request",
    "LlmOptions": "nein.models.llm.options:LlmOptions",
    "load": "nein.models.llm.loading:load",
}

__all__ = ["FAILURES", "Backend", "Client", "LlmOptions", "Outcome", "Request", "load"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pkgutil.resolve_name(_PLACES[name])
