"""A text-generation model of transformers, from a folder or the hub, through its own chat template."""

from __future__ import annotations

import threading
from typing import Any

import jinja2
import torch
from pydantic import BaseModel

from nein.loading.errors import MODEL_ERRORS, reason
from nein.loading.service import NoAnswer
from nein.metrics.base import MetricError
from nein.metrics.loading import exact, library, load_model
from nein.models.llm import MODEL_FAILED, Answer


class LocalModel:
    """One question at a time, so that no padding can change an answer; drawn with the request's own seed."""

    concurrent = 0

    def __init__(self, model: Any, tokenizer: Any, weights: str) -> None:
        self.model, self.tokenizer = model, tokenizer
        eos = model.generation_config.eos_token_id
        eos = tokenizer.eos_token_id if eos is None else eos
        self._eos = {int(e) for e in (eos if isinstance(eos, list | tuple) else [eos]) if e is not None}
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self._eos)
        self._lock = threading.Lock()  # the generator for drawing is global; fast tokenizers keep state
        self.identity = {
            "backend": "transformers", "class": type(model).__name__, "weights": weights,
            "library": library(), "dtype": str(model.dtype).removeprefix("torch."),
        }  # fmt: skip

    def answer(
        self, prompt: str, *, schema: type[BaseModel], temperature: float, max_tokens: int, seed: int
    ) -> Answer:
        with self._lock, exact():
            try:
                return self._generate(prompt, temperature, max_tokens, seed)
            except MODEL_ERRORS as error:
                raise NoAnswer(reason(error), MODEL_FAILED) from None

    def _generate(self, prompt: str, temperature: float, max_tokens: int, seed: int) -> Answer:
        inputs = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=True,
            return_dict=True, return_tensors="pt",
        ).to(self.model.device)  # fmt: skip
        length = inputs["input_ids"].shape[1]
        room = getattr(self.model.config, "max_position_embeddings", None)
        if room is not None and length + max_tokens > room:
            raise ValueError(f"{length} tokens of prompt and {max_tokens} of answer exceed its {room}")
        drawing: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            drawing = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            produced = self.model.generate(
                **inputs, num_beams=1, max_new_tokens=max_tokens, pad_token_id=self._pad, **drawing
            )[0, length:].tolist()
        end = next((index for index, token in enumerate(produced) if token in self._eos), None)
        text = self.tokenizer.decode(produced[:end], skip_special_tokens=True)
        return Answer(text.strip(), end is not None)


def load(path_or_id: str, **how: Any) -> LocalModel:
    """An instruction-tuned causal language model. Raises MetricError for a missing or unsuitable one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, source = load_model(AutoModelForCausalLM, path_or_id, **how)
    tokenizer = source.part(AutoTokenizer)
    if not getattr(tokenizer, "chat_template", None):
        raise MetricError(
            f"'{path_or_id}' has no chat template, which says how a question becomes a prompt; "
            "choose an instruction-tuned checkpoint."
        )
    try:
        turn = [{"role": "user", "content": "?"}]
        tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    except (TypeError, ValueError, KeyError, jinja2.TemplateError) as error:
        raise MetricError(
            f"The chat template of '{path_or_id}' takes no question: {reason(error)}."
        ) from error
    return LocalModel(model, tokenizer, source.digest)
