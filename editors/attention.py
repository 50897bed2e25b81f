"""Records the cross-attention of InstructPix2Pix's UNet (ZONE), weights it per word (Prompt-to-Prompt), or
guides it away from a negative prompt (NAG, VSF).

Parts: record of attention; rules of guidance; the attention processor, which uses both; weights of words. In
shapes: B samples, h * w cells of the image, T tokens, d features per head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from diffusers.models.attention_processor import AttnProcessor2_0
from torch import Tensor

# --- record of attention -------------------------------------------------------------------------------

#: Name -> indices of the branches to average, of [instruction + image, "" + image, "" + zero image].
BRANCHES = {"text": [0], "uncond": [1, 2]}


class AttentionRecord:
    """Mean of attention probabilities over heads, steps, branches (a key of `BRANCHES`), and layers that
    attend from the cells of `grid`, (h, w). A UNet call has 3 * `batch` rows, branch by branch."""

    def __init__(self, batch: int, grid: tuple[int, int], branches: str) -> None:
        self.batch, self.grid, self._branches = batch, grid, BRANCHES[branches]
        self._sum: Tensor | None = None  # (B, h * w, T)
        self._count = 0  # addends of `_sum`

    def has_grid(self, positions: int) -> bool:
        """Whether a layer with this number of positions has the grid's cells."""
        return positions == self.grid[0] * self.grid[1]

    def add(self, probabilities: Tensor, heads: int) -> None:
        """Add a layer's probabilities, (3 B * heads, h * w, T), heads fastest, as diffusers folds them."""
        # (3 B * heads, h * w, T) => (3, B, heads, h * w, T) => (B, h * w, T)
        total = probabilities.float().unflatten(0, (3, self.batch, heads))[self._branches].sum((0, 2))
        self._sum = total if self._sum is None else self._sum + total
        self._count += len(self._branches) * heads

    def mean(self) -> Tensor:
        """Attention of each cell over the tokens, (B, h, w, T) float32. Raises ValueError."""
        if self._sum is None:
            raise ValueError(
                f"the UNet has no cross-attention with {self.grid[0]} x {self.grid[1]} cells on its way down "
                f"or up, which ZONE reads; pass another map_stride"
            )
        return (self._sum / self._count).unflatten(1, self.grid)


# --- rules of guidance away from a negative prompt -----------------------------------------------------
# A rule maps (query, prompt, negative, in_prompt) to features (B, cells, heads * d).
#   query             (B, heads, cells, d)
#   prompt, negative  `KeyValue` of the prompt and of the negative prompt
#   in_prompt         (B, T) bool, False for padding of the negative prompt

KeyValue = tuple[Tensor, Tensor]  # (B, heads, T, d) each


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V, for a query (B, heads, cells, d): (B, cells, heads * d)."""
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return output.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Nag:
    """Normalized attention guidance (arXiv:2505.21179). With the attention Z+ to the prompt and Z- to the
    negative prompt, Z' = s Z+ - (s - 1) Z-. The L1 norm of each cell of Z' is limited to tau times that of
    Z+. The result is alpha Z' + (1 - alpha) Z+. The paper's scale is s - 1. Padding counts. Default values:
    the authors' workflow for SD15 in github.com/ChenDarYen/ComfyUI-NAG @ ef8a641."""

    scale: float = 5.0
    tau: float = 2.5
    alpha: float = 0.38

    def __call__(self, query: Tensor, prompt: KeyValue, negative: KeyValue, in_prompt: Tensor) -> Tensor:
        plus, minus = attend(query, *prompt), attend(query, *negative)  # (B, cells, heads * d)
        guided = self.scale * plus - (self.scale - 1) * minus
        norm = guided.abs().sum(-1, keepdim=True).clamp_min(1e-6)  # (B, cells, 1)
        limit = self.tau * plus.abs().sum(-1, keepdim=True).clamp_min(1e-6)
        guided = guided * (limit / norm).clamp_max(1)
        return self.alpha * guided + (1 - self.alpha) * plus


@dataclass(frozen=True)
class Vsf:
    """Value sign flip (arXiv:2508.10931, eq. 6): one attention to prompt and negative prompt. The values of
    the negative prompt are multiplied by -scale, its scores lowered by `bias`, its padding left out. Default
    values: README of github.com/weathon/VSF for Wan 2.1. None are published for Stable Diffusion, whose
    cross-attention is like that of Wan."""

    scale: float = 1.7
    bias: float = 0.2

    def __call__(self, query: Tensor, prompt: KeyValue, negative: KeyValue, in_prompt: Tensor) -> Tensor:
        key = torch.cat([prompt[0], negative[0]], 2)  # (B, heads, 2 T, d)
        value = torch.cat([prompt[1], -self.scale * negative[1]], 2)  # (B, heads, 2 T, d)
        # Added to the scores: 0 for the prompt, -bias for the negative prompt, -inf for its padding
        of_negative = torch.full(in_prompt.shape, -self.bias, dtype=query.dtype, device=query.device)
        of_negative = of_negative.masked_fill(~in_prompt, -math.inf)  # (B, T)
        mask = torch.nn.functional.pad(of_negative, (prompt[0].shape[2], 0))  # (B, 2 T), 0 on the left
        return attend(query, key, value, mask[:, None, None])  # (B, 1, 1, 2 T)


