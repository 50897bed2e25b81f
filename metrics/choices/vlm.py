"""Any image-text-to-text model of transformers, asked multiple-choice questions in batches: the first
questions about pictures of one size together, then the second ones. Answer and log-probabilities of the
letters come from the same forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from nein.metrics.base import Images, MetricError, alike
from nein.metrics.choices.base import Asked, Prompt, Reply, check
from nein.metrics.judges import vlm
from nein.metrics.judges.vlm import first_tokens
from nein.metrics.letters import LETTERS, SCORINGS
from nein.metrics.loading import Source, fingerprint


class TransformersChoices(vlm.VisionChat):
    """Greedy answers of at most `max_new_tokens` tokens from an `AutoModelForImageTextToText`.

    batch_size  Pictures of one size asked about at once; prompts are padded in front, and masked.
    """

    scorings = SCORINGS
    concurrent = 0

    def __init__(
        self, model: Any, processor: Any, source: Source, *, batch_size: int = 8, max_new_tokens: int = 16
    ) -> None:
        super().__init__(model, processor, source, max_new_tokens=max_new_tokens)
        self.batch_size = batch_size
        self._letters = letter_tokens(self._tokenizer)
        self._in_order = self.templated and self._keeps_order()
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {
            **self.facts("choice"),
            "picture": "where the prompt has it" if self._in_order else "before the words",
            "batch_size": self.batch_size,
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }

    def answer(
        self, images: Images, asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        check(images, asked)
        replies_of: list[list[Reply]] = [[Reply()] * len(row) for row in asked]
        # One by one without a padding token.
        size = self.batch_size if self._tokenizer.pad_token is not None else 1
        for group in alike(range(len(images)), lambda place: images[place].shape, size):
            for turn in range(max((len(asked[i]) for i in group), default=0)):
                members = [i for i in group if turn < len(asked[i])]
                replies = self._batch(
                    [images[i] for i in members], [asked[i][turn] for i in members], scorings
                )
                for i, reply in zip(members, replies, strict=True):
                    replies_of[i][turn] = reply
        return replies_of

    def _batch(self, images: Images, asked: Sequence[Asked], scorings: Sequence[str]) -> list[Reply]:
        from PIL import Image

        pictures = [Image.fromarray(image) for image in images]
        if self.templated:
            pairs = zip(asked, pictures, strict=True)
            inputs = self.turns([self._content(one.prompt, picture) for one, picture in pairs])
        else:
            inputs = self.bare(pictures, [one.prompt.text for one in asked])
        generated = "generated" in scorings
        produced, first = self.generate(inputs, self.max_new_tokens if generated else 1)
        first = first.log_softmax(-1)
        replies = []
        for ids, row, one in zip(produced, first, asked, strict=True):
            logprobs = None
            if "logprob" in scorings:
                letters = [self._letters[letter] for letter in LETTERS[: one.options]]
                logprobs = tuple(float(row[tokens].logsumexp(0)) if tokens else None for tokens in letters)
            replies.append(Reply(self.text(ids) if generated else None, logprobs))
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
            made = vlm.rendered(self.processor, parts)
        except MetricError:  # a template that knows one text only
            return False
        return "<1>" in made and "<2>" in made and bool(made.split("<1>")[1].split("<2>")[0].strip())


def letter_tokens(tokenizer: Any) -> dict[str, list[int]]:
    """Letter -> ids of the tokens an answer that begins with it may begin with, and no other letter's."""
    tokens_of = {}
    for letter in LETTERS:
        pieces = [tokenizer.convert_tokens_to_ids(f"{gap}{letter}") for gap in ("", "▁", "Ġ")]
        known = {token for token in pieces if token is not None and token != tokenizer.unk_token_id}
        tokens_of[letter] = first_tokens(tokenizer, (letter, f" {letter}")) | known
    counts = Counter(token for ids in tokens_of.values() for token in ids)
    return {letter: sorted(t for t in ids if counts[t] == 1) for letter, ids in tokens_of.items()}


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 8,
    max_new_tokens: int = 16,
) -> TransformersChoices:  # fmt: skip
    """From a folder or the hub, with a chat template or an InstructBLIP. Raises MetricError."""
    parts = vlm.load_chat(path_or_id, revision=revision, device=device, dtype=dtype, bare=vlm.BARE)
    return TransformersChoices(*parts, batch_size=batch_size, max_new_tokens=max_new_tokens)
