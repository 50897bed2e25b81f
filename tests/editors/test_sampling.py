import pytest
import torch
from diffusers.models.attention_processor import Attention

from nein.editors.attention import Processor
from nein.editors.sampling import ancestral_step, dpm_solver, euler_ancestral

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


def test_the_samplers_start_at_the_highest_noise_level_and_zones_ends_above_zero():
    for scheduler in (euler_ancestral(SD15), dpm_solver(SD15)):
        assert (scheduler.config.timestep_spacing, scheduler.config.steps_offset) == ("linspace", 0)
    assert scheduler.config.final_sigmas_type == "sigma_min"


def test_every_row_has_weights_of_its_own():
    torch.manual_seed(0)
    attn = Attention(query_dim=8, cross_attention_dim=8, heads=2, dim_head=4).requires_grad_(False)
    states, text, weights = torch.randn(3, 5, 8), torch.randn(3, 4, 8), torch.rand(3, 4)
    heads = [part(x).view(3, -1, 2, 4).transpose(1, 2) for part, x in
             ((attn.to_q, states), (attn.to_k, text), (attn.to_v, text))]  # fmt: skip
    shares = (heads[0] @ heads[1].transpose(2, 3) / 2).softmax(-1) * weights[:, None, None]
    expected = attn.to_out[0]((shares @ heads[2]).transpose(1, 2).reshape(3, 5, 8))
    found = Processor(False)(attn, states, text, weights=weights)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
