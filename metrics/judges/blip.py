"""BLIP image-text matching: how well sentences fit a picture, by cosine or by the matching head; and a reward
from such a model that reads two pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import normalize

from nein.loading.errors import choose
from nein.metrics import loading
from nein.metrics.base import Described, Images, MetricError, Score, Texts, check_finite, chunks
from nein.metrics.judges.base import check_batch
from nein.metrics.rewards import RewardJudge, check_edits, each


class BlipMatcher(Described):
    """A `BlipForImageTextRetrieval` (Li et al., arXiv:2201.12086); NeIn uses `Salesforce/blip-itm-large-coco`
    with the cosine. batch_size: pictures, or picture-text pairs, per forward pass."""

    def __init__(
        self, model: Any, image_processor: Any, tokenizer: Any, source: loading.Source, batch_size: int = 16
    ) -> None:
        self.model, self.image_processor, self.source = model, image_processor, source
        self.tokenizer = loading.SharedTokenizer(tokenizer)
        self.batch_size = batch_size

    def describe(self) -> dict[str, Any]:
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


def load(path_or_id: str, *, batch_size: int = 16, pictures: int = 1, **how: Any) -> BlipMatcher:
    """pictures: how many its text encoder reads side by side (2: a reward)."""
    from transformers import AutoImageProcessor, AutoTokenizer, BlipForImageTextRetrieval

    model, source = loading.load_model(BlipForImageTextRetrieval, path_or_id, "blip", **how)
    if getattr(model.config, "pictures", 1) != pictures:
        raise MetricError(
            f"'{path_or_id}' is not a BLIP whose text encoder reads {pictures} picture{'s' * (pictures > 1)}."
        )
    images, tokenizer = source.part(AutoImageProcessor), source.part(AutoTokenizer)
    return BlipMatcher(model, images, tokenizer, source, batch_size)


class Matching(RewardJudge):
    """How well the edit fits instruction and picture before: the matching head's difference of logits.

    One edit at a time is looked at, so that no padding can change a score. The text encoder is shown the
    vision tower's states of the edit, and their differences from those before.
    A checkpoint says `pictures: 2` in its configuration, as `nano:reward` does (research/nano/reward.py).
    """

    def describe(self) -> dict[str, Any]:
        return {**self.model.describe(), "kind": "matching"}

    def score(self, sources: Images, edits: Images, instructions: Sequence[str]) -> list[Score]:
        check_edits([sources, edits], instructions)
        items = list(zip(sources, edits, instructions, strict=True))
        return each(lambda rows: [self._one(*row) for row in rows], items)

    def _one(self, source: np.ndarray, edit: np.ndarray, instruction: str) -> Score:
        with loading.exact():
            before, after = self.model.look([source, edit])
            no, yes = self.model.decide(joined(before, after)[None], [instruction])[0].tolist()
        check_finite(no, yes)
        return Score(yes - no, f"{yes:.3f} that it fits, {no:.3f} that it does not")


def joined(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """(..., 1 + patches, D) twice -> (..., 2 + 2 * patches, D): the edit, then what changed."""
    return torch.cat([after, after - before], -2)


def load_matching(path_or_id: str, **how: Any) -> Matching:
    return Matching(load(path_or_id, pictures=2, **how))
