"""Layers of diffusers' models with products of matrices by oneDNN (`arithmetic.products`)."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.activations import GEGLU

from arithmetic.products import applies, product


class _Gated(GEGLU):
    """Both halves of the layer in a pass each: the gate with its GELU, the other one with the gate."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        weight, bias = self.proj.weight, self.proj.bias
        if bias is None or not applies(hidden_states, weight):
            return super().forward(hidden_states, *args, **kwargs)
        half = len(weight) // 2
        gate = product(hidden_states, weight[half:], bias[half:], "gelu")
        return product(hidden_states, weight[:half], bias[:half], times=gate)


#: As `arithmetic.products.install` takes them.
KINDS: dict[type, type] = {GEGLU: _Gated}
