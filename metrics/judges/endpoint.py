"""A VQA judge that is served: `openai:URL#MODEL`, `vllm:URL#MODEL` and `vllm:MODEL` (`metrics.backends`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from nein.metrics.backends import ServedModel, connect
from nein.metrics.backends.endpoint import Endpoint, Said, Turn
from nein.metrics.backends.vllm import VllmEngine
from nein.metrics.base import Images, Texts
from nein.metrics.judges.base import Answer, check_batch


class EndpointJudge(ServedModel):
    """Yes or no.

    P(yes) and P(no) come from the log-probabilities of the first token behind any thoughts, where the server
    gives them (at most 20 alternatives, so they are lower bounds), else they are None. A question that stays
    without an answer raises NoAnswer; its sample is unscored with that reason.
    """

    kind, template = "vqa", "question"
    facts: ClassVar[Mapping[str, str]] = {"template": "one user turn: picture, question"}

    def __init__(self, endpoint: Endpoint | VllmEngine, *, max_new_tokens: int = 10) -> None:
        super().__init__(endpoint, max_new_tokens=max_new_tokens)

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """`questions[i]` are plain questions about `images[i]`, (H, W, 3) uint8; answers in the same shape.

        Raises NoAnswer when a question stays without an answer, and when the endpoint refuses it.
        """
        check_batch(images, questions, "questions")
        asked = [[Turn(question) for question in row] for row in questions]
        said = self.endpoint.ask(images, asked, max_tokens=self.max_new_tokens)
        return [[_answer(one) for one in row] for row in said]


def _answer(said: Said) -> Answer:
    p_yes = p_no = None
    if said.first:
        likely = [(token.strip().lower(), math.exp(value)) for token, value in said.first]
        p_yes, p_no = (min(1.0, sum(p for token, p in likely if token == word)) for word in ("yes", "no"))
    return Answer(
        said.text.strip(), len(said.text.split()) if said.tokens is None else said.tokens, p_yes, p_no
    )


def load(path_or_id: str, *, revision: str | None, device: str, dtype: str, **options: Any) -> EndpointJudge:
    """A reference of `metrics.backends.connect`; options: concurrency, timeout, retries."""
    return EndpointJudge(connect(path_or_id, revision=revision, device=device, dtype=dtype, **options))
