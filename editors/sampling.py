"""Noise per sample, Euler-ancestral sampling, guidance; attention, recorded, weighted or guided."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from diffusers import DPMSolverMultistepScheduler, EulerAncestralDiscreteScheduler
from diffusers.models.attention_processor import AttnProcessor2_0
from diffusers.models.embeddings import apply_rotary_emb
from torch import Tensor

from nein.editors.base import EditorError
from nein.loading.digests import Json


def euler_ancestral(config: Mapping[str, Any]) -> Any:
    """The scheduler for a checkpoint whose own scheduler has `config`; only the noise schedule is taken over.

    Spacing is "linspace", as in the original code (k-diffusion's CompVisDenoiser.get_sigmas): many scheduler
    files say "leading", which starts at a lower noise level (11.0 in place of 14.6 with 20 steps).
    """
    return EulerAncestralDiscreteScheduler.from_config(config, timestep_spacing="linspace", steps_offset=0)


def dpm_solver(config: Mapping[str, Any]) -> Any:
    """DPM-Solver++ of second order (arXiv:2211.01095) on the noise schedule of `config`.

    Spacing as in `euler_ancestral`. The last step goes to the lowest trained noise level, not to zero, and
    is of second order: what diffusers 0.18, to which ZONE is pinned, did before it had `final_sigmas_type`.
    """
    return DPMSolverMultistepScheduler.from_config(
        config, timestep_spacing="linspace", steps_offset=0, final_sigmas_type="sigma_min"
    )


def effective_config(scheduler: Any) -> Json:
    """The scheduler's class and its settings."""
    settings = {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in scheduler.config.items()
        if not name.startswith("_")
    }
    return {"class": type(scheduler).__name__, **settings}


def guide(prediction: Tensor, text_scale: float, image_scale: float) -> Tensor:
    """e_uncond + s_T (e_text - e_image) + s_I (e_image - e_uncond): InstructPix2Pix, arXiv:2211.09800, eq. 3.

    prediction: (3B, ...) in the order [instruction + image, "" + image, "" + zero image]; returns (B, ...).
    """
    text, image, uncond = prediction.chunk(3)
    return uncond + text_scale * (text - image) + image_scale * (image - uncond)


def guide_two_conditions(prediction: Tensor, text_scale: float, image_scale: float) -> Tensor:
    """(e_image + e_text) / 2 + s_T (e_both - e_image) + s_I (e_both - e_text).

    prediction: (3B, ...) in the order [instruction + image, "" + image, instruction + zero image]; returns
    (B, ...). The model never met both conditions withheld. Source: edit_cli.py of
    github.com/cientgu/InstructDiffusion @ 435f0c3 (arXiv:2309.03895).
    """
    both, image, text = prediction.chunk(3)
    return 0.5 * (image + text) + text_scale * (both - image) + image_scale * (both - text)


@dataclass(frozen=True)
class Guidance:
    """The branches of the UNet's batch, each (instruction given, picture given), and their combination."""

    branches: tuple[tuple[bool, bool], ...]
    combine: Callable[[Tensor, float, float], Tensor]  # of (B * branches, ...), s_T, s_I
    above: float  # s_T has to be,
    least: float  # and s_I at least

    def check(self, text_scale: float, image_scale: float) -> None:
        """Raises EditorError."""
        fits = isinstance(text_scale, numbers.Real) and isinstance(image_scale, numbers.Real)
        if not fits or not (self.above < text_scale < math.inf and self.least <= image_scale < math.inf):
            raise EditorError(
                f"guidance_scale is {text_scale!r} and image_guidance_scale is {image_scale!r}; they must be "
                f"> {self.above} and >= {self.least}"
            )


GUIDANCES = {
    # Below 1 the published implementations disagree: diffusers switches guidance off, the original code does
    # not.
    "ip2p": Guidance(((True, True), (False, True), (False, False)), guide, 1, 1),
    # Its published task presets go down to 1.0 and 0.5, which its own code computes like any other value.
    "instructdiffusion": Guidance(((True, True), (False, True), (True, False)), guide_two_conditions, 0, 0),
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
        derivative = (x - (x / scale - prediction * (sigma / scale**0.5))) / sigma
    sigma_up = (sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2) ** 0.5
    sigma_down = (sigma_next**2 - sigma_up**2) ** 0.5
    x = x + derivative * (sigma_down - sigma)
    return x if noise is None else x + noise * sigma_up


class SampleNoise:
    """Successive standard-normal draws for a batch: one CPU generator per sample, float32, whatever the batch
    and the device, since generators of different devices give different numbers."""

    def __init__(self, seeds: Sequence[int], shape: tuple[int, ...], device: torch.device) -> None:
        self._generators = [torch.Generator("cpu").manual_seed(int(seed)) for seed in seeds]
        self._shape = shape
        self._device = device

    def draw(self) -> Tensor:
        """(B, *shape) float32 on the device."""
        # Pinned memory lets the copy run while the GPU is still busy with the previous step.
        shape, pinned = (len(self._generators), *self._shape), self._device.type == "cuda"
        # Not the default dtype: it is another one while a thread beside this one loads a model.
        batch = torch.empty(shape, dtype=torch.float32, pin_memory=pinned)
        for row, generator in zip(batch, self._generators, strict=True):
            row.normal_(generator=generator)
        return batch.to(self._device, non_blocking=True)


#: Which of the three guidance branches (instruction + image, "" + image, "" + zero image) are averaged.
BRANCHES = {"text": (0,), "uncond": (1, 2)}


class AttentionRecord:
    """Sum of attention probabilities over heads, branches (a key of `BRANCHES`), steps, and layers with h * w
    query positions (`grid`). A UNet call has 3 * `batch` rows, branch by branch."""

    def __init__(self, batch: int, grid: tuple[int, int], branches: str) -> None:
        self.batch, self.grid = batch, grid
        self._branches = BRANCHES[branches]
        self._sum: Tensor | None = None
        self._count = 0

    def wants(self, positions: int) -> bool:
        return positions == self.grid[0] * self.grid[1]

    def add(self, probabilities: Tensor, heads: int) -> None:
        """probabilities: (3 B * heads, h * w, T), heads fastest, as diffusers folds them."""
        rows = probabilities.float().unflatten(0, (3, self.batch, heads))[list(self._branches)]
        total = rows.sum((0, 2))
        self._sum = total if self._sum is None else self._sum + total
        self._count += len(self._branches) * heads

    def mean(self) -> Tensor:
        """(B, h, w, T) float32: how each cell's attention was spread over the tokens. Raises ValueError."""
        if self._sum is None:
            raise ValueError(
                f"the UNet has no cross-attention of {self.grid[0]} x {self.grid[1]} cells on its way down "
                f"or up; ZONE reads such maps, so choose a map_stride that the UNet has"
            )
        return (self._sum / self._count).unflatten(1, self.grid)


#: Keys and values, each (B, heads, tokens, width of a head).
Side: TypeAlias = tuple[Tensor, Tensor]


def attend(query: Tensor, *sides: Side, mask: Tensor | None = None) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V over the tokens of all sides: (B, tokens, heads * width)."""
    key, value = (torch.cat(parts, 2) for parts in zip(*sides, strict=True))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return output.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Nag:
    """Normalized attention guidance (arXiv:2505.21179): with the attention Z+ to the prompt and Z- to the
    negative prompt, Z' = s Z+ - (s - 1) Z-; the L1 norm of each token of Z' is limited to tau times that of
    Z+; the result is alpha Z' + (1 - alpha) Z+. The paper's scale is s - 1. kept: not used, padding counts.
    """

    scale: float
    tau: float
    alpha: float

    def __call__(
        self, query: Tensor, prompt: Side, negative: Side, *image: Side, kept: Tensor | None = None
    ) -> Tensor:
        plus, minus = (attend(query, side, *image) for side in (prompt, negative))
        guided = self.scale * plus - (self.scale - 1) * minus
        norm, limit = (z.abs().sum(-1, keepdim=True).clamp_min(1e-6) for z in (guided, plus))
        guided = guided * (self.tau * limit / norm).clamp_max(1)
        return self.alpha * guided + (1 - self.alpha) * plus


@dataclass(frozen=True)
class Vsf:
    """Value sign flip (arXiv:2508.10931, eq. 6): one attention to prompt and negative prompt, the values of
    the latter times -scale, its scores lowered by `bias`. kept: (B, tokens) without its padding."""

    scale: float
    bias: float

    def __call__(
        self, query: Tensor, prompt: Side, negative: Side, *image: Side, kept: Tensor | None = None
    ) -> Tensor:
        key, value = negative
        lowered = torch.full((len(key), key.shape[2]), -self.bias, dtype=query.dtype, device=query.device)
        if kept is not None:
            lowered = lowered.masked_fill(~kept, -math.inf)
        others = sum(side[0].shape[2] for side in (prompt, *image))
        mask = torch.nn.functional.pad(lowered, (others, 0))[:, None, None]  # (B, heads, queries, tokens)
        return attend(query, prompt, *image, (key, -self.scale * value), mask=mask)


#: Family of models -> name -> rule. NAG: the authors' workflows for SD15, DMD2 (SDXL) and Flux-Kontext-Dev in
#: github.com/ChenDarYen/ComfyUI-NAG @ ef8a641. VSF: README of github.com/weathon/VSF, of FLUX and of Wan 2.1,
#: whose cross-attention is like that of Stable Diffusion, for which no values are published.
RULES: dict[str, dict[str, Nag | Vsf]] = {
    "sd": {"nag": Nag(5.0, 2.5, 0.38), "vsf": Vsf(1.7, 0.2)},
    "sdxl": {"nag": Nag(3.0, 2.5, 0.5), "vsf": Vsf(1.7, 0.2)},
    "flux": {"nag": Nag(3.0, 2.5, 0.25), "vsf": Vsf(3.5, 0.1)},
}


def guidance_rule(family: str, guided: str) -> Nag | Vsf:
    """The rule of "nag", "vsf", or one of these with a scale, "nag:8"."""
    name, _, scale = guided.partition(":")
    rule = RULES[family][name]
    return replace(rule, scale=float(scale)) if scale else rule


@dataclass(frozen=True)
class Avoided:
    """Negative prompts by which rows of a call of the UNet are guided: states (rows, tokens, width)."""

    rule: Nag | Vsf
    rows: Sequence[int]
    states: Tensor
    kept: Tensor  # (rows, tokens), which are no padding

    def guide(self, attn: Any, hidden_states: Tensor, text: Tensor, output: Tensor) -> Tensor:
        """The attention `output` to the text, before its projection, with these rows guided."""

        def heads(states: Tensor) -> Tensor:
            return states.unflatten(-1, (attn.heads, -1)).transpose(1, 2)

        rows = torch.tensor(self.rows, device=output.device)
        query = heads(attn.to_q(hidden_states[rows]))
        prompt, negative = (
            (heads(attn.to_k(side)), heads(attn.to_v(side))) for side in (text[rows], self.states)
        )
        return output.index_copy(0, rows, self.rule(query, prompt, negative, kept=self.kept))


class JointGuidance:
    """Attention of FLUX.1 to a text that is a prompt of so many tokens and behind it a negative prompt. Both
    see the image and themselves, the image is guided by `rule`. That is NAG as published, but for one branch
    of image tokens in place of two equal ones, and the prompt's pooled embedding for both texts."""

    def __init__(self, rule: Nag | Vsf, prompt: int, negative: int) -> None:
        self._rule, self._texts = rule, (prompt, negative)

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        def heads(states: Tensor) -> Tensor:
            return states.unflatten(-1, (attn.heads, -1))

        query, key = (
            attn.norm_q(heads(attn.to_q(hidden_states))),
            attn.norm_k(heads(attn.to_k(hidden_states))),
        )
        value = heads(attn.to_v(hidden_states))
        if encoder_hidden_states is not None:  # a double block, whose text has projections of its own
            text = encoder_hidden_states
            query = torch.cat([attn.norm_added_q(heads(attn.add_q_proj(text))), query], 1)
            key = torch.cat([attn.norm_added_k(heads(attn.add_k_proj(text))), key], 1)
            value = torch.cat([heads(attn.add_v_proj(text)), value], 1)
        turned: Any = apply_rotary_emb
        query, key = (turned(part, image_rotary_emb, sequence_dim=1) for part in (query, key))
        lengths = [*self._texts, query.shape[1] - sum(self._texts)]
        # (B, tokens, heads, width) -> prompt, negative prompt and image, each (B, heads, tokens, width)
        queries, keys, values = (part.transpose(1, 2).split(lengths, 2) for part in (query, key, value))
        prompt, negative, image = zip(keys, values, strict=True)
        texts = [attend(queries[0], prompt, image), attend(queries[1], negative, image)]
        output = torch.cat([*texts, self._rule(queries[2], prompt, negative, image)], 1)
        if encoder_hidden_states is None:
            return output
        both, pictures = output.split([sum(self._texts), lengths[2]], 1)
        return attn.to_out[1](attn.to_out[0](pictures)), attn.to_add_out(both)


class Processor:
    """Attention as diffusers computes it, except that probabilities are worked out in full where they are
    recorded or weighted, or rows are guided away from negative prompts.

    weights  (rows of the call, tokens): factors of the probabilities of every token, which afterwards need
             not add up to 1: c in "Attention Re-weighting", Prompt-to-Prompt (arXiv:2208.01626), section 3.2.
    """

    def __init__(self, recorded: bool) -> None:
        self._recorded = recorded
        self._plain = AttnProcessor2_0()

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        record: AttentionRecord | None = None,
        weights: Tensor | None = None,
        avoided: Avoided | None = None,
    ) -> Tensor:
        if not (
            self._recorded and hidden_states.ndim == 3 and record and record.wants(hidden_states.shape[1])
        ):
            record = None
        if encoder_hidden_states is None or (record is None and weights is None and avoided is None):
            return self._plain(attn, hidden_states, encoder_hidden_states, attention_mask, temb)
        query = attn.head_to_batch_dim(attn.to_q(hidden_states))
        key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states))
        value = attn.head_to_batch_dim(attn.to_v(encoder_hidden_states))
        probabilities = attn.get_attention_scores(query, key, attention_mask)
        if record is not None:
            record.add(probabilities, attn.heads)
        if weights is not None:
            factors = weights.repeat_interleave(attn.heads, 0)[:, None]
            probabilities = probabilities * factors.to(probabilities.dtype)
        output = attn.batch_to_head_dim(torch.bmm(probabilities, value))
        if avoided is not None:
            output = avoided.guide(attn, hidden_states, encoder_hidden_states, output)
        return attn.to_out[1](attn.to_out[0](output)) / attn.rescale_output_factor


