"""Image-text-to-text models of transformers: one user turn per question, greedy answers; as a VQA judge, or
asked multiple-choice questions."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import jinja2
import numpy as np
import torch

from nein.loading.errors import first_line
from nein.metrics import loading
from nein.metrics.base import Described, Images, MetricError, Texts, alike, check_images, without_thoughts
from nein.metrics.choices import ChoiceQuestion, Prompt, Reply
from nein.metrics.judges.base import Answer, check_batch
from nein.metrics.letters import LETTERS, SCORINGS


def first_tokens(tokenizer: Any, words: Sequence[str]) -> set[int]:
    """Ids of the first token of every word that is not the unknown token."""
    firsts = {tuple(tokenizer(word, add_special_tokens=False)["input_ids"][:1]) for word in words}
    return {ids[0] for ids in firsts if ids and ids[0] != tokenizer.unk_token_id}


def yes_no_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Ids of the tokens that an answer of yes, or of no, begins with."""
    yes, no = (
        first_tokens(tokenizer, [f"{gap}{form}" for gap in ("", " ") for form in (w, w.title(), w.upper())])
        for w in ("yes", "no")
    )
    return sorted(yes - no), sorted(no - yes)


#: Model types without a chat template, which take the words as they are.
BARE = ("instructblip",)
_TEMPLATE_ERRORS = (TypeError, ValueError, KeyError, RuntimeError, jinja2.TemplateError)


