"""`nein fetch` and `--models-from`, against a stand-in for the hub on the loopback address."""

import hashlib
import json
import pkgutil
import re
import time
from dataclasses import replace

import pytest
import safetensors.numpy
import yaml

from nein import cli, editors, fetch, metrics
from nein.config import options
from nein.config.groups import OfflineOptions
from nein.editors.presets import PRESETS
from nein.engine import store
from nein.engine.errors import UserError
from nein.loading.references import Need
from nein.models import fetching, lineage, needs
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
    repositories |= {model for model in row.models.values() if not model.endswith(".pth")}
    repositories |= {row.values["config"]} if row.values.get("config") else set()
    assert repositories <= {need.reference for need in needs.of_editors([row.name], "paper")}


@pytest.mark.parametrize("name", sorted(fetch.names()))
def test_fetch_names_every_reference_of_a_paper_preset(name):
    kind = fetch.options_of(name)
    file = options.preset_file("paper", kind.presets)
    words = json.dumps(yaml.safe_load(file.read_text()))
    config, _ = options.read(kind, ["--preset=paper"], to_fetch=True)
    references = {need.reference for need in config.needs()}
    repositories = {word for word in words.split('"') if word.count("/") == 1 and " " not in word}
    repositories = {word.removeprefix("hub:") for word in repositories if ":" not in word or "hub:" in word}
    unused = {"google/owlvit-base-patch32"} if not getattr(config, "detects", True) else set()
    asked = config.judged if name == "negbench" else name != "negvqa" or "judge" in config.model
    judge = set() if asked else {config.judge}
    assert repositories - unused - judge <= references


@pytest.mark.parametrize("kind", [*metrics.ENCODERS, *metrics.JUDGES])
def test_every_kind_of_encoder_and_judge_comes_from_somewhere(kind):
    reference = {"lpips": "vgg", "fid": "inception"}.get(kind, "owner/name@v1")
    [origin] = metrics.origins(kind, reference)
    assert origin.layout == ("torch" if kind in ("lpips", "fid") else "transformers")
    assert kind in ("lpips", "fid") or (origin.reference, origin.revision) == ("owner/name", "v1")
    assert metrics.origins(kind, f"nano:{NANO.get(kind, kind)}") == []


def test_a_network_of_a_metric_is_fetched_with_the_rest(monkeypatch):
    origin = Need("transformers", "owner/sharpness", "v2")
    metric = replace(metrics.METRICS["l1"], name="sharp", needs=("edited", "mine:load"), origins=(origin,))
    monkeypatch.setattr(metrics, "METRICS", {"sharp": metric})
    assert needs.of_metrics(["sharp"], None) == [Need("transformers", "owner/sharpness", "v2")]


def test_every_command_with_models_from_says_what_it_needs_and_served_models_need_nothing():
    for name, command in cli.COMMANDS.items():
        kind = pkgutil.resolve_name(command.configuration)
        says = kind.needs is not options.Options.needs
        assert says == issubclass(kind, OfflineOptions) or kind is fetch.FetchConfig, name
    assert needs.of_model("vqa", "openai:http://localhost:8000/v1#owner/name") == []


