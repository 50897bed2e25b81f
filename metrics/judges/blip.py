"""Judge "itm": BLIP scores how well sentences fit an image, by a cosine ("itc") or a matching head ("itm").

Shapes: N images, texts or pairs of a batch, D projected features, P patches of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import normalize

from nein.loading.digests import Json
from nein.loading.errors import choose
from nein.metrics import loading
from nein.metrics.base import Described, Images, Texts, split_chunks
from nein.metrics.judges.base import check_batch


class BlipMatcher(Described):
    """A `BlipForImageTextRetrieval` (Li et al., arXiv:2201.12086). NeIn uses `Salesforce/blip-itm-large-coco`
    with the cosine. batch_size: images, texts or image-text pairs per forward pass."""

    def __init__(
        self, model: Any, image_processor: Any, tokenizer: Any, source: loading.Source, batch_size: int = 16
    ) -> None:
        self.model, self.image_processor, self.source = model, image_processor, source
        self.tokenizer = loading.SharedTokenizer(tokenizer)
        self.batch_size = batch_size

    def describe(self) -> Json:
        size = self.image_processor.size
        preprocess = f"{type(self.image_processor).__name__}-{size['height']}x{size['width']}"
        about = {"library": loading.library_version(), "preprocess": preprocess}
        return loading.describe_model("itm", self.model, self.source, **about)

    def match(self, images: Images, texts: Texts, head: Literal["itc", "itm"] = "itm") -> list[np.ndarray]:
        """Score `texts[i]` against `images[i]`, (number of texts,) float64 each. head: "itc", cosine of the
        projected features, without temperature; "itm", probability of a match."""
        check_batch(images, texts, "texts")
        choose("head", head, ("itc", "itm"))
        scores = [np.zeros(len(row)) for row in texts]
        with_texts = [i for i, row in enumerate(texts) if row]
        with loading.exact():
            features = self._project_texts(texts) if head == "itc" else {}
            for chunk in split_chunks(with_texts, self.batch_size):
                states = self.encode_images([images[i] for i in chunk])  # (N, 1 + P, width)
                if head == "itc":
                    projected = normalize(self.model.vision_proj(states[:, 0]), dim=-1)  # class token: (N, D)
                    for i, image_features in zip(chunk, projected, strict=True):
                        text_features = torch.stack([features[text] for text in texts[i]])  # (texts, D)
                        scores[i] = (text_features @ image_features).double().cpu().numpy()  # (texts,)
                    continue
                # (row of `states`, image, text)
                pairs = [(n, i, k) for n, i in enumerate(chunk) for k in range(len(texts[i]))]
                for batch in split_chunks(pairs, self.batch_size):
                    sentences = [texts[i][k] for _, i, k in batch]
                    logits = self.compute_logits(states[[n for n, _, _ in batch]], sentences)  # (N, 2)
                    for (_, i, k), value in zip(batch, logits.softmax(-1)[:, 1].tolist(), strict=True):
                        scores[i][k] = value
        return scores

    def _project_texts(self, texts: Texts) -> dict[str, torch.Tensor]:
        """Text -> projected features of length 1, (D,), for all distinct texts."""
        features: dict[str, torch.Tensor] = {}
        distinct = dict.fromkeys(text for row in texts for text in row)
        for batch in split_chunks(list(distinct), self.batch_size):
            projected = normalize(self.model.text_proj(self._encode_texts(batch)), dim=-1)  # (N, D)
            features.update(zip(batch, projected, strict=True))
        return features

    def encode_images(self, images: Images) -> torch.Tensor:
        """Run the vision tower on N images, (H, W, 3) uint8: last states (N, 1 + P, width)."""
        inputs = self.image_processor(list(images), return_tensors="pt", input_data_format="channels_last")
        pixels = inputs["pixel_values"].to(self.model.device, self.model.dtype)
        return self.model.vision_model(pixel_values=pixels).last_hidden_state

    def compute_logits(self, states: torch.Tensor, texts: Sequence[str]) -> torch.Tensor:
        """Match image states (N, 1 + P, width) with N texts: logits (N, 2) float32 of no match and match."""
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        fused = self._encode_texts(texts, encoder_hidden_states=states, encoder_attention_mask=mask)
        return self.model.itm_head(fused).float().cpu()

    def _encode_texts(self, texts: Sequence[str], **image: torch.Tensor) -> torch.Tensor:
        """Run the text tower: states of the class token, (N, width). image: inputs that fuse an image."""
        limit = int(self.model.config.text_config.max_position_embeddings)
        options = {"padding": True, "truncation": True, "max_length": limit, "return_tensors": "pt"}
        tokens = self.tokenizer(list(texts), **options).to(self.model.device)
        ids, mask = tokens["input_ids"], tokens["attention_mask"]
        return self.model.text_encoder(input_ids=ids, attention_mask=mask, **image).last_hidden_state[:, 0]


def load(path_or_id: str, *, batch_size: int = 16, **options: Any) -> BlipMatcher:
    """Load BLIP. options: those of `loading.load_model`."""
    from transformers import AutoImageProcessor, AutoTokenizer, BlipForImageTextRetrieval

    model, source = loading.load_model(BlipForImageTextRetrieval, path_or_id, "blip", **options)
    image_processor, tokenizer = source.load_part(AutoImageProcessor), source.load_part(AutoTokenizer)
    return BlipMatcher(model, image_processor, tokenizer, source, batch_size)
