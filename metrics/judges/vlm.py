"""Image-text-to-text models of transformers: loading, one user turn per question, greedy answers; and such a
model as a VQA judge. `metrics.choices.vlm` asks them multiple-choice questions."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import numpy as np
import torch

from nein.loading.digests import DTYPES
from nein.loading.errors import choose
from nein.metrics.base import MetricError
from nein.metrics.judges.base import Answer, check_batch
from nein.metrics.loading import (
    Source,
    exact,
    fingerprint,
    from_pretrained,
    library,
    load_model,
    model_fields,
)

YES = ("yes", "Yes", "YES", " yes", " Yes", " YES")
NO = ("no", "No", "NO", " no", " No", " NO")


def first_tokens(tokenizer: Any, words: Sequence[str]) -> set[int]:
    """Ids of the first token of every word that is not the unknown token."""
    firsts = {tuple(tokenizer(word, add_special_tokens=False)["input_ids"][:1]) for word in words}
    return {ids[0] for ids in firsts if ids and ids[0] != tokenizer.unk_token_id}


#: Model types without a chat template, which take the words as they are.
BARE = ("instructblip",)
_TEMPLATE_ERRORS = (TypeError, ValueError, KeyError, RuntimeError, jinja2.TemplateError)


class VisionChat:
    """A model with its processor, and how the two are asked.

    `templated` is False for a processor without a chat template. Threads may share one.
    """

    def __init__(self, model: Any, processor: Any, source: Source, *, max_new_tokens: int) -> None:
        self.model, self.processor, self.source = model, processor, source
        self.max_new_tokens = max_new_tokens
        self.templated = bool(getattr(processor, "chat_template", None))
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._tokenizer.padding_side = "left"
        self._lock = threading.Lock()  # fast tokenizers keep state between calls
        eos = model.generation_config.eos_token_id
        eos = self._tokenizer.eos_token_id if eos is None else eos
        self._eos = {int(e) for e in (eos if isinstance(eos, (list, tuple)) else [eos]) if e is not None}

    def facts(self, kind: str) -> dict[str, Any]:
        """Everything that decides an answer but the prompt, JSON-serialisable."""
        return {
            "kind": kind,
            **model_fields(self.model, self.source),
            "library": library(),
            "preprocess": type(self.processor).__name__,
            "template": "the model's chat template" if self.templated else "the words alone (InstructBLIP)",
            "decoding": f"greedy, at most {self.max_new_tokens} tokens",
        }

    def generate(
        self, inputs: Mapping[str, Any], tokens: int, **drawing: Any
    ) -> tuple[list[list[int]], torch.Tensor]:
        """Answers to a batch, greedy ones unless `drawing` says how they are drawn (`do_sample`,
        `temperature`, ...): ids up to the end of each, and the first step's logits, (N, V) float32."""
        with exact():
            output = self.model.generate(
                **{key: self._place(value) for key, value in inputs.items()},
                **{"do_sample": False, **drawing},
                num_beams=1,
                max_new_tokens=tokens,
                return_dict_in_generate=True,
                output_logits=True,
            )
            # Some classes return the prompt with the answer, some do not.
            rows = output.sequences[:, output.sequences.shape[1] - len(output.logits) :].tolist()
            return [self._until_end(row) for row in rows], output.logits[0].float()

    def turns(self, contents: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """Model inputs for one user turn per prompt; several are padded in front.

        A prompt is a list of parts: {"type": "image", "image": ...} and {"type": "text", "text": ...}.
        """
        batch = {"padding": True, "return_tensors": "pt"} if len(contents) > 1 else {"return_tensors": "pt"}
        # Newer versions want what is meant for the processor apart.
        apart = "processor_kwargs" in inspect.signature(self.processor.apply_chat_template).parameters
        more: dict[str, Any] = {"processor_kwargs": batch} if apart else batch
        with self._lock:
            return dict(
                self.processor.apply_chat_template(
                    [[{"role": "user", "content": list(content)}] for content in contents],
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=True,
                    **more,
                )
            )

    def bare(self, pictures: Sequence[Any], texts: Sequence[str]) -> dict[str, Any]:
        """Model inputs where there is no chat template."""
        padding = {"padding": True} if len(texts) > 1 else {}
        with self._lock:
            return dict(
                self.processor(images=list(pictures), text=list(texts), return_tensors="pt", **padding)
            )

    def text(self, ids: Sequence[int]) -> str:
        """Words of an answer, stripped, without special tokens."""
        with self._lock:
            return self._tokenizer.decode(ids, skip_special_tokens=True).strip()

    def _until_end(self, row: list[int]) -> list[int]:
        return row[: next((place for place, token in enumerate(row) if token in self._eos), len(row))]

    def _place(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self.model.dtype if value.is_floating_point() else value.dtype
        return value.to(self.model.device, dtype)


def rendered(processor: Any, parts: Sequence[Mapping[str, str]]) -> str:
    """The prompt that a chat template makes of one user turn. Raises MetricError for one that cannot."""
    try:
        turn = [{"role": "user", "content": [dict(part) for part in parts]}]
        return str(processor.apply_chat_template(turn, add_generation_prompt=True))
    except _TEMPLATE_ERRORS as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MetricError(f"The chat template cannot be used: {first}") from error


def load_chat(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, bare: Sequence[str] = ()
) -> tuple[Any, Any, Source]:
    """(model, processor, source) of an image-text-to-text checkpoint in a folder or on the hub.

    bare  Model types (of `BARE`) that may lack a chat template.

    Raises MetricError, one sentence: nothing there, another kind of model, code of its own, no chat template,
    or one that does not take a picture and a question.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    choose("dtype", dtype, DTYPES)
    model, source = load_model(
        AutoModelForImageTextToText, path_or_id, model_type=None, revision=revision, device=device,
        dtype=dtype,
    )  # fmt: skip
    processor = from_pretrained(AutoProcessor, source.reference, revision=source.revision)
    if getattr(processor, "chat_template", None):
        _check_template(processor, path_or_id)
    elif model.config.model_type not in bare:
        raise MetricError(
            f"'{path_or_id}' has no chat template, which says how a picture and a question become a prompt; "
            "choose an instruction-tuned checkpoint, or serve the model and give openai:URL#MODEL."
        )
    return model, processor, source


def _check_template(processor: Any, name: str) -> None:
    image, words = {"type": "image"}, {"type": "text", "text": "<what?>"}
    try:
        made, blind = rendered(processor, [image, words]), rendered(processor, [words])
    except MetricError as error:
        made, blind, why = "", "", f" ({error})"
    else:
        why = ""
    # A template for plain strings shows the list of parts itself.
    if "<what?>" not in made or made == blind or "'type'" in made:
        raise MetricError(
            f"The chat template of '{name}' does not take a picture and a question{why}; choose another "
            "checkpoint, or serve the model and give openai:URL#MODEL."
        )


class ChatJudge(VisionChat):
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
    parts = load_chat(path_or_id, revision=revision, device=device, dtype=dtype)
    return ChatJudge(*parts, max_new_tokens=max_new_tokens)
