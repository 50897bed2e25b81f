from types import SimpleNamespace

import pytest
import torch
from diffusers import DDPMScheduler, UNet2DConditionModel

from nein.editors.checkpoint import load_pipeline
from nein.loading.errors import UserError
from nein.train.editor_finetuning import model
from nein.train.editor_finetuning.batches import Batch, find_changed
from nein.train.editor_finetuning.model import compute_losses
from tests.editors.tiny import build_pipeline


def test_a_text_to_image_model_is_widened(config, tmp_path):
    four = build_pipeline(tmp_path / "four", in_channels=4)
    expected = UNet2DConditionModel.from_pretrained(four, subfolder="unet").state_dict()
    unet = model.load_base(config(base=four)).pipeline.unet
    assert unet.config.in_channels == 8
    for name, value in unet.state_dict().items():
        if name == "conv_in.weight":
            assert not value[:, 4:].any()
            value = value[:, :4]
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0, msg=name)


def test_a_unet_of_another_kind_is_refused(config, tmp_path):
    five = build_pipeline(tmp_path / "five", in_channels=5)
    with pytest.raises(ValueError, match="its UNet has 5 input channels"):
        model.load_base(config(base=five))


def test_the_prediction_type_is_the_checkpoints_own(base):
    pipeline = load_pipeline(str(base)).pipeline
    assert model.make_noise_scheduler(pipeline).config.prediction_type == "epsilon"
    pipeline.scheduler.register_to_config(prediction_type="v_prediction")
    assert model.make_noise_scheduler(pipeline).config.prediction_type == "v_prediction"
    pipeline.scheduler.register_to_config(prediction_type="sample")
    with pytest.raises(UserError, match="predicts 'sample'"):
        model.make_noise_scheduler(pipeline)


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
    found = compute_losses(unet, b, scheduler(kind), scaling_factor=factor)
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
    plain = compute_losses(Recorder(), b, scheduler(kind), scaling_factor=1.0)
    weighted = compute_losses(Recorder(), b, scheduler(kind), scaling_factor=1.0, snr_gamma=5.0)
    alphas = scheduler(kind).alphas_cumprod[b.timestep]
    snr = alphas / (1 - alphas)
    below = snr if kind == "epsilon" else snr + 1
    torch.testing.assert_close(
        weighted / plain, torch.minimum(snr, torch.tensor(5.0)) / below, rtol=1e-4, atol=0
    )


def test_latents_that_differ_by_more_than_the_vaes_noise_are_changed():
    condition = torch.full((1, 4, 1, 3), 1.0)  # of one sign with the difference's, so that a sum is seen
    mean = condition + torch.tensor([0.0, 0.3, -0.5])
    assert find_changed(condition, mean).tolist() == [[[[False, False, True]]]]


def test_what_the_edit_changes_can_count_more():
    b, kind = batch(), scheduler("epsilon")
    plain = compute_losses(Recorder(), b, kind, scaling_factor=1.0)
    double = compute_losses(Recorder(), b, kind, scaling_factor=1.0, changed_weight=2.0)
    b.changed[:] = True
    whole = compute_losses(Recorder(), b, kind, scaling_factor=1.0, changed_weight=2.0)
    torch.testing.assert_close(whole, 2 * plain)
    assert (double > plain).all()
    assert (double < whole).all()
