"""Loads and runs chat models of transformers, for text alone or for text and images (`LocalChat`).

One message is one user turn. Shapes: N messages of a batch, V tokens of the vocabulary.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import jinja2
import torch
from PIL import Image

from nein.loading.digests import Json
from nein.loading.errors import first_line, isolate
from nein.metrics import loading
from nein.metrics.base import MetricError, group_by
from nein.metrics.chat import Chat, Completion, Message, Sampling, Words, strip_thoughts
from nein.metrics.letters import LETTERS


class LocalChat(Chat):
    """Causal language model with its tokenizer, or image-text model with its processor.

    batch_size  Messages per forward pass. They have images of equal sizes, and are padded on the left, which
                can change an answer. Sampled answers, and models without a padding token, take one per pass.
    """

    def __init__(self, model: Any, processor: Any, source: loading.Source, *, batch_size: int = 1) -> None:
        self.model, self.processor, self.source = model, processor, source
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._takes_images = self._tokenizer is not processor  # a processor has a tokenizer
        self._tokenizer.padding_side = "left"
        self.batch_size = batch_size if self._tokenizer.pad_token is not None else 1
        self._has_template = bool(getattr(processor, "chat_template", None))
        self.keeps_order = self._takes_images and self._has_template and _template_keeps_order(processor)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._lock = threading.Lock()  # fast tokenizers keep state between calls
        self._sampling_lock = threading.Lock()  # torch samples with its global generator
        self._word_tokens: dict[Words, dict[str, list[int]]] = {}  # words -> word -> ids of its first tokens
        ends = model.generation_config.eos_token_id  # an id, several, or None
        ends = self._tokenizer.eos_token_id if ends is None else ends
        ends = ends if isinstance(ends, (list, tuple)) else [ends]
        self._eos = {int(token) for token in ends if token is not None}  # ids that end an answer

    def describe(self) -> Json:
        template = "the model's chat template" if self._has_template else "the words alone (InstructBLIP)"
        about = {"library": loading.library_version(), "preprocess": type(self.processor).__name__}
        return loading.describe_model("chat", self.model, self.source, **about, template=template)

    def stream(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        size = self.batch_size if sampling.temperature == 0 else 1  # a sampled answer has a seed of its own
        shapes = [tuple(image.shape for image in message.images) for message in messages]

        def complete_part(indices: Sequence[int]) -> list[Completion]:
            return self._complete_batch([messages[index] for index in indices], sampling)

        for group in group_by(range(len(messages)), lambda index: shapes[index], size):
            completions = isolate(complete_part, group, lambda error: Completion(error=error))
            yield from zip(group, completions, strict=True)

    def _complete_batch(self, messages: Sequence[Message], sampling: Sampling) -> list[Completion]:
        """Complete messages in one batch."""
        inputs = self._encode_messages(messages)
        words = sampling.top  # whose probabilities are requested, or None
        if sampling.temperature > 0:
            devices = [self.model.device] if self.model.device.type == "cuda" else []
            options = {"do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k}
            options["top_p"] = 1.0 if sampling.top_p is None else sampling.top_p
            with self._sampling_lock, torch.random.fork_rng(devices=devices):
                torch.manual_seed(messages[0].seed or 0)
                answers, scores = self.generate(inputs, sampling.max_tokens, **options)
        else:
            answers, scores = self.generate(inputs, sampling.max_tokens)
        if words is not None:  # logits (N, V) => probabilities of the first tokens, or their logarithms
            scores = scores.log_softmax(-1) if words.logs else scores.softmax(-1)
        completions = []
        for index, ids in enumerate(answers):
            text = self.decode_ids(ids)
            probabilities = None
            if words is not None and strip_thoughts(text) == text:  # the first token is the answer's
                probabilities = self._sum_by_word(scores[index], words)
            finished = len(ids) < sampling.max_tokens
            completions.append(Completion(text, probabilities, tokens=len(ids), finished=finished))
        return completions

    def generate(
        self, inputs: Mapping[str, Any], tokens: int, **sampling: Any
    ) -> tuple[list[list[int]], torch.Tensor]:
        """Generate at most `tokens` tokens: (ids of each answer up to its end, logits (N, V) float32 of the
        first step, empty for a text model). sampling: options of `generate`; without any, greedy. Raises
        ValueError for a prompt that is too long."""
        options: dict[str, Any] = {"do_sample": False, **sampling, "num_beams": 1, "max_new_tokens": tokens}
        with loading.exact():
            inputs = loading.move_inputs(self.model, inputs)
            if not self._takes_images:
                length = inputs["input_ids"].shape[1]
                limit = getattr(self.model.config, "max_position_embeddings", 0)  # 0: none
                if limit and length + tokens > limit:
                    raise ValueError(f"{length} tokens of prompt and {tokens} of answer exceed its {limit}")
                pad = self._tokenizer.pad_token_id
                options["pad_token_id"] = min(self._eos) if pad is None else pad
                produced = self.model.generate(**inputs, **options)  # (N, length + new)
                return self._cut_at_end(produced[:, length:]), torch.empty(0)
            options |= {"return_dict_in_generate": True, "output_logits": True}
            output = self.model.generate(**inputs, **options)
            # Some classes return the prompt before the answer, (N, prompt + new), some do not, (N, new).
            produced = output.sequences[:, output.sequences.shape[1] - len(output.logits) :]
            return self._cut_at_end(produced), output.logits[0].float()

    def _cut_at_end(self, produced: torch.Tensor) -> list[list[int]]:
        """Cut the ids of each answer, (N, new), before the first that ends it."""
        return [list(takewhile(lambda token: token not in self._eos, row)) for row in produced.tolist()]

    def _encode_messages(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Make the inputs of `generate`; several messages are padded on the left."""
        tensors: Json = {"return_tensors": "pt"}  # options of the processor
        if len(messages) > 1:
            tensors["padding"] = True
        texts = ["".join(part for part in message.parts if isinstance(part, str)) for message in messages]
        if not self._has_template:
            images = [Image.fromarray(image) for message in messages for image in message.images]
            with self._lock:
                return dict(self.processor(images=images, text=texts, **tensors))
        turns: list[Any] = []
        for message, text in zip(messages, texts, strict=True):
            content: list[Any] = []
            for part in message.parts:
                if isinstance(part, str):
                    content.append({"type": "text", "text": part})
                else:
                    content.append({"type": "image", "image": Image.fromarray(part)})
            turns.append([{"role": "user", "content": content if self._takes_images else text}])
        options: Json = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        # Newer versions of transformers take the processor's arguments in one dictionary.
        takes_kwargs = "processor_kwargs" in inspect.signature(self.processor.apply_chat_template).parameters
        options |= {"processor_kwargs": tensors} if takes_kwargs else tensors
        with self._lock:
            return dict(self.processor.apply_chat_template(turns, **options))

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Decode token ids: stripped text without special tokens."""
        with self._lock:
            return self._tokenizer.decode(ids, skip_special_tokens=True).strip()

    def _sum_by_word(self, scores: torch.Tensor, words: Words) -> dict[str, float | None]:
        """Word -> its probability (or logarithm): the sum of `scores` (V,) over the tokens that may begin the
        word; None if no token does."""
        if words not in self._word_tokens:
            find_tokens = yes_no_tokens if words.any_case else letter_tokens
            self._word_tokens[words] = find_tokens(self._tokenizer)
        by_word = {}
        for word in words.words:
            values = scores[self._word_tokens[words][word]]  # (number of tokens,)
            total = values.logsumexp(0) if words.logs else values.sum()
            by_word[word] = float(total) if len(values) else None
        return by_word


# --- tokens that begin an answer -----------------------------------------------------------
def yes_no_tokens(tokenizer: Any) -> dict[str, list[int]]:
    """ "yes" and "no" -> ids of the tokens that begin this answer, in any case, and not the other."""
    yes = _first_tokens(tokenizer, ("yes", "Yes", "YES", " yes", " Yes", " YES"))
    no = _first_tokens(tokenizer, ("no", "No", "NO", " no", " No", " NO"))
    return {"yes": sorted(yes - no), "no": sorted(no - yes)}


def letter_tokens(tokenizer: Any) -> dict[str, list[int]]:
    """Letter -> ids of the tokens that begin this answer, and the answer of no other letter."""
    tokens_of = {}
    for letter in LETTERS:
        # The letter alone, and after the marks by which vocabularies write a space before a word.
        ids = [tokenizer.convert_tokens_to_ids(f"{mark}{letter}") for mark in ("", "▁", "Ġ")]
        marked = {token for token in ids if token not in (None, tokenizer.unk_token_id)}
        tokens_of[letter] = _first_tokens(tokenizer, (letter, f" {letter}")) | marked
    counts = Counter(token for ids in tokens_of.values() for token in ids)
    return {letter: sorted(token for token in ids if counts[token] == 1) for letter, ids in tokens_of.items()}


def _first_tokens(tokenizer: Any, words: Sequence[str]) -> set[int]:
    """Return the id of the first token of every word, except the unknown token."""
    rows = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    return {ids[0] for ids in rows if ids and ids[0] != tokenizer.unk_token_id}


# --- chat templates ------------------------------------------------------------------------
def _template_keeps_order(processor: Any) -> bool:
    """Whether the chat template keeps an image between two texts."""
    parts = [{"type": "text", "text": "<1>"}, {"type": "image"}, {"type": "text", "text": "<2>"}]
    try:
        prompt = render_prompt(processor, parts)
    except MetricError:  # the template takes one text only
        return False
    between = re.search("<1>(.*?)<2>", prompt, re.DOTALL)  # the image's placeholder
    return between is not None and between[1].strip() != ""


def render_prompt(processor: Any, content: Any) -> str:
    """Write the prompt of one user turn with the chat template. Raises MetricError if the template fails."""
    try:
        turn = [{"role": "user", "content": content}]
        return str(processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))
    except (TypeError, ValueError, KeyError, RuntimeError, jinja2.TemplateError) as error:
        raise MetricError(f"The chat template fails: {first_line(error)}") from error


def _check_template(processor: Any, reference: str) -> None:
    if not getattr(processor, "chat_template", None):
        raise MetricError(
            f"'{reference}' has no chat template; pass an instruction-tuned checkpoint, or serve the model "
            "and pass openai:URL#MODEL."
        )


# --- loading -------------------------------------------------------------------------------
def load_chat(reference: str, *, bare: Sequence[str] = (), **options: Any) -> tuple[Any, Any, loading.Source]:
    """Load an image-text-to-text checkpoint: (model, processor, source). bare: model types that may lack a
    chat template; their prompt is the text alone. Raises MetricError, also for a template that does not take
    an image and a question."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model, source = loading.load_model(AutoModelForImageTextToText, reference, **options)
    processor = source.load_part(AutoProcessor)
    if model.config.model_type in bare and not getattr(processor, "chat_template", None):
        return model, processor, source
    _check_template(processor, reference)
    question = {"type": "text", "text": "<what?>"}
    prompt = render_prompt(processor, [{"type": "image"}, question])
    without_image = render_prompt(processor, [question])
    # A template for plain strings would print the list of parts.
    if "<what?>" not in prompt or prompt == without_image or "'type'" in prompt:
        raise MetricError(
            f"The chat template of '{reference}' does not take an image and a question; pass another "
            "checkpoint, or serve the model and pass openai:URL#MODEL."
        )
    return model, processor, source


def load_text(reference: str, **options: Any) -> LocalChat:
    """Load an instruction-tuned causal language model. Raises MetricError."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, source = loading.load_model(AutoModelForCausalLM, reference, **options)
    tokenizer = source.load_part(AutoTokenizer)
    _check_template(tokenizer, reference)
    render_prompt(tokenizer, "?")
    return LocalChat(model, tokenizer, source)
