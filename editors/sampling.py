"""Functions that sample from InstructPix2Pix models: schedulers, classifier-free guidance by instruction and
image, the Euler-ancestral step, and noise by sample. `InstructPix2Pix` and `Zone` loop over them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import DPMSolverMultistepScheduler, EulerAncestralDiscreteScheduler
from torch import Tensor

from nein.editors.base import EditorError
from nein.loading.digests import Json

# --- schedulers ----------------------------------------------------------------------------------------


def euler_ancestral(config: Mapping[str, Any]) -> Any:
    """Euler-ancestral scheduler with the noise schedule of `config`, a checkpoint's own scheduler. Spacing is
    "linspace", as in the original code (k-diffusion's CompVisDenoiser.get_sigmas); many checkpoints say
    "leading", which starts at a lower noise level (11.0 instead of 14.6 with 20 steps)."""
    return EulerAncestralDiscreteScheduler.from_config(config, timestep_spacing="linspace", steps_offset=0)


def dpm_solver(config: Mapping[str, Any]) -> Any:
    """Second-order DPM-Solver++ (arXiv:2211.01095) with the noise schedule of `config`, and spacing as in
    `euler_ancestral`. The last step ends at the lowest trained noise level, not at zero, and is of second
    order, as in diffusers 0.18, to which ZONE is pinned."""
    return DPMSolverMultistepScheduler.from_config(
        config, timestep_spacing="linspace", steps_offset=0, final_sigmas_type="sigma_min"
    )


def effective_config(scheduler: Any) -> Json:
    """Class and settings of a scheduler, JSON-serializable, for `Editor.describe`."""
    settings = {name: value for name, value in scheduler.config.items() if not name.startswith("_")}
    for name, value in settings.items():
        if not isinstance(value, bool | int | float | str | None):
            settings[name] = str(value)
    return {"class": type(scheduler).__name__, **settings}


# --- guidance ------------------------------------------------------------------------------------------


def guide(prediction: Tensor, text_scale: float, image_scale: float) -> Tensor:
    """e_uncond + s_T (e_text - e_image) + s_I (e_image - e_uncond): InstructPix2Pix, arXiv:2211.09800, eq. 3.
    prediction: (3 B, ...), in the order [instruction + image, "" + image, "" + zero image] -> (B, ...)."""
    text, image, uncond = prediction.chunk(3)
    return uncond + text_scale * (text - image) + image_scale * (image - uncond)


def guide_both(prediction: Tensor, text_scale: float, image_scale: float) -> Tensor:
    """(e_image + e_text) / 2 + s_T (e_both - e_image) + s_I (e_both - e_text): InstructDiffusion
    (arXiv:2309.03895), edit_cli.py of github.com/cientgu/InstructDiffusion @ 435f0c3, whose model was never
    trained without both conditions. prediction: (3 B, ...) in the order [instruction + image, "" + image,
    instruction + zero image] -> (B, ...)."""
    both, image, text = prediction.chunk(3)
    return 0.5 * (image + text) + text_scale * (both - image) + image_scale * (both - text)


@dataclass(frozen=True)
class Guidance:
    """The branches of a UNet call, and the function that combines their predictions."""

    branches: tuple[tuple[bool, bool], ...]  # (with instruction, with image) each
    combine: Callable[[Tensor, float, float], Tensor]  # takes (branches * B, ...), s_T, s_I
    text_above: float  # s_T must be greater
    image_least: float  # s_I must not be less

    def check_scales(self, text_scale: float, image_scale: float) -> None:
        """Raises EditorError for a scale that the formula does not allow."""
        text_fits = isinstance(text_scale, numbers.Real) and self.text_above < text_scale < math.inf
        image_fits = isinstance(image_scale, numbers.Real) and self.image_least <= image_scale < math.inf
        if not (text_fits and image_fits):
            raise EditorError(
                f"guidance_scale is {text_scale!r} and image_guidance_scale is {image_scale!r}; they must be "
                f"> {self.text_above} and >= {self.image_least}"
            )


IP2P = ((True, True), (False, True), (False, False))  # branches
INSTRUCT_DIFFUSION = ((True, True), (False, True), (True, False))
GUIDANCES = {
    # Below 1 diffusers disables guidance, unlike the original code.
    "ip2p": Guidance(IP2P, guide, text_above=1, image_least=1),
    # Published task presets go down to 1.0 and 0.5.
    "instructdiffusion": Guidance(INSTRUCT_DIFFUSION, guide_both, text_above=0, image_least=0),
}


# --- step and noise ------------------------------------------------------------------------------------


def ancestral_step(
    x: Tensor, prediction: Tensor, sigma: float, sigma_next: float, noise: Tensor | None, prediction_type: str
) -> Tensor:
    """One Euler-ancestral step (eta = 1) from noise level `sigma` to `sigma_next`. x, prediction, noise:
    (B, C, H, W) float32; `noise` may be None on the last step, where sigma_next is 0. Source:
    sample_euler_ancestral in github.com/crowsonkb/k-diffusion; prediction types "epsilon" and "v_prediction"
    as in diffusers' EulerAncestralDiscreteScheduler."""
    if prediction_type == "epsilon":
        derivative = prediction  # dx / dsigma, (B, C, H, W)
    else:
        scale = sigma**2 + 1
        clean = x / scale - prediction * (sigma / scale**0.5)  # (B, C, H, W), estimate without noise
        derivative = (x - clean) / sigma
    # sigma_next^2 = sigma_up^2 + sigma_down^2: down to sigma_down, then fresh noise of level sigma_up
    sigma_up = (sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2) ** 0.5
    sigma_down = (sigma_next**2 - sigma_up**2) ** 0.5
    x = x + derivative * (sigma_down - sigma)
    return x if noise is None else x + noise * sigma_up


class SampleNoise:
    """Standard-normal noise, by one CPU generator per sample: independent of batch and device."""

    def __init__(self, seeds: Sequence[int], shape: tuple[int, ...], device: torch.device) -> None:
        self._generators = [torch.Generator("cpu").manual_seed(int(seed)) for seed in seeds]
        self._shape = (len(seeds), *shape)
        self._device = device

    def draw(self) -> Tensor:
        """(B, *shape) float32 on the device."""
        # Pinned memory lets the copy overlap with the previous step. The dtype is explicit, since another
        # thread that loads a model changes the default.
        batch = torch.empty(self._shape, dtype=torch.float32, pin_memory=self._device.type == "cuda")
        for row, generator in zip(batch, self._generators, strict=True):
            row.normal_(generator=generator)
        return batch.to(self._device, non_blocking=True)
