"""Class tokens of a ViT: DINO's features, and what stands in for FID's Inception network offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nein.metrics.base import Images
from nein.metrics.encoders.clip import in_batches, published_numbers
from nein.metrics.loading import Source, fingerprint, from_pretrained, load_model, model_fields
from nein.metrics.preprocess import CleanResize, ResizeCrop, map_images, normalised


class ViTEncoder:
    """The class token of a `transformers.ViTModel` after its last LayerNorm.

    kind        "dino": behind the transform of facebookresearch/dino (hubconf.py, eval_knn.py): Resize 256,
                centre crop 224, or their ratio, with the checkpoint's mean and deviation; no pooling layer.
                "fid": behind clean-fid's resize; not comparable with published FID values.
    preprocess  A picture -> (S, S, 3), 0 to 255.
    """

    def __init__(
        self, kind: str, model: Any, preprocess: ResizeCrop | CleanResize, mean: Sequence[float],
        std: Sequence[float], source: Source, batch_size: int = 32,
    ) -> None:  # fmt: skip
        self.kind, self.model, self.preprocess, self.source = kind, model, preprocess, source
        self.mean, self.std = tuple(mean), tuple(std)
        self.batch_size = batch_size
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        name = self.preprocess.name
        return {
            "kind": self.kind,
            **model_fields(self.model, self.source),
            "preprocess": name if self.kind == "dino" else f"{name}/mean-{self.mean}/std-{self.std}",
            "feature": "class token of last_hidden_state",
        }

    def encode(self, images: Images) -> np.ndarray:
        """(H, W, 3) uint8 pictures -> (N, D) float32, not normalised."""

        def run(crops: Images) -> torch.Tensor:
            pixels = torch.from_numpy(np.stack(crops)).to(self.model.device)  # N S S 3
            x = normalised(pixels, self.mean, self.std).to(self.model.dtype)  # N 3 S S
            return self.model(pixel_values=x).last_hidden_state[:, 0]  # N T D => N D

        crops = map_images(self.preprocess, images)
        return in_batches(run, crops, self.batch_size, self.model.config.hidden_size)


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 32,
    kind: str = "dino",
) -> ViTEncoder:  # fmt: skip
    """Load a DINO-style ViT from a folder or the hub."""
    from transformers import AutoImageProcessor, ViTModel

    model, source = load_model(
        ViTModel, path_or_id, model_type="vit", revision=revision, device=device, dtype=dtype,
        add_pooling_layer=False,
    )  # fmt: skip
    processor = from_pretrained(AutoImageProcessor, source.reference, revision=source.revision)
    _, mean, std = published_numbers(processor, 224)
    size = int(model.config.image_size)
    preprocess = ResizeCrop(round(size * 256 / 224), size, mean, std) if kind == "dino" else CleanResize(size)
    return ViTEncoder(kind, model, preprocess, mean, std, source, batch_size)
