"""Products of matrices by oneDNN, on a processor of the x86 family, without gradients.

In float32 PyTorch asks MKL for them, which is slow on some processors (`processor.has_narrow_mkl`). In every
product oneDNN applies what follows, a GELU or another factor, in the same pass; in bfloat16 PyTorch asks it
too, by a longer way. Results differ in the last bits.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.flop_counter import register_flop_formula

from arithmetic import processor

# Below so many channels oneDNN's convolution of 1 x 1 is the slower one.
_FEW_CHANNELS = 16

#: Whether there are such products here.
AVAILABLE = (
    torch.backends.mkldnn.is_available()
    and platform.machine().lower() in ("x86_64", "amd64")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)
_DTYPES = {torch.float32}
if AVAILABLE and torch.ops.mkldnn._is_mkldnn_bf16_supported():
    _DTYPES.add(torch.bfloat16)


def install(module: Any, kinds: Mapping[type, type] | None = None) -> None:
    """Gives every linear layer and 1 x 1 convolution of `module` a product by oneDNN where there is one, and
    every layer that holds some: `nn.MultiheadAttention`, and `nn.Sequential` where a GELU follows.

    kinds  Class of a layer -> what computes the same with `product`, for further kinds of layers.

    Names and weights stay; with gradients, on a GPU and in other number types than float32 and bfloat16 they
    compute what they did.
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


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    then: str = "none",
    times: torch.Tensor | None = None,
) -> torch.Tensor:
    """(..., in) times (out, in) to (..., out), with the bias. then: "none" or "gelu", the exact one. times:
    (..., out), another factor."""
    if times is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(x, times, weight, bias, "mul")
    if then == "none" and _by_mkl(x):
        return nn.functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "none")


def scaled_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
    """`product`, bias and all, times a number."""
    if not _by_mkl(x):
        return product(x, weight, bias).mul_(scale)
    rows = torch.addmm(bias, x.flatten(0, -2), weight.t(), beta=scale, alpha=scale)
    return rows.view(*x.shape[:-1], -1)


def add_product(
    onto: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, scale: float = 1.0
) -> torch.Tensor:
    """Adds (..., in) times (out, in) times a number, and the bias, to `onto`, (..., out), in place."""
    if not _by_mkl(x):
        return onto.add_(product(x, weight, bias / scale), alpha=scale)
    rows = onto.view(-1, onto.shape[-1]).add_(bias)
    torch.addmm(rows, x.flatten(0, -2), weight.t(), alpha=scale, out=rows)
    return onto


def _by_mkl(x: torch.Tensor) -> bool:
    return x.dtype == torch.float32 and not processor.has_narrow_mkl()


def _operations(x: Sequence[int], *more: Any, **out: Any) -> int:
    """Of a product with operands of these shapes, for torch's counter; a multiply-add is two."""
    weight, behind = more[:2]
    if behind is not None and len(behind) == 2:  # another factor stands before the weight
        weight = behind
    return 2 * math.prod(x) * weight[0]


def _convolved(x: Sequence[int], weight: Sequence[int], *more: Any, out_shape: Any = None, **out: Any) -> int:
    return 2 * math.prod(out_shape) * math.prod(weight[1:])


if AVAILABLE:
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_operations)
    register_flop_formula(torch.ops.aten.mkldnn_convolution)(_convolved)
    register_flop_formula(torch.ops.mkldnn._convolution_pointwise)(_convolved)


def applies(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `product` can be taken here."""
    plain = x.dtype == weight.dtype and x.dtype in _DTYPES and x.device.type == "cpu"
    return plain and torch.is_inference_mode_enabled()


def installed(*parts: nn.Module) -> bool:
    """Whether all of these are linear layers that compute by `product` and nothing else."""
    return all(type(part) is _Linear for part in parts)


class _Linear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not applies(input, self.weight):
            return super().forward(input)
        return product(input, self.weight, self.bias)


#: Layer -> the state of its weights, and these in oneDNN's order. Not in the layer: nothing can copy them.
_ORDERED: WeakKeyDictionary[nn.Module, tuple[tuple[int, int], Any]] = WeakKeyDictionary()


class Convolution(nn.Conv2d):
    """Of 1 x 1 in float32, which torch does by MKL for few pictures where it has one thread; and in bfloat16
    by a matrix unit, with weights put into the order that it takes once and not in every call. These lie
    beside the weights."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.padding_mode != "zeros" or not applies(input, self.weight):
            return super().forward(input)
        if input.dtype == torch.bfloat16 and processor.has_matrix_unit():
            return self._by_matrix_unit(input)
        few = min(self.in_channels, self.out_channels) < _FEW_CHANNELS
        if self.kernel_size != (1, 1) or self.padding != (0, 0) or few or input.dtype != torch.float32:
            return super().forward(input)
        how = (self.padding, self.stride, self.dilation, self.groups)
        return torch.mkldnn_convolution(input, self.weight, self.bias, *how)

    def _by_matrix_unit(self, input: torch.Tensor) -> torch.Tensor:
        if isinstance(self.padding, str) or self.weight.is_inference():
            return super().forward(input)
        how: Any = (self.padding, self.stride, self.dilation, self.groups)
        state = (self.weight.data_ptr(), self.weight._version)
        known, weight = _ORDERED.get(self, (None, None))
        if known != state:
            weight = torch._C._nn.mkldnn_reorder_conv2d_weight(self.weight.to_mkldnn(), *how)
            _ORDERED[self] = state, weight
        return torch.ops.mkldnn._convolution_pointwise(input, weight, self.bias, *how, "none", [], None)


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
        parts = product(query, self.in_proj_weight, self.in_proj_bias)
        q, k, v = parts.unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask)
        joined = heads.transpose(1, 2).flatten(2)
        return product(joined, self.out_proj.weight, self.out_proj.bias), None


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
