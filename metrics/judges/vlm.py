"""Any image-text model of transformers as a VQA judge, through its own chat template.

`LlavaNextJudge` is faster where it applies; this one asks `generate` for every question, as is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics import vlm
from metrics.judges.base import Answer, check_batch
from metrics.judges.words import NO, YES, first_tokens
from metrics.loading import Source, fingerprint


class ChatJudge(vlm.VisionChat):
    """Greedy answers of at most `max_new_tokens` tokens from an `AutoModelForImageTextToText`.

    A question is one user turn: the picture, then the text; the processor's chat template makes the prompt.
    Questions are asked one at a time, so that no padding can change an answer.
    """

    template = "question"

    def __init__(self, model: Any, processor: Any, source: Source, *, max_new_tokens: int = 10) -> None:
        super().__init__(model, processor, source, max_new_tokens=max_new_tokens)
        yes, no = first_tokens(self._tokenizer, YES), first_tokens(self._tokenizer, NO)
        self._yes, self._no = sorted(yes - no), sorted(no - yes)
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Everything that decides an answer but the prompt, JSON-serialisable."""
        return self.facts("vqa")

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """`questions[i]`: plain questions about `images[i]`, (H, W, 3) uint8; answers in the same shape."""
        check_batch(images, questions, "questions")
        return [
            [self._answer(image, question) for question in row]
            for image, row in zip(images, questions, strict=True)
        ]

    def _answer(self, image: np.ndarray, question: str) -> Answer:
        from PIL import Image

        content: list[dict[str, Any]] = [
            {"type": "image", "image": Image.fromarray(image)},
            {"type": "text", "text": question},
        ]
        (tokens,), logits = self.generate(self.turns([content]), self.max_new_tokens)
        first = logits[0].softmax(-1)
        p_yes, p_no = (float(first[ids].sum()) if ids else None for ids in (self._yes, self._no))
        return Answer(self.text(tokens), len(tokens), p_yes, p_no)


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, max_new_tokens: int = 10
) -> ChatJudge:
    """Load an image-text-to-text checkpoint with a chat template from a folder or the hub."""
    parts = vlm.load(path_or_id, revision=revision, device=device, dtype=dtype)
    return ChatJudge(*parts, max_new_tokens=max_new_tokens)
