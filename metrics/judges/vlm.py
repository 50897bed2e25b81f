"""Any image-text model of transformers as a VQA judge, through its own chat template.

`LlavaNextJudge` is faster where it applies; this one asks `generate` for every question, as the model's
authors would.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from metrics.base import MetricError, choose
from metrics.judges.base import Answer, check_batch
from metrics.judges.words import NO, YES, first_tokens
from metrics.loading import (
    DTYPES,
    Source,
    exact,
    fingerprint,
    from_pretrained,
    library,
    load_model,
    source_fields,
)


class ChatJudge:
    """Greedy answers of at most `max_new_tokens` tokens from an `AutoModelForImageTextToText`.

    A question is one user turn: the picture, then the text; the processor's chat template makes the prompt.
    Questions are asked one at a time, so that no padding can change an answer.
    """

    template = "question"

    def __init__(self, model: Any, processor: Any, source: Source, *, max_new_tokens: int = 10) -> None:
        self.model = model
        self.processor = processor
        self.source = source
        self.max_new_tokens = max_new_tokens
        tokenizer = getattr(processor, "tokenizer", processor)
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # fast tokenizers keep state between calls
        eos = model.generation_config.eos_token_id
        eos = tokenizer.eos_token_id if eos is None else eos
        self._eos = {int(e) for e in (eos if isinstance(eos, (list, tuple)) else [eos]) if e is not None}
        yes, no = first_tokens(tokenizer, YES), first_tokens(tokenizer, NO)
        self._yes, self._no = sorted(yes - no), sorted(no - yes)
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Everything that decides an answer but the prompt, JSON-serialisable."""
        return {
            "kind": "vqa",
            "class": type(self.model).__name__,
            **source_fields(self.source),
            "library": library(),
            "preprocess": type(self.processor).__name__,
            "template": "the model's chat template",
            "decoding": f"greedy, at most {self.max_new_tokens} tokens",
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
        }

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """`questions[i]` are plain questions about `images[i]`, (H, W, 3) uint8; answers in the same
        shape."""
        check_batch(images, questions, "questions")
        with exact():
            return [
                [self._answer(image, question) for question in row]
                for image, row in zip(images, questions, strict=True)
            ]

    def _answer(self, image: np.ndarray, question: str) -> Answer:
        from PIL import Image

        content = [{"type": "image", "image": Image.fromarray(image)}, {"type": "text", "text": question}]
        with self._lock:
            inputs = self.processor.apply_chat_template(
                [{"role": "user", "content": content}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        inputs = {key: self._place(value) for key, value in inputs.items()}
        found = self.model.generate(
            **inputs,
            do_sample=False,
            num_beams=1,
            max_new_tokens=self.max_new_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        produced = found.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        own = produced[: next((k for k, token in enumerate(produced) if token in self._eos), len(produced))]
        first = found.logits[0][0].float().softmax(-1)
        p_yes, p_no = (float(first[ids].sum()) if ids else None for ids in (self._yes, self._no))
        with self._lock:
            text = self._tokenizer.decode(own, skip_special_tokens=True).strip()
        return Answer(text, len(own), p_yes, p_no)

    def _place(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self.model.dtype if value.is_floating_point() else value.dtype
        return value.to(self.model.device, dtype)


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, max_new_tokens: int = 10
) -> ChatJudge:
    """Load an image-text-to-text checkpoint with a chat template from a folder or the hub."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    choose("dtype", dtype, DTYPES)
    model, source = load_model(
        AutoModelForImageTextToText,
        path_or_id,
        model_type=None,
        revision=revision,
        device=device,
        dtype=dtype,
    )
    processor = from_pretrained(AutoProcessor, source.reference, revision=source.revision)
    if not getattr(processor, "chat_template", None):
        raise MetricError(
            f"'{path_or_id}' has no chat template, which says how a picture and a question become a prompt; "
            "choose an instruction-tuned checkpoint."
        )
    return ChatJudge(model, processor, source, max_new_tokens=max_new_tokens)
