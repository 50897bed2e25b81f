"""Where an editor comes from, and which checkpoints are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionInstructPix2PixPipeline
from torch.utils._python_dispatch import TorchDispatchMode

from editors.checkpoint import load_pipeline
from nein.engine.errors import UserError
from tests.editors.tiny import build_pipeline
from train.instruct import model


def test_an_ldm_checkpoint_is_read_with_its_averaged_weights(config, base, tmp_path, monkeypatch):
    file, asked = tmp_path / "magicbrush.ckpt", {}
    file.write_bytes(b"weights")

    def from_single_file(path, **options):
        asked.update(options, path=path)
        return load_pipeline(str(base)).pipeline

    monkeypatch.setattr(StableDiffusionInstructPix2PixPipeline, "from_single_file", from_single_file)
    loaded = model.load_base(config(base=file, base_config="some/config"))
    assert asked == {"path": str(file), "config": "some/config", "safety_checker": None, "extract_ema": True}
    other = model.load_base(config(base=file))
    assert loaded.weights_sha256 == other.weights_sha256
    assert loaded.weights_format == "ckpt"
    assert loaded.pipeline.unet.config.in_channels == 8


@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_a_file_that_is_no_checkpoint_is_one_sentence(config, base, tmp_path, suffix):
    file = tmp_path / f"broken.{suffix}"
    file.write_bytes(b"nonsense" * 10)
    with pytest.raises(UserError) as caught:
        model.load_base(config(base=file, base_config=base))
    assert f"broken.{suffix}' cannot be read as an LDM checkpoint" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_to_image_model_is_widened_and_then_trains(config, tune, tmp_path):
    four = build_pipeline(tmp_path / "four", in_channels=4)
    loaded = model.load_base(config(base=four))
    assert loaded.pipeline.unet.conv_in.weight.shape[1] == 8
    assert (tune(base=four, steps=2) / "model" / "unet" / "config.json").read_text().count(
        '"in_channels": 8'
    ) == 1


def test_a_unet_of_another_kind_is_refused(config, tmp_path):
    five = build_pipeline(tmp_path / "five", in_channels=5)
    with pytest.raises(ValueError, match="its UNet takes 5 channels"):
        model.load_base(config(base=five))


def test_the_prediction_type_is_the_checkpoints_own(base):
    pipeline = load_pipeline(str(base)).pipeline
    assert model.noise_scheduler(pipeline).config.prediction_type == "epsilon"
    pipeline.scheduler.register_to_config(prediction_type="v_prediction")
    assert model.noise_scheduler(pipeline).config.prediction_type == "v_prediction"
    pipeline.scheduler.register_to_config(prediction_type="sample")
    with pytest.raises(UserError, match="predicts 'sample'"):
        model.noise_scheduler(pipeline)


def test_the_averaged_copy_leaves_the_network_in_training_as_it_is(config, base):
    unet = load_pipeline(str(base)).pipeline.unet
    settings = config(trainable="lora", lora_rank=2, ema=0.5)
    model.choose_weights(unet, settings)
    unet.train()
    parameters = [p for _, p in model.trainable(unet)]
    average = model.make_average(settings, parameters)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(1.0)
    average.step(parameters)
    before = copy.deepcopy(unet.state_dict())
    twin = model.averaged_copy(unet, average)
    assert all(torch.equal(value, before[name]) for name, value in unet.state_dict().items())
    assert unet.training
    assert not twin.training
    assert not any("lora" in name for name in twin.state_dict())
    assert len([p for _, p in model.trainable(unet)]) == len(parameters)


class Attentions(TorchDispatchMode):
    """Counts calls of torch's own attention."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "scaled_dot_product" in str(function)
        return function(*args, **(kwargs or {}))


def gradients(unet: Any, *, half: bool) -> tuple[torch.Tensor, int]:
    """Of all weights, one behind the other, and how often torch's own attention was called."""
    torch.manual_seed(0)
    inputs = torch.randn(2, 8, 16, 16)
    states = torch.randn(2, 5, unet.config.cross_attention_dim)
    unet.requires_grad_(True).train().zero_grad()
    with Attentions() as attentions:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = unet(inputs, torch.tensor([3, 700]), states).sample.float().square().mean()
        loss.backward()
    return torch.cat([weight.grad.flatten() for weight in unet.parameters()]), attentions.count


def test_bfloat16_on_a_cpu_learns_the_same_without_torchs_own_attention(base, monkeypatch):
    unet = load_pipeline(str(base)).pipeline.unet
    exact, _ = gradients(unet, half=False)
    plain, calls = gradients(unet, half=True)
    names = [name for name, _ in unet.named_parameters()]
    model.suit_bfloat16(unet)
    suited, none = gradients(unet, half=True)
    assert [name for name, _ in unet.named_parameters()] == names
    assert (calls > 0, none) == (True, 0)
    # Rounding to bfloat16, 2 ** -9, through some thirty layers: no further off than torch's own way is.
    assert (suited - exact).norm() < 1.1 * (plain - exact).norm() < 0.1 * exact.norm()
    monkeypatch.setattr(model, "_FEW_TOKENS", 0)
    assert gradients(unet, half=True)[1] == calls
    alone, _ = gradients(unet, half=False)
    torch.testing.assert_close(alone, exact, rtol=1e-4, atol=1e-6)
