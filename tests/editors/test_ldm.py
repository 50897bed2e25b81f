import json
import os
import pickle
from collections import defaultdict, deque

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionInstructPix2PixPipeline
from safetensors.torch import save_file

from nein.editors import EditorError, get_editor
from nein.models.convert import convert, read_file
from tests.editors.ldm import original_format

SHIFT = 0.25


@pytest.fixture(scope="module")
def pipeline(checkpoint):
    return StableDiffusionInstructPix2PixPipeline.from_pretrained(checkpoint, safety_checker=None)


@pytest.fixture(scope="module")
def files(pipeline, tmp_path_factory):
    """name -> file: with and without averaged weights, as safetensors and as pickle, and a training state."""
    root = tmp_path_factory.mktemp("ldm")
    plain, both = original_format(pipeline), original_format(pipeline, ema=SHIFT)
    save_file(plain, root / "plain.safetensors")
    save_file(both, root / "both.safetensors")
    torch.save({"state_dict": plain}, root / "plain.ckpt")
    hyper = AttributeDict(lr=1e-4)
    callbacks = {Callback: Callback(), "hyper": hyper, "scalar": np.float32(2), "set": {1, 2}}
    torch.save({"state_dict": both, "global_step": 5, "callbacks": callbacks}, root / "lightning.ckpt")
    return {path.name: path for path in root.iterdir()}


class Callback:
    """What a training framework pickles beside the tensors."""

    def __init__(self):
        self.best = np.float64(0.5)
        self.history = deque([1, 2])
        self.groups = defaultdict(list, {"a": [1]})


class AttributeDict(dict):
    pass


class Intruder:
    """Unpickling this would call a function: of the system, or one that creates a file."""

    def __init__(self, path=None):
        self.path = path

    def __reduce__(self):
        return (os.system, ("true",)) if self.path is None else (open, (str(self.path), "w"))


def load(path, checkpoint, **options):
    return read_file(path, config=str(checkpoint), **options)


def assert_same(module, other, shift=0.0):
    expected = other.state_dict()
    assert set(module.state_dict()) == set(expected)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, expected[name] + shift, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize(
    "name, ema, shift", [("plain", None, 0.0), ("both", True, SHIFT), ("both", False, 0.0)]
)
def test_every_tensor_arrives_and_of_two_sets_the_chosen_one(name, ema, shift, files, checkpoint, pipeline):
    loaded, origin = load(files[f"{name}.safetensors"], checkpoint, ema=ema)
    assert_same(loaded.unet, pipeline.unet, shift)
    assert_same(loaded.vae, pipeline.vae)
    assert_same(loaded.text_encoder, pipeline.text_encoder)
    assert (origin["ema"], origin["both"]) == (ema, name == "both")


def test_two_sets_without_a_choice_and_a_choice_without_two_sets_are_refused(files, checkpoint):
    with pytest.raises(EditorError, match=r"trained and averaged.*--ema, .*--no-ema"):
        load(files["both.safetensors"], checkpoint)
    with pytest.raises(EditorError, match="holds no averaged"):
        load(files["plain.safetensors"], checkpoint, ema=True)


@pytest.mark.parametrize("ema, shift", [(True, SHIFT), (False, 0.0)])
def test_a_training_checkpoint_is_refused_and_converted_once_to_tensors(
    ema, shift, files, checkpoint, pipeline, tmp_path
):
    said = r"is a single file, .* nein convert lightning\.ckpt FOLDER --ema"
    with pytest.raises(EditorError, match=said.replace(" nein", " `nein")):
        get_editor(str(files["lightning.ckpt"]))
    folder = convert(files["lightning.ckpt"], tmp_path / "out", ema=ema, config=str(checkpoint))
    written = StableDiffusionInstructPix2PixPipeline.from_pretrained(folder, use_safetensors=True)
    assert_same(written.unet, pipeline.unet, shift)
    assert_same(written.vae, pipeline.vae)
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {".json", ".safetensors", ".txt"}
    origin = json.loads((folder / "origin.json").read_text())
    assert origin["ema"] is ema
    assert any(name.endswith("Callback") for name in origin["left_out"])
    editor = get_editor("magicbrush", checkpoint=str(folder), steps=2)
    assert editor.describe()["published"]["converted_from"]["ema"] is ema
    assert editor.describe()["published"]["class"] == "StableDiffusionInstructPix2PixPipeline"
    assert written.scheduler.config.timestep_spacing == "linspace"


def test_nothing_in_a_malicious_file_runs(pipeline, checkpoint, tmp_path):
    tensors = original_format(pipeline)
    path, worse = tmp_path / "evil.ckpt", tmp_path / "worse.ckpt"
    torch.save({"state_dict": tensors, "callbacks": Intruder(tmp_path / "was-here")}, path)
    convert(path, tmp_path / "out", config=str(checkpoint))
    written = StableDiffusionInstructPix2PixPipeline.from_pretrained(tmp_path / "out")
    assert_same(written.unet, pipeline.unet)
    torch.save({"state_dict": tensors, "x": Intruder()}, worse)  # reaches for the system
    with pytest.raises(EditorError, match=r"cannot be read without running code.*do not use"):
        convert(worse, tmp_path / "other", config=str(checkpoint))
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "was-here").exists()
    # The file is as dangerous as it claims to be.
    torch.load(path, weights_only=False)
    assert (tmp_path / "was-here").exists()


UNET = "model.diffusion_model."


def five_channels(tensors):
    weight = tensors[f"{UNET}input_blocks.0.0.weight"]
    tensors[f"{UNET}input_blocks.0.0.weight"] = weight[:, :5].contiguous()


@pytest.mark.parametrize(
    "spoil, ema, sentence",
    [
        (lambda t: t.pop(f"{UNET}middle_block.0.in_layers.2.bias"), None, r"Missing key.*mid_"),
        (lambda t: t.update({"first_stage_model.quant_conv.bias": torch.zeros(3)}), None, r"KL.*bias"),
        (lambda t: t.pop("model_ema.diffusion_modelout2bias"), True, "lacks 1 averaged"),
        (five_channels, None, "has 5 input channels"),
        (lambda t: t.clear(), None, "not in the original latent-diffusion format"),
    ],
)
def test_tensors_that_do_not_fit_are_named(spoil, ema, sentence, pipeline, checkpoint, tmp_path):
    tensors = original_format(pipeline, ema=0.0 if ema else None)
    spoil(tensors)
    save_file(tensors, tmp_path / "spoilt.safetensors")
    with pytest.raises(EditorError, match=sentence):
        load(tmp_path / "spoilt.safetensors", checkpoint, ema=ema)


def test_other_files_are_refused(checkpoint, tmp_path):
    (tmp_path / "broken.ckpt").write_bytes(pickle.dumps({"a": 1})[:-2])
    with pytest.raises(EditorError, match=r"cannot read|is a pickle"):
        load(tmp_path / "broken.ckpt", checkpoint)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(EditorError, match="is not a checkpoint"):
        convert(tmp_path / "notes.txt", tmp_path / "out")


def test_without_a_configuration_the_sentence_says_what_to_give(files):
    with pytest.raises(EditorError, match=r"cannot load 'timbrooks/instruct-pix2pix'.*nein fetch"):
        read_file(files["plain.safetensors"])
