"""Products of matrices by oneDNN, on a processor of the x86 family, in float32 and without gradients.

PyTorch asks MKL for them, which on processors of AMD takes narrower instructions than there are: less than
half of the speed. Results differ in the last bits.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import register_flop_formula

# Below so many channels oneDNN's convolution of 1 x 1 is the slower one.
_FEW_CHANNELS = 16

#: Whether there are such products here.
AVAILABLE = (
    torch.backends.mkldnn.is_available()
    and platform.machine().lower() in ("x86_64", "amd64")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


def install(module: Any, kinds: Mapping[type, type] | None = None) -> None:
    """Gives every linear layer and 1 x 1 convolution of `module` a product by oneDNN where there is one, and
    every layer that holds some: `nn.MultiheadAttention`, and `nn.Sequential` where a GELU follows.

    kinds  Class of a layer -> what computes the same with `product`, for further kinds of layers.

    Names and weights stay; with gradients, on a GPU and in other number types they compute what they did.
    """
    if AVAILABLE:
        chosen = {
            nn.Linear: _Linear,
            nn.Conv2d: Convolution,
            nn.MultiheadAttention: _SelfAttention,
            nn.Sequential: _Sequential,
            **(kinds or {}),
        }
        for part in module.modules():
            part.__class__ = chosen.get(type(part), type(part))


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, then: str) -> torch.Tensor:
    """(..., in) times (out, in) to (..., out), with the bias; then: "none" or "gelu", the exact one."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "none")


def _operations(x: Sequence[int], weight: Sequence[int], *more: Any, **out: Any) -> int:
    """Of a product with operands of these shapes, for torch's counter; a multiply-add is two."""
    return 2 * math.prod(x) * weight[0]


def _convolved(x: Sequence[int], weight: Sequence[int], *more: Any, out_shape: Any = None, **out: Any) -> int:
    return 2 * math.prod(out_shape) * math.prod(weight[1:])


if AVAILABLE:
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_operations)
    register_flop_formula(torch.ops.aten.mkldnn_convolution)(_convolved)


def applies(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `product` can be taken here."""
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    return plain and torch.is_inference_mode_enabled()


def installed(*parts: nn.Module) -> bool:
    """Whether all of these are linear layers that compute by `product` and nothing else."""
    return all(type(part) is _Linear for part in parts)


class _Linear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not applies(input, self.weight):
            return super().forward(input)
        return product(input, self.weight, self.bias, "none")


class Convolution(nn.Conv2d):
    """Of 1 x 1, which torch does by MKL for few pictures where it has one thread."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        few = min(self.in_channels, self.out_channels) < _FEW_CHANNELS
        if self.kernel_size != (1, 1) or self.padding != (0, 0) or few or not applies(input, self.weight):
            return super().forward(input)
        how = (self.padding, self.stride, self.dilation, self.groups)
        return torch.mkldnn_convolution(input, self.weight, self.bias, *how)


class _SelfAttention(nn.MultiheadAttention):
    """Of one sequence with itself, whose queries, keys and values are one product."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        asked = need_weights or is_causal or key_padding_mask is not None
        masked = attn_mask is not None and (attn_mask.ndim != 2 or attn_mask.dtype != query.dtype)
        itself = query is key and key is value and query.ndim == 3 and self.batch_first
        unlike = self.in_proj_weight is None or self.bias_k is not None or self.add_zero_attn
        if asked or masked or not itself or unlike or not applies(query, self.in_proj_weight):
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        parts = product(query, self.in_proj_weight, self.in_proj_bias, "none")
        q, k, v = parts.unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask)
        joined = heads.transpose(1, 2).flatten(2)
        return product(joined, self.out_proj.weight, self.out_proj.bias, "none"), None


class _Sequential(nn.Sequential):
    """A GELU is worked out in the pass of the linear layer before it."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        layers, done = list(self), None
        for layer, after in zip(layers, [*layers[1:], None], strict=True):
            if layer is done:
                continue
            exact_gelu = isinstance(after, nn.GELU) and after.approximate == "none"
            if exact_gelu and isinstance(layer, _Linear) and applies(input, layer.weight):
                input, done = product(input, layer.weight, layer.bias, "gelu"), after
            else:
                input, done = layer(input), None
        return input
