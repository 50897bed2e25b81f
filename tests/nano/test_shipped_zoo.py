"""The models that ship: all there, each with a card, safetensors only, small together."""

import hashlib
import json
import re
import shutil

import pytest
from safetensors import safe_open

from nein.editors.checkpoint import load_pipeline
from nein.nano import zoo
from research.nano.__main__ import MODELS as MADE
from research.nano.job import SMOKE
from research.nano.ship import write_card

TUNED = ("nein-ip2p", "nein-magicbrush")
EDITORS = ("ip2p", "magicbrush", "hqedit", "instructdiffusion", *TUNED)
#: Model -> the one whose layout and remaining tensors it has.
CONTINUED = {"negvqa": "llava", "negvqa-negated": "llava"}
MODELS = (*EDITORS, "sd", "blip", "clip", "dino", "lpips", "llava", "owlv2", "sam", "zone-action", *CONTINUED)
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".npy", ".npz", ".msgpack", ".h5", ".py"}
LIMIT_MB = 49


def test_exactly_the_promised_models_are_available():
    assert set(zoo.available()) == {*MODELS, *zoo.ALIASES}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_a_card_a_record_and_weights(name, tmp_path):
    folder = zoo.ZOO / name
    assert list(folder.rglob("*.safetensors"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    record = json.loads((folder / "training.json").read_text())
    if name in TUNED:
        base = name.removeprefix("nein-")
        assert f"python train/finetune_ip2p.py --recipe nano --base nano:{base}" in card
        assert record["base"] == f"nano:{base}"
        shipped = load_pipeline(str(zoo.path(base))).weights_sha256
        assert record["base_weights_sha256"] == shipped  # made from the editor that ships
    else:
        [models] = re.findall(r"`python -m research\.nano (.*?)`", card)
        assert models.split()[-1] == name
        assert {*models.split()} <= {*MADE}
        assert record["model"] == name
        assert record["scale"] >= SMOKE
    # The card says every recorded figure: written anew, it is the same.
    shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("README.md", "*.safetensors"))
    write_card(tmp_path / name)
    assert (tmp_path / name / "README.md").read_text(encoding="utf-8") == card


def test_weights_are_finite_ship_in_half_precision_and_no_tensor_twice():
    import torch

    seen = {}
    for file in sorted(zoo.ZOO.rglob("*.safetensors")):
        with safe_open(file, "pt") as handle:
            assert handle.keys()
            for key in handle.keys():
                tensor = handle.get_tensor(key)
                constant = key.startswith("scaling_layer.")  # of the package lpips: six numbers, not learned
                assert tensor.dtype == (torch.float32 if constant else torch.float16), (file, key)
                assert torch.isfinite(tensor).all(), (file, key)
                content = tensor.numpy().tobytes()
                if len(content) >= 1024:
                    place = f"{file.relative_to(zoo.ZOO)}:{key}"
                    digest = f"{hashlib.sha256(content).hexdigest()} {tuple(tensor.shape)}"
                    assert seen.setdefault(digest, place) == place


def test_no_pickled_weights_and_no_code_ship_and_the_zoo_is_small():
    files = [p for p in zoo.ZOO.rglob("*") if p.is_file()]
    assert [p for p in files if p.suffix in PICKLES] == []
    shipped = [p for p in files if p.relative_to(zoo.ZOO).parts[0] in MODELS]
    assert 0 < sum(p.stat().st_size for p in shipped) <= LIMIT_MB * 10**6


def test_models_that_go_on_from_another_carry_their_changes_only(tmp_path, monkeypatch):
    import torch
    from safetensors.torch import load_file

    monkeypatch.setenv("NEIN_CACHE", str(tmp_path))
    for name, base in CONTINUED.items():
        judge = load_file(zoo.ZOO / base / "model.safetensors")
        own = load_file(zoo.ZOO / name / "changes.safetensors")
        assert list((zoo.ZOO / name).rglob("*.safetensors")) == [zoo.ZOO / name / "changes.safetensors"]
        assert not any("vision" in key for key in own)
        whole = load_file(zoo.path(name) / "model.safetensors")
        assert whole.keys() == judge.keys()
        assert all(torch.equal(whole[key], own.get(key, judge[key])) for key in whole)
        assert sum(p.stat().st_size for p in (zoo.ZOO / name).rglob("*")) < 2_000_000
