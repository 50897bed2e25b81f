"""CLIP features of pictures and sentences, for CLIP-I and CLIP-T."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nein.metrics import loading
from nein.metrics.base import Images, chunks
from nein.metrics.preprocess import ResizeCrop, map_images


class ClipEncoder:
    """A `transformers.CLIPModel` behind the transform that OpenAI published for it.

    The checkpoint's own image processor gives its numbers only: its crop can sit one pixel off.
    batch_size: pictures or sentences per forward pass.
    """

    def __init__(
        self, model: Any, tokenizer: Any, preprocess: ResizeCrop, source: loading.Source, batch_size: int = 32
    ) -> None:
        self.model, self.preprocess, self.source, self.batch_size = model, preprocess, source, batch_size
        self.tokenizer = loading.SharedTokenizer(tokenizer)
        self.fingerprint = loading.fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "clip",
            **loading.model_fields(self.model, self.source),
            "preprocess": self.preprocess.name,
            "text": f"truncated at {self._text_limit} tokens",
        }

    @property
    def _text_limit(self) -> int:
        return int(self.model.config.text_config.max_position_embeddings)

    def encode(self, images: Images) -> np.ndarray:
        """(H, W, 3) uint8 pictures -> (N, D) float32, projected, not normalised."""

        def run(crops: Images) -> torch.Tensor:
            pixels = torch.from_numpy(np.stack(crops)).to(self.model.device)  # N S S 3
            x = self.preprocess.normalise(pixels).to(self.model.dtype)  # N 3 S S
            return pooled(self.model.get_image_features(pixel_values=x))  # N D

        crops = map_images(self.preprocess, images)
        return in_batches(run, crops, self.batch_size, self.model.config.projection_dim)

    def tokens(self, texts: Sequence[str], padding: bool | str = True, limit: int | None = None) -> Any:
        """The ids and the mask of sentences, cut at `limit` tokens or at the model's, on its device."""
        return self.tokenizer(
            list(texts), padding=padding, truncation=True, max_length=limit or self._text_limit,
            return_tensors="pt",
        ).to(self.model.device)  # fmt: skip

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """Sentences, cut at the model's limit -> (N, D) float32, projected, not normalised."""
        return in_batches(self.text_features, texts, self.batch_size, self.model.config.projection_dim)

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, D) of sentences in one pass, on the device and in the model's dtype."""
        tokens = self.tokens(texts)
        ids, mask = tokens["input_ids"], tokens["attention_mask"]
        return pooled(self.model.get_text_features(input_ids=ids, attention_mask=mask))


def pooled(features: Any) -> torch.Tensor:
    """The feature tensor: transformers 5 wraps it in an object whose `pooler_output` is the projection."""
    return features if isinstance(features, torch.Tensor) else features.pooler_output


def in_batches(run: Callable[[Any], torch.Tensor], items: Sequence[Any], size: int, width: int) -> np.ndarray:
    """What `run` gives for `size` items at a time, (n, width), as one (N, width) float32 on the CPU."""
    with loading.exact():
        parts = [run(part) for part in chunks(items, size)]
    if not parts:
        return np.zeros((0, width), dtype=np.float32)
    return torch.cat(parts).to("cpu", torch.float32).numpy()


def published_numbers(processor: Any, fallback: int) -> tuple[int, Any, Any]:
    """(size, mean, std) from a checkpoint's image processor, whichever way it spells the size."""
    size = getattr(processor, "crop_size", None) or getattr(processor, "size", None) or {}
    side = size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))
    return int(side or fallback), tuple(processor.image_mean), tuple(processor.image_std)


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 32
) -> ClipEncoder:
    """Load a CLIPModel, its tokenizer and the numbers of its transform from a folder or the hub."""
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

    model, source = loading.load_model(
        CLIPModel, path_or_id, model_type="clip", revision=revision, device=device, dtype=dtype
    )
    processor = loading.from_pretrained(AutoImageProcessor, source.reference, revision=source.revision)
    tokenizer = loading.from_pretrained(AutoTokenizer, source.reference, revision=source.revision)
    size, mean, std = published_numbers(processor, model.config.vision_config.image_size)
    return ClipEncoder(model, tokenizer, ResizeCrop(size, size, mean, std), source, batch_size)
