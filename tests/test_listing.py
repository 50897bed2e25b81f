"""`nein list`: rows from the tables that load, and whether what they name is on this machine."""

import pytest

from nein import editors, listing, metrics
from nein.benchmarks import registry
from nein.benchmarks.negbench.models import MODELS
from nein.datasets.negbench.registry import ROWS
from nein.nano import scenes, zoo
from tests.helpers import commands


def things(kind):
    return {thing.name: thing for thing in listing.KINDS[kind]()}


def cells(kind, name):
    return dict(zip(listing.HEAD, things(kind)[name].row(), strict=True))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def snapshot(hub, name, files):
    root = hub / name
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("abc")
    for file, text in files.items():
        path = root / "snapshots" / "abc" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_every_row_of_every_table_is_listed():
    assert {*editors.PRESETS, "identity", "solid"} <= things("editors").keys()
    assert things("metrics").keys() >= metrics.METRICS.keys()
    assert {"nano:llava", "nano:owlv2", "nano:blip", "pairwise:MODEL"} <= things("judges").keys()
    assert {*(f"nano:{name}" for name in zoo.available()), *MODELS} <= things("models").keys()
    assert {*scenes.WORLDS, *ROWS, "hub:yuhuizhang/NegVQA"} <= things("data").keys()
    assert len(things("benchmarks")) == 2 * len(registry.OURS)
    assert {one: things("data")[one].license for one in ("valse", "naturalbench", "beaf")} == {
        "valse": "MIT", "naturalbench": "Apache-2.0", "beaf": "none stated",
    }  # fmt: skip


def test_what_ships_is_here(hub):
    row = cells("editors", "ip2p-nano")
    assert (row["from"], row["license"], row["here"]) == ("ships with nein", "Apache-2.0", "yes")
    assert cells("benchmarks", "nein eval --preset nano")["here"] == "yes"


def test_what_is_downloaded_is_here_when_its_weights_are_whole_and_every_repository_is(hub, monkeypatch):
    assert cells("editors", "ip2p")["here"] == "no"
    root = snapshot(hub, "models--timbrooks--instruct-pix2pix", {"model_index.json": "{}"})
    assert cells("editors", "ip2p")["here"] == "no"  # no weights
    (root / "snapshots" / "abc" / "model.safetensors").touch()
    assert cells("editors", "ip2p")["license"] == "see its card"
    (root / "snapshots" / "abc" / "README.md").write_text("---\nlicense: wtfpl\n---\n")
    assert (cells("editors", "ip2p")["here"], cells("editors", "ip2p")["license"]) == ("yes", "wtfpl")
    (root / "blobs").mkdir()
    (root / "blobs" / "1234.incomplete").touch()
    assert cells("editors", "ip2p")["here"] == "no"  # half a file
    snapshot(hub, "models--llava-hf--llava-1.5-7b-hf", {"model.safetensors": "x"})
    assert cells("benchmarks", "nein negvqa --preset paper")["here"] == "no"
    snapshot(hub, "datasets--yuhuizhang--NegVQA", {"data.parquet": "x"})
    snapshot(hub, "models--llava-hf--llava-v1.6-mistral-7b-hf", {"model.safetensors": "x"})
    assert cells("benchmarks", "nein negvqa --preset paper")["here"] == "yes"
    monkeypatch.setenv("TORCH_HOME", str(hub))
    assert cells("models", "alex")["here"] == "no"
    (hub / "hub" / "checkpoints").mkdir(parents=True)
    (hub / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth").touch()
    assert cells("models", "alex")["here"] == "yes"


def test_the_command_counts_what_is_here(hub, capsys):
    done = commands.outcome(capsys, "list", "metrics")
    assert done.code == 0, done.stderr
    assert f"{len(metrics.METRICS)} of {len(metrics.METRICS)} are here." in done.stdout
