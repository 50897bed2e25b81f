"""Where nano models are found and how variants are put together, on a small made-up zoo."""

import shutil

import pytest

from nein.loading.errors import UserError
from nein.models.references import resolve
from nein.nano import zoo

BASE = {
    "README.md": "base card",
    "model_index.json": "{}",
    "vae/weights.safetensors": "vae",
    "text_encoder/weights.safetensors": "text",
    "tokenizer/vocab.json": "words",
    "scheduler/config.json": "steps",
    "unet/weights.safetensors": "base unet",
    "training.json": "base record",
    "training-vae.json": "another record",
    "judged.json": "grades",
}
VARIANT = {"README.md": "variant card", "unet/weights.safetensors": "own unet", "training.json": "own record"}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def content(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    root = tmp_path / "zoo"
    write(root / "ip2p", BASE)
    write(root / "magicbrush", VARIANT)
    write(root / "dino", {"README.md": "card", "config.json": "{}"})
    write(root / "clip", {"config.json": "no card yet"})
    monkeypatch.setattr(zoo, "ZOO", root)
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))
    return root


def test_a_variant_is_the_base_with_its_own_unet_and_records(fake):
    folder = zoo.path("magicbrush")
    shared = {name: text for name, text in BASE.items() if name not in ("judged.json", "training-vae.json")}
    assert content(folder) == {**shared, **VARIANT}
    assert folder.is_relative_to(fake.parent / "cache")
    assert (content(fake / "magicbrush"), content(fake / "ip2p")) == (VARIANT, BASE)
    write(fake / "magicbrush", {"scheduler/config.json": "other steps"})
    assert content(zoo.path("magicbrush"))["scheduler/config.json"] == "other steps"


@pytest.mark.parametrize("name", ["clip", "hqedit", "", "../zoo/dino"])
def test_an_unknown_or_unfinished_name_is_answered_with_those_there_are(fake, name):
    with pytest.raises(UserError, match=r"'nano:.*'; there are: dino, fid, ip2p, magicbrush"):
        resolve(f"nano:{name}")
    with pytest.raises(ValueError, match=r"no nano model '.*'; there are: dino, fid, ip2p, magicbrush"):
        zoo.path(name)
    assert resolve("nano:magicbrush") == str(zoo.path("magicbrush"))


@pytest.mark.parametrize("changed", ["magicbrush/unet/weights.safetensors", "ip2p/vae/weights.safetensors"])
def test_a_changed_file_gives_a_new_folder_and_otherwise_nothing_is_copied_again(fake, changed, monkeypatch):
    first = zoo.path("magicbrush")
    (fake / "ip2p" / "unet" / "weights.safetensors").write_text("retrained base unet")  # is not shared
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", lambda *_: pytest.fail("copied again"))
        assert zoo.path("magicbrush") == first
    (fake / changed).write_text("other bytes")
    second = zoo.path("magicbrush")
    assert second != first
    assert content(second)[changed.partition("/")[2]] == "other bytes"
    assert content(first)[changed.partition("/")[2]] != "other bytes"
