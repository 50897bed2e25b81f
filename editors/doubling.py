"""A picture doubled and convolved without doubling it, on a CPU in float32 and without gradients.

Of the nine values that a 3 x 3 convolution sees of a picture whose every pixel was repeated, four are
different at most: a pixel of the result is a 2 x 2 convolution of the small picture with sums of the nine
weights, others for each of the four places in a pair of rows and of columns. That is 4 x 4 multiplications
in place of 4 x 9. Results differ in the last bits. That the two are the same: Shi et al., arXiv:1609.07009.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from diffusers.models.upsampling import Upsample2D
from torch import nn

from arithmetic.products import Convolution, applies


class _Doubled(Upsample2D):
    def forward(
        self, hidden_states: torch.Tensor, output_size: int | None = None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        plain = self.use_conv and self.name == "conv" and self.interpolate and self.norm is None
        asked = output_size is not None or args or kwargs or hidden_states.dtype != torch.float32
        if asked or not plain or not _simple(self.conv) or not applies(hidden_states, self.conv.weight):
            return super().forward(hidden_states, output_size, *args, **kwargs)
        return doubled(hidden_states, self.conv.weight, self.conv.bias)


def _simple(conv: Any) -> TypeGuard[nn.Conv2d]:
    settings = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
    return type(conv) in (nn.Conv2d, Convolution) and settings == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")


def doubled(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """(B, C, h, w) to (B, D, 2 h, 2 w): every pixel twice in both directions, then the convolution with
    `weight` (D, C, 3, 3) and a border of zeros."""
    rows = _pairs(weight, 2)
    weights = torch.cat([part for row in rows for part in _pairs(row, 3)])
    biases = None if bias is None else bias.repeat(4)
    batch, _, height, width = x.shape
    # One row and one column more than there are: the second of two begins where the first ends.
    parts = nn.functional.conv2d(x, weights, biases, padding=1).unflatten(1, (4, -1))
    out = x.new_empty(batch, len(weight), 2 * height, 2 * width)
    for down in (0, 1):
        for right in (0, 1):
            part = parts[:, 2 * down + right, :, down : down + height, right : right + width]
            out[:, :, down::2, right::2] = part
    return out


def _pairs(weight: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What three weights along an axis are for the first and for the second of two equal pixels: of what lies
    before, at, and behind them, two are the same pixel."""
    before, at, behind = weight.unbind(axis)
    return torch.stack([before, at + behind], axis), torch.stack([before + at, behind], axis)


#: As `arithmetic.products.install` takes them.
KINDS: dict[type, type] = {Upsample2D: _Doubled}
