"""The training command: a smoke run of a cheap model here, of every model among the slow tests."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import editors
import metrics
from metrics.judges.templates import template
from nein.engine.exits import exit_with
from nein.nano import zoo
from nein.nano.data import source_scene
from nein.nano.scenes import render
from research.nano import __main__ as nano
from research.nano import cards, llava

ORDER = (
    "vae",
    "base",
    "ip2p-first",
    "ip2p",
    "magicbrush-first",
    "magicbrush",
    "backbone",
    "clip",
    "dino",
    "lpips",
    "blip",
    "llava",
    "owlv2",
    "sam",
    "zone-action",
    "negvqa",
    "negvqa-negated",
    "reward",
)


def smoke(root: Path, *models: str, **options: str) -> Path:
    """Runs the command at a thousandth of its scale; returns the folder of models."""
    line = [*models, "--scale", "0.001", "--device", "cpu"]
    line += ["--work", str(root / "work"), "--zoo", str(root / "zoo")]
    for key, value in options.items():
        line += [f"--{key}", value]
    nano.main(line)
    return root / "zoo"


def pictures(count: int = 3) -> list[np.ndarray]:
    return [render(source_scene("val", i)) for i in range(count)]


def check_record(folder: Path, name: str, file: str = "training.json") -> dict:
    record = json.loads((folder / file).read_text())
    assert record["model"] == name
    assert record["seed"] == nano.SEED
    assert record["scale"] == 0.001
    assert record["device"] == "CPU"
    assert record["torch"] == torch.__version__
    assert record["steps"] >= 2
    held_out = record.get("held_out", {})
    assert all(math.isfinite(v) for v in held_out.values())
    return record


def test_a_smoke_run_of_the_lpips_trunk_writes_a_model_that_loads_a_record_and_a_card(tmp_path, capsys):
    folder = smoke(tmp_path, "lpips") / "lpips"
    record = check_record(folder, "lpips")
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1]) == record
    assert {p.name for p in folder.iterdir()} == {
        "README.md", "config.json", "model.safetensors", "training.json",
    }  # fmt: skip
    card = (folder / "README.md").read_text()
    assert f"| steps | {record['steps']} |" in card
    assert f"scenes {record['held_out']['scenes']}" in card
    encoder = metrics.load_encoder("lpips", str(folder))
    a, b, _ = pictures()
    same, other = encoder.distances([a, a], [a, b], [0, 1])
    assert same == 0
    assert other > 0
    assert (tmp_path / "work" / "lpips" / "log.jsonl").is_file()


def test_a_model_is_the_same_when_trained_again_and_another_with_another_seed(tmp_path):
    def trained(name: str, **options: str) -> dict[str, torch.Tensor]:
        return load_file(smoke(tmp_path / name, "lpips", **options) / "lpips" / "model.safetensors")

    first, again, other = trained("a"), trained("b"), trained("c", seed="5")
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not all(torch.equal(first[k], other[k]) for k in first)


def test_a_smoke_run_of_the_backbone_gives_weights_and_a_record_but_no_card(tmp_path):
    folder = smoke(tmp_path, "backbone") / "backbone"
    record = check_record(folder, "backbone")
    assert 0 <= record["held_out"]["patches"] <= 1
    tensors = load_file(folder / "model.safetensors")
    assert all(torch.isfinite(v).all() for v in tensors.values())
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize(
    "line", [["bogus"], [], ["lpips", "bogus"], ["lpips", "--scale", "0"], ["lpips", "--scale", "-1"]]
)
def test_bad_arguments_exit_with_code_two_and_say_why(line, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        exit_with(lambda: nano.main([*line, "--work", str(tmp_path), "--zoo", str(tmp_path)]))
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert ("bogus" in said) == ("bogus" in line)
    assert ("MODEL" in said) == (line == [])
    if "--scale" in line:
        assert said == f"error: --scale is '{line[-1]}'; it must be a number above 0.\n"
    assert list(tmp_path.iterdir()) == []


def test_models_are_trained_in_the_order_of_the_table_whatever_the_order_of_the_names(monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(nano, "train_one", lambda name, *_: trained.append(name))
    smoke(tmp_path, "owlv2", "vae", "clip")
    assert trained == ["vae", "clip", "owlv2"]
    trained.clear()
    smoke(tmp_path, "all")
    assert trained == list(nano.MODELS)
    assert trained.index("vae") < trained.index("base") < trained.index("ip2p") < trained.index("magicbrush")
    assert trained.index("backbone") < trained.index("clip")


def test_a_tower_without_its_backbone_says_what_to_train_first(tmp_path):
    with pytest.raises(
        SystemExit, match=r"backbone.*is missing; train it first: python -m research.nano backbone"
    ):
        smoke(tmp_path, "clip")


def test_every_entry_names_a_function_that_exists():
    import pkgutil

    for entry in nano.MODELS.values():
        assert callable(pkgutil.resolve_name(entry))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All families of models, a thousandth of their training."""
    return smoke(tmp_path_factory.mktemp("smoke"), *ORDER)


