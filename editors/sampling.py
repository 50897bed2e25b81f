"""Sampling of InstructPix2Pix models: schedulers and noise, guidance by instruction and image, and attention
that is recorded (ZONE), weighted per word (Prompt-to-Prompt) or led by a negative prompt (NAG, VSF)."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from diffusers import DPMSolverMultistepScheduler, EulerAncestralDiscreteScheduler
from diffusers.models.attention_processor import AttnProcessor2_0
from torch import Tensor

from nein.editors.base import EditorError
from nein.loading.digests import Json

# --- schedulers, guidance and noise --------------------------------------------------------------------


def euler_ancestral(config: Mapping[str, Any]) -> Any:
    """Euler-ancestral scheduler with the noise schedule of `config`, a checkpoint's own scheduler.

    Spacing is "linspace", as in the original code (k-diffusion's CompVisDenoiser.get_sigmas); many
    checkpoints say "leading", which starts at a lower noise level (11.0 instead of 14.6 with 20 steps).
    """
    return EulerAncestralDiscreteScheduler.from_config(config, timestep_spacing="linspace", steps_offset=0)


def dpm_solver(config: Mapping[str, Any]) -> Any:
    """Second-order DPM-Solver++ (arXiv:2211.01095) with the noise schedule of `config`.

    Spacing as in `euler_ancestral`. The last step ends at the lowest trained noise level, not at zero, and is
    of second order, as in diffusers 0.18, to which ZONE is pinned.
    """
    return DPMSolverMultistepScheduler.from_config(
        config, timestep_spacing="linspace", steps_offset=0, final_sigmas_type="sigma_min"
    )


def effective_config(scheduler: Any) -> Json:
    """Class and settings of a scheduler."""
    plain = (bool, int, float, str, type(None))
    settings = {name: value for name, value in scheduler.config.items() if not name.startswith("_")}
    settings = {name: value if isinstance(value, plain) else str(value) for name, value in settings.items()}
    return {"class": type(scheduler).__name__, **settings}


def guide(prediction: Tensor, text_scale: float, image_scale: float) -> Tensor:
    """e_uncond + s_T (e_text - e_image) + s_I (e_image - e_uncond): InstructPix2Pix, arXiv:2211.09800, eq. 3.

    prediction: (3 B, ...) in the order [instruction + image, "" + image, "" + zero image]; returns (B, ...).
    """
    text, image, uncond = prediction.chunk(3)
    return uncond + text_scale * (text - image) + image_scale * (image - uncond)


def guide_two_conditions(prediction: Tensor, text_scale: float, image_scale: float) -> Tensor:
    """(e_image + e_text) / 2 + s_T (e_both - e_image) + s_I (e_both - e_text).

    prediction: (3 B, ...) in the order [instruction + image, "" + image, instruction + zero image]; returns
    (B, ...). The model was never trained without both conditions. Source: edit_cli.py of
    github.com/cientgu/InstructDiffusion @ 435f0c3 (arXiv:2309.03895).
    """
    text_and_image, image, text = prediction.chunk(3)
    return (
        0.5 * (image + text) + text_scale * (text_and_image - image) + image_scale * (text_and_image - text)
    )


@dataclass(frozen=True)
class Guidance:
    """The branches of a UNet call, and the function that combines their predictions."""

    branches: tuple[tuple[bool, bool], ...]  # (with instruction, with image) each
    combine: Callable[[Tensor, float, float], Tensor]  # takes (branches * B, ...), s_T, s_I
    above: float  # s_T must be greater
    least: float  # s_I must not be less

    def check(self, text_scale: float, image_scale: float) -> None:
        """Raises EditorError."""
        fits = isinstance(text_scale, numbers.Real) and isinstance(image_scale, numbers.Real)
        if not fits or not (self.above < text_scale < math.inf and self.least <= image_scale < math.inf):
            raise EditorError(
                f"guidance_scale is {text_scale!r} and image_guidance_scale is {image_scale!r}; they must be "
                f"> {self.above} and >= {self.least}"
            )


GUIDANCES = {
    # Below 1 diffusers disables guidance, unlike the original code.
    "ip2p": Guidance(((True, True), (False, True), (False, False)), guide, above=1, least=1),
    # Published task presets go down to 1.0 and 0.5.
    "instructdiffusion": Guidance(
        ((True, True), (False, True), (True, False)), guide_two_conditions, above=0, least=0
    ),
}


def ancestral_step(
    x: Tensor,
    prediction: Tensor,
    sigma: float,
    sigma_next: float,
    noise: Tensor | None,
    prediction_type: str = "epsilon",
) -> Tensor:
    """One Euler-ancestral step (eta = 1) from noise level `sigma` to `sigma_next`.

    x, prediction, noise: (B, C, H, W) float32. `noise` may be None on the last step, where sigma_next is 0.
    Source: sample_euler_ancestral in github.com/crowsonkb/k-diffusion; prediction types "epsilon" and
    "v_prediction" as in diffusers' EulerAncestralDiscreteScheduler.
    """
    if prediction_type == "epsilon":
        derivative = prediction
    else:
        scale = sigma**2 + 1
        clean = x / scale - prediction * (sigma / scale**0.5)  # (B, C, H, W), estimate without noise
        derivative = (x - clean) / sigma
    sigma_up = (sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2) ** 0.5
    sigma_down = (sigma_next**2 - sigma_up**2) ** 0.5
    x = x + derivative * (sigma_down - sigma)
    return x if noise is None else x + noise * sigma_up


class SampleNoise:
    """Standard-normal noise, by one CPU generator per sample: independent of batch and device."""

    def __init__(self, seeds: Sequence[int], shape: tuple[int, ...], device: torch.device) -> None:
        self._generators = [torch.Generator("cpu").manual_seed(int(seed)) for seed in seeds]
        self._shape, self._device = (len(seeds), *shape), device

    def draw(self) -> Tensor:
        """(B, *shape) float32 on the device."""
        # Pinned memory lets the copy overlap with the previous step. float32 explicitly: another thread that
        # loads a model changes the default dtype.
        batch = torch.empty(self._shape, dtype=torch.float32, pin_memory=self._device.type == "cuda")
        for row, generator in zip(batch, self._generators, strict=True):
            row.normal_(generator=generator)
        return batch.to(self._device, non_blocking=True)


# --- attention -----------------------------------------------------------------------------------------

#: Name -> indices of the branches to average, of [instruction + image, "" + image, "" + zero image].
BRANCHES = {"text": [0], "uncond": [1, 2]}


class AttentionRecord:
    """Mean of attention probabilities over heads, steps, branches (a key of `BRANCHES`) and the layers that
    have h * w query positions (`grid`). A UNet call has 3 * `batch` rows, branch by branch."""

    def __init__(self, batch: int, grid: tuple[int, int], branches: str) -> None:
        self.batch, self.grid, self._branches = batch, grid, BRANCHES[branches]
        self._sum: Tensor | None = None  # (B, h * w, T)
        self._count = 0

    def matches(self, positions: int) -> bool:
        """Whether a layer has the grid's number of positions."""
        return positions == self.grid[0] * self.grid[1]

    def add(self, probabilities: Tensor, heads: int) -> None:
        """Add a layer's probabilities, (3 B * heads, h * w, T), heads fastest, as diffusers folds them."""
        # (3 B * heads, h * w, T) => (3, B, heads, h * w, T) => (B, h * w, T)
        total = probabilities.float().unflatten(0, (3, self.batch, heads))[self._branches].sum((0, 2))
        self._sum = total if self._sum is None else self._sum + total
        self._count += len(self._branches) * heads

    def mean(self) -> Tensor:
        """Attention of each cell over the tokens, (B, h, w, T) float32. Raises ValueError."""
        if self._sum is None:
            raise ValueError(
                f"the UNet has no cross-attention with {self.grid[0]} x {self.grid[1]} cells on its way down "
                f"or up, which ZONE reads; pass another map_stride"
            )
        return (self._sum / self._count).unflatten(1, self.grid)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V: inputs (B, heads, tokens, d), output (B, tokens, heads * d)."""
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return output.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Nag:
    """Normalized attention guidance (arXiv:2505.21179): with the attention Z+ to the prompt and Z- to the
    negative prompt, Z' = s Z+ - (s - 1) Z-; the L1 norm of each token of Z' is limited to tau times that of
    Z+; the result is alpha Z' + (1 - alpha) Z+. The paper's scale is s - 1. Padding counts.

    Values: the authors' workflow for SD15 in github.com/ChenDarYen/ComfyUI-NAG @ ef8a641.
    """

    scale: float = 5.0
    tau: float = 2.5
    alpha: float = 0.38

    def __call__(self, query: Tensor, prompt: Any, negative: Any, in_prompt: Tensor) -> Tensor:
        plus, minus = attend(query, *prompt), attend(query, *negative)  # (B, tokens, heads * d)
        guided = self.scale * plus - (self.scale - 1) * minus
        # (B, tokens, 1) each: L1 norms per token
        norm, limit = (z.abs().sum(-1, keepdim=True).clamp_min(1e-6) for z in (guided, plus))
        guided = guided * (self.tau * limit / norm).clamp_max(1)
        return self.alpha * guided + (1 - self.alpha) * plus


@dataclass(frozen=True)
class Vsf:
    """Value sign flip (arXiv:2508.10931, eq. 6): one attention to prompt and negative prompt, the values of
    the latter times -scale, its scores lowered by `bias`, without its padding.

    Values: README of github.com/weathon/VSF for Wan 2.1, whose cross-attention is like that of Stable
    Diffusion, for which none are published.
    """

    scale: float = 1.7
    bias: float = 0.2

    def __call__(self, query: Tensor, prompt: Any, negative: Any, in_prompt: Tensor) -> Tensor:
        key = torch.cat([prompt[0], negative[0]], 2)  # (B, heads, 2 * tokens, d)
        value = torch.cat([prompt[1], -self.scale * negative[1]], 2)  # (B, heads, 2 * tokens, d)
        # (B, tokens), then (B, 2 * tokens): 0 for the prompt, -bias for the negative, -inf for its padding
        bias = torch.full(in_prompt.shape, -self.bias, dtype=query.dtype, device=query.device)
        bias = torch.nn.functional.pad(bias.masked_fill(~in_prompt, -math.inf), (prompt[0].shape[2], 0))
        return attend(query, key, value, bias[:, None, None])  # mask: (B, 1, 1, 2 * tokens)


#: Rules that lead attention away from a negative prompt: functions of (query, prompt, negative, in_prompt).
#: query: (B, heads, tokens, d); prompt and negative: (key, value), each (B, heads, tokens, d); in_prompt:
#: (B, tokens) bool, False for padding of the negative prompt.
RULES: dict[str, Nag | Vsf] = {"nag": Nag(), "vsf": Vsf()}


def parse_rule(text: str) -> Nag | Vsf:
    """The rule "nag" or "vsf" with its published scale, or with another one: "nag:8"."""
    name, _, scale = text.partition(":")
    return replace(RULES[name], scale=float(scale)) if scale else RULES[name]


@dataclass(frozen=True)
class NegativePrompts:
    """Negative prompts for some rows of a UNet call."""

    rule: Nag | Vsf
    rows: Sequence[int]  # indices into the rows of the call
    states: Tensor  # (rows, tokens, width), by the text encoder
    in_prompt: Tensor  # (rows, tokens) bool, False for padding

    def guide(self, attn: Any, hidden_states: Tensor, text: Tensor, output: Tensor) -> Tensor:
        """Replace `rows` of `output`, attention to the text: (rows of the call, h * w, heads * d)."""

        def split_heads(states: Tensor) -> Tensor:  # (B, tokens, heads * d) => (B, heads, tokens, d)
            return states.unflatten(-1, (attn.heads, -1)).transpose(1, 2)

        rows = torch.tensor(self.rows, device=output.device)
        query = split_heads(attn.to_q(hidden_states[rows]))
        prompt = split_heads(attn.to_k(text[rows])), split_heads(attn.to_v(text[rows]))
        negative = split_heads(attn.to_k(self.states)), split_heads(attn.to_v(self.states))
        return output.index_copy(0, rows, self.rule(query, prompt, negative, self.in_prompt))


class Processor:
    """Attention processor: diffusers' own, unless probabilities are recorded or weighted, or rows are guided.

    weights  (rows of the call, tokens): factor of each token's probability, without renormalization: c in
             "Attention Re-weighting", Prompt-to-Prompt (arXiv:2208.01626), section 3.2.
    """

    def __init__(self, recorded: bool) -> None:
        self._recorded, self._plain = recorded, AttnProcessor2_0()

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        record: AttentionRecord | None = None,
        weights: Tensor | None = None,
        negatives: NegativePrompts | None = None,
    ) -> Tensor:
        if not (
            self._recorded and hidden_states.ndim == 3 and record and record.matches(hidden_states.shape[1])
        ):
            record = None
        if encoder_hidden_states is None or (record is None and weights is None and negatives is None):
            return self._plain(attn, hidden_states, encoder_hidden_states, attention_mask, temb)
        query = attn.head_to_batch_dim(attn.to_q(hidden_states))  # (rows * heads, h * w, d)
        key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states))  # (rows * heads, T, d)
        value = attn.head_to_batch_dim(attn.to_v(encoder_hidden_states))
        probabilities = attn.get_attention_scores(query, key, attention_mask)  # (rows * heads, h * w, T)
        if record is not None:
            record.add(probabilities, attn.heads)
        if weights is not None:
            factors = weights.repeat_interleave(attn.heads, 0)[:, None]  # (rows * heads, 1, T)
            probabilities = probabilities * factors.to(probabilities.dtype)
        output = attn.batch_to_head_dim(torch.bmm(probabilities, value))  # (rows, h * w, heads * d)
        if negatives is not None:
            output = negatives.guide(attn, hidden_states, encoder_hidden_states, output)
        return attn.to_out[1](attn.to_out[0](output)) / attn.rescale_output_factor


def install(unet: Any) -> None:
    """Install a `Processor` in every layer; cross-attention of down and up blocks is recorded."""
    sides = ("down_blocks", "up_blocks")
    unet.set_attn_processor(
        {name: Processor(name.startswith(sides) and ".attn2." in name) for name in unet.attn_processors}
    )


def word_weights(tokenizer: Any, text: str, factors: Mapping[str, float]) -> Tensor:
    """Factor of every token of `text`, padded as for the text encoder, (tokens,) float32: 1, except for the
    words of `factors` in any case. Part of a longer word ("car" in "cartoon") counts only if the word itself
    is absent. Raises ValueError for a word that is not in the text."""
    encoded = tokenizer(text, padding="max_length", truncation=True, return_offsets_mapping=True)
    weights = torch.ones(len(encoded["input_ids"]), dtype=torch.float32)  # (tokens,)
    for word, factor in factors.items():
        plain = re.escape(word)
        matches = [*re.finditer(rf"(?<!\w){plain}(?!\w)", text, re.IGNORECASE)]
        matches = matches or [*re.finditer(plain, text, re.IGNORECASE)]
        if not matches:
            raise ValueError(f"{word!r} is not in the instruction {text!r}")
        for index, (start, end) in enumerate(encoded["offset_mapping"]):  # special tokens are empty spans
            if start < end and any(start < match.end() and match.start() < end for match in matches):
                weights[index] = factor
    return weights
