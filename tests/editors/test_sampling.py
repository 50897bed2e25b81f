"""Schedule, step and guidance against the formulas they come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import PNDMScheduler

from nein.editors.sampling import ancestral_step, euler_ancestral

# Stable Diffusion 1.5's scheduler file, as saved by diffusers since 0.18.
SD15 = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "timestep_spacing": "leading",
    "steps_offset": 1,
}


def k_diffusion_sigmas(n: int) -> np.ndarray:
    """CompVisDenoiser.get_sigmas: log-sigmas interpolated at linspace(999, 0, n), then 0; in float64."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    products = np.cumprod(1 - betas)
    log_sigmas = 0.5 * np.log((1 - products) / products)
    return np.append(np.exp(np.interp(np.linspace(999, 0, n), np.arange(1000), log_sigmas)), 0)


@pytest.mark.parametrize("steps", [20, 30, 100])
def test_sigmas_are_k_diffusions_even_when_the_checkpoint_says_leading(steps):
    scheduler = euler_ancestral(PNDMScheduler.from_config(SD15).config)
    scheduler.set_timesteps(steps)
    expected = k_diffusion_sigmas(steps)
    assert expected[0] == pytest.approx(14.615, rel=1e-4)
    # Of a product of up to a thousand factors in float32: 1e-4 where it is nearest to 1, and is taken from 1.
    np.testing.assert_allclose(scheduler.sigmas.numpy(), expected, rtol=5e-4)
    np.testing.assert_allclose(scheduler.timesteps.numpy(), np.linspace(999, 0, steps), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("index", [0, 4, 9])
def test_a_step_equals_the_librarys(prediction_type, index):
    scheduler = euler_ancestral({**SD15, "prediction_type": prediction_type})
    scheduler.set_timesteps(10)
    numbers = torch.Generator().manual_seed(1)
    x, prediction = torch.randn(2, 4, 8, 8, generator=numbers) * 3, torch.randn(2, 4, 8, 8, generator=numbers)
    scheduler.scale_model_input(x, scheduler.timesteps[index])
    expected = scheduler.step(
        prediction, scheduler.timesteps[index], x, generator=torch.Generator().manual_seed(2)
    ).prev_sample
    sigma, sigma_next = scheduler.sigmas.tolist()[index : index + 2]
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    found = ancestral_step(x, prediction, sigma, sigma_next, noise if sigma_next else None, prediction_type)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
