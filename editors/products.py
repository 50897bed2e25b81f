"""Products of matrices by oneDNN, on a processor of the x86 family, in float32 and without gradients.

PyTorch asks MKL for them, which on processors of AMD takes narrower instructions than there are: less than
half of the speed. Results differ in the last bits.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from typing import Any

import torch
from diffusers.models.activations import GEGLU
from torch import nn
from torch.utils.flop_counter import register_flop_formula

#: Whether there are such products here.
AVAILABLE = (
    torch.backends.mkldnn.is_available()
    and platform.machine().lower() in ("x86_64", "amd64")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


def install(module: Any) -> None:
    """Gives every linear layer of `module`, and every gated one, a product by oneDNN where there is one.

    Names and weights stay; with gradients, on a GPU and in other number types they compute what they did.
    """
    if AVAILABLE:
        for part in module.modules():
            part.__class__ = _KINDS.get(type(part), type(part))


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, then: str) -> torch.Tensor:
    """(..., in) times (out, in) to (..., out), with the bias; then: "none" or "gelu", the exact one."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "none")


def _operations(x: Sequence[int], weight: Sequence[int], *more: Any, **out: Any) -> int:
    """Of a product with operands of these shapes, for torch's counter; a multiply-add is two."""
    return 2 * math.prod(x) * weight[0]


if AVAILABLE:
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_operations)


def _applies(x: torch.Tensor, weight: torch.Tensor) -> bool:
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    return plain and torch.is_inference_mode_enabled()


class _Linear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not _applies(input, self.weight):
            return super().forward(input)
        return product(input, self.weight, self.bias, "none")


class _Gated(GEGLU):
    """The half of the layer that is a gate goes through GELU in the same pass."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        weight, bias = self.proj.weight, self.proj.bias
        if bias is None or not _applies(hidden_states, weight):
            return super().forward(hidden_states, *args, **kwargs)
        half = len(weight) // 2
        gate = product(hidden_states, weight[half:], bias[half:], "gelu")
        return product(hidden_states, weight[:half], bias[:half], "none").mul_(gate)


_KINDS: dict[type, type] = {nn.Linear: _Linear, GEGLU: _Gated}
