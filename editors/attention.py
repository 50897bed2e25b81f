"""Cross-attention of a UNet, recorded (ZONE, steps 3 and 4) or weighted (Prompt-to-Prompt) while it denoises.

Record and weights travel with each call as `cross_attention_kwargs`: the processors keep no state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.attention_processor import AttnProcessor2_0

#: Which of the three guidance branches (instruction + image, "" + image, "" + zero image) are averaged.
BRANCHES = {"text": (0,), "uncond": (1, 2), "all": (0, 1, 2)}


class AttentionRecord:
    """Sum of attention probabilities over layers, heads, branches and steps.

    batch     B, samples per pass; a UNet call has 3 B rows, branch by branch.
    grid      (h, w): only layers with h * w query positions are recorded.
    branches  A key of `BRANCHES`.
    """

    def __init__(self, batch: int, grid: tuple[int, int], branches: str) -> None:
        self.batch, self.grid = batch, grid
        self._branches = BRANCHES[branches]
        self._sum: torch.Tensor | None = None
        self._count = 0

    def wants(self, positions: int) -> bool:
        return positions == self.grid[0] * self.grid[1]

    def add(self, probabilities: torch.Tensor, heads: int) -> None:
        """probabilities: (3 B * heads, h * w, T), heads fastest, as diffusers folds them."""
        rows = probabilities.float().unflatten(0, (3, self.batch, heads))[list(self._branches)]
        total = rows.sum((0, 2))
        self._sum = total if self._sum is None else self._sum + total
        self._count += len(self._branches) * heads

    def mean(self) -> torch.Tensor:
        """(B, h, w, T) float32: for each cell, how its attention was spread over the tokens.

        Raises ValueError when the UNet had no layer of this grid.
        """
        if self._sum is None:
            raise ValueError(
                f"the UNet has no cross-attention of {self.grid[0]} x {self.grid[1]} cells on its way down "
                f"or up; ZONE reads such maps, so choose a map_stride that the UNet has"
            )
        return (self._sum / self._count).unflatten(1, self.grid)


class Processor:
    """Attention as diffusers computes it, except that probabilities are worked out in full where they are
    recorded or weighted.

    weights  (rows of the call, tokens): factors of the probabilities of every token, which afterwards need
             not add up to 1: c in "Attention Re-weighting", Prompt-to-Prompt (arXiv:2208.01626), section 3.2.
    """

    def __init__(self, recorded: bool) -> None:
        self._recorded = recorded
        self._plain = AttnProcessor2_0()

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        temb: torch.Tensor | None = None,
        record: AttentionRecord | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not (
            self._recorded and hidden_states.ndim == 3 and record and record.wants(hidden_states.shape[1])
        ):
            record = None
        if encoder_hidden_states is None or (record is None and weights is None):
            return self._plain(attn, hidden_states, encoder_hidden_states, attention_mask, temb)
        query = attn.head_to_batch_dim(attn.to_q(hidden_states))
        key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states))
        value = attn.head_to_batch_dim(attn.to_v(encoder_hidden_states))
        probabilities = attn.get_attention_scores(query, key, attention_mask)
        if record is not None:
            record.add(probabilities, attn.heads)
        if weights is not None:
            factors = weights.repeat_interleave(attn.heads, 0)[:, None]
            probabilities = probabilities * factors.to(probabilities.dtype)
        output = attn.batch_to_head_dim(torch.bmm(probabilities, value))
        return attn.to_out[1](attn.to_out[0](output)) / attn.rescale_output_factor


def word_weights(tokenizer: Any, text: str, factors: Mapping[str, float]) -> torch.Tensor:
    """(tokens,) float32: the factor of every token of `text`, padded as a text encoder reads it; 1 but for
    the words of `factors`, whatever their case; the "car" of a "cartoon" only where there is no car. Raises
    ValueError for one that is not in the text."""
    encoded = tokenizer(text, padding="max_length", truncation=True, return_offsets_mapping=True)
    weights = torch.ones(len(encoded["input_ids"]))
    for word, factor in factors.items():
        plain = re.escape(word)
        whole = [match.span() for match in re.finditer(rf"(?<!\w){plain}(?!\w)", text, re.IGNORECASE)]
        places = whole or [match.span() for match in re.finditer(plain, text, re.IGNORECASE)]
        if not places:
            raise ValueError(f"{word!r} is not in the instruction {text!r}")
        for index, (start, end) in enumerate(encoded["offset_mapping"]):
            if start < end and any(start < last and first < end for first, last in places):
                weights[index] = factor
    return weights


def install(unet: Any) -> None:
    """Give `unet` processors that weight its cross-attention, and record it on the way down and up, not in
    the middle; without a record and weights it computes what it did."""
    recorded = {
        n: n.startswith(("down_blocks", "up_blocks")) and ".attn2." in n for n in unet.attn_processors
    }
    unet.set_attn_processor({name: Processor(wanted) for name, wanted in recorded.items()})
