"""The loss against a plain computation with the library's own scheduler, and what each option does to it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from diffusers import DDPMScheduler, UNet2DConditionModel

from train.instruct.batches import Batch
from train.instruct.model import widen
from train.instruct.objective import losses

SHAPE = (4, 8, 8)


def scheduler(kind):
    return DDPMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type=kind
    )


def batch(count=3):
    g = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=g)

    changed = torch.zeros((count, 1, 8, 8), dtype=torch.bool)
    changed[:, :, :4] = True
    return Batch(
        condition=normal(count, *SHAPE),
        mean=normal(count, *SHAPE),
        logvar=normal(count, *SHAPE) - 3,
        states=normal(count, 5, 16),
        changed=changed,
        timestep=torch.tensor([10, 500, 990])[:count],
        posterior=normal(count, *SHAPE),
        noise=normal(count, *SHAPE),
    )


class Recorder:
    """A stand-in for the UNet's forward that notes its inputs and answers with a fixed function of them."""

    def __call__(self, inputs, timestep, states):
        self.inputs, self.timestep, self.states = inputs, timestep, states
        return SimpleNamespace(sample=0.3 * inputs[:, :4] - 0.1 * inputs[:, 4:])


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
def test_the_loss_is_the_mean_squared_error_of_what_the_checkpoint_predicts(kind):
    b, unet, factor = batch(), Recorder(), 0.18215
    found = losses(unet, b, scheduler(kind), scaling_factor=factor)
    alphas = scheduler(kind).alphas_cumprod[b.timestep].view(-1, 1, 1, 1)
    latents = factor * (b.mean + torch.exp(0.5 * b.logvar) * b.posterior)
    noisy = alphas.sqrt() * latents + (1 - alphas).sqrt() * b.noise
    target = b.noise if kind == "epsilon" else alphas.sqrt() * b.noise - (1 - alphas).sqrt() * latents
    wanted = ((0.3 * noisy - 0.1 * b.condition) - target).square().mean((1, 2, 3))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(unet.inputs[:, :4], noisy, rtol=1e-5, atol=1e-6)
    assert torch.equal(unet.inputs[:, 4:], b.condition)  # not scaled
    assert torch.equal(unet.states, b.states)


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
def test_min_snr_weights_are_those_of_the_paper(kind):
    b = batch()
    plain = losses(Recorder(), b, scheduler(kind), scaling_factor=1.0)
    weighted = losses(Recorder(), b, scheduler(kind), scaling_factor=1.0, snr_gamma=5.0)
    alphas = scheduler(kind).alphas_cumprod[b.timestep]
    snr = alphas / (1 - alphas)
    below = snr if kind == "epsilon" else snr + 1
    torch.testing.assert_close(
        weighted / plain, torch.minimum(snr, torch.tensor(5.0)) / below, rtol=1e-4, atol=0
    )


def test_what_the_edit_changes_can_count_more():
    b, kind = batch(), scheduler("epsilon")
    plain = losses(Recorder(), b, kind, scaling_factor=1.0)
    double = losses(Recorder(), b, kind, scaling_factor=1.0, changed_weight=2.0)
    b.changed[:] = True
    whole = losses(Recorder(), b, kind, scaling_factor=1.0, changed_weight=2.0)
    torch.testing.assert_close(whole, 2 * plain)
    assert (double > plain).all()
    assert (double < whole).all()


def test_a_widened_unet_ignores_a_zero_picture_and_keeps_its_bias():
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=2,
        norm_num_groups=4,
    ).eval()
    b = batch()
    with torch.no_grad():
        before = unet(b.noise, b.timestep, b.states).sample
        bias = unet.conv_in.bias.clone()
        widen(unet)
        after = unet(torch.cat([b.noise, torch.zeros_like(b.noise)], 1), b.timestep, b.states).sample
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    assert torch.equal(unet.conv_in.bias, bias)
    assert unet.conv_in.weight[:, 4:].abs().max() == 0
    assert unet.config.in_channels == 8
