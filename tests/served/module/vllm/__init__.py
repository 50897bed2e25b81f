"""A stand-in for the package vllm, as far as a judge in the same process uses it, with a model of
transformers behind it. Written from vLLM 0.33: vllm/entrypoints/llm.py, vllm/outputs.py, vllm/logprobs.py."""

from dataclasses import dataclass

import numpy as np

from tests.served.brain import Brain

__version__ = "0.33.0"


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int | None = 16
    logprobs: int | None = None


@dataclass
class Logprob:
    logprob: float
    rank: int
    decoded_token: str


@dataclass
class CompletionOutput:
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str


@dataclass
class RequestOutput:
    outputs: list[CompletionOutput]


class LLM:
    """`batches` has the number of conversations of every call."""

    def __init__(self, model, *, revision, dtype, seed, enable_prefix_caching, limit_mm_per_prompt):
        assert (seed, enable_prefix_caching, limit_mm_per_prompt) == (0, True, {"image": 1})
        self.brain, self.batches = Brain(model, dtype), list[int]()

    def chat(self, messages, sampling_params, *, use_tqdm):
        self.batches.append(len(messages))
        assert sampling_params.temperature == 0.0
        assert not use_tqdm
        return [self._one(talk, sampling_params) for talk in messages]

    def _one(self, talk, sampling):
        [turn] = talk
        assert turn["role"] == "user"
        [picture] = [part for part in turn["content"] if part["type"] == "image_pil"]
        texts = [part.get("text") for part in turn["content"]]
        top, image = sampling.logprobs or 0, np.array(picture["image_pil"])
        made = self.brain.complete(texts, image, sampling.max_tokens or 16, top)
        likely = {
            index: Logprob(value, rank, token) for rank, (index, token, value) in enumerate(made.first, 1)
        }
        answer = CompletionOutput(
            made.text, made.token_ids, [likely] if top else None, "stop" if made.finished else "length"
        )
        return RequestOutput([answer])
