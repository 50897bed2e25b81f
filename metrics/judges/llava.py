"""Judge "vqa" by LLaVA-NeXT, which runs an image once for all questions about it.

All prompts about an image share a prefix: the template and some three thousand image tokens. The prefix runs
once; its key-value cache is repeated for a batch of questions. Answers equal those of `generate` for every
question alone. Shapes: N images (prefixes) of a batch, B questions, V tokens of the vocabulary.
"""

from __future__ import annotations

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

#: Explicit, since an image with 1, 3 or 4 rows would be read as one with so many channels.
_PIXEL_OPTIONS = {"return_tensors": "pt", "input_data_format": "channels_last"}
TokenIds = tuple[int, ...]


class _Job(NamedTuple):
    """Prompts about one image that share a prefix."""

    image: int  # index of the image
    pixels: torch.Tensor  # (1, tiles, 3, S, S), padded to the most tiles of its batch
    size: torch.Tensor  # (1, 2): height and width
    prefix: TokenIds
    suffixes: dict[str, TokenIds]  # prompt -> ids after the prefix


class LlavaNextJudge(LocalChat, Described):
    """Judge on a `LlavaNextForConditionalGeneration`: greedy answers of at most `max_new_tokens` tokens.
    `batch_size` prefixes go through the model at once, and twice as many questions, which are short."""

    max_new_tokens = 10

    def __init__(self, *parts: Any, template: str, quantization: str, batch_size: int) -> None:
        super().__init__(*parts)  # model, processor, source
        self.template, self.quantization, self.batch_size = template, quantization, batch_size
        self._token_counts: dict[tuple[int, ...], int] = {}  # (H, W) -> number of image tokens
        # Newer versions of transformers call the parameter "cache".
        parameters = inspect.signature(type(self.model).forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._image_id = int(self.model.config.image_token_id)
        self._image_word = self._tokenizer.convert_ids_to_tokens(self._image_id)
        self._first_tokens = yes_no_tokens(self._tokenizer)  # "yes" and "no" -> ids

    def describe(self) -> Json:
        decoding = f"greedy, at most {self.max_new_tokens} tokens"
        preprocess = type(self.processor.image_processor).__name__
        about = {"kind": "vqa", "decoding": decoding, "preprocess": preprocess}
        about |= {"template": self.template, "quantization": self.quantization}
        return {**super().describe(), **about}

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """Answer `questions[i]`, full prompts about `images[i]`, (H, W, 3) uint8. Raises MetricError for a
        prompt without exactly one image."""
        check_batch(images, questions, "questions")
        for prompt in itertools.chain(*questions):
            if prompt.count(self._image_word) != 1 or prompt.endswith(self._image_word):
                raise MetricError(f"A prompt needs {self._image_word} once, and text after it: {prompt!r}.")
        answers: dict[tuple[int, str], Answer] = {}
        with exact():
            jobs = self._split_prompts(images, questions)
            for group in group_by(jobs, lambda job: len(job.prefix), self.batch_size):
                answers.update(self._answer_group(group))
        return [[answers[i, prompt] for prompt in row] for i, row in enumerate(questions)]

    def _split_prompts(self, images: Images, questions: Texts) -> list[_Job]:
        """Split the prompts about every image into common prefixes and suffixes."""
        # Token ids of every prompt, split at the image.
        heads: dict[str, TokenIds] = {}  # prompt -> ids before the image
        tails: dict[str, TokenIds] = {}  # prompt -> ids after the image
        for prompt in dict.fromkeys(itertools.chain(*questions)):
            with self._lock:
                ids = tuple(self._tokenizer(prompt)["input_ids"])
            index = ids.index(self._image_id)
            heads[prompt], tails[prompt] = ids[:index], ids[index + 1 :]
        # Length of the beginning that all tails share; each keeps one token, whose logits begin the answer.
        limit = min(map(len, tails.values()), default=1) - 1
        shared = 0
        while shared < limit and len({tail[shared] for tail in tails.values()}) == 1:
            shared += 1

        # One job per image and head.
        jobs = []
        for rows in split_chunks([i for i, row in enumerate(questions) if row], self.batch_size):
            inputs = self.processor.image_processor([images[i] for i in rows], **_PIXEL_OPTIONS)
            for k, i in enumerate(rows):
                pixels, size = inputs["pixel_values"][k : k + 1], inputs["image_sizes"][k : k + 1]
                image_ids = [self._image_id] * self._count_image_tokens(images[i])
                by_head: dict[TokenIds, list[str]] = {}  # head -> prompts: only these share a prefix
                for prompt in questions[i]:
                    by_head.setdefault(heads[prompt], []).append(prompt)
                for head, prompts in by_head.items():
                    prefix = (*head, *image_ids, *tails[prompts[0]][:shared])
                    suffixes = {prompt: tails[prompt][shared:] for prompt in prompts}
                    jobs.append(_Job(i, pixels, size, prefix, suffixes))
        return jobs

    def _count_image_tokens(self, image: np.ndarray) -> int:
        """Count the tokens that the processor makes of an image; its size decides."""
        size = image.shape[:2]
        if size not in self._token_counts:
            encoded = self.processor(images=image, text=self._image_word, **_PIXEL_OPTIONS)
            self._token_counts[size] = int((encoded["input_ids"] == self._image_id).sum())
        return self._token_counts[size]

    def _answer_group(self, jobs: Sequence[_Job]) -> Iterator[tuple[tuple[int, str], Answer]]:
        """Yield ((image, prompt), answer), in batches of equal suffix length: padding changes answers."""
        layers: Any = self._run_prefixes(jobs).layers
        lengths = {(row, p): len(ids) for row, job in enumerate(jobs) for p, ids in job.suffixes.items()}
        for batch in group_by(list(lengths), lambda pair: lengths[pair], 2 * self.batch_size):
            rows = torch.tensor([row for row, _ in batch], device=self.model.device)  # (B,) row of the prefix
            # Keys and values: (N, heads, prefix, d) => (B, heads, prefix, d).
            repeated = DynamicCache([(layer.keys[rows], layer.values[rows]) for layer in layers])
            ids = torch.tensor([[*jobs[row].prefix, *jobs[row].suffixes[prompt]] for row, prompt in batch])
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), self._cache_name: repeated}
            produced, logits = self.generate(inputs, self.max_new_tokens)
            first = logits.softmax(-1)  # (B, V) probabilities of the first token
            p_yes = first[:, self._first_tokens["yes"]].sum(-1).tolist()  # (B,)
            p_no = first[:, self._first_tokens["no"]].sum(-1).tolist()  # (B,)
            for b, (row, prompt) in enumerate(batch):
                text, count = self.decode_ids(produced[b]), len(produced[b])
                yield (jobs[row].image, prompt), Answer(text, count, p_yes=p_yes[b], p_no=p_no[b])

    def _run_prefixes(self, jobs: Sequence[_Job]) -> DynamicCache:
        """Run N prefixes of one length; return their key-value cache."""
        most = max(job.pixels.shape[1] for job in jobs)
        pixels = []  # (1, most, 3, S, S) each
        for job in jobs:
            missing = job.pixels.new_zeros((1, most - job.pixels.shape[1], *job.pixels.shape[2:]))  # tiles
            pixels.append(torch.cat([job.pixels, missing], 1))
        ids = torch.tensor([job.prefix for job in jobs], device=self.model.device)  # (N, prefix)
        output = self.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat(pixels).to(ids.device, self.model.dtype),
            image_sizes=torch.cat([job.size for job in jobs]).to(self.model.device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: DynamicCache()},  # keeps all tokens, even for a model with a sliding window
        )
        return output[self._cache_name]


