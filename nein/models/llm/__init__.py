"""Asking a language model for facts in a fixed form, a thousand times, without losing or inventing one.

    options = llm.LlmOptions("openai:http://localhost:8000/v1#Qwen/Qwen3-8B")
    client = llm.load(options, cache=AnswerCache(OUT / "answers.sqlite"))
    for outcome in client.complete([llm.Request("...", seed=7)], Verdict):
        outcome.value      # a Verdict (a pydantic model), or None
        outcome.failure    # "" or one of llm.FAILURES, explained in outcome.reason

`client.py` asks, remembers and counts; `parsing.py` reads answers; `loading.py` and `local.py` are models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nein.models.llm.client import FAILURES, Backend, Client, Outcome, Request
    from nein.models.llm.loading import load
    from nein.models.llm.options import LlmOptions

#: Module -> what it has for others; imported when it is used.
_PLACES = {"client": ("FAILURES", "Backend", "Client", "Outcome", "Request"), "options": ("LlmOptions",),
           "loading": ("load",)}  # fmt: skip

__all__ = ["FAILURES", "Backend", "Client", "LlmOptions", "Outcome", "Request", "load"]


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
