"""Several questions about one picture, for training LLaVA-NeXT: each question sees the picture and itself,
nothing else, so that the picture's tokens are run once for all of them."""

from __future__ import annotations

from typing import Any

import torch

from metrics.preprocess import CLIP_MEAN, CLIP_STD
from nein.nano.draw import SIZE
from research.nano.vision import normalise

HEAD = "[INST] <image>"


class Packed:
    """`model`: a `LlavaNextForConditionalGeneration` for pictures of 64x64 pixels, a base view and a tile."""

    def __init__(self, model: Any, tokenizer: Any, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.language = model.model.language_model
        self.embedding = self.language.get_input_embeddings()
        # <s>[INST] and the blank before the picture
        self.head_ids = tokenizer(HEAD.replace("<image>", ""))["input_ids"]

    def look(self, x: torch.Tensor) -> torch.Tensor:
        """Picture tokens (B, V, D) exactly as the library packs them: base view, then tile with newlines.

        x  (B, 3, 64, 64) in [-1, 1].
        """
        pixels = normalise(x, CLIP_MEAN, CLIP_STD)[:, None].expand(-1, 2, -1, -1, -1).contiguous()
        packed = self.model.model.get_image_features(
            pixels,
            torch.full((len(x), 2), SIZE),
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
            output_hidden_states=True,
        ).pooler_output
        return torch.stack([p.reshape(-1, p.shape[-1]) for p in packed])

    def see(self, x: torch.Tensor) -> torch.Tensor:
        """What the vision tower makes of pictures, before the projector: (B, 64, W). x as for `look`."""
        states = self.model.model.vision_tower(
            normalise(x, CLIP_MEAN, CLIP_STD), output_hidden_states=True
        ).hidden_states
        return states[-2][:, 1:]

    def project(self, seen: torch.Tensor) -> torch.Tensor:
        """The same tokens as `look`, from what `see` returned."""
        base = self.model.model.multi_modal_projector(seen)
        count, patches, width = base.shape
        side = int(patches**0.5)
        newline = self.model.model.image_newline.to(base.dtype).expand(count, side, 1, width)
        tile = torch.cat([base.view(count, side, side, width), newline], 2).flatten(1, 2)
        return torch.cat([base, tile], 1)

    def encode(self, prompt: str, reply: str) -> tuple[list[int], int]:
        """Token ids of prompt, reply and end, and how many of them are the prompt's."""
        asked = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        said = self.tokenizer(reply, add_special_tokens=False)["input_ids"]
        return [*asked, *said, self.tokenizer.eos_token_id], len(asked)

    def run(self, features: torch.Tensor, questions: list[list[list[int]]]) -> torch.Tensor:
        """Hidden states (B, Q, L, D) of the questions' tokens after the shared picture (B, V, D)."""
        x, device = features, self.device
        count, length = len(questions[0]), max(len(q) for row in questions for q in row)
        ids = torch.full((len(x), count, length), self.tokenizer.pad_token_id)
        for b, row in enumerate(questions):
            for q, tokens in enumerate(row):
                ids[b, q, : len(tokens)] = torch.tensor(tokens)
        ids = ids.to(device)
        opening = self.embedding(torch.tensor(self.head_ids, device=device))[None].expand(len(x), -1, -1)
        prefix = torch.cat([opening, features], 1)
        inputs = torch.cat([prefix, self.embedding(ids.view(len(x), -1))], 1)
        p, total = prefix.shape[1], inputs.shape[1]
        block = torch.arange(count, device=device).repeat_interleave(length)
        allowed = torch.zeros(total, total, dtype=torch.bool, device=device)
        allowed[:, :p] = True
        allowed[p:, p:] = block[:, None] == block[None, :]
        allowed &= torch.ones_like(allowed).tril()
        positions = torch.cat([torch.arange(p), p + torch.arange(length).repeat(count)]).to(device)
        mask = torch.zeros(total, total, device=device, dtype=inputs.dtype)
        mask = mask.masked_fill(~allowed, torch.finfo(inputs.dtype).min)[None, None].expand(len(x), 1, -1, -1)
        states = self.language(
            inputs_embeds=inputs,
            attention_mask=mask,
            position_ids=positions[None].expand(len(x), -1),
            use_cache=False,
        ).last_hidden_state
        return states[:, p:].view(len(x), count, length, -1)

    def branch(self, features: torch.Tensor, questions: list[list[list[int]]]) -> torch.Tensor:
        """As `run`, with the picture's keys and values repeated for its questions instead of one long
        sequence: less attention, the same states."""
        count, length = len(questions[0]), max(len(q) for row in questions for q in row)
        ids = torch.full((len(questions) * count, length), self.tokenizer.pad_token_id)
        for place, tokens in enumerate(q for row in questions for q in row):
            ids[place, : len(tokens)] = torch.tensor(tokens)
        head = torch.tensor(self.head_ids, device=self.device)
        opening = self.embedding(head)[None].expand(len(features), -1, -1)
        prefix = torch.cat([opening, features], 1)
        cache = self.language(inputs_embeds=prefix, use_cache=True).past_key_values
        cache.batch_repeat_interleave(count)
        states = self.language(
            input_ids=ids.to(self.device), past_key_values=cache, use_cache=True
        ).last_hidden_state
        return states.view(len(questions), count, length, -1)
