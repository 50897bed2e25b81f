"""Noise per sample, Euler-ancestral sampling and the two published ways of guiding it.

Noise belongs to a sample: one CPU generator each, float32, whatever the batch, device or dtype. It is a
function of the seed and the latent shape alone; the global random state is not touched.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import DPMSolverMultistepScheduler, EulerAncestralDiscreteScheduler

from nein.editors.base import EditorError
from nein.loading.errors import choose


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


def effective_config(scheduler: Any) -> dict[str, Any]:
    """The scheduler's class and the settings it really uses, JSON-serialisable."""
    names = (
        "num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas", "prediction_type",
        "timestep_spacing", "steps_offset", "rescale_betas_zero_snr", "algorithm_type", "solver_order",
        "final_sigmas_type",
    )  # fmt: skip
    settings = {name: scheduler.config[name] for name in names if name in scheduler.config}
    return {"class": type(scheduler).__name__, **settings}


def guide(prediction: torch.Tensor, text_scale: float, image_scale: float) -> torch.Tensor:
    """e_uncond + s_T (e_text - e_image) + s_I (e_image - e_uncond): InstructPix2Pix, arXiv:2211.09800, eq. 3.

    prediction: (3B, ...) in the order [instruction + image, "" + image, "" + zero image]; returns (B, ...).
    """
    text, image, uncond = prediction.chunk(3)
    return uncond + text_scale * (text - image) + image_scale * (image - uncond)


def guide_two_conditions(prediction: torch.Tensor, text_scale: float, image_scale: float) -> torch.Tensor:
    """(e_image + e_text) / 2 + s_T (e_both - e_image) + s_I (e_both - e_text).

    prediction: (3B, ...) in the order [instruction + image, "" + image, instruction + zero image]; returns
    (B, ...). The model never met both conditions withheld. Source: edit_cli.py of
    github.com/cientgu/InstructDiffusion @ 435f0c3 (arXiv:2309.03895).
    """
    both, image, text = prediction.chunk(3)
    return 0.5 * (image + text) + text_scale * (both - image) + image_scale * (both - text)


@dataclass(frozen=True)
class Guidance:
    """What the UNet is asked, and how its answers become one.

    branches     Per branch, in the order of the UNet's batch: (instruction given, picture given).
    combine      (B * branches, ...), s_T and s_I to (B, ...).
    above, least s_T has to be > `above` and s_I >= `least`.
    reason       Why smaller ones are refused.
    """

    branches: tuple[tuple[bool, bool], ...]
    combine: Callable[[torch.Tensor, float, float], torch.Tensor]
    above: float
    least: float
    reason: str

    def check(self, text_scale: float, image_scale: float) -> None:
        """Raise EditorError for scales the formula is not defined or not agreed upon for."""
        fits = isinstance(text_scale, numbers.Real) and isinstance(image_scale, numbers.Real)
        if not fits or not (self.above < text_scale < math.inf and self.least <= image_scale < math.inf):
            raise EditorError(
                f"guidance_scale is {text_scale!r} and image_guidance_scale is {image_scale!r}; they must be "
                f"> {self.above:g} and >= {self.least:g}, {self.reason}"
            )


GUIDANCES = {
    "ip2p": Guidance(
        ((True, True), (False, True), (False, False)),
        guide,
        1,
        1,
        "since below that the published implementations disagree (diffusers switches guidance off, the "
        "original code does not)",
    ),
    # Its published task presets go down to 1.0 and 0.5, which its own code computes like any other value.
    "instructdiffusion": Guidance(
        ((True, True), (False, True), (True, False)), guide_two_conditions, 0, 0, "and finite"
    ),
}


def get_guidance(name: str) -> Guidance:
    """The guidance called `name`; EditorError when there is none."""
    return GUIDANCES[choose("guidance", name, GUIDANCES)]


def ancestral_step(
    x: torch.Tensor,
    prediction: torch.Tensor,
    sigma: float,
    sigma_next: float,
    noise: torch.Tensor | None,
    prediction_type: str = "epsilon",
) -> torch.Tensor:
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
    """Successive standard-normal draws for a batch of samples.

    seeds   One per sample, 0 <= seed < 2**63.
    shape   Shape of one sample's latent, e.g. (4, 64, 64).
    device  Where the draws are wanted; they are always made on the CPU, since generators of different
            devices give different numbers.
    """

    def __init__(self, seeds: Sequence[int], shape: tuple[int, ...], device: torch.device) -> None:
        self._generators = [torch.Generator("cpu").manual_seed(int(seed)) for seed in seeds]
        self._shape = shape
        self._device = device

    def draw(self) -> torch.Tensor:
        """The next draw: (B, *shape) float32 on the device."""
        # Pinned memory lets the copy run while the GPU is still busy with the previous step.
        batch = torch.empty((len(self._generators), *self._shape), pin_memory=self._device.type == "cuda")
        for row, generator in zip(batch, self._generators, strict=True):
            row.normal_(generator=generator)
        return batch.to(self._device, non_blocking=True)
