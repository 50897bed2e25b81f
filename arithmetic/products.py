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

#: Whether there are such products here.
AVAILABLE = (
    torch.backends.mkldnn.is_available()
    and platform.machine().lower() in ("x86_64", "amd64")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


def install(module: Any, kinds: Mapping[type, type] | None = None) -> None:
    """Gives every linear layer of `module` a product by oneDNN where there is one.

    kinds  Class of a layer -> what computes the same with `product`, for further kinds of layers.

    Names and weights stay; with gradients, on a GPU and in other number types they compute what they did.
    """
    if AVAILABLE:
        chosen = {nn.Linear: _Linear, **(kinds or {})}
        for part in module.modules():
            part.__class__ = chosen.get(type(part), type(part))


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, then: str) -> torch.Tensor:
    """(..., in) times (out, in) to (..., out), with the bias; then: "none" or "gelu", the exact one."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "none")


def _operations(x: Sequence[int], weight: Sequence[int], *more: Any, **out: Any) -> int:
    """Of a product with operands of these shapes, for torch's counter; a multiply-add is two."""
    return 2 * math.prod(x) * weight[0]


if AVAILABLE:
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_operations)


def applies(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `product` can be taken here."""
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    return plain and torch.is_inference_mode_enabled()


class _Linear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not applies(input, self.weight):
            return super().forward(input)
        return product(input, self.weight, self.bias, "none")
