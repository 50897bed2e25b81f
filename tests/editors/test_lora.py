from __future__ import annotations

import diffusers
import numpy as np
import peft
import pytest
import torch
from diffusers import EulerAncestralDiscreteScheduler, StableDiffusionInstructPix2PixPipeline
from PIL import Image
from safetensors.torch import load_file, save_file

from nein import editors
from nein.editors import EditorError, EditRequest, get_editor
from nein.editors.presets import LORA as FILE
from nein.loading.errors import UserError
from nein.loading.references import Need
from tests.editors import tiny_pipelines

TEXT, SIDE = "No cat.", tiny_pipelines.SIDE


@pytest.fixture(scope="module")
def kontext(tmp_path_factory):
    return tiny_pipelines.save("FluxKontextPipeline", tmp_path_factory.mktemp("kontext"))


def save_lora(pipeline, part, folder):
    """LoRA weights of random numbers for the attention of one part."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(pipeline, part)
        config = peft.LoraConfig(r=2, lora_alpha=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
        model.add_adapter(config)
        layers = peft.get_peft_model_state_dict(model, adapter_name="default")
    pipeline.save_lora_weights(folder, **{f"{part}_lora_layers": layers})


@pytest.fixture(params=["flux-kontext", "ip2p"])
def case(request, kontext, checkpoint, tmp_path):
    """(editor with options, folder of LoRA weights, pipeline of diffusers with them, arguments of its
    call)."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8))
    if request.param == "ip2p":
        pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(
            checkpoint, safety_checker=None, requires_safety_checker=False
        )
        config = pipeline.scheduler.config
        pipeline.scheduler = EulerAncestralDiscreteScheduler.from_config(config, timestep_spacing="linspace")
        part, folder, picture = "unet", checkpoint, picture.resize((64, 64))
        call = {"prompt": TEXT, "image": picture}
    else:
        pipeline = diffusers.FluxKontextPipeline.from_pretrained(kontext)
        part, folder = "transformer", kontext
        call = {
            "image": picture, "prompt": TEXT, "guidance_scale": 3.5, "height": 48, "width": 80,
            "max_area": 48 * 80, "_auto_resize": False,
        }  # fmt: skip
    save_lora(pipeline, part, tmp_path / "lora")

    def build(**options):
        return get_editor(request.param, checkpoint=str(folder), steps=2, **{"resolution": SIDE, **options})

    return build, tmp_path / "lora", pipeline, call


def edit(editor, picture):
    (result,) = editor.edit([EditRequest("1", np.asarray(picture), TEXT, 7)])
    assert result.error is None
    return result.image.astype(int)


def test_an_edit_is_what_diffusers_gives_with_the_weights(case):
    build, folder, pipeline, call = case
    plain, tuned, by_file = build(), build(lora=str(folder)), build(lora=str(folder / FILE))
    steps = {"num_inference_steps": 2, "generator": torch.Generator().manual_seed(7)}
    expected = np.asarray(pipeline(**call, **steps).images[0]).astype(int)
    found = edit(tuned, call["image"])
    assert np.abs(found - expected).max() <= 1
    assert np.abs(found - edit(plain, call["image"])).mean() > 0.1
    assert tuned.fingerprint == by_file.fingerprint != plain.fingerprint
    assert tuned.describe()["lora"] == str(folder)
    assert "lora" not in plain.describe()


@pytest.mark.parametrize("case", ["ip2p"], indirect=True)
def test_weights_that_cannot_be_used_are_a_sentence(case, tmp_path):
    build = case[0]
    strange = tmp_path / "strange.safetensors"
    save_file({f"transformer.else.lora_{half}.weight": torch.zeros(2, 2) for half in "AB"}, strange)
    for reference, sentence in (
        (tmp_path / "none", "neither an existing folder nor a hub id"),
        ("owner/name", "'owner/name' is not in .* offline mode is enabled"),
        (strange, "has 0 of its 1 modules|cannot load"),
    ):
        with pytest.raises((EditorError, UserError), match=sentence):
            build(lora=str(reference))


@pytest.mark.parametrize("case", ["ip2p"], indirect=True)
def test_a_lost_half_and_modules_that_the_class_does_not_have_are_refused(case):
    build, folder, *_ = case
    tensors = load_file(folder / FILE)
    names = sorted(tensors)
    whole, left = len(names) // 2, len(names) // 2 - 1
    save_file({name: tensors[name] for name in names[1:]}, folder / FILE)
    with pytest.raises(EditorError, match=rf"of its {whole} modules, {left} with both matrices"):
        build(lora=str(folder))
    moved = {n if n in names[:2] else f"{n.partition('.')[0]}.no.{n}": tensors[n] for n in names}
    save_file(moved, folder / FILE)
    with pytest.raises(EditorError, match=f"has 1 of its {whole} modules"):
        build(lora=str(folder))


def test_only_classes_and_checkpoints_that_take_them_get_them(kontext, checkpoint):
    pipeline = diffusers.FluxKontextPipeline.from_pretrained(kontext)
    with pytest.raises(EditorError, match="pipeline in memory takes no lora"):
        editors.make_editor(pipeline, name="mine", lora="a/b")
    with pytest.raises(EditorError, match="Unknown option 'lora'"):
        editors.check("zone", lora="a/b")


def test_weights_on_the_hub_are_fetched_with_their_editor():
    found = editors.find_needs("flux-kontext", lora="owner/name@v2:tuned.safetensors")
    assert Need("owner/name", "v2", files=("tuned.safetensors",)) in found
    assert Need("owner/name", files=(FILE,)) in editors.find_needs("ip2p", lora="owner/name")
