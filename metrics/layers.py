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
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralRMSNorm
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


class _Norm:
    """Root mean square norm, in float32 without a copy of the squares."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if hidden_states.dtype != torch.float32 or not products.applies(hidden_states, self.weight):  # type: ignore[attr-defined]
            return super().forward(hidden_states)  # type: ignore[misc]
        size = torch.linalg.vector_norm(hidden_states, dim=-1, keepdim=True)
        mean = size.square_().div_(hidden_states.shape[-1])
        return (hidden_states * mean.add_(self.variance_epsilon).rsqrt_()).mul_(self.weight)  # type: ignore[attr-defined]


class _LlamaNorm(_Norm, LlamaRMSNorm):
    pass


class _MistralNorm(_Norm, MistralRMSNorm):
    pass


class _DecoderLayer:
    """Of a language model: what comes in is added in place, rotations take half of the passes, and nothing is
    copied for heads that share keys.

    last  Of the last layer: it takes `read`, (N, K) columns of the N rows of tokens, gives (N, K, D), and of
          other tokens works out what later ones see of them and nothing else.
    """

    last = False

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: Any = None,
        read: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        attention: Any = self.self_attn  # type: ignore[attr-defined]
        alone = torch.is_inference_mode_enabled() and attention.config._attn_implementation == "sdpa"
        known = (attention_mask is None or attention_mask.ndim == 4) and "is_causal" not in kwargs
        if not (alone and known):
            return super().forward(  # type: ignore[misc]
                hidden_states,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                use_cache=use_cache,
                position_embeddings=position_embeddings,
                **kwargs,
            )
        normed = self.input_layernorm(hidden_states)  # type: ignore[attr-defined]
        rotation = position_embeddings
        key, value = (
            _heads(part(normed), attention.head_dim) for part in (attention.k_proj, attention.v_proj)
        )
        key = _rotated(key, *rotation)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, attention.layer_idx)
        if self.last and read is not None:
            if not read.shape[1]:
                return hidden_states[:, :0]
            hidden_states, normed, *rotation = (_columns(x, read) for x in (hidden_states, normed, *rotation))
            if attention_mask is not None:
                attention_mask = _columns(attention_mask[:, 0], read)[:, None]
        query = _rotated(_heads(attention.q_proj(normed), attention.head_dim), *rotation)
        heads = _attend(query, key, value, attention_mask, attention.scaling)
        seen = attention.o_proj(heads.transpose(1, 2).flatten(2)).add_(hidden_states)
        mlp: Any = self.mlp  # type: ignore[attr-defined]
        normed = self.post_attention_layernorm(seen)  # type: ignore[attr-defined]
        gate = mlp.gate_proj(normed)
        gate = nn.functional.silu(gate, inplace=True) if isinstance(mlp.act_fn, nn.SiLU) else mlp.act_fn(gate)
        return mlp.down_proj(gate.mul_(mlp.up_proj(normed))).add_(seen)


class _LlamaLayer(_DecoderLayer, LlamaDecoderLayer):
    pass


class _MistralLayer(_DecoderLayer, MistralDecoderLayer):
    pass


def _heads(x: torch.Tensor, size: int) -> torch.Tensor:
    """(N, T, H x size) to (N, H, T, size)."""
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def _columns(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """(N, T, D) and (N, K) to (N, K, D); of one row for all N, too."""
    index = columns[..., None].expand(*columns.shape, x.shape[-1])
    return x.expand(len(columns), *x.shape[1:]).gather(1, index)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) as Llama has it: the d-th
    number of a head (of D) and the (d + D / 2)-th are a pair. x (N, H, T, D); cos, sin (N or 1, T, D)."""
    cos, sin, half = cos[:, None], sin[:, None], x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """(N, H, T, D) of queries (N, H, T, D) and keys and values (N, G, S, D), where H / G neighbouring heads
    share theirs. mask: (N or 1, 1, T, S), for all heads; without one the t-th query sees the keys up to the
    t-th, or all, if it is alone."""
    attend, shared = nn.functional.scaled_dot_product_attention, query.shape[1] // key.shape[1]
    if mask is None:
        causal = query.shape[2] > 1
        return attend(query, key, value, is_causal=causal, scale=scale, enable_gqa=shared > 1)
    # Heads that share keys as more queries of one: with a mask not every kernel can do it by itself.
    packed = query.unflatten(1, (-1, shared)).flatten(2, 3)
    heads = attend(packed, key, value, mask.repeat(1, 1, shared, 1), scale=scale)
    return heads.unflatten(2, (shared, -1)).flatten(1, 2)


#: As `arithmetic.products.install` takes them.
KINDS: dict[type, type] = {
    CLIPEncoderLayer: _ClipLayer,
    LlamaDecoderLayer: _LlamaLayer,
    LlamaRMSNorm: _LlamaNorm,
    MistralDecoderLayer: _MistralLayer,
    MistralRMSNorm: _MistralNorm,
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


def read_some_only(language_model: nn.Module) -> None:
    """Lets the last layer of a Llama or Mistral take `read` (a keyword of the model's call), whether there
    are products by oneDNN here or not. Other models give all tokens whatever they are told."""
    last = list(language_model.layers)[-1]  # type: ignore[arg-type]
    last.__class__ = KINDS.get(type(last), type(last))
    if isinstance(last, _DecoderLayer):
        last.last = True
