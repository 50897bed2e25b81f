"""Encoders against direct computations on the same weights, and what loading refuses."""

import hashlib
import json
import math
import os
import shutil

import lpips
import numpy as np
import pytest
import torch
from cleanfid.resize import make_resizer
from PIL import Image
from safetensors.torch import load_file
from torchvision import transforms
from transformers import AutoTokenizer, CLIPModel, ViTModel

from nein import metrics
from nein.metrics import MetricError, encoders
from tests.helpers import plain
from tests.metrics import tiny
from tests.metrics.tiny import compose, picture

IMAGES = [picture(i, *size) for i, size in enumerate([(40, 32), (32, 32), (70, 41), (33, 90), (128, 100)])]


def equal(found, expected):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, torch.stack(expected).numpy(), atol=1e-5)


@torch.no_grad()
def test_clip_features_equal_one_picture_or_text_at_a_time_by_hand(models, encoders):
    model = CLIPModel.from_pretrained(models / "clip").eval()
    transform = compose(32, 32, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    seen = [model.vision_model(pixel_values=transform(Image.fromarray(x))[None]) for x in IMAGES]
    equal(encoders["clip"].encode(IMAGES), [model.visual_projection(x.pooler_output)[0] for x in seen])
    tokenizer = AutoTokenizer.from_pretrained(models / "clip")
    texts = ["A man and his dog", "car", "a bench near a car"]
    read = [model.text_model(**tokenizer(t, return_tensors="pt")) for t in texts]
    equal(encoders["clip"].encode_text(texts), [model.text_projection(x.pooler_output)[0] for x in read])
    assert encoders["clip"].encode([]).shape == encoders["clip"].encode_text([]).shape == (0, 24)


@torch.no_grad()
def test_vit_features_equal_one_picture_at_a_time_behind_dinos_and_clean_fids_resize(models, encoders):
    model = ViTModel.from_pretrained(models / "vit", add_pooling_layer=False).eval()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    transform = compose(37, 32, mean, std)  # 32 * 256 / 224 = 36.6
    resize, normalise = make_resizer("PIL", False, "bicubic", (32, 32)), transforms.Normalize(mean, std)
    inputs = {
        "dino": [transform(Image.fromarray(x)) for x in IMAGES],
        "fid": [normalise(torch.from_numpy(resize(x)).permute(2, 0, 1) / 255) for x in IMAGES],
    }
    for kind, pixels in inputs.items():
        expected = [model(pixel_values=x[None]).last_hidden_state[0, 0] for x in pixels]
        equal(encoders[kind].encode(IMAGES), expected)
    assert np.abs(encoders["fid"].encode(IMAGES) - encoders["dino"].encode(IMAGES)).max() > 1e-3


@pytest.mark.parametrize("linear", [True, False])
def test_lpips_equals_a_direct_call_of_the_library(tmp_path, linear):
    folder = tiny.make_lpips(tmp_path / "lpips", seed=1, linear=linear)
    network = metrics.load_encoder("lpips", str(folder))
    direct = lpips.LPIPS(net="squeeze", pretrained=False, pnet_rand=True, lpips=linear, verbose=False).eval()
    direct.load_state_dict(load_file(folder / "model.safetensors"))
    targets = [picture(10, 64, 48), picture(11, 40, 40), picture(12, 64, 48)]
    owners = [0, 1, 2, 1, 0, 2]
    images = [picture(20 + i, *targets[o].shape[1::-1]) for i, o in enumerate(owners)]

    def tensor(x):
        return torch.from_numpy(x).permute(2, 0, 1)[None] / 127.5 - 1

    with torch.no_grad():
        expected = [float(direct(tensor(x), tensor(targets[o]))) for x, o in zip(images, owners, strict=True)]
    assert len({round(v, 4) for v in expected}) == 6
    np.testing.assert_allclose(
        network.distances(images, [targets[o] for o in owners]), expected, atol=1e-4, rtol=1e-5
    )
    with pytest.raises(MetricError, match="equal sizes"):
        network.distances(images[:1], targets[1:2])


class Layers(torch.nn.Module):
    """As in the file that clean-fid downloads: `.layers(x)` -> (N, 2048)."""

    def __init__(self):
        super().__init__()
        parts = (torch.nn.Conv2d(3, 32, 16, stride=16), torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten())
        self.layers = torch.nn.Sequential(*parts)

    def forward(self, x):
        return self.layers(x)


def test_inception_features_equal_clean_fids_own(tmp_path, monkeypatch):
    from cleanfid import fid as clean

    file, pictures = tmp_path / encoders.INCEPTION_FILE, tmp_path / "pictures"
    with tiny.seeded(0):
        torch.jit.script(Layers()).save(str(file))
    with pytest.raises(MetricError, match="not the published Inception network"):  # and is not run
        metrics.load_encoder("fid", str(file))
    monkeypatch.setattr(encoders, "INCEPTION_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    encoder = metrics.load_encoder("fid", str(file))
    pictures.mkdir()
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(pictures / f"{number}.png")
    how = {"num_workers": 0, "batch_size": 2, "mode": "clean", "verbose": False}
    expected = clean.get_folder_features(str(pictures), encoder.model, device=torch.device("cpu"), **how)
    assert expected.shape == (len(IMAGES), 2048)
    np.testing.assert_allclose(encoder.encode(IMAGES), expected, atol=1e-5)


def test_the_fingerprint_follows_content_not_place(models, tmp_path, encoders):
    copied = shutil.copytree(models / "vit", tmp_path / "elsewhere")
    assert metrics.load_encoder("dino", str(copied)).fingerprint == encoders["dino"].fingerprint
    other = metrics.load_encoder("dino", str(tiny.make_vit(tmp_path / "other", seed=5)))
    half = metrics.load_encoder("dino", str(models / "vit"), dtype="bfloat16")
    near, full = half.encode(IMAGES), encoders["dino"].encode(IMAGES)
    assert 0 < np.abs(near - full).max() < 0.05 * np.abs(full).max()
    assert len({one.fingerprint for one in (*encoders.values(), other, half)}) == 6
    for encoder in encoders.values():
        described = json.loads(json.dumps(encoder.describe()))
        assert len(described["weights"]) == 64
        assert described["dtype"] == "float32"
        assert described["preprocess"]


@pytest.mark.parametrize(
    ("kind", "reference", "options", "sentence"),
    [
        ("clips", "x/y", {}, "did you mean 'clip'"),
        ("clip", "{}/clip", {"dtype": "float8"}, r"'float8'.*float32"),
        ("clip", "./nowhere", {}, r"no model folder '\./nowhere'"),
        ("clip", "{}/vit", {}, "is of type 'vit'"),
        ("fid", "inception", {"dtype": "float16"}, "float32 only"),
    ],
)
def test_a_wrong_reference_is_one_sentence(models, kind, reference, options, sentence):
    with pytest.raises(MetricError, match=sentence):
        metrics.load_encoder(kind, reference.format(models), **options)


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


WEIGHTS = "model.safetensors"
LACKS = r"lacks 1 of the weights of .*transformers"


@pytest.mark.parametrize(
    ("kind", "name", "damage", "sentence"),
    [
        ("clip", "clip", lambda f: (f / WEIGHTS).rename(f / "w.bin"), r"never loaded: w\.bin"),
        ("clip", "clip", lambda f: edit(f / "config.json", vision_config={"hidden_size": math.nan}),
         "Cannot load CLIPModel from .*hidden_size"),
        ("clip", "clip", lambda f: edit(f / "tokenizer.json", padding=3.5), "Cannot load"),
        ("dino", "vit", lambda f: os.truncate(f / WEIGHTS, 9999), "Cannot load ViTModel"),
        ("lpips", "lpips", lambda f: edit(f / "config.json", net="alexx"), "did you mean 'alex'"),
        ("clip", "clip", plain.rob, LACKS), ("dino", "vit", plain.rob, LACKS),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_sentence(models, tmp_path, kind, name, damage, sentence):
    folder = shutil.copytree(models / name, tmp_path / name)
    damage(folder)
    with pytest.raises(MetricError, match=sentence):
        metrics.load_encoder(kind, str(folder))


def test_loading_and_encoding_leave_the_global_random_state_alone(models):
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002 - the point is that the global state is not used
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for kind, name in (("clip", "clip"), ("dino", "vit"), ("fid", "vit")):
        metrics.load_encoder(kind, str(models / name)).encode(IMAGES[:1])
    metrics.load_encoder("lpips", str(models / "lpips")).distances([IMAGES[0]], [IMAGES[0]])
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
