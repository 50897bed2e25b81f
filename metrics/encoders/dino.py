"""DINO features: the class token of a ViT after its last LayerNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from metrics.encoders.clip import published_numbers, stack
from metrics.loading import Source, exact, fingerprint, from_pretrained, load_model, model_fields
from metrics.preprocess import ResizeCrop, map_images


class DinoEncoder:
    """A `transformers.ViTModel` behind the transform of facebookresearch/dino: Resize 256, centre crop 224.

    For other input sizes the two numbers keep their ratio. The pooling layer of ViTModel is not part of DINO
    and is not used; the checkpoint's own image processor does something else (no crop, bilinear) and gives
    only mean and standard deviation. Source: https://github.com/facebookresearch/dino, hubconf.py and
    eval_knn.py.
    """

    def __init__(self, model: Any, preprocess: ResizeCrop, source: Source, batch_size: int = 32) -> None:
        self.model = model
        self.preprocess = preprocess
        self.source = source
        self.batch_size = batch_size
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Everything that decides a feature, JSON-serialisable."""
        return {
            "kind": "dino",
            **model_fields(self.model, self.source),
            "preprocess": self.preprocess.name,
            "feature": "class token of last_hidden_state",
        }

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """(H, W, 3) uint8 pictures -> (N, D) float32, not normalised."""
        crops = map_images(self.preprocess, images)
        parts = []
        with exact():
            for start in range(0, len(crops), self.batch_size):
                pixels = torch.from_numpy(np.stack(crops[start : start + self.batch_size]))
                x = self.preprocess.normalise(pixels.to(self.model.device)).to(self.model.dtype)
                parts.append(self.model(pixel_values=x).last_hidden_state[:, 0])  # N T D => N D
        return stack(parts, self.model.config.hidden_size)


def load_vit(path_or_id: str, *, revision: str | None, device: str, dtype: str) -> tuple[Any, Source, Any]:
    """(ViTModel without pooling layer, source, image processor)."""
    from transformers import AutoImageProcessor, ViTModel

    model, source = load_model(
        ViTModel,
        path_or_id,
        model_type="vit",
        revision=revision,
        device=device,
        dtype=dtype,
        add_pooling_layer=False,
    )
    return model, source, from_pretrained(AutoImageProcessor, source.reference, revision=source.revision)


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 32
) -> DinoEncoder:
    """Load a DINO-style ViT from a folder or the hub."""
    model, source, processor = load_vit(path_or_id, revision=revision, device=device, dtype=dtype)
    _, mean, std = published_numbers(processor, 224)
    size = int(model.config.image_size)
    return DinoEncoder(model, ResizeCrop(round(size * 256 / 224), size, mean, std), source, batch_size)