class VisionChat(Described):
    """`templated` is False for a processor without a chat template. Threads may share one."""

    def __init__(self, model: Any, processor: Any, source: loading.Source, *, max_new_tokens: int) -> None:
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
        """Everything that decides an answer but the prompt."""
        return {
            **loading.model_fields(kind, self.model, self.source),
            "library": loading.library(),
            "preprocess": type(self.processor).__name__,
            "template": "the model's chat template" if self.templated else "the words alone (InstructBLIP)",
            "decoding": f"greedy, at most {self.max_new_tokens} tokens",
        }

    def generate(
        self, inputs: Mapping[str, Any], tokens: int, **drawing: Any
    ) -> tuple[list[list[int]], torch.Tensor]:
        """Ids up to the end of each answer, and the first step's logits, (N, V) float32; greedy by itself."""
        with loading.exact():
            output = self.model.generate(
                **loading.on_device(self.model, inputs), **{"do_sample": False, **drawing}, num_beams=1,
                max_new_tokens=tokens, return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
            # Some classes return the prompt with the answer, some do not.
            rows = output.sequences[:, output.sequences.shape[1] - len(output.logits) :].tolist()
            ended = [list(takewhile(lambda token: token not in self._eos, row)) for row in rows]
            return ended, output.logits[0].float()

    def turns(self, contents: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """Model inputs for one user turn per prompt, a list of parts: {"type": "image", "image": ...} and
        {"type": "text", "text": ...}. Several are padded in front."""
        batch = {"padding": True, "return_tensors": "pt"} if len(contents) > 1 else {"return_tensors": "pt"}
        # Newer versions want what is meant for the processor apart.
        apart = "processor_kwargs" in inspect.signature(self.processor.apply_chat_template).parameters
        more: dict[str, Any] = {"processor_kwargs": batch} if apart else batch
        turns = [[{"role": "user", "content": list(content)}] for content in contents]
        with self._lock:
            inputs = self.processor.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=True, return_dict=True, **more
            )
        return dict(inputs)

    def bare(self, pictures: Sequence[Any], texts: Sequence[str]) -> dict[str, Any]:
        padding = {"padding": True} if len(texts) > 1 else {}
        with self._lock:
            inputs = self.processor(images=list(pictures), text=list(texts), return_tensors="pt", **padding)
        return dict(inputs)

    def text(self, ids: Sequence[int]) -> str:
        """Words of an answer, stripped, without special tokens."""
        with self._lock:
            return self._tokenizer.decode(ids, skip_special_tokens=True).strip()


def rendered(processor: Any, parts: Sequence[Mapping[str, str]]) -> str:
    """The prompt that a chat template makes of one user turn. Raises MetricError for one that cannot."""
    try:
        turn = [{"role": "user", "content": [dict(part) for part in parts]}]
        return str(processor.apply_chat_template(turn, add_generation_prompt=True))
    except _TEMPLATE_ERRORS as error:
        raise MetricError(f"The chat template cannot be used: {first_line(error)}") from error


def load_chat(path_or_id: str, *, bare: Sequence[str] = (), **how: Any) -> tuple[Any, Any, loading.Source]:
    """(model, processor, source) of an image-text-to-text checkpoint. bare: model types that may lack a chat
    template. Raises MetricError, also for a chat template that does not take a picture and a question."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model, source = loading.load_model(AutoModelForImageTextToText, path_or_id, **how)
    processor = source.part(AutoProcessor)
    if not getattr(processor, "chat_template", None):
        if model.config.model_type in bare:
            return model, processor, source
        raise MetricError(
            f"'{path_or_id}' has no chat template, which says how a picture and a question become a prompt; "
            "choose an instruction-tuned checkpoint, or serve the model and give openai:URL#MODEL."
        )
    words, prompt, blind, why = {"type": "text", "text": "<what?>"}, "", "", ""
    try:
        prompt, blind = rendered(processor, [{"type": "image"}, words]), rendered(processor, [words])
    except MetricError as error:
        why = f" ({error})"
    # A template for plain strings shows the list of parts itself.
    if "<what?>" not in prompt or prompt == blind or "'type'" in prompt:
        raise MetricError(
            f"The chat template of '{path_or_id}' does not take a picture and a question{why}; choose "
            "another checkpoint, or serve the model and give openai:URL#MODEL."
        )
    return model, processor, source


class ChatJudge(VisionChat):
    """Greedy answers of an `AutoModelForImageTextToText`, one at a time: padding can change an answer."""

    template = "question"

    def __init__(self, *parts: Any, max_new_tokens: int = 10) -> None:
        super().__init__(*parts, max_new_tokens=max_new_tokens)
        self._yes, self._no = yes_no_tokens(self._tokenizer)

    def describe(self) -> dict[str, Any]:
        return self.facts("vqa")

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """`questions[i]`: plain questions about `images[i]`, (H, W, 3) uint8."""
        check_batch(images, questions, "questions")
        pairs = zip(images, questions, strict=True)
        return [[self._answer(image, question) for question in row] for image, row in pairs]

    def _answer(self, image: np.ndarray, question: str) -> Answer:
        from PIL import Image

        content: list[dict[str, Any]] = [
            {"type": "image", "image": Image.fromarray(image)},
            {"type": "text", "text": question},
        ]
        (tokens,), logits = self.generate(self.turns([content]), self.max_new_tokens)
        text, first = self.text(tokens), logits[0].softmax(-1)
        p_yes, p_no = (float(first[ids].sum()) if ids else None for ids in (self._yes, self._no))
        if (answer := without_thoughts(text)) is None:
            raise ValueError("the limit of tokens ended within the model's thoughts")
        if answer != text:  # the first token is a thought's
            p_yes = p_no = None
        return Answer(answer.strip(), len(tokens), p_yes, p_no)


def load(path_or_id: str, *, max_new_tokens: int = 10, **how: Any) -> ChatJudge:
    return ChatJudge(*load_chat(path_or_id, **how), max_new_tokens=max_new_tokens)


class TransformersChoices(VisionChat):
    """Greedy answers to multiple-choice questions, and the letters' log-probabilities from the same forward.

    batch_size  Pictures of one size asked about at once, first questions first; prompts are padded in front.
    """

    scorings = SCORINGS
    concurrent = 0

    def __init__(self, *parts: Any, batch_size: int = 8, max_new_tokens: int = 16) -> None:
        super().__init__(*parts, max_new_tokens=max_new_tokens)
        self.batch_size = batch_size
        self._letters = letter_tokens(self._tokenizer)
        self._in_order = self.templated and self._keeps_order()

    def describe(self) -> dict[str, Any]:
        return {
            **self.facts("choice"),
            "picture": "where the prompt has it" if self._in_order else "before the words",
            "batch_size": self.batch_size,
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }

    def answer(
        self, images: Images, asked: Sequence[Sequence[ChoiceQuestion]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        check_images(images, asked, "questions")
        replies_of: list[list[Reply]] = [[Reply()] * len(row) for row in asked]
        # One by one without a padding token.
        size = self.batch_size if self._tokenizer.pad_token is not None else 1
        for group in alike(range(len(images)), lambda index: images[index].shape, size):
            for turn in range(max((len(asked[i]) for i in group), default=0)):
                members = [i for i in group if turn < len(asked[i])]
                replies = self._batch(
                    [images[i] for i in members], [asked[i][turn] for i in members], scorings
                )
                for i, reply in zip(members, replies, strict=True):
                    replies_of[i][turn] = reply
        return replies_of

    def _batch(self, images: Images, asked: Sequence[ChoiceQuestion], scorings: Sequence[str]) -> list[Reply]:
        from PIL import Image

        pictures = [Image.fromarray(image) for image in images]
        if self.templated:
            pairs = zip(asked, pictures, strict=True)
            inputs = self.turns([self._content(question.prompt, picture) for question, picture in pairs])
        else:
            inputs = self.bare(pictures, [question.prompt.text for question in asked])
        generated = "generated" in scorings
        produced, first = self.generate(inputs, self.max_new_tokens if generated else 1)
        first = first.log_softmax(-1)
        replies = []
        for ids, row, question in zip(produced, first, asked, strict=True):
            text, logprobs = self.text(ids), None
            if (
                "logprob" in scorings and without_thoughts(text) == text
            ):  # else the first token is a thought's
                letters = [self._letters[letter] for letter in LETTERS[: question.options]]
                logprobs = tuple(float(row[tokens].logsumexp(0)) if tokens else None for tokens in letters)
            replies.append(Reply(text if generated else None, logprobs))
        return replies

    def _content(self, prompt: Prompt, picture: Any) -> list[dict[str, Any]]:
        image = {"type": "image", "image": picture}
        if not self._in_order or not prompt.before:
            return [image, {"type": "text", "text": prompt.text}]
        return [{"type": "text", "text": prompt.before}, image, {"type": "text", "text": prompt.after}]

    def _keeps_order(self) -> bool:
        """Whether the chat template leaves a picture between two texts where it is."""
        parts = [{"type": "text", "text": "<1>"}, {"type": "image"}, {"type": "text", "text": "<2>"}]
        try:
            prompt = rendered(self.processor, parts)
        except MetricError:  # a template that knows one text only
            return False
        return "<1>" in prompt and "<2>" in prompt and bool(prompt.split("<1>")[1].split("<2>")[0].strip())


def letter_tokens(tokenizer: Any) -> dict[str, list[int]]:
    """Letter -> ids of the tokens its answer may begin with, and no other letter's."""
    tokens_of = {}
    for letter in LETTERS:
        pieces = [tokenizer.convert_tokens_to_ids(f"{gap}{letter}") for gap in ("", "▁", "Ġ")]
        known = {token for token in pieces if token is not None and token != tokenizer.unk_token_id}
        tokens_of[letter] = first_tokens(tokenizer, (letter, f" {letter}")) | known
    counts = Counter(token for ids in tokens_of.values() for token in ids)
    return {letter: sorted(t for t in ids if counts[t] == 1) for letter, ids in tokens_of.items()}


def load_choices(
    path_or_id: str, *, batch_size: int = 8, max_new_tokens: int = 16, **how: Any
) -> TransformersChoices:
    parts = load_chat(path_or_id, bare=BARE, **how)
    return TransformersChoices(*parts, batch_size=batch_size, max_new_tokens=max_new_tokens)
