"""Layers of transformers' models in fewer passes and calls, with products of matrices by oneDNN.

Values are those of transformers but for their last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.activations import QuickGELUActivation
from transformers.models.clip.modeling_clip import CLIPEncoderLayer, CLIPVisionModel
from transformers.models.owlv2.modeling_owlv2 import Owlv2EncoderLayer
from transformers.models.vit.modeling_vit import ViTLayer

from arithmetic import products
from arithmetic.products import add_product, product, scaled_product

#: Of quick GELU, x sigmoid(1.702 x).
_STEEP = 1.702


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
        causal = attention_mask is None and kwargs.get("is_causal", attention.is_causal)
        x = hidden_states[:, :1] if self.first_only else hidden_states
        if self.first_only and attention_mask is None and not causal:
            heads = _first_token(normed, *parts, attention.head_dim)
        else:
            query, key, value = (
                product(given, part.weight, part.bias).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                for given, part in zip((normed[:, : x.shape[1]], normed, normed), parts, strict=True)
            )
            heads = nn.functional.scaled_dot_product_attention(
                query, key, value, attention_mask, is_causal=causal and query.shape[2] > 1
            )
            heads = heads.transpose(1, 2).flatten(2)
        seen = product(heads, out.weight, out.bias).add_(x)
        return _added(seen, self.mlp, after(seen))  # type: ignore[attr-defined]


def _first_token(
    normed: torch.Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear, width: int
) -> torch.Tensor:
    """What the first of all tokens (N, T, D) sees of them by heads of that width, (N, 1, D), without the keys
    and values of the others: (W x) . q = x . (W^T q), and the mean of products is the product of the mean. A
    bias of the keys adds the same to all scores of a head, which softmax takes away."""
    asking = product(normed[:, 0], query.weight, query.bias).unflatten(-1, (-1, width)).transpose(0, 1)
    asked = torch.bmm(asking, key.weight.unflatten(0, (-1, width))).transpose(0, 1)  # H N d => N H D
    weights = torch.bmm(asked, normed.mT).mul_(width**-0.5).softmax(-1)  # N H T
    mean = torch.bmm(weights, normed).transpose(0, 1)  # H N D
    heads = torch.bmm(mean, value.weight.unflatten(0, (-1, width)).mT).transpose(0, 1).flatten(1)
    return (heads if value.bias is None else heads + value.bias)[:, None]


def _added(seen: torch.Tensor, mlp: Any, normed: torch.Tensor) -> torch.Tensor:
    """`seen` with what two linear layers make of `normed` added to it, in place. Quick GELU is SiLU of
    1.702 x by 1.702, and products take such a factor along."""
    first, last = mlp.fc1, mlp.fc2
    quick = isinstance(mlp.activation_fn, QuickGELUActivation) and seen.dtype == torch.float32
    if not quick or not products.installed(first, last):
        return mlp(normed).add_(seen)
    hidden = nn.functional.silu(scaled_product(normed, first.weight, first.bias, _STEEP), inplace=True)
    return add_product(seen, hidden, last.weight, last.bias, 1 / _STEEP)


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


def first_tokens(
    tower: Any, pixels: torch.Tensor, mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor | None:
    """(N, D): the first token, after the last norm, of (x / 255 - mean) / std, where x are pictures,
    (N, H, W, 3), with values from 0 to 255; None where the tower must be asked itself.

    tower  Of `read_first_only`: a CLIPVisionModel, or a ViTModel without pooling layer.
    """
    of_clip = isinstance(tower, CLIPVisionModel)
    every = tower.encoder.layers if of_clip else tower.layers
    embed = tower.embeddings
    patch = embed.patch_embedding if of_clip else embed.patch_embeddings.projection
    ours = isinstance(every[-1], _Layer) and every[-1].first_only and type(patch) is products.Convolution
    side = tower.config.image_size
    fits = pixels.shape[1:] == (side, side, 3) and patch.kernel_size == patch.stride
    if not (ours and fits and patch.weight.dtype == torch.float32):
        return None
    if not products.applies(patch.weight, patch.weight):
        return None
    start = embed.class_embedding if of_clip else embed.cls_token[0, 0]
    places = embed.position_embedding.weight if of_clip else embed.position_embeddings[0]
    patches = _patches(pixels, patch, mean, std)
    tokens = patches.new_empty((len(patches), *places.shape))
    tokens[:, 0] = start + places[0]
    torch.add(patches, places[1:], out=tokens[:, 1:])
    if of_clip:
        tokens = tower.pre_layrnorm(tokens)
    for layer in every:
        tokens = layer(tokens, None)
    return (tower.post_layernorm if of_clip else tower.layernorm)(tokens[:, 0])


def _patches(
    pixels: torch.Tensor, layer: nn.Conv2d, mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor:
    """(N, P, D) of (N, H, W, 3) by a convolution whose kernels lie side by side, as one product. Its weights
    take the place of the mean and the standard deviation: W (x / 255 - m) / s = W / (255 s) x - W m / s."""
    rows, columns = layer.kernel_size
    count, height, width, channels = pixels.shape
    shape = (count, height // rows, rows, width // columns, columns, channels)
    cut = pixels[:, : shape[1] * rows, : shape[3] * columns].reshape(shape).transpose(2, 3)
    spread = torch.tensor(std)
    weight = layer.weight.permute(0, 2, 3, 1) / spread
    shift = weight.sum((1, 2)) @ -torch.tensor(mean)
    bias = shift if layer.bias is None else shift + layer.bias
    flat = cut.reshape(count, shape[1] * shape[3], -1).to(torch.float32)
    return product(flat, (weight / 255).flatten(1), bias)
