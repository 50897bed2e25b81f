"""BLIP image-text matching: how well sentences fit an image, by cosine or by the matching head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import normalize

from nein.loading.digests import Json
from nein.loading.errors import choose
from nein.metrics import loading
from nein.metrics.base import Described, Images, Texts, chunks
from nein.metrics.judges.base import check_batch


class BlipMatcher(Described):
    """A `BlipForImageTextRetrieval` (Li et al., arXiv:2201.12086); NeIn uses `Salesforce/blip-itm-large-coco`
    with the cosine. batch_size: pictures, or picture-text pairs, per forward pass."""

    def __init__(
        self, model: Any, image_processor: Any, tokenizer: Any, source: loading.Source, batch_size: int = 16
    ) -> None:
        self.model, self.image_processor, self.source = model, image_processor, source
        self.tokenizer = loading.SharedTokenizer(tokenizer)
        self.batch_size = batch_size

    def describe(self) -> Json:
        size = self.image_processor.size
        return {
            **loading.model_fields("itm", self.model, self.source),
            "library": loading.library(),
            "preprocess": f"{type(self.image_processor).__name__}-{size['height']}x{size['width']}",
        }

    def match(self, images: Images, texts: Texts, head: Literal["itc", "itm"] = "itm") -> list[np.ndarray]:
        """Fit of `texts[i]` to `images[i]`. head: "itc", the cosine of the projected features, without
        temperature; "itm", the probability that the pair matches."""
        check_batch(images, texts, "texts")
        choose("head", head, ("itc", "itm"))
        result = [np.zeros(len(row)) for row in texts]
        with loading.exact():
            sentences: dict[str, torch.Tensor] = {}  # projected, normalised features of every distinct text
            distinct = dict.fromkeys(text for row in texts for text in row) if head == "itc" else ()
            for part in chunks(list(distinct), self.batch_size):
                features = normalize(self.model.text_proj(self._encoded(part)), dim=-1)
                sentences.update(zip(part, features, strict=True))
            for chunk in chunks([i for i, row in enumerate(texts) if row], self.batch_size):
                states = self.look([images[i] for i in chunk])
                if head == "itc":
                    cls = normalize(self.model.vision_proj(states[:, 0]), dim=-1)
                    for row, i in enumerate(chunk):
                        features = torch.stack([sentences[t] for t in texts[i]])
                        result[i] = (features @ cls[row]).double().cpu().numpy()
                    continue
                pairs = [(n, i, k) for n, i in enumerate(chunk) for k in range(len(texts[i]))]
                for part in chunks(pairs, self.batch_size):
                    logits = self.decide(states[[n for n, _, _ in part]], [texts[i][k] for _, i, k in part])
                    for (_, i, k), value in zip(part, logits.softmax(-1)[:, 1].tolist(), strict=True):
                        result[i][k] = value
        return result

    def look(self, images: Images) -> torch.Tensor:
        """(N, H, W, 3) uint8 -> (N, 1 + patches, D), the last states of the vision tower."""
        inputs = self.image_processor(list(images), return_tensors="pt", input_data_format="channels_last")
        pixels = inputs["pixel_values"].to(self.model.device, self.model.dtype)
        return self.model.vision_model(pixel_values=pixels).last_hidden_state

    def decide(self, states: torch.Tensor, texts: Sequence[str]) -> torch.Tensor:
        """(N, 1 + patches, D) states of pictures and N texts -> (N, 2) float32 logits (no match, match)."""
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        fused = self._encoded(texts, encoder_hidden_states=states, encoder_attention_mask=mask)
        return self.model.itm_head(fused).float().cpu()

    def _encoded(self, texts: Sequence[str], **seen: torch.Tensor) -> torch.Tensor:
        """(N, D) states of the class token."""
        limit = int(self.model.config.text_config.max_position_embeddings)
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=limit, return_tensors="pt"
        ).to(self.model.device)
        ids, mask = tokens["input_ids"], tokens["attention_mask"]
        return self.model.text_encoder(input_ids=ids, attention_mask=mask, **seen).last_hidden_state[:, 0]


def load(path_or_id: str, *, batch_size: int = 16, **how: Any) -> BlipMatcher:
    from transformers import AutoImageProcessor, AutoTokenizer, BlipForImageTextRetrieval

    model, source = loading.load_model(BlipForImageTextRetrieval, path_or_id, "blip", **how)
    return BlipMatcher(model, source.part(AutoImageProcessor), source.part(AutoTokenizer), source, batch_size)