def word_weights(tokenizer: Any, text: str, factors: Mapping[str, float]) -> Tensor:
    """(tokens,) float32: the factor of every token of `text`, padded as a text encoder reads it; 1 but for
    the words of `factors`, whatever their case; the "car" of a "cartoon" only where there is no car. Raises
    ValueError for one that is not in the text."""
    encoded = tokenizer(text, padding="max_length", truncation=True, return_offsets_mapping=True)
    weights = torch.ones(len(encoded["input_ids"]), dtype=torch.float32)
    for word, factor in factors.items():
        plain = re.escape(word)
        whole = [match.span() for match in re.finditer(rf"(?<!\w){plain}(?!\w)", text, re.IGNORECASE)]
        places = whole or [match.span() for match in re.finditer(plain, text, re.IGNORECASE)]
        if not places:
            raise ValueError(f"{word!r} is not in the instruction {text!r}")
        for index, (start, end) in enumerate(encoded["offset_mapping"]):
            if start < end and any(start < last and first < end for first, last in places):
                weights[index] = factor
    return weights


def install(unet: Any) -> None:
    """Give `unet` processors that weight its cross-attention, and record it on the way down and up, not in
    the middle; without a record and weights it computes what it did."""
    recorded = {
        n: n.startswith(("down_blocks", "up_blocks")) and ".attn2." in n for n in unet.attn_processors
    }
    unet.set_attn_processor({name: Processor(wanted) for name, wanted in recorded.items()})
