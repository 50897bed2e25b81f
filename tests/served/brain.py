"""What vLLM has behind its protocol, with a model of transformers in its place: real answers with their
log-probabilities, and a prefix cache of blocks of 16 tokens."""

import hashlib
import threading
from dataclasses import dataclass

from PIL import Image

from nein.loading.references import located
from nein.metrics.judges import vlm
from nein.metrics.judges.base import TEMPLATES
from nein.metrics.loading import from_pretrained, load_model

BLOCK = 16


@dataclass(frozen=True)
class Completion:
    """token_ids    Of the answer, with the end-of-sequence token that ended it.
    first        (id, token, log-probability) of the likeliest first tokens, most likely first.
    prompt       Tokens of the prompt; `cached` of them were in the prefix cache.
    """

    text: str
    token_ids: list[int]
    finished: bool
    first: list[tuple[int, str, float]]
    prompt: list[int]
    cached: int


class Brain:
    """One model; threads may share it."""

    def __init__(self, reference, dtype="float32"):
        from transformers import AutoModelForImageTextToText, AutoProcessor

        folder = located(reference)
        model, source = load_model(
            AutoModelForImageTextToText, folder, model_type=None, revision=None, device="cpu", dtype=dtype
        )
        self._chat = vlm.VisionChat(model, from_pretrained(AutoProcessor, folder), source, max_new_tokens=10)
        self._lock = threading.Lock()
        self.forget()

    def forget(self):
        self._blocks, self.queries, self.hits = set(), 0, 0

    def complete(self, turn, image, max_tokens, top):
        """The answer to a turn: its texts, and None where the picture stands."""
        name = hashlib.sha256(image.tobytes()).hexdigest()
        with self._lock:
            inputs = self._inputs(Image.fromarray(image), turn)
            prompt = inputs["input_ids"][0].tolist()
            blocks = _blocks(prompt, name)
            cached = BLOCK * sum(block in self._blocks for block in blocks)
            self.queries, self.hits = self.queries + len(prompt), self.hits + cached
        # Who comes meanwhile finds nothing of this prompt in the cache.
        with self._lock:
            (tokens,), logits = self._chat.generate(inputs, max_tokens)
            self._blocks.update(blocks)
        finished = len(tokens) < max_tokens
        likely = logits[0].log_softmax(-1).topk(top)
        first = [
            (index, str(self._chat.processor.tokenizer.decode([index])), value)
            for value, index in zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        ]
        return Completion(self._chat.text(tokens), tokens + [0] * finished, finished, first, prompt, cached)

    def _inputs(self, picture, turn):
        if self._chat.templated:
            image = {"type": "image", "image": picture}
            parts = [image if text is None else {"type": "text", "text": text} for text in turn]
            return self._chat.turns([parts])
        words = TEMPLATES["llava-mistral"].wrap("\n".join(text for text in turn if text is not None))
        return dict(self._chat.processor(images=[picture], text=[words], return_tensors="pt"))


def _blocks(prompt, name):
    """Of every full block a hash of all tokens up to its end, and of the picture's name."""
    ends = range(BLOCK, len(prompt) + 1, BLOCK)
    return [hashlib.sha256(f"{name} {list(prompt[:end])}".encode()).hexdigest() for end in ends]
