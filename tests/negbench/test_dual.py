"""Two-tower models: each equal to its own library's forward pass, and one protocol for all."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nein import metrics
from nein.benchmarks.negbench import config, run
from nein.metrics.dual import normalise, openclip, pool
from tests.helpers import plain
from tests.metrics import tiny
from tests.negbench.conftest import OPEN_CLIP, brute_force, cosines

TEXTS = ["A man and his dog.", "No car.", "a bench near a car, but not a dog"]
PICTURES = [tiny.picture(i, 40 + 6 * i, 32) for i in range(4)]


def test_a_checkpoint_in_half_precision_becomes_a_folder_that_plain_open_clip_runs(
    open_clip_checkpoint: tuple[Path, Path], tmp_path: Path
) -> None:
    source, architecture = open_clip_checkpoint
    state = torch.load(source, weights_only=True)["state_dict"]
    torch.save({name: value.half() for name, value in state.items()}, tmp_path / "half.pt")
    words = ["--architecture", str(architecture), str(tmp_path / "half.pt"), str(tmp_path / "tiny")]
    run.convert(config.ConvertConfig.parse(words))
    assert plain.number_types(tmp_path / "tiny") == {"float32"}
    plain.runs(tmp_path / "tiny", "open_clip", tmp_path)


@pytest.fixture(scope="module", params=["clip_folder", "open_clip_folder", "random"])
def model(request: Any) -> Any:
    name = request.param
    return metrics.load_dual(name if name == "random" else str(request.getfixturevalue(name)))


def test_every_model_keeps_the_protocol(model: Any) -> None:
    images, texts = model.encode(PICTURES), model.encode_text(TEXTS)
    assert images.shape == (4, model.width)
    assert texts.shape == (3, model.width)
    assert images.dtype == texts.dtype == np.float32
    assert model.encode([]).shape == (0, model.width)
    assert np.unique(images, axis=0).shape == images.shape  # it looks
    assert np.unique(texts, axis=0).shape == texts.shape  # it reads
    json.dumps(model.describe())
    assert len(model.fingerprint) == 20
    again = model.encode(PICTURES[::-1])[::-1]
    assert again == pytest.approx(images, abs=1e-5)  # the order of a batch does not matter
    if not isinstance(model.describe().get("name"), str):
        assert np.abs(np.linalg.norm(images, axis=1) - 1).max() > 1e-3  # not normalised


def test_clip_scores_as_its_own_forward_does(clip_folder: Path) -> None:
    model = metrics.load_dual(str(clip_folder))
    words = model.tokenizer(TEXTS, padding=True, return_tensors="pt")
    crops = torch.from_numpy(np.stack([model.preprocess(picture) for picture in PICTURES]))
    with torch.no_grad():
        own = model.model(pixel_values=model.preprocess.normalise(crops), **words).logits_per_image
    cosine = cosines(model.encode(PICTURES), model.encode_text(TEXTS))
    assert cosine * model.scale + model.bias == pytest.approx(own.numpy(), rel=1e-4)


@pytest.mark.parametrize("kind", ["CustomTextCLIP", "CLIP"])
def test_open_clip_scores_as_its_own_forward_does(kind: str, open_clip_folder: Path, tmp_path: Path) -> None:
    """Of a CLIP, and of a model with a text tower of transformers, as BiomedCLIP."""
    import open_clip

    folder = open_clip_folder if kind == "CLIP" else tiny.make_medical(tmp_path / "medical")
    theirs, transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    theirs.eval()
    pixels = torch.stack([transform(Image.fromarray(p)) for p in PICTURES])
    with torch.no_grad():
        images, texts, scale = theirs(pixels, open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS))[:3]
        own = scale * images @ texts.T
    model = metrics.load_dual(str(folder))
    assert model.describe()["class"] == type(theirs).__name__ == kind
    cosine = cosines(model.encode(PICTURES), model.encode_text(TEXTS))
    assert cosine * model.scale + model.bias == pytest.approx(own.numpy(), rel=1e-4)
    assert np.ptp(own.numpy(), axis=1).min() > 1e-3


def test_quick_gelu_is_a_choice_that_changes_the_features(
    open_clip_checkpoint: tuple[Path, Path], open_clip_folder: Path, tmp_path: Path
) -> None:
    source, architecture = open_clip_checkpoint
    openclip.convert(source, tmp_path / "quick", architecture=str(architecture), quick_gelu=True)
    quick, plain = metrics.load_dual(str(tmp_path / "quick")), metrics.load_dual(str(open_clip_folder))
    assert (quick.describe()["quick_gelu"], plain.describe()["quick_gelu"]) == (True, False)
    assert np.abs(quick.encode(PICTURES) - plain.encode(PICTURES)).max() > 1e-4
    assert quick.fingerprint != plain.fingerprint


@pytest.mark.parametrize(
    "reference, expected",
    [
        ("open_clip:ViT-B-32/laion400m_e32", True),
        ("open_clip:ViT-B-32/laion400m_e32#gelu", False),  # as the released scripts ran these weights
        ("open_clip:ViT-B-32/datacomp_xl_s13b_b90k#quickgelu", True),
    ],
)
def test_the_activation_can_be_said(monkeypatch: pytest.MonkeyPatch, reference: str, expected: bool) -> None:
    import open_clip

    asked = []

    def create(name: str, tag: str, **options: Any) -> Any:
        asked.append((name, tag, options["force_quick_gelu"]))
        raise RuntimeError("no weights here")

    monkeypatch.setattr(open_clip, "create_model_from_pretrained", create)
    with pytest.raises(metrics.MetricError, match="no weights here"):
        metrics.load_dual(reference)
    tag = reference.partition("/")[2].partition("#")[0]
    assert asked == [("ViT-B-32", tag, expected)]


def test_a_checkpoint_as_con_clip_and_negationclip_give_them_out_is_converted(
    open_clip_checkpoint: tuple[Path, Path], tmp_path: Path
) -> None:
    """CoN-CLIP: the state dict of OpenAI's package under "model", beside that of the optimiser and logs.
    NegationCLIP: the state dict alone."""
    source, architecture = open_clip_checkpoint
    named = torch.load(source, weights_only=True)["state_dict"]
    state = {name.removeprefix("module."): value for name, value in named.items()}
    optimiser = {"state": {0: {"step": 3}}, "param_groups": [{"lr": 1e-6, "params": [0]}]}
    torch.save({"model": state, "optimizer": optimiser, "logs": {"loss": [0.1]}}, tmp_path / "conclip.pt")
    torch.save(state, tmp_path / "negationclip.pt")
    features = []
    for name in ("conclip", "negationclip"):
        words = ["--architecture", str(architecture), "--quick-gelu"]
        words += [str(tmp_path / f"{name}.pt"), str(tmp_path / name)]
        run.convert(config.ConvertConfig.parse(words))
        model = metrics.load_dual(str(tmp_path / name))
        assert model.quick_gelu
        features.append(model.encode_text(["no dog"]))
    np.testing.assert_array_equal(*features)


def test_a_pickle_that_would_run_something_is_not_run(tmp_path: Path) -> None:
    import pickle

    class Harm:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path.touch, (tmp_path / "harm",))

    (tmp_path / "bad.pt").write_bytes(pickle.dumps({"state_dict": Harm()}))
    with pytest.raises(metrics.MetricError, match="could run code when read"):
        openclip.convert(tmp_path / "bad.pt", tmp_path / "out", architecture="ViT-B-32")
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "reference, said",
    [
        ("open_clip:ViT-B-32", "names no weights"),
        ("open_clip:ViT-B32/openai", "did you mean 'ViT-B-32'"),
        ("open_clip:ViT-B-32/openia", "did you mean 'openai'"),
        ("open_clip:ViT-B-32/openai#relu", "Unknown activation 'relu'"),
        ("open_clip:ViT-B-32/negclip.pth", "nein negbench convert"),
        ("open_clip:ViT-B-32/x.safetensors", "There is no file 'x.safetensors'"),
        ("conch:x.bin", "non-commercial research"),
        ("nowhere", "There is no model folder 'nowhere'"),
        ("constant:3", "takes no seed"),
    ],
)
def test_a_wrong_reference_is_one_sentence(reference: str, said: str) -> None:
    with pytest.raises(metrics.MetricError) as caught:
        metrics.load_dual(reference)
    assert said in str(caught.value)


def test_a_model_with_one_tower_is_refused(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    ViTModel(ViTConfig(**size, image_size=32)).save_pretrained(tmp_path / "vit")
    with pytest.raises(metrics.MetricError, match=r"has no get_(image|text)_features"):
        metrics.load_dual(str(tmp_path / "vit"))


def test_conch_is_called_as_its_package_documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package is no dependency: its two calls are played by modules of the same names and signatures."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.visual = torch.nn.Linear(3, 5)
            self.words = torch.nn.Embedding(400, 5)
            self.logit_scale = torch.nn.Parameter(torch.tensor(2.0))

        def encode_image(self, x: torch.Tensor, proj_contrast: bool, normalize: bool) -> torch.Tensor:
            assert proj_contrast
            assert not normalize
            return self.visual(x.mean((2, 3)))

        def encode_text(self, x: torch.Tensor, normalize: bool) -> torch.Tensor:
            assert x.shape[1] == 128
            assert not normalize
            return self.words(x).mean(1)

    words = tiny.tokenizer([], bos="<start_of_text>", eos="<end_of_text>", pad="<pad>", limit=128)
    fake: Any = types.ModuleType("conch.open_clip_custom")
    fake.create_model_from_pretrained = lambda name, path, device: (
        Model(),
        lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255,
    )
    fake.get_tokenizer = lambda: words
    monkeypatch.setitem(sys.modules, "conch", types.ModuleType("conch"))
    monkeypatch.setitem(sys.modules, "conch.open_clip_custom", fake)
    torch.save({"x": torch.zeros(1)}, tmp_path / "weights.bin")
    model = metrics.load_dual(f"conch:{tmp_path / 'weights.bin'}")
    same = [tiny.picture(i) for i in range(2)]
    assert model.encode(same).shape == (2, 5)
    assert model.encode_text(TEXTS).shape == (3, 5)
    with pytest.raises(metrics.MetricError, match="once access is granted"):
        metrics.load_dual("conch:nothing.bin")


def test_frames_are_averaged_before_or_after_normalising_by_name() -> None:
    frames = np.array([[3.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    first, second = pool(frames), pool(frames, "average-first")
    assert first == pytest.approx([0.5, 0.5])
    assert second == pytest.approx([1.5, 0.5])
    assert pool(frames[:1]) == pytest.approx([3.0, 0.0])
    with pytest.raises(metrics.MetricError, match="order of averaging"):
        pool(frames, "both")


def test_the_product_of_prepared_features_is_the_cosine_of_a_pair() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal((4, 7)).astype(np.float32)
    assert cosines(a, b) == pytest.approx(brute_force(a, b), abs=1e-6)
    assert normalise(np.zeros((1, 3))).tolist() == [[0, 0, 0]]
    assert (normalise(a * 4) == normalise(a)).all()


def test_an_architecture_that_does_not_fit_is_a_sentence_and_leaves_nothing(
    open_clip_checkpoint: tuple[Path, Path], tmp_path: Path
) -> None:
    source, _ = open_clip_checkpoint
    other = {**OPEN_CLIP, "embed_dim": 32}
    nonsense = {**OPEN_CLIP, "vision_cfg": {"layers": "many"}}
    for content, said in ((other, "does not fit"), (nonsense, "describes no model of open_clip")):
        (tmp_path / "other.json").write_text(json.dumps(content))
        with pytest.raises(metrics.MetricError, match=said):
            openclip.convert(source, tmp_path / "out", architecture=str(tmp_path / "other.json"))
        assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_weights_that_are_cut_off_are_a_sentence(open_clip_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(open_clip_folder, folder)
    weights = folder / openclip.WEIGHTS
    for length in (0, 4, 1000, weights.stat().st_size // 2):
        weights.write_bytes((open_clip_folder / openclip.WEIGHTS).read_bytes()[:length])
        with pytest.raises(metrics.MetricError, match=r"Cannot load '.*cut' with open_clip: \S"):
            metrics.load_dual(str(folder))