@pytest.mark.parametrize(
    ("layout", "chosen", "left"),
    [
        ("transformers", "config.json model.safetensors merges.txt tokenizer.model chat_template.jinja",
         "model-00001-of-00002.safetensors pytorch_model.bin tf_model.h5 README.md model.fp16.safetensors "
         "onnx/model.onnx onnx/config.json"),
        ("transformers", "config.json model.safetensors.index.json model-00001-of-00002.safetensors "
         "model-00002-of-00002.safetensors", ""),
        ("pipeline", "model_index.json unet/config.json unet/diffusion_pytorch_model.safetensors "
         "tokenizer/vocab.json vae/diffusion_pytorch_model.safetensors",
         "v1-5.ckpt unet/diffusion_pytorch_model.bin unet/diffusion_pytorch_model.fp16.safetensors "
         "safety_checker/model.safetensors"),
        ("pipeline", "model_index.json unet/diffusion_pytorch_model.bin vae/diffusion_pytorch_model.bin",
         "vae/diffusion_pytorch_model.safetensors"),
        ("pipeline and checker", "safety_checker/model.safetensors", ""),
        ("settings", "model_index.json unet/config.json", "unet/x.bin"),
        ("file:edit.safetensors", "edit.safetensors", "other.safetensors"),
        ("open_clip", "open_clip_config.json open_clip_pytorch_model.bin", "README.md"),
        ("open_clip", "open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
        ("open_clip:a.bin", "a.safetensors", "a.bin model.safetensors"),
        ("sentence", "modules.json model.safetensors 1_Pooling/config.json 2_D/model.safetensors",
         "onnx/a.json"),
        ("text", "config.json vocab.txt", "model.safetensors"),
        ("dataset", "README.md data/test.parquet", ".gitattributes"),
    ],
)  # fmt: skip
def test_of_a_repository_what_its_loader_reads_is_chosen(layout, chosen, left):
    assert fetching.choose(layout, [*left.split(), *chosen.split()]) == sorted(chosen.split())


def test_what_was_fetched_loads_without_the_hub(hub, tmp_path, capsys):
    shipped = ("clip", "dino", "llava", "owlv2", "blip", "ip2p")
    for name in shipped:
        hub.add(f"own/{name}", zoo.path(name))
    files = {path.name: path.read_bytes() for path in zoo.path("dino").iterdir()}
    old = hub.add("own/old", {**files, "pytorch_model.bin": WEIGHTS})
    del old.revisions["main"]["model.safetensors"]  # they are in a pull request only
    old.revisions["refs/pr/3"] = files
    models = "--models.clip own/clip --models.dino own/old --models.lpips nano:lpips --models.fid own/dino"
    words = f"eval --editor own/ip2p {models} --models.vqa own/llava --models.ovd own/owlv2".split()
    assert exit_code("fetch", *words, "--models-from", tmp_path / "m") == 0
    assert "7 models and data sets" not in capsys.readouterr().out
    hub.close()
    store.use(tmp_path / "m")
    editor = editors.get_editor("ip2p", checkpoint="own/ip2p", steps=2, resolution=64)
    assert editor.fingerprint
    encoders = {"clip": "own/clip", "fid": "own/dino", "dino": "own/old"}
    judges = {"vqa": "own/llava", "ovd": "own/owlv2"}
    loaded = [metrics.load_encoder(kind, name) for kind, name in encoders.items()]
    loaded += [metrics.load_judge(kind, name) for kind, name in judges.items()]
    commits = [hub.models[name].commit("main") for name in (*encoders.values(), *judges.values())]
    assert [model.source.revision for model in loaded] == commits
    with pytest.raises(metrics.MetricError, match=r"'own/blip': its file config.json is not in .*fetch it"):
        metrics.load_judge("itm", "own/blip")


def test_a_run_reads_the_folder_and_says_which_file_is_absent(hub, tmp_path, capsys):
    hub.add("own/dino", zoo.path("dino"))
    words = ["eval", "--editor", "identity", "--models.dino", "own/dino", "--metrics", "dino", "--limit", "2"]
    words += ["--control", "none", "--device", "cpu", "--models-from", tmp_path / "m"]
    assert exit_code("fetch", *words) == 0
    asked = len(hub.requests)
    run = outcome(capsys, *words, "--out", tmp_path / "run")
    assert run.code == 0, run.stderr
    assert "identity" in run.stdout
    assert len(hub.requests) == asked
    other = outcome(capsys, *words, "--metrics", "clip_i", "--models.clip", "own/clip")
    assert (other.code, "lacks 'own/clip', which this run needs" in other.stderr) == (2, True)
    [weights] = (tmp_path / "m").rglob("snapshots/*/model.safetensors")
    weights.unlink()
    again = outcome(capsys, *words, "--out", tmp_path / "other")
    assert again.code == 2
    assert f"{weights.relative_to(tmp_path / 'm')} of 'own/dino'" in again.stderr


def test_a_data_set_is_read_without_the_hub(hub, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    from nein.datasets import hub as data

    lines = b'{"question": "Is there a dog?"}\n'
    hub.datasets["own/data"] = Repository({"v2": {"test.jsonl": lines, "README.md": b"Dogs."}})
    fetch.fetch(needs.of_data("hub:own/data@v2"), tmp_path / "m")
    hub.close()
    store.use(tmp_path / "m")
    assert list(data.read(data.Reference("own/data", "v2"), "test")) == [{"question": "Is there a dog?"}]


def address(hub, content=WEIGHTS):
    hub.pages["/net-0001.pth"] = content
    return Need("torch", f"{hub.url}/net-0001.pth", hashlib.sha256(content).hexdigest()[:8])


def test_after_a_broken_download_what_is_complete_is_not_asked_for_again(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1024)  # 10 MB are kept at a time
    monkeypatch.setattr("time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.05)))
    hub.add("own/first", {"config.json": b"{}", "model.safetensors": WEIGHTS[:5000]})
    hub.add("own/model", SMALL)
    wanted = [Need("transformers", "own/first"), Need("transformers", "own/model"), address(hub)]
    hub.stop_at = 8192
    with pytest.raises(UserError, match=r"does not answer .* What is complete stays; give the same"):
        fetch.fetch(wanted, tmp_path)
    hub.status = 200
    hub.requests.clear()
    assert "is complete" in str(fetch.fetch(wanted, tmp_path))
    assert not any("own/first" in path for path in hub.downloads())
    assert any(path.endswith("/model.safetensors") for path in hub.downloads())
    hub.requests.clear()
    fetch.fetch(wanted, tmp_path)
    assert hub.downloads() == []
    target = tmp_path / "torch" / "hub" / "checkpoints" / "net-0001.pth"
    assert target.read_bytes() == WEIGHTS
    target.unlink()
    hub.pages["/net-0001.pth"] = b"other" * 3000
    assert fetch.fetch(wanted, tmp_path) == 1
    assert not target.exists()


def test_check_names_what_is_missing_cut_short_or_altered(hub, tmp_path, capsys):
    for name in ("a", "b", "c"):
        hub.add(f"own/{name}", {**SMALL, "model.safetensors": WEIGHTS + name.encode()})
    fetch.fetch([Need("transformers", f"own/{name}") for name in "abc"], tmp_path)
    assert exit_code("fetch", "--check", "--out", tmp_path) == 0
    files = {
        name: next(tmp_path.rglob(f"models--own--{name}/snapshots/*/model.safetensors")) for name in "abc"
    }
    files["a"].unlink()
    files["b"].write_bytes(WEIGHTS[:10])
    files["c"].write_bytes(WEIGHTS + b"x")
    capsys.readouterr()
    assert exit_code("fetch", "--check", "--out", tmp_path) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["missing", "cut short", "altered"]
    assert all("model.safetensors of own/" in line for line in printed)
    for damaged in (files["b"], files["c"]):
        damaged.resolve().unlink()
    assert "is complete" in str(fetch.fetch([Need("transformers", f"own/{n}") for n in "abc"], tmp_path))
    assert exit_code("fetch", "--check", "--out", tmp_path) == 0


def test_what_is_refused_is_said_and_the_rest_is_fetched(hub, tmp_path, capsys):
    hub.add("own/model", SMALL)
    hub.add("own/closed", SMALL).gated = True
    hub.add("own/pickle", {"config.json": b"{}", "pytorch_model.bin": WEIGHTS})
    asked = ["own/closed", "own/gone", "own/model@v9", "own/pickle", "own/model"]
    assert fetch.fetch([need for name in asked for need in needs.of_model("vqa", name)], tmp_path) == 1
    said = capsys.readouterr().err
    assert f"'own/closed' is gated: accept its licence at {hub.url}/own/closed, log in" in said
    assert "There is no repository 'own/gone' on the hub" in said
    assert "'own/model' has no revision 'v9'" in said
    assert "'own/pickle' has no weights as safetensors" in said
    assert list(store.read_manifest(tmp_path)) == ["transformers own/model"]


def test_a_hub_that_does_not_answer_is_a_sentence(hub, tmp_path, capsys, monkeypatch):
    def refused(sentence):
        ended = outcome(capsys, "fetch", "negbench", "eval", "--model", "own/a", "--models-from", tmp_path)
        return ended.code == 2 and sentence in ended.stderr

    hub.status = 503
    assert refused(f"{hub.url} does not answer")
    hub.close()
    assert refused(f"{hub.url} does not answer")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refused("HF_HUB_OFFLINE is set, and nein fetch needs")


def test_a_disk_without_room_is_said_before_and_during(hub, tmp_path, monkeypatch):
    hub.add("own/model", SMALL)
    wanted = [Need("transformers", "own/model")]

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("nein.models.fetching.snapshot_download", full)
        with pytest.raises(UserError, match=r"The disk is full\. What is complete stays"):
            fetch.fetch(wanted, tmp_path)
    monkeypatch.setattr("nein.fetch.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"has room for 0\.0 MB and 0\.0 MB are to be downloaded"):
        fetch.fetch(wanted, tmp_path)


def test_a_dry_run_without_the_hub_lists_repositories_and_places(capsys, tmp_path):
    words = ("--preset", "paper", "--editor", "ip2p", "--dry-run")
    shown = outcome(capsys, "fetch", *words, "--data", "hub:a/b@c", "--out", tmp_path).stdout
    lines = [line[2:] for line in shown.splitlines() if line.startswith("# ")]
    assert yaml.safe_load(shown)["out"] == str(tmp_path)
    assert f"timbrooks/instruct-pix2pix -> {tmp_path}/hub/models--timbrooks--instruct-pix2pix" in lines
    assert f"a/b@c -> {tmp_path}/hub/datasets--a--b" in lines
    assert any(line.endswith(f".pth -> {tmp_path}/torch/hub/checkpoints") for line in lines)
    assert not any("magicbrush" in line or "laion" in line for line in lines)
    assert lines[-1].startswith("Sizes need the hub: HF_HUB_OFFLINE is set")
    same = outcome(capsys, "fetch", "eval", *words, "--data", "hub:a/b@c").stdout
    assert {line.replace(str(tmp_path), "models") for line in lines} == set(same.splitlines())
    assert not list(tmp_path.iterdir())


def test_a_dry_run_sums_the_files_that_would_be_downloaded(hub, tmp_path, capsys):
    hub.add("own/a", {**SMALL, "pytorch_model.bin": WEIGHTS})
    hub.add("own/b", {**SMALL, "model.safetensors": WEIGHTS * 50})
    hub.add("own/closed", SMALL).gated = True
    words = "negvqa --model own/a,own/b,own/closed --dry-run --models-from".split()
    shown = outcome(capsys, "fetch", *words, tmp_path / "m")
    lines = shown.stdout.splitlines()
    assert f"own/b: 3 files, 0.8 MB -> {tmp_path}/m/hub/models--own--b" in lines
    assert [line for line in lines if line.startswith("Refused: 'own/closed' is gated")]
    assert re.fullmatch(
        r"2 models and data sets, 6 files, 0\.8 MB; 0\.8 MB to download, .* GB free .*", lines[-1]
    )
    assert hub.downloads() == []
    assert not list(tmp_path.glob("m*"))
    fetch.fetch([Need("transformers", "own/b")], tmp_path / "m")
    again = outcome(capsys, "fetch", *words, tmp_path / "m").stdout.splitlines()
    assert "0.8 MB; 0.0 MB to download" in again[-1]


def test_a_folder_that_is_none_is_a_sentence(tmp_path, capsys):
    said = outcome(capsys, "eval", "--models-from", tmp_path / "nothing")
    assert (said.code, "holds no manifest.json, so it is no folder of models" in said.stderr) == (2, True)
    (tmp_path / "manifest.json").write_text('{"schema": 1, "sets": {"a": {}}}')
    said = outcome(capsys, "eval", "--models-from", tmp_path)
    assert (said.code, "'reference' is missing" in said.stderr) == (2, True)


def clip(hub, name, change=lambda words: words, act="quick_gelu"):
    folder = zoo.path("clip")
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights[lineage.WORDS[0]] = change(weights[lineage.WORDS[0]])
    config = json.loads((folder / "config.json").read_text())
    for tower in ("text_config", "vision_config"):
        config[tower]["hidden_act"] = act
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["config.json"] = json.dumps(config).encode()
    files["model.safetensors"] = safetensors.numpy.save(weights)
    hub.add(name, files)


def test_plain_clip_under_another_name_and_quick_gelu_weights_behind_gelu_are_reported(hub, tmp_path):
    clip(hub, "openai/clip-vit-base-patch32")
    clip(hub, "own/negclip")
    clip(hub, "own/tuned", lambda words: words * 1.01)
    clip(hub, "own/wrong", lambda words: words * 1.01, act="gelu")
    clip(hub, "own/drawn-apart", lambda words: words[::-1].copy(), act="gelu")
    fetch.fetch([Need("transformers", name) for name in hub.models], tmp_path)
    plain, wrong = sorted(lineage.notes(lineage.of_store(tmp_path, store.read_manifest(tmp_path))))
    assert plain.startswith("'own/negclip' is plain CLIP: every weight is that of 'openai/clip-vit-base")
    assert wrong.startswith("'own/wrong' has weights of OpenAI's CLIP, trained with QuickGELU")


def test_negbench_says_whose_weights_a_folder_has(hub, tmp_path, caplog):
    from nein.benchmarks.negbench import models

    clip(hub, "openai/clip-vit-base-patch32")
    fetch.fetch([Need("transformers", "openai/clip-vit-base-patch32")], tmp_path / "m")
    store.use(tmp_path / "m")
    models.warn_of_lineage([models.choose("nano:clip"), models.choose(f"mine={zoo.path('clip')}")])
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["'mine' is plain CLIP"]
