"""LLaVA-NeXT as a VQA judge. All prompts about an image begin the same: the template and some three thousand
image tokens. This beginning runs once; its cache is repeated for a batch of questions. Answers equal those of
`generate` called for every question alone."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from nein.loading.digests import Json, torch_dtype
from nein.loading.errors import choose
from nein.metrics.base import Described, Images, MetricError, Texts, alike, chunks
from nein.metrics.chat.local import LocalChat, yes_no_tokens
from nein.metrics.judges.base import TEMPLATES, Answer, check_batch
from nein.metrics.loading import exact, load_model

#: Questions asked together, per image of a batch.
_QUESTIONS = 2
#: An image of 1, 3 or 4 rows is otherwise taken for one of so many channels.
_PIXELS = {"return_tensors": "pt", "input_data_format": "channels_last"}


class _Job(NamedTuple):
    """One pass over one image: the shared beginning, and prompt -> what follows it."""

    image: int
    pixels: torch.Tensor  # (1, tiles, 3, S, S), padded to the most tiles of its batch
    size: torch.Tensor  # (1, 2): height and width
    prefix: tuple[int, ...]
    suffixes: dict[str, tuple[int, ...]]


class LlavaNextJudge(LocalChat, Described):
    """Greedy answers of at most `max_new_tokens` tokens from a `LlavaNextForConditionalGeneration`.

    batch_size  Images whose beginnings are run together; twice as many questions are.
    """

    max_new_tokens = 10

    def __init__(self, *parts: Any, template: str, quantization: str, batch_size: int) -> None:
        super().__init__(*parts)
        self.template, self.quantization, self.batch_size = template, quantization, batch_size
        self._ids = functools.lru_cache(maxsize=4096)(self._encoded)
        self._token_counts: dict[tuple[int, ...], int] = {}
        # Newer versions of transformers call it "cache".
        named = inspect.signature(type(self.model).forward).parameters
        self._cache = "cache" if "cache" in named else "past_key_values"
        self._image_id = int(self.model.config.image_token_id)
        self._image_word = self._tokenizer.convert_ids_to_tokens(self._image_id)
        self._yes, self._no = yes_no_tokens(self._tokenizer).values()

    def describe(self) -> Json:
        return {
            **super().describe(),
            "kind": "vqa",
            "decoding": f"greedy, at most {self.max_new_tokens} tokens",
            "preprocess": type(self.processor.image_processor).__name__,
            "template": self.template,
            "quantization": self.quantization,
        }

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """`questions[i]`: full prompts about `images[i]`, each with one image, else MetricError."""
        check_batch(images, questions, "questions")
        for prompt in (p for row in questions for p in row):
            if prompt.count(self._image_word) != 1 or prompt.endswith(self._image_word):
                raise MetricError(
                    f"A prompt must hold {self._image_word} exactly once, and text after it: {prompt!r}."
                )
        answers: dict[tuple[int, str], Answer] = {}
        with exact():
            for group in alike(self._jobs(images, questions), lambda job: len(job.prefix), self.batch_size):
                answers.update(self._answers(group))
        return [[answers[i, prompt] for prompt in row] for i, row in enumerate(questions)]

    def _jobs(self, images: Images, questions: Texts) -> list[_Job]:
        """Splits prompts into a beginning that all share and the rest: images of one size run together."""
        parts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # prompt -> before and after the image
        for prompt in dict.fromkeys(p for row in questions for p in row):
            ids = self._ids(prompt)
            place = ids.index(self._image_id)
            parts[prompt] = ids[:place], ids[place + 1 :]
        tails = [tail for _, tail in parts.values()]
        common = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*tails, strict=False))
        # At least one token must be left to ask with.
        shared = min(len(list(common)), min(map(len, tails), default=1) - 1)
        jobs = []
        for rows in chunks([i for i, row in enumerate(questions) if row], self.batch_size):
            inputs = self.processor.image_processor([images[i] for i in rows], **_PIXELS)
            for k, i in enumerate(rows):
                pixels, size = inputs["pixel_values"][k : k + 1], inputs["image_sizes"][k : k + 1]
                seen = [self._image_id] * self._token_count(images[i])
                by_head: dict[
                    tuple[int, ...], list[str]
                ] = {}  # prompts that differ before the image share nothing
                for prompt in questions[i]:
                    by_head.setdefault(parts[prompt][0], []).append(prompt)
                for head, prompts in by_head.items():
                    prefix = (*head, *seen, *parts[prompts[0]][1][:shared])
                    suffixes = {prompt: parts[prompt][1][shared:] for prompt in prompts}
                    jobs.append(_Job(i, pixels, size, prefix, suffixes))
        return jobs

    def _token_count(self, image: np.ndarray) -> int:
        """The number of tokens that stand for an image of this size."""
        shape = image.shape[:2]
        if shape not in self._token_counts:
            encoded = self.processor(images=image, text=self._image_word, **_PIXELS)
            self._token_counts[shape] = int((encoded["input_ids"] == self._image_id).sum())
        return self._token_counts[shape]

    def _encoded(self, prompt: str) -> tuple[int, ...]:
        with self._lock:
            return tuple(self._tokenizer(prompt)["input_ids"])

    def _answers(self, jobs: Sequence[_Job]) -> Iterator[tuple[tuple[int, str], Answer]]:
        """((image, prompt), answer). Prompts of one length go together: padding would count in the window."""
        layers: Any = self._prefill(jobs).layers
        pairs = [(row, prompt) for row, job in enumerate(jobs) for prompt in job.suffixes]
        size = self.batch_size * _QUESTIONS
        for chunk in alike(pairs, lambda pair: len(jobs[pair[0]].suffixes[pair[1]]), size):
            rows = torch.tensor([row for row, _ in chunk], device=self.model.device)
            repeated = DynamicCache([(layer.keys[rows], layer.values[rows]) for layer in layers])
            ids = torch.tensor([[*jobs[row].prefix, *jobs[row].suffixes[prompt]] for row, prompt in chunk])
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), self._cache: repeated}
            produced, first = self.generate(inputs, self.max_new_tokens)
            first = first.softmax(-1)  # N V -> N, summed over the words' tokens
            p_yes, p_no = (first[:, words].sum(-1).tolist() for words in (self._yes, self._no))
            for (row, prompt), tokens, yes, no in zip(chunk, produced, p_yes, p_no, strict=True):
                yield (jobs[row].image, prompt), Answer(self.text(tokens), len(tokens), yes, no)

    def _prefill(self, jobs: Sequence[_Job]) -> DynamicCache:
        tiles = max(job.pixels.shape[1] for job in jobs)
        # as many tiles for every image: N, tiles, 3, S, S
        pixels = [torch.nn.functional.pad(j.pixels, (*[0] * 7, tiles - j.pixels.shape[1])) for j in jobs]
        ids = torch.tensor([job.prefix for job in jobs], device=self.model.device)  # N, tokens
        output = self.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat(pixels).to(ids.device, self.model.dtype),
            image_sizes=torch.cat([job.size for job in jobs]).to(self.model.device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache: DynamicCache()},  # keeps everything, where the model has a window too
        )
        return output[self._cache]


def load(
    path_or_id: str,
    *,
    quantization: str = "none",
    template: str = "llava-mistral",
    batch_size: int = 8,
    **how: Any,
) -> LlavaNextJudge:
    """quantization: "bnb-fp4", the paper's: 4-bit weights, arithmetic in `dtype` (the paper: float16)."""
    from transformers import AutoProcessor, BitsAndBytesConfig, LlavaNextForConditionalGeneration

    choose("quantization", quantization, ("none", "bnb-fp4"))
    choose("prompt template", template, TEMPLATES)
    if quantization == "bnb-fp4":
        if importlib.util.find_spec("bitsandbytes") is None:
            raise MetricError(
                "Quantization 'bnb-fp4' needs bitsandbytes: pip install -e '.[quantized]', or choose 'none'."
            )
        four_bit = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_compute_dtype=torch_dtype(how["dtype"])
        )
        how |= {"quantization_config": four_bit, "device_map": {"": how["device"]}}
    model, source = load_model(LlavaNextForConditionalGeneration, path_or_id, "llava_next", **how)
    if quantization == "none" and getattr(model.config, "quantization_config", None):
        quantization = "checkpoint"
    parts = model, source.part(AutoProcessor), source
    return LlavaNextJudge(*parts, template=template, quantization=quantization, batch_size=batch_size)
