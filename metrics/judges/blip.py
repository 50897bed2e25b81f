"""BLIP image-text matching: how well sentences fit a picture, by cosine or by the matching head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from nein.loading.errors import choose
from nein.metrics.base import MetricError
from nein.metrics.judges.base import check_batch
from nein.metrics.loading import (
    SharedTokenizer,
    Source,
    exact,
    fingerprint,
    from_pretrained,
    library,
    load_model,
    model_fields,
)


class BlipMatcher:
    """A `BlipForImageTextRetrieval`. A picture is encoded once for all its texts.

    Source: Li et al., arXiv:2201.12086; NeIn uses `Salesforce/blip-itm-large-coco` with the cosine.
    batch_size: pictures, or picture-text pairs, per forward pass.
    """

    def __init__(
        self, model: Any, image_processor: Any, tokenizer: Any, source: Source, batch_size: int = 16
    ) -> None:
        self.model = model
        self.image_processor = image_processor
        self.tokenizer = SharedTokenizer(tokenizer)
        self.source = source
        self.batch_size = batch_size
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        size = self.image_processor.size
        return {
            "kind": "itm",
            **model_fields(self.model, self.source),
            "library": library(),
            "preprocess": f"{type(self.image_processor).__name__}-{size['height']}x{size['width']}",
        }

    def match(
        self,
        images: Sequence[np.ndarray],
        texts: Sequence[Sequence[str]],
        head: Literal["itc", "itm"] = "itm",
    ) -> list[np.ndarray]:
        """Fit of `texts[i]` to `images[i]` (H, W, 3) uint8: one float64 array per picture.

        head: "itc" gives the cosine of the projected features in [-1, 1] (no temperature; the library's
        `use_itm_head=False`), "itm" the probability in [0, 1] that the matching head calls the pair a match.
        """
        check_batch(images, texts, "texts")
        choose("head", head, ("itc", "itm"))
        result = [np.zeros(len(row)) for row in texts]
        wanted = [i for i, row in enumerate(texts) if row]
        with exact():
            sentences = self._sentences([t for row in texts for t in row]) if head == "itc" else {}
            for start in range(0, len(wanted), self.batch_size):
                chunk = wanted[start : start + self.batch_size]
                states = self.look([images[i] for i in chunk])
                if head == "itc":
                    cls = torch.nn.functional.normalize(self.model.vision_proj(states[:, 0]), dim=-1)
                    for row, i in enumerate(chunk):
                        features = torch.stack([sentences[t] for t in texts[i]])
                        result[i] = (features @ cls[row]).double().cpu().numpy()
                else:
                    pairs = [(row, i, k) for row, i in enumerate(chunk) for k in range(len(texts[i]))]
                    for first in range(0, len(pairs), self.batch_size):
                        part = pairs[first : first + self.batch_size]
                        values = self.decide(
                            states[[row for row, _, _ in part]], [texts[i][k] for _, i, k in part]
                        )
                        for (_, i, k), value in zip(part, values.softmax(-1)[:, 1].tolist(), strict=True):
                            result[i][k] = value
        return result

    def look(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        """(N, H, W, 3) uint8 -> (N, 1 + patches, D), the last states of the vision tower."""
        pixels = self.image_processor(list(images), return_tensors="pt")["pixel_values"]
        return self.model.vision_model(
            pixel_values=pixels.to(self.model.device, self.model.dtype)
        ).last_hidden_state

    def _tokens(self, texts: Sequence[str]) -> Any:
        return self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=int(self.model.config.text_config.max_position_embeddings),
            return_tensors="pt",
        ).to(self.model.device)

    def _sentences(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Projected, normalised features of every distinct text."""
        unique = list(dict.fromkeys(texts))
        encoded: dict[str, torch.Tensor] = {}
        for start in range(0, len(unique), self.batch_size):
            part = unique[start : start + self.batch_size]
            tokens = self._tokens(part)
            states = self.model.text_encoder(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            ).last_hidden_state
            features = torch.nn.functional.normalize(self.model.text_proj(states[:, 0]), dim=-1)
            encoded.update(zip(part, features, strict=True))
        return encoded

    def decide(self, states: torch.Tensor, texts: Sequence[str]) -> torch.Tensor:
        """What the matching head says of pictures, as `look` gives them, and texts: (N, 2) float32 logits of
        "no match" and "match"."""
        tokens = self._tokens(texts)
        fused = self.model.text_encoder(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            encoder_hidden_states=states,
            encoder_attention_mask=torch.ones(states.shape[:2], dtype=torch.long, device=states.device),
        ).last_hidden_state
        return self.model.itm_head(fused[:, 0]).float().cpu()


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 16, pictures: int = 1
) -> BlipMatcher:
    """Load a BLIP image-text retrieval checkpoint from a folder or the hub.

    pictures  How many its text encoder reads side by side: 2 for a reward (`metrics.rewards.matching`).
    """
    from transformers import AutoImageProcessor, AutoTokenizer, BlipForImageTextRetrieval

    model, source = load_model(
        BlipForImageTextRetrieval,
        path_or_id,
        model_type="blip",
        revision=revision,
        device=device,
        dtype=dtype,
    )
    if getattr(model.config, "pictures", 1) != pictures:
        raise MetricError(
            f"'{path_or_id}' is no BLIP whose text encoder reads {pictures} picture{'s' * (pictures > 1)}."
        )
    images = from_pretrained(AutoImageProcessor, source.reference, revision=source.revision)
    tokenizer = from_pretrained(AutoTokenizer, source.reference, revision=source.revision)
    return BlipMatcher(model, images, tokenizer, source, batch_size)
