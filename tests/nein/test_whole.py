"""Everything together on tiny models of the real classes: every metric, and an interruption."""

from __future__ import annotations

import itertools

import pytest

from nein.benchmarks.nein import runs
from nein.engine.folder import Folder
from nein.metrics import METRICS
from nein.reporting import figures as frames
from tests.editors.tiny import build_pipeline
from tests.metrics import tiny
from tests.nein.conftest import write_data

FILES = ("scores.csv", "corpus.json", "figures.csv")


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    root = tmp_path_factory.mktemp("zoo")
    write_data(root / "data", 2, 2)
    build_pipeline(root / "editor")
    vit = tiny.make_vit(root / "vit")
    folders = {
        "clip": tiny.make_clip(root / "clip"), "dino": vit, "fid": vit,
        "lpips": tiny.make_lpips(root / "lpips"), "vqa": tiny.make_llava(root / "llava"),
        "ovd": tiny.make_owlv2(root / "owlv2"),
    }  # fmt: skip
    line = ["--editor", f"{root / 'editor'},solid", "--data", str(root / "data")]
    line += ["--device", "cpu", "--batch-size", "2", "--metrics", "all", "--protocol", "paper"]
    for kind, folder in folders.items():
        line += [f"--models.{kind}", str(folder)]
    return line


def contents(out):
    return {str(p.relative_to(out)): p.read_bytes() for name in FILES for p in sorted(out.rglob(name))}


def test_every_metric_is_there_and_an_interruption_leaves_no_trace(options, evaluate, tmp_path, monkeypatch):
    done = evaluate(*options, "--out", tmp_path / "whole")
    assert done.code == 0, done.stderr
    expected = contents(tmp_path / "whole")
    measured = [name for name in METRICS if name != "obeyed"]  # which needs to know what has to go
    assert len(expected) == 4 * 3 + 1  # two editors, two tracks, and the figures of all
    for name in (name for name in expected if name.endswith("/figures.csv")):
        found = frames.select(frames.read_csv(expected[name].decode()), task="results")
        assert list(found["metric"]) == measured
        for entry in frames.records(found):
            metric = entry["metric"]
            assert entry["n"] + entry["unscored"] == 4, metric
            assert entry["n"] == 4 or metric.startswith("retention"), metric
            if entry["value"] is not None:
                low, high = METRICS[metric].range
                assert low <= entry["value"] <= high
    manifests = [run.manifest() for run in runs.find(tmp_path / "whole") if run.track == "negative"]
    for manifest in manifests:
        assert set(manifest["models"]) == {"editor", "clip", "dino", "lpips", "fid", "vqa", "ovd"}
        assert all(model["fingerprint"] for model in manifest["models"].values())
        assert manifest["invocations"][0]["environment"]["device"] == "cpu"
    assert len({manifest["models"]["editor"]["fingerprint"] for manifest in manifests}) == 2
    rows = [row for run in runs.find(tmp_path / "whole") for row in run.scores()]
    assert len(rows) == 4 * 4 * (len(measured) - 1)  # FID has no value of its own for a sample
    assert len({row["value"] for row in rows if row["metric"] == "dino"}) > 4

    write, written = Folder.write, itertools.count(1)  # which threads that write side by side count together

    def interrupted(self, output, number, rows):
        if output.startswith("scores") and next(written) == 40:
            raise KeyboardInterrupt
        write(self, output, number, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", interrupted)
        assert evaluate(*options, "--out", tmp_path / "cut").code == 130
    assert evaluate(*options, "--out", tmp_path / "cut").code == 0
    assert contents(tmp_path / "cut") == expected
