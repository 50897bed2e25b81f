"""Multiple-choice questions about pictures: prompts, and models that answer with a letter.

    prompt("paper", "What is this?", ["cat", "dog"])     the wording, by name
    load("owner/name")                                   a model of transformers, served, or run by vLLM
    JudgeChoices(judge, "options")                       a VQA judge, asked in its own template
    answer_each(model, images, asked, ["generated"])     replies, failures counted one by one

`metrics.letters.parse` reads the letter out of a reply.
"""

from __future__ import annotations

import pkgutil
from typing import Any

from nein.loading.references import located
from nein.metrics.backends import is_served
from nein.metrics.choices.base import (
    ASKINGS,
    PROMPTS,
    Asked,
    ChoiceModel,
    FunctionChoices,
    JudgeChoices,
    Manner,
    Prompt,
    Reply,
    answer_each,
    manner,
    matching,
    prompt,
    yes_or_no,
)  # fmt: skip
from nein.metrics.letters import SCORINGS

#: Kind of reference -> what loads it.
LOADERS = {"served": "nein.metrics.judges.endpoint:load_choices", "": "nein.metrics.judges.vlm:load_choices"}


def load(
    path_or_id: str, *, revision: str | None = None, device: str = "cpu", dtype: str = "float32",
    **options: Any,
) -> ChoiceModel:  # fmt: skip
    """A model that answers multiple-choice questions; see `metrics.choices.base.ChoiceModel`.

    path_or_id  A folder or hub id of any image-text-to-text model of transformers with a chat template, or an
                InstructBLIP; "openai:URL#MODEL", "vllm:URL#MODEL" and "vllm:MODEL".
    options     transformers: `batch_size` (pictures), `max_new_tokens`; endpoints: `max_new_tokens` and those
                of `metrics.backends.endpoint.Endpoint`.

    Raises MetricError, one sentence, for what cannot be loaded.
    """
    path_or_id = located(path_or_id)
    loader = pkgutil.resolve_name(LOADERS["served" if is_served(path_or_id) else ""])
    return loader(path_or_id, revision=revision, device=device, dtype=dtype, **options)


__all__ = [
    "ASKINGS", "PROMPTS", "SCORINGS", "Asked", "ChoiceModel", "FunctionChoices", "JudgeChoices", "Manner",
    "Prompt", "Reply", "answer_each", "load", "manner", "matching", "prompt", "yes_or_no",
]  # fmt: skip
