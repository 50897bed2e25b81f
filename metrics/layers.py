"""Layers of transformers' models in fewer passes and calls, with products of matrices by oneDNN.

Values are those of transformers but for their last bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.clip.modeling_clip import CLIPEncoderLayer
from transformers.models.owlv2.modeling_owlv2 import Owlv2EncoderLayer
from transformers.models.vit.modeling_vit import ViTLayer

from arithmetic import products
from arithmetic.products import product


class _Layer:
    """Attention and two linear layers, each with what comes in added to it in place.

    first_only  Of a last layer: the first token alone is worked out, (N, 1, D).
    """

    first_only = False
    #: Names of the parts: norms, attention, and its last linear layer.
    _names: tuple[str, str, str, str]

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        before, after, attention = (getattr(self, name) for name in self._names[:3])
        out = getattr(attention, self._names[3])
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        plain = products.installed(*parts, out) and products.applies(hidden_states, out.weight)
        if not plain or attention.config._attn_implementation != "sdpa":
            return super().forward(hidden_states, attention_mask, **kwargs)  # type: ignore[misc]
        normed = before(hidden_states)
        asking, x = (part[:, :1] if self.first_only else part for part in (normed, hidden_states))
        query, key, value = (
            product(given, part.weight, part.bias).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for given, part in zip((asking, normed, normed), parts, strict=True)
        )
        causal = attention_mask is None and kwargs.get("is_causal", attention.is_causal)
        heads = nn.functional.scaled_dot_product_attention(
            query, key, value, attention_mask, is_causal=causal and query.shape[2] > 1
        )
        seen = product(heads.transpose(1, 2).flatten(2), out.weight, out.bias).add_(x)
        return self.mlp(after(seen)).add_(seen)  # type: ignore[attr-defined]


class _ClipLayer(_Layer, CLIPEncoderLayer):
    _names = ("layer_norm1", "layer_norm2", "self_attn", "out_proj")


class _Owlv2Layer(_Layer, Owlv2EncoderLayer):
    _names = ("layer_norm1", "layer_norm2", "self_attn", "out_proj")


class _ViTLayer(_Layer, ViTLayer):
    _names = ("layernorm_before", "layernorm_after", "attention", "o_proj")


#: As `arithmetic.products.install` takes them.
KINDS: dict[type, type] = {
    CLIPEncoderLayer: _ClipLayer,
    Owlv2EncoderLayer: _Owlv2Layer,
    ViTLayer: _ViTLayer,
}


def read_first_only(tower: nn.Module) -> None:
    """Of a tower whose first token alone is read: its last layer works out no other, where that is ours."""
    for layer in [part for part in tower.modules() if isinstance(part, _Layer)][-1:]:
        layer.first_only = True
