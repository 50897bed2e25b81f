"""Step 2: two models denoise from the same noise, and one is drawn towards the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Weight of MagicBrush in the mixture for everything that is not removed; the released code overrides its
#: option.
OTHER_SHARE = 0.01

Predict = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def shares(actions: Sequence[str], beta: float) -> list[float]:
    """Weight of the second model per sample: `beta` for REMOVE, `OTHER_SHARE` otherwise."""
    return [beta if action == "REMOVE" else OTHER_SHARE for action in actions]


def fuse(
    start: torch.Tensor,
    share: torch.Tensor,
    first: tuple[Any, Predict],
    second: tuple[Any, Predict],
) -> torch.Tensor:
    """Clean latents (B, 4, h, w) float32 of the first model.

    start   (B, 4, h, w) standard-normal noise.
    share   (B,) weight b of the second model: after each step z <- (z + b y) / (1 + b), where y is the
            second model's own latent, which nothing flows back to.
    first, second   A sampler with its steps set, of its own since it has a memory, and the model's guided
                    prediction of (latents as the sampler scales them, timestep). The first sampler's
                    timesteps are used for both.
    """
    (sampler, predict), (other_sampler, other_predict) = first, second
    share = share.to(start).view(-1, 1, 1, 1)
    x, y = start * float(sampler.init_noise_sigma), start * float(other_sampler.init_noise_sigma)
    for timestep in sampler.timesteps:
        guided = other_predict(other_sampler.scale_model_input(y, timestep), timestep)
        y = other_sampler.step(guided, timestep, y, return_dict=False)[0]
        guided = predict(sampler.scale_model_input(x, timestep), timestep)
        x = sampler.step(guided, timestep, x, return_dict=False)[0]
        x = (x + share * y) / (1 + share)
    return x
