"""The loss of an instruction editor: denoise the target, given the input picture and the sentence."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.training_utils import compute_snr

from train.instruct.batches import Batch


def losses(
    unet: Any,
    batch: Batch,
    scheduler: Any,
    *,
    scaling_factor: float,
    snr_gamma: float | None = None,
    changed_weight: float = 1.0,
) -> torch.Tensor:
    """(B,) float32: mean squared error of every pair.

    z = (mean + std * posterior) * scaling_factor, noised to the timestep; the condition is concatenated,
    unscaled (InstructPix2Pix, arXiv:2211.09800, eq. 2). The UNet predicts the noise or the velocity, as the
    scheduler of the checkpoint says (`prediction_type`).

    snr_gamma       Min-SNR weights (arXiv:2303.09556, eq. 6): min(SNR, g) / SNR for noise prediction and
                    min(SNR, g) / (SNR + 1) for velocity.
    changed_weight  Factor for latents where input and target differ.
    """
    std = torch.exp(0.5 * batch.logvar.clamp(-30.0, 20.0))  # B, C, h, w
    latents = (batch.mean + std * batch.posterior) * scaling_factor
    noisy = scheduler.add_noise(latents, batch.noise, batch.timestep)
    predicted = unet(torch.cat([noisy, batch.condition], 1), batch.timestep, batch.states).sample.float()
    kind = scheduler.config.prediction_type
    target = (
        batch.noise if kind == "epsilon" else scheduler.get_velocity(latents, batch.noise, batch.timestep)
    )
    errors = (predicted - target).square()  # B, C, h, w
    if changed_weight != 1.0:
        errors = errors * torch.where(batch.changed, changed_weight, 1.0)
    each = errors.flatten(1).mean(1)  # B
    if snr_gamma is not None:
        snr = compute_snr(scheduler, batch.timestep)
        each = each * snr.clamp(max=snr_gamma) / (snr if kind == "epsilon" else snr + 1)
    return each
