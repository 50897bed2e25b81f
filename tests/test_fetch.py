"""`nein fetch`, then HF_HUB_OFFLINE, against a stand-in for the hub on the loopback address."""

import hashlib
import json
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nein import cli, editors, fetch, metrics
from nein.config import options
from nein.config.groups import OnDevice
from nein.editors.presets import PRESETS
from nein.loading.errors import UserError
from nein.loading.references import TEXTS, Need
from nein.models import needs
from nein.nano import zoo
from tests.helpers.commands import exit_code, outcome
from tests.helpers.hub import Repository

WEIGHTS = bytes(range(256)) * 64  # larger than what the hub keeps as a text
SMALL = {"config.json": b"{}", "model.safetensors": WEIGHTS, "tokenizer.json": b"{}"}
NANO = {"vqa": "llava", "ovd": "owlv2", "itm": "blip"}


PUBLISHED = [row for row in PRESETS.values() if row.preset == "paper" and row.checkpoint]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.name)
def test_fetch_names_every_model_of_every_published_editor(row):
    repositories = {row.checkpoint.partition(":")[0]}
    repositories |= {row.settings[m] for m in row.models if not row.settings[m].endswith(".pth")}
    if row.settings.get("rewriter") and row.rewriter:
        repositories.add("black-forest-labs/flux-3-image-klein-pup")
    repositories |= {row.settings["config"]} if row.settings.get("config") else set()
    assert repositories <= {need.reference for need in needs.editor_needs([row.name], "paper")}


COMMANDS = {name: pkgutil.resolve_name(row.configuration) for name, row in cli.COMMANDS.items()}


@pytest.mark.parametrize("name", [name for name, kind in COMMANDS.items() if kind.presets])
def test_fetch_names_every_reference_of_a_paper_preset(name):
    kind = COMMANDS[name]
    file = Path(__file__).parents[1] / f"configs/{kind.presets}paper.yaml"
    words = json.dumps(yaml.safe_load(file.read_text()))
    config, _ = options.read(kind, ["--preset=paper"], to_fetch=True)
    references = {need.reference for need in config.needs()}
    repositories = {word for word in words.split('"') if word.count("/") == 1 and " " not in word}
    repositories = {word.removeprefix("hub:") for word in repositories if ":" not in word or "hub:" in word}
    unused = {"google/owlvit-base-patch32"} if name == "negbench generate" else set()  # --verify none
    asked = name not in ("negbench eval", "negvqa") or "judge" in config.model
    judge = set() if asked else {config.judge}
    assert repositories - unused - judge <= references


@pytest.mark.parametrize("kind", [*metrics.ENCODERS, *metrics.JUDGES])
def test_every_kind_of_encoder_and_judge_comes_from_somewhere(kind):
    reference = {"lpips": "vgg", "fid": "inception"}.get(kind, "owner/name@v1")
    [origin] = metrics.origins(kind, reference)
    assert origin.kind == ("url" if kind in ("lpips", "fid") else "model")
    assert kind in ("lpips", "fid") or (origin.reference, origin.revision) == ("owner/name", "v1")
    assert metrics.origins(kind, f"nano:{NANO.get(kind, kind)}") == []


def test_a_network_of_a_metric_is_fetched_with_the_rest(monkeypatch):
    origin = Need("owner/sharpness", "v2")
    metric = replace(metrics.METRICS["l1"], name="sharp", needs=("edited", "mine:load"), origins=(origin,))
    monkeypatch.setattr(metrics, "METRICS", {"sharp": metric})
    assert needs.metric_needs(["sharp"], None) == [origin]


def test_every_command_that_runs_models_says_what_it_needs_and_served_models_need_nothing():
    for name, kind in COMMANDS.items():
        says = kind.needs is not options.Options.needs
        assert says or not issubclass(kind, OnDevice), name
    assert needs.model_needs("vqa", "openai:http://localhost:8000/v1#owner/name") == []


