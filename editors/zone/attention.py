"""Steps 3 and 4: cross-attention of a UNet, recorded while it denoises.

The record travels with each call as `cross_attention_kwargs={"record": ...}`, so that one UNet can serve
several threads; the processors themselves keep no state.
"""

from __future__ import annotations

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


class RecordingProcessor:
    """Attention as diffusers computes it, except that probabilities are worked out in full where recorded."""

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
    ) -> torch.Tensor:
        wanted = record is not None and self._recorded and hidden_states.ndim == 3
        if not wanted or encoder_hidden_states is None or not record.wants(hidden_states.shape[1]):  # type: ignore[union-attr]
            return self._plain(attn, hidden_states, encoder_hidden_states, attention_mask, temb)
        query = attn.head_to_batch_dim(attn.to_q(hidden_states))
        key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states))
        value = attn.head_to_batch_dim(attn.to_v(encoder_hidden_states))
        probabilities = attn.get_attention_scores(query, key, attention_mask)
        record.add(probabilities, attn.heads)  # type: ignore[union-attr]
        output = attn.batch_to_head_dim(torch.bmm(probabilities, value))
        return attn.to_out[1](attn.to_out[0](output)) / attn.rescale_output_factor


def install(unet: Any) -> None:
    """Give `unet` processors that record its cross-attention on the way down and up, not in the middle."""
    unet.set_attn_processor(
        {
            name: RecordingProcessor(name.startswith(("down_blocks", "up_blocks")) and ".attn2." in name)
            for name in unet.attn_processors
        }
    )
