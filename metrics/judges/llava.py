"""Judge "vqa" by LLaVA-NeXT. All prompts about an image share a prefix: the template and some three thousand
image tokens. The prefix runs once; its key-value cache is repeated for a batch of questions. Answers equal
those of `generate` for every question alone."""

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

from nein.loading.digests import Json
from nein.loading.errors import choose
from nein.loading.weights import torch_dtype
from nein.metrics.base import Described, Images, MetricError, Texts, group_by, split_chunks
from nein.metrics.chat.local import LocalChat, yes_no_tokens
from nein.metrics.judges.base import TEMPLATES, Answer, check_batch
from nein.metrics.loading import exact, load_model

#: Questions per pass, per image of a batch.
_QUESTIONS = 2
#: Explicit, since an image with 1, 3 or 4 rows would be read as one with so many channels.
_PIXELS = {"return_tensors": "pt", "input_data_format": "channels_last"}


class _Job(NamedTuple):
    """Prompts about one image with a common prefix."""

    image: int  # its index
    pixels: torch.Tensor  # (1, tiles, 3, S, S), padded to the most tiles of its batch
    size: torch.Tensor  # (1, 2): height and width
    prefix: tuple[int, ...]  # token ids
    suffixes: dict[str, tuple[int, ...]]  # prompt -> token ids after the prefix


