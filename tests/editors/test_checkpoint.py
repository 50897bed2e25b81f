import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nein.editors import EditorError, get_editor
from tests.editors.test_ldm import Intruder
from tests.editors.tiny import build_pipeline
from tests.helpers import plain

PNDM = {
    "_class_name": "PNDMScheduler", "timestep_spacing": "leading", "steps_offset": 1, "skip_prk_steps": True,
}  # fmt: skip


def build(folder, **options):
    return get_editor("ip2p", checkpoint=str(folder), **{"steps": 2, "resolution": 64, **options})


def edit(folder, requests):
    results = build(folder).edit(requests)
    assert [result.error for result in results] == [None] * len(requests)
    return np.stack([result.image for result in results])


def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def weights_of(folder, part):
    (path,) = (folder / part).glob("*.safetensors")
    return path, load_file(path)


def to_bin(folder):
    """Replace safetensors by PyTorch's .bin files, as older repositories have them."""
    for source in folder.rglob("*.safetensors"):
        name = "pytorch_model.bin" if source.name == "model.safetensors" else "diffusion_pytorch_model.bin"
        torch.save(load_file(source), source.with_name(name))
        source.unlink()


def test_what_a_checkpoint_declares_and_we_do_otherwise_changes_nothing_and_is_on_record(
    checkpoint, copied, requests_of
):
    rewrite(copied / "scheduler" / "scheduler_config.json", **PNDM)
    rewrite(
        copied / "model_index.json",
        _class_name="StableDiffusionPipeline",
        scheduler=["diffusers", "PNDMScheduler"],
        safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"],
    )
    described = build(copied).describe()
    assert described["scheduler"]["timestep_spacing"] == "linspace"
    assert described["published"] == {"class": "StableDiffusionPipeline"}
    np.testing.assert_array_equal(edit(copied, requests_of(1)), edit(checkpoint, requests_of(1)))


def test_bin_files_of_plain_tensors_load(checkpoint, copied, requests_of):
    to_bin(copied)
    editor = build(copied)
    assert editor.fingerprint == build(checkpoint).fingerprint
    np.testing.assert_array_equal(edit(copied, requests_of(1)), edit(checkpoint, requests_of(1)))


@pytest.mark.parametrize("part", ["unet/diffusion_pytorch_model.bin", "text_encoder/pytorch_model.bin"])
def test_a_bin_file_that_runs_code_is_refused_and_does_not_run(part, copied, tmp_path):
    to_bin(copied)
    with (copied / part).open("wb") as file:
        pickle.dump({"weight": Intruder(tmp_path / "was-here")}, file)
    with pytest.raises(EditorError) as caught:
        build(copied)
    assert not (tmp_path / "was-here").exists()
    assert str(copied) in str(caught.value)
    assert "\n" not in str(caught.value)


def truncate(folder, part):
    path, _ = weights_of(folder, part)
    path.write_bytes(path.read_bytes()[:-100])


def add(folder, part, name):
    path, weights = weights_of(folder, part)
    save_file({**weights, name: torch.zeros(1)}, path, metadata={"format": "pt"})


DAMAGED = {
    "LoRA beside a UNet": (lambda f: add(f, "unet", "a.lora_A.weight"), "1 LoRA weights that .* fuse them"),
    "without a UNet": (lambda f: shutil.rmtree(f / "unet"), "cannot load"),
    "a broken configuration": (lambda f: (f / "unet" / "config.json").write_text("{"), "cannot load"),
    "an odd UNet": (lambda f: rewrite(f / "unet/config.json", down_block_types=[3.5]), "cannot load|needs"),
    "truncated vae": (lambda f: truncate(f, "vae"), "cannot load .*check its files"),
}
for part in ("unet", "text_encoder"):
    lacks = r"lacks 1 of the weights of its"
    DAMAGED[f"{part} without a weight"] = (lambda f, part=part: plain.rob(f / part)), lacks


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_checkpoint_is_refused_in_a_sentence(case, copied):
    damage, sentence = DAMAGED[case]
    damage(copied)
    with pytest.raises(EditorError, match=sentence):
        build(copied)


def test_other_models_and_folders_are_refused(tmp_path):
    with pytest.raises(EditorError, match=r"cannot load .*config\.json"):
        build(tmp_path)
    with pytest.raises(EditorError, match="not an instruction editor: its UNet has 4 input channels"):
        build(build_pipeline(tmp_path / "plain", in_channels=4))


def test_the_fingerprint_follows_weights_and_tokenizer_not_the_place(checkpoint, copied):
    base = build(checkpoint)
    assert build(copied).fingerprint == base.fingerprint
    assert build(copied).describe() != base.describe()  # the place itself is described
    intact, _ = weights_of(checkpoint, "unet")
    path, weights = weights_of(copied, "unet")
    weights["conv_out.bias"][0] += 1e-6
    save_file(weights, path, metadata={"format": "pt"})
    assert build(copied).fingerprint != base.fingerprint
    half = {name: tensor.half() for name, tensor in weights.items()}
    save_file(half, path, metadata={"format": "pt"})
    loaded = dict(build(copied)._unet.named_parameters())["conv_in.weight"]
    torch.testing.assert_close(loaded, half["conv_in.weight"].float(), rtol=0, atol=0)
    save_file({name: tensor.float() for name, tensor in load_file(intact).items()}, path)
    assert build(copied).fingerprint == base.fingerprint
    file = copied / "tokenizer" / "tokenizer.json"
    model = json.loads(file.read_text())["model"]
    model["vocab"] |= {"a": model["vocab"]["b"], "b": model["vocab"]["a"]}
    rewrite(file, model=model)
    assert build(copied).fingerprint != base.fingerprint