@pytest.mark.slow
def test_every_smoke_run_leaves_a_record_and_a_card(trained):
    for name in ORDER:
        folder = trained / ("ip2p" if name == "vae" else name)
        check_record(folder, name, "training-vae.json" if name == "vae" else "training.json")
        assert (folder / "README.md").exists() == (name in cards.ABOUT or name == "vae")
    assert {p.suffix for p in trained.rglob("*") if p.is_file()} <= {
        ".json",
        ".md",
        ".safetensors",
        ".jinja",
        ".txt",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ip2p", "magicbrush"])
def test_trained_editors_load_and_edit(name, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "ZOO", trained)
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path))
    editor = editors.get_editor(f"{name}-nano", checkpoint=str(zoo.path(name)), steps=2, batch_size=3)
    requests = [
        editors.EditRequest(str(i), picture, "Remove the dog.", seed=i)
        for i, picture in enumerate(pictures())
    ]
    for request, result in zip(requests, editor.edit(requests), strict=True):
        assert result.error is None
        assert result.image is not None
        assert result.image.shape == request.image.shape
        assert result.image.dtype == np.uint8


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, name", [("clip", "clip"), ("dino", "dino"), ("fid", "dino"), ("lpips", "lpips")]
)
def test_trained_encoders_load_and_encode(kind, name, trained):
    encoder = metrics.load_encoder(kind, str(trained / name))
    seen = pictures()
    if kind == "lpips":
        values = encoder.distances(seen[:2], seen[1:], [0, 1])
        assert values.shape == (2,)
    else:
        values = np.asarray(encoder.encode(seen))
        assert values.ndim == 2
        assert len(values) == 3
        assert not np.allclose(values[0], values[1])
    assert np.isfinite(values).all()


@pytest.mark.slow
def test_trained_judges_load_and_answer(trained):
    seen = pictures(2)
    vqa = metrics.load_judge("vqa", str(trained / "llava"))
    prompt = template(vqa.template)
    answers = vqa.ask(seen, [[prompt.ask_presence("dog")], [prompt.ask_presence(n) for n in ("cat", "car")]])
    assert [len(row) for row in answers] == [1, 2]
    ovd = metrics.load_judge("ovd", str(trained / "owlv2"))
    found = ovd.detect(seen, [["dog", "cat"], ["car"]])
    assert [set(f) for f in found] == [{"dog", "cat"}, {"car"}]
    itm = metrics.load_judge("itm", str(trained / "blip"))
    scores = itm.match(seen, [["dog"], ["cat", "car"]])
    assert [len(row) for row in scores] == [1, 2]


@pytest.mark.slow
def test_the_vqa_judge_is_asked_the_very_questions_it_was_trained_on(trained):
    prompt = template(metrics.load_judge("vqa", str(trained / "llava")).template)
    assert prompt.ask_presence("fire hydrant") == llava.HEAD + llava.CONTAIN.format("fire hydrant")
    assert prompt.ask_caption("A dog on a beach.") == llava.HEAD + llava.DESCRIBE.format("A dog on a beach.")


@pytest.mark.slow
def test_transformers_own_classes_open_the_folders(trained):
    import transformers

    for name, class_name in (
        ("clip", "CLIPModel"), ("dino", "ViTModel"), ("blip", "BlipForImageTextRetrieval"),
        ("llava", "LlavaNextForConditionalGeneration"), ("owlv2", "Owlv2ForObjectDetection"),
    ):  # fmt: skip
        model = getattr(transformers, class_name).from_pretrained(trained / name, local_files_only=True)
        assert sum(p.numel() for p in model.parameters()) > 10_000
        assert cards.ABOUT[name][1] == class_name