def load(
    path_or_id: str, *, quantization: str = "none", template: str = "llava-mistral", batch_size: int = 8,
    **options: Any,
) -> LlavaNextJudge:  # fmt: skip
    """Load the judge. quantization: "none", or the paper's "bnb-fp4", 4-bit weights."""
    from transformers import AutoProcessor, BitsAndBytesConfig, LlavaNextForConditionalGeneration

    choose("quantization", quantization, ("none", "bnb-fp4"))
    choose("prompt template", template, TEMPLATES)
    if quantization == "bnb-fp4":
        if importlib.util.find_spec("bitsandbytes") is None:
            advice = "pip install -e '.[quantized]', or choose 'none'"
            raise MetricError(f"Quantization 'bnb-fp4' needs bitsandbytes: {advice}.")
        four_bit = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_compute_dtype=torch_dtype(options["dtype"])
        )
        options |= {"quantization_config": four_bit, "device_map": {"": options["device"]}}
    model, source = load_model(LlavaNextForConditionalGeneration, path_or_id, "llava_next", **options)
    if quantization == "none" and getattr(model.config, "quantization_config", None):
        quantization = "checkpoint"
    parts = model, source.load_part(AutoProcessor), source
    return LlavaNextJudge(*parts, template=template, quantization=quantization, batch_size=batch_size)
