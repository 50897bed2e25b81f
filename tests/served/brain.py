"""What vLLM has behind its protocol, with a model of transformers in its place: real answers with their
log-probabilities."""

import threading
from dataclasses import dataclass

from PIL import Image

from nein.loading.references import located
from nein.metrics.judges import vlm
from nein.metrics.judges.base import TEMPLATES
from nein.metrics.loading import from_pretrained, load_model


@dataclass(frozen=True)
class Completion:
    """token_ids    Of the answer, with the end-of-sequence token that ended it.
    first        (id, token, log-probability) of the likeliest first tokens, most likely first.
    """

    text: str
    token_ids: list[int]
    finished: bool
    first: list[tuple[int, str, float]]


class Brain:
    """One model; threads may share it."""

    def __init__(self, reference, dtype="float32"):
        from transformers import AutoModelForImageTextToText, AutoProcessor

        folder = located(reference)
        model, source = load_model(
            AutoModelForImageTextToText, folder, model_type=None, device="cpu", dtype=dtype
        )
        self._chat = vlm.VisionChat(model, from_pretrained(AutoProcessor, folder), source, max_new_tokens=10)
        self._lock = threading.Lock()

    def complete(self, turn, image, max_tokens, top):
        """The answer to a turn: its texts, and None where the picture stands."""
        with self._lock:
            inputs = self._inputs(Image.fromarray(image), turn)
            (tokens,), logits = self._chat.generate(inputs, max_tokens)
        finished = len(tokens) < max_tokens
        likely = logits[0].log_softmax(-1).topk(top)
        first = [
            (index, str(self._chat.processor.tokenizer.decode([index])), value)
            for value, index in zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        ]
        return Completion(self._chat.text(tokens), tokens + [0] * finished, finished, first)

    def _inputs(self, picture, turn):
        if self._chat.templated:
            image = {"type": "image", "image": picture}
            parts = [image if text is None else {"type": "text", "text": text} for text in turn]
            return self._chat.turns([parts])
        words = TEMPLATES["llava-mistral"].wrap("\n".join(text for text in turn if text is not None))
        return dict(self._chat.processor(images=[picture], text=[words], return_tensors="pt"))