RULES: dict[str, Nag | Vsf] = {"nag": Nag(), "vsf": Vsf()}


def parse_rule(text: str) -> Nag | Vsf:
    """The rule "nag" or "vsf" with its published scale, or with another one: "nag:8"."""
    name, _, scale = text.partition(":")
    return replace(RULES[name], scale=float(scale)) if scale else RULES[name]


@dataclass(frozen=True)
class NegativePrompts:
    """Negative prompts for some rows of a UNet call."""

    rule: Nag | Vsf
    rows: Sequence[int]  # indices into the rows of the call
    states: Tensor  # (rows, T, width), by the text encoder
    in_prompt: Tensor  # (rows, T) bool, False for padding

    def guide(self, attn: Any, hidden_states: Tensor, text: Tensor, output: Tensor) -> Tensor:
        """`output` of the layer `attn`, (R, h * w, heads * d) for the R rows of the call, with the `rows`
        recomputed by the rule. hidden_states: (R, h * w, width); text: (R, T, width)."""

        def split_heads(states: Tensor) -> Tensor:  # (B, T, heads * d) => (B, heads, T, d)
            return states.unflatten(-1, (attn.heads, -1)).transpose(1, 2)

        rows = torch.tensor(self.rows, device=output.device)
        query = split_heads(attn.to_q(hidden_states[rows]))
        prompt = split_heads(attn.to_k(text[rows])), split_heads(attn.to_v(text[rows]))
        negative = split_heads(attn.to_k(self.states)), split_heads(attn.to_v(self.states))
        return output.index_copy(0, rows, self.rule(query, prompt, negative, self.in_prompt))


# --- attention processor -------------------------------------------------------------------------------


class Processor:
    """Attention processor: diffusers' own, unless probabilities are recorded or weighted, or rows are guided.
    `record`, `weights` and `negatives` are the UNet's `cross_attention_kwargs`. weights: (rows of the call,
    T), factor of each token's probability, without renormalization: c in "Attention Re-weighting",
    Prompt-to-Prompt (arXiv:2208.01626), section 3.2."""

    def __init__(self, is_recorded: bool) -> None:
        self._is_recorded = is_recorded  # whether `record` takes this layer
        self._plain = AttnProcessor2_0()

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,  # unused; diffusers passes it
        record: AttentionRecord | None = None,
        weights: Tensor | None = None,
        negatives: NegativePrompts | None = None,
    ) -> Tensor:
        # Self-attention, and a layer with nothing to do
        takes_record = self._is_recorded and hidden_states.ndim == 3  # (rows, h * w, width)
        if not takes_record or record is None or not record.has_grid(hidden_states.shape[1]):
            record = None
        if encoder_hidden_states is None or (record is None and weights is None and negatives is None):
            return self._plain(attn, hidden_states, encoder_hidden_states, attention_mask, temb)

        # Attention with explicit probabilities
        query = attn.head_to_batch_dim(attn.to_q(hidden_states))  # (rows * heads, h * w, d)
        key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states))  # (rows * heads, T, d)
        value = attn.head_to_batch_dim(attn.to_v(encoder_hidden_states))
        probabilities = attn.get_attention_scores(query, key, attention_mask)  # (rows * heads, h * w, T)
        if record is not None:
            record.add(probabilities, attn.heads)
        if weights is not None:
            factors = weights.repeat_interleave(attn.heads, 0)[:, None]  # (rows * heads, 1, T)
            probabilities = probabilities * factors.to(probabilities.dtype)
        output = attn.batch_to_head_dim(torch.bmm(probabilities, value))  # (rows, h * w, heads * d)
        if negatives is not None:
            output = negatives.guide(attn, hidden_states, encoder_hidden_states, output)
        linear, dropout = attn.to_out
        return dropout(linear(output)) / attn.rescale_output_factor


def install_processors(unet: Any) -> None:
    """Put a `Processor` into every layer. Cross-attention ("attn2") of down and up blocks can be recorded."""
    processors = {}
    for name in unet.attn_processors:
        processors[name] = Processor(name.startswith(("down_blocks", "up_blocks")) and ".attn2." in name)
    unet.set_attn_processor(processors)


# --- weights of words ----------------------------------------------------------------------------------


def weigh_tokens(tokenizer: Any, text: str, factors: Mapping[str, float]) -> Tensor:
    """Factor of every token of `text`, padded as for the text encoder, (T,) float32: 1, except for the
    words of `factors`, upper or lower case. Part of a longer word ("car" in "cartoon") counts only if the
    word itself is absent. Raises ValueError for a word that is not in the text."""
    encoded = tokenizer(text, padding="max_length", truncation=True, return_offsets_mapping=True)
    weights = torch.ones(len(encoded["input_ids"]), dtype=torch.float32)  # (T,)
    for word, factor in factors.items():
        pattern = re.escape(word)
        matches = list(re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE))  # whole words
        matches = matches or list(re.finditer(pattern, text, re.IGNORECASE))
        if not matches:
            raise ValueError(f"{word!r} is not in the instruction {text!r}")
        for index, (start, end) in enumerate(encoded["offset_mapping"]):  # (0, 0) for special tokens
            if start < end and any(start < match.end() and match.start() < end for match in matches):
                weights[index] = factor
    return weights
