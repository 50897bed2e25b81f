"""Layers of diffusers' models with fewer passes through memory, without gradients.

diffusers takes new memory for every sum, every SiLU and every division by 1, and goes through it once more;
here they write into what they have just made. Results are the same to the last bit, but for group norms of
small bfloat16 pictures whose channels lie together, for which torch's kernel takes up to ten times as long as
for float32.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from torch import nn

# Of torch's kernels for group norms the one for fewer is the slow one.
_FEW_PIXELS = 1024


class _Residual(ResnetBlock2D):
    def forward(self, input_tensor: torch.Tensor, temb: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args or kwargs or not self._is_plain(temb):
            return super().forward(input_tensor, temb, *args, **kwargs)
        hidden = self.conv1(nn.functional.silu(self.norm1(input_tensor), inplace=True))
        if self.time_emb_proj is not None:
            hidden += self.time_emb_proj(nn.functional.silu(temb))[:, :, None, None]
        hidden = self.conv2(nn.functional.silu(self.norm2(hidden), inplace=True))
        hidden += input_tensor if self.conv_shortcut is None else self.conv_shortcut(input_tensor)
        return hidden if self.output_scale_factor == 1 else hidden.div_(self.output_scale_factor)

    def _is_plain(self, temb: torch.Tensor | None) -> bool:
        """Whether it is the layer of Stable Diffusion, without gradients."""
        timed = (self.time_emb_proj is None) == (temb is None) and not self.skip_time_act
        sized = self.upsample is not None or self.downsample is not None
        usual = self.time_embedding_norm == "default" and type(self.nonlinearity) is nn.SiLU
        return torch.is_inference_mode_enabled() and timed and usual and not sized and not self.training


class _GroupNorm(nn.GroupNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self._is_slow(input):
            return super().forward(input)
        weight, bias = (None if one is None else one.float() for one in (self.weight, self.bias))
        return nn.functional.group_norm(input.float(), self.num_groups, weight, bias, self.eps).to(input)

    @staticmethod
    def _is_slow(x: torch.Tensor) -> bool:
        """Whether torch's kernel for few pixels would be taken."""
        half = x.dtype == torch.bfloat16 and x.device.type == "cpu" and torch.is_inference_mode_enabled()
        together = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        return half and together and not x.is_contiguous() and x.shape[2] * x.shape[3] < _FEW_PIXELS


class _Transformer(BasicTransformerBlock):
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        timestep: Any = None,
        cross_attention_kwargs: Any = None,
        *more: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        options = cross_attention_kwargs or {}
        if not self._is_plain() or "gligen" in options or "scale" in options:
            return super().forward(
                hidden_states, attention_mask, encoder_hidden_states, encoder_attention_mask, timestep,
                cross_attention_kwargs, *more, **kwargs,
            )  # fmt: skip
        told = {"encoder_hidden_states": encoder_hidden_states, "attention_mask": encoder_attention_mask}
        hidden = self.attn1(self.norm1(hidden_states), attention_mask=attention_mask, **options)
        hidden += hidden_states
        hidden = self.attn2(self.norm2(hidden), **told, **options).add_(hidden)
        return self.ff(self.norm3(hidden)).add_(hidden)

    def _is_plain(self) -> bool:
        """Whether it is the layer of Stable Diffusion, without gradients."""
        usual = self.norm_type == "layer_norm" and self.pos_embed is None and self._chunk_size is None
        both = self.attn2 is not None and not self.only_cross_attention
        return torch.is_inference_mode_enabled() and usual and both and not self.training


#: As `arithmetic.products.install` takes them.
KINDS: dict[type, type] = {
    ResnetBlock2D: _Residual,
    BasicTransformerBlock: _Transformer,
    nn.GroupNorm: _GroupNorm,
}