@pytest.mark.parametrize(
    ("files", "chosen", "left"),
    [
        ((), "config.json model.safetensors merges.txt tokenizer.model chat_template.jinja "
         "1_D/model.safetensors",
         "pytorch_model.bin tf_model.h5 README.md model.fp16.safetensors onnx/model.onnx onnx/config.json"),
        ((), "model.safetensors.index.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors",
         "pytorch_model-00001-of-00001.bin"),
        ((), "model_index.json unet/config.json unet/diffusion_pytorch_model.safetensors "
         "tokenizer/vocab.json vae/diffusion_pytorch_model.safetensors",
         "v1-5.ckpt v1-5-pruned.safetensors unet/diffusion_pytorch_model.bin "
         "safety_checker/model.safetensors unet/diffusion_pytorch_model.fp16.safetensors"),
        ((), "unet/diffusion_pytorch_model.bin vae/diffusion_pytorch_model.bin "
         "vae/diffusion_pytorch_model.safetensors", ""),
        (TEXTS, "model_index.json unet/config.json", "unet/model.safetensors"),
        (("edit.safetensors",), "edit.safetensors", "other.safetensors config.json"),
        (("open_clip_*",), "open_clip_config.json open_clip_pytorch_model.bin", "model.safetensors"),
        (("open_clip_*",), "open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
    ],
)  # fmt: skip
def test_of_a_repository_what_its_loader_reads_is_chosen(files, chosen, left):
    names = [*left.split(), *chosen.split()]
    assert fetch.choose_files(Need("own/model", files=files), names) == chosen.split()
    assert fetch.choose_files(Need("own/data", kind="dataset"), names) == names


def offline(hub, monkeypatch):
    hub.close()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_a_hub_that_does_not_answer_is_said_once(hub, monkeypatch, capsys):
    hub.close()
    for words in (["eval", "--editor", "own/none", "--limit", "1"], ["negvqa", "--model", "own/none"]):
        code, _, said = outcome(capsys, *words)
        assert (code, "'own/none' is not in " in said, "does not answer" in said) == (2, True, True)
        assert "Retrying" not in said


def test_what_was_fetched_loads_without_the_hub(hub, monkeypatch):
    for name in ("clip", "dino", "llava", "owlv2", "blip", "ip2p"):
        hub.add(f"own/{name}", zoo.path(name))
    models = "--models.clip own/clip --models.dino own/dino --models.lpips nano:lpips --models.fid own/dino"
    words = f"eval --editor own/ip2p {models} --models.vqa own/llava --models.ovd own/owlv2".split()
    assert exit_code("fetch", *words) == 0
    asked = len(hub.downloads())
    assert exit_code("fetch", *words) == 0
    assert len(hub.downloads()) == asked
    offline(hub, monkeypatch)
    assert editors.get_editor("ip2p", checkpoint="own/ip2p", steps=2, resolution=64).fingerprint
    encoders, judges = {"clip": "own/clip", "fid": "own/dino"}, {"vqa": "own/llava", "ovd": "own/owlv2"}
    loaded = [metrics.load_encoder(kind, name) for kind, name in encoders.items()]
    loaded += [metrics.load_judge(kind, name) for kind, name in judges.items()]
    commits = [hub.models[name].commit("main") for name in (*encoders.values(), *judges.values())]
    assert [model.source.revision for model in loaded] == commits
    with pytest.raises(UserError, match=r"'own/blip' is not in .* offline mode is enabled"):
        metrics.load_judge("itm", "own/blip")


def test_a_data_set_is_read_without_the_hub(hub, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    from nein.datasets import hub as data

    lines = b'{"question": "Is there a dog?"}\n'
    hub.datasets["own/data"] = Repository({"v2": {"test.jsonl": lines, "README.md": b"Dogs."}})
    fetch.fetch(needs.data_needs("hub:own/data@v2"))
    offline(hub, monkeypatch)
    assert list(data.read(data.Reference("own/data", "v2"), "test")) == [{"question": "Is there a dog?"}]


def test_a_file_at_an_address_is_put_where_torch_looks_if_it_is_the_published_one(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    hub.pages["/net-0001.pth"] = WEIGHTS
    need = Need(f"{hub.url}/net-0001.pth", hashlib.sha256(WEIGHTS).hexdigest()[:8], "url")
    fetch.fetch([need])
    file = tmp_path / "hub" / "checkpoints" / "net-0001.pth"
    assert file.read_bytes() == WEIGHTS
    file.unlink()
    hub.pages["/net-0001.pth"] = b"other" * 3000
    with pytest.raises(UserError, match=r"net-0001.pth' cannot be downloaded from .*hash"):
        fetch.fetch([need])
    assert not file.exists()


def test_what_is_refused_is_said_and_the_rest_is_fetched(hub, capsys):
    hub.add("own/model", SMALL)
    hub.add("own/closed", SMALL).gated = True
    asked = ["own/closed", "own/gone", "own/model@v9", "own/model"]
    assert fetch.fetch([need for name in asked for need in needs.model_needs("vqa", name)]) == 1
    said = capsys.readouterr().err
    assert f"'own/closed' is gated: accept its license at {hub.url}/own/closed, log in" in said
    assert "There is no repository 'own/gone' on the hub" in said
    assert "'own/model' has no revision 'v9'" in said
    assert "/own/model/resolve/" in " ".join(hub.downloads())


def test_a_hub_that_does_not_answer_is_a_sentence(hub, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def refused(sentence):
        ended = outcome(capsys, "fetch", "negbench", "eval", "--model", "own/a")
        return ended.code == 2 and sentence in ended.stderr

    hub.status = 503
    assert refused(f"'own/a' cannot be downloaded from {hub.url}")
    hub.close()
    assert refused(f"'own/a' cannot be downloaded from {hub.url}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refused("HF_HUB_OFFLINE is set, and nein fetch needs")


def test_a_dry_run_without_the_hub_lists_repositories_and_is_of_eval_where_no_command_is_named(capsys):
    words = ("--preset", "paper", "--editor", "ip2p", "--dry-run", "--data", "hub:a/b@c")
    shown = outcome(capsys, "fetch", *words).stdout
    lines = shown.splitlines()
    assert {"timbrooks/instruct-pix2pix", "a/b@c"} < set(lines)
    assert any(line.endswith(".pth") for line in lines)
    assert not any("magicbrush" in line or "laion" in line for line in lines)
    assert lines[-1].startswith("Sizes need the hub: HF_HUB_OFFLINE is set")
    assert outcome(capsys, "fetch", "eval", *words).stdout == shown


def test_a_dry_run_sums_the_files_that_would_be_downloaded(hub, capsys):
    hub.add("own/a", {**SMALL, "pytorch_model.bin": WEIGHTS})
    hub.add("own/b", {**SMALL, "model.safetensors": WEIGHTS * 50})
    hub.add("own/closed", SMALL).gated = True
    words = "negvqa --model own/a,own/b,own/closed --dry-run".split()
    lines = outcome(capsys, "fetch", *words).stdout.splitlines()
    assert "own/b: 3 files, 0.8 MB" in lines
    assert [line for line in lines if line.startswith("Refused: 'own/closed' is gated")]
    assert re.fullmatch(r"6 files, 0\.8 MB; 0\.8 MB to download, .* GB free on the disk of .*", lines[-1])
    assert hub.downloads() == []
    fetch.fetch([Need("own/b")])
    again = outcome(capsys, "fetch", *words).stdout.splitlines()
    assert "0.8 MB; 0.0 MB to download" in again[-1]
