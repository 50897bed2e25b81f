import pytest
import torch

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


@pytest.mark.parametrize("index", [0, 9])
def test_a_step_of_predicted_velocities_equals_the_librarys(index):
    scheduler = euler_ancestral({**SD15, "prediction_type": "v_prediction"})
    scheduler.set_timesteps(10)
    numbers = torch.Generator().manual_seed(1)
    x, prediction = torch.randn(2, 4, 8, 8, generator=numbers) * 3, torch.randn(2, 4, 8, 8, generator=numbers)
    scheduler.scale_model_input(x, scheduler.timesteps[index])
    expected = scheduler.step(
        prediction, scheduler.timesteps[index], x, generator=torch.Generator().manual_seed(2)
    ).prev_sample
    sigma, sigma_next = scheduler.sigmas.tolist()[index : index + 2]
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    found = ancestral_step(x, prediction, sigma, sigma_next, noise if sigma_next else None, "v_prediction")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