class LlavaNextJudge(LocalChat, Described):
    """Greedy answers of at most `max_new_tokens` tokens from a `LlavaNextForConditionalGeneration`.

    batch_size  Images per pass of the prefix; questions go twice as many at a time.
    """

    max_new_tokens = 10

    def __init__(self, *parts: Any, template: str, quantization: str, batch_size: int) -> None:
        super().__init__(*parts)
        self.template, self.quantization, self.batch_size = template, quantization, batch_size
        self._ids = functools.lru_cache(maxsize=4096)(self._encode_prompt)
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
        """Answers to `questions[i]`, full prompts about `images[i]`, (H, W, 3) uint8. Raises MetricError for
        a prompt without exactly one image."""
        check_batch(images, questions, "questions")
        for prompt in (p for row in questions for p in row):
            if prompt.count(self._image_word) != 1 or prompt.endswith(self._image_word):
                raise MetricError(f"A prompt needs {self._image_word} once, and text after it: {prompt!r}.")
        answers: dict[tuple[int, str], Answer] = {}
        with exact():
            for group in group_by(
                self._jobs(images, questions), lambda job: len(job.prefix), self.batch_size
            ):
                answers.update(self._answer_group(group))
        return [[answers[i, prompt] for prompt in row] for i, row in enumerate(questions)]

    def _jobs(self, images: Images, questions: Texts) -> list[_Job]:
        """Split prompts into a common prefix and suffixes, per image."""
        parts: dict[
            str, tuple[tuple[int, ...], tuple[int, ...]]
        ] = {}  # prompt -> ids before and after the image
        for prompt in dict.fromkeys(p for row in questions for p in row):
            ids = self._ids(prompt)
            index = ids.index(self._image_id)
            parts[prompt] = ids[:index], ids[index + 1 :]
        tails = [tail for _, tail in parts.values()]
        common = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*tails, strict=False))
        # The suffix needs at least one token: its logits are those of the answer.
        common_length = min(len(list(common)), min(map(len, tails), default=1) - 1)
        jobs = []
        for rows in split_chunks([i for i, row in enumerate(questions) if row], self.batch_size):
            inputs = self.processor.image_processor([images[i] for i in rows], **_PIXELS)
            for k, i in enumerate(rows):
                pixels, size = inputs["pixel_values"][k : k + 1], inputs["image_sizes"][k : k + 1]
                image_ids = [self._image_id] * self._token_count(images[i])
                # Prompts that differ before the image share no prefix.
                by_head: dict[tuple[int, ...], list[str]] = {}
                for prompt in questions[i]:
                    by_head.setdefault(parts[prompt][0], []).append(prompt)
                for head, prompts in by_head.items():
                    prefix = (*head, *image_ids, *parts[prompts[0]][1][:common_length])
                    suffixes = {prompt: parts[prompt][1][common_length:] for prompt in prompts}
                    jobs.append(_Job(i, pixels, size, prefix, suffixes))
        return jobs

    def _token_count(self, image: np.ndarray) -> int:
        """Number of image tokens for an image of this size."""
        shape = image.shape[:2]
        if shape not in self._token_counts:
            encoded = self.processor(images=image, text=self._image_word, **_PIXELS)
            self._token_counts[shape] = int((encoded["input_ids"] == self._image_id).sum())
        return self._token_counts[shape]

    def _encode_prompt(self, prompt: str) -> tuple[int, ...]:
        with self._lock:
            return tuple(self._tokenizer(prompt)["input_ids"])

    def _answer_group(self, jobs: Sequence[_Job]) -> Iterator[tuple[tuple[int, str], Answer]]:
        """Yield ((image, prompt), answer), in batches of equal suffix length: padding changes answers."""
        layers: Any = self._prefill(jobs).layers
        pairs = [(row, prompt) for row, job in enumerate(jobs) for prompt in job.suffixes]
        size = self.batch_size * _QUESTIONS
        for chunk in group_by(pairs, lambda pair: len(jobs[pair[0]].suffixes[pair[1]]), size):
            rows = torch.tensor([row for row, _ in chunk], device=self.model.device)  # (B,) row of the prefix
            # keys and values: (N, heads, prefix, d) => (B, heads, prefix, d)
            repeated = DynamicCache([(layer.keys[rows], layer.values[rows]) for layer in layers])
            ids = torch.tensor([[*jobs[row].prefix, *jobs[row].suffixes[prompt]] for row, prompt in chunk])
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), self._cache: repeated}
            produced, first = self.generate(inputs, self.max_new_tokens)
            first = first.softmax(-1)  # (B, V); below (B,): summed over the words' tokens
            p_yes, p_no = (first[:, words].sum(-1).tolist() for words in (self._yes, self._no))
            for (row, prompt), tokens, yes, no in zip(chunk, produced, p_yes, p_no, strict=True):
                yield (jobs[row].image, prompt), Answer(self.decode_ids(tokens), len(tokens), yes, no)

    def _prefill(self, jobs: Sequence[_Job]) -> DynamicCache:
        """Key-value cache of N prefixes of one length."""
        tiles = max(job.pixels.shape[1] for job in jobs)
        # padded to as many tiles for every image: (1, tiles, 3, S, S) each
        pixels = [torch.nn.functional.pad(j.pixels, (*[0] * 7, tiles - j.pixels.shape[1])) for j in jobs]
        ids = torch.tensor([job.prefix for job in jobs], device=self.model.device)  # (N, tokens)
        output = self.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat(pixels).to(ids.device, self.model.dtype),
            image_sizes=torch.cat([job.size for job in jobs]).to(self.model.device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache: DynamicCache()},  # keeps all tokens, even for a model with a sliding window
        )
        return output[self._cache]


def load(
    path_or_id: str,
    *,
    quantization: str = "none",
    template: str = "llava-mistral",
    batch_size: int = 8,
    **options: Any,
) -> LlavaNextJudge:
    """Load a judge. quantization: "none", or the paper's "bnb-fp4", 4-bit weights."""
    from transformers import AutoProcessor, BitsAndBytesConfig, LlavaNextForConditionalGeneration

    choose("quantization", quantization, ("none", "bnb-fp4"))
    choose("prompt template", template, TEMPLATES)
    if quantization == "bnb-fp4":
        if importlib.util.find_spec("bitsandbytes") is None:
            raise MetricError(
                "Quantization 'bnb-fp4' needs bitsandbytes: pip install -e '.[quantized]', or choose 'none'."
            )
        four_bit = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_compute_dtype=torch_dtype(options["dtype"])
        )
        options |= {"quantization_config": four_bit, "device_map": {"": options["device"]}}
    model, source = load_model(LlavaNextForConditionalGeneration, path_or_id, "llava_next", **options)
    if quantization == "none" and getattr(model.config, "quantization_config", None):
        quantization = "checkpoint"
    parts = model, source.load_part(AutoProcessor), source
    return LlavaNextJudge(*parts, template=template, quantization=quantization, batch_size=batch_size)
