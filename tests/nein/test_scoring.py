"""Everything together on the models that ship: every metric, and what is made again."""

import sys

from nein.benchmarks.nein.runs import RunDir
from nein.engine.folder import find_runs
from nein.metrics import METRICS
from nein.reporting import figures as frames
from tests.helpers.runs import scores_in
from tests.loopback import say


def test_every_metric_is_there(make_data, evaluate, tmp_path):
    words = "--editor identity,solid --metrics all --protocol paper --control none --device cpu".split()
    done = evaluate(*words, "--data", make_data(2, 2), "--batch-size", 2, "--out", tmp_path / "whole")
    assert done.code == 0, done.stderr
    measured = [name for name in METRICS if name != "obeyed"]  # which needs to know what has to go
    files = [*(tmp_path / "whole").glob("*/*/figures.csv")]
    assert len(files) == 2
    for file in files:
        found = frames.select(frames.read(file), task="results")
        assert list(found["metric"]) == measured
        for entry in frames.records(found):
            metric, value = entry["metric"], entry["value"]
            assert entry["n"] + entry["unscored"] == 4, metric
            assert entry["n"] == 4 or metric.startswith("retention"), metric
            low, high = METRICS[metric].range
            assert value is None or low <= value <= high
    written = [RunDir(path) for path in find_runs(tmp_path / "whole")]
    manifests = [run.manifest() for run in written]
    for manifest in manifests:
        assert set(manifest["models"]) == {"editor", "clip", "dino", "lpips", "fid", "vqa", "ovd"}
        assert all(model["fingerprint"] for model in manifest["models"].values())
    assert len({manifest["models"]["editor"]["fingerprint"] for manifest in manifests}) == 2
    rows = [row for run in written for row in scores_in(run.path)]
    assert len(rows) == 2 * 4 * (len(measured) - 1)  # FID has no value of its own for a sample


ASKED = "l1,removal_vqa,retention_vqa"


def question(body):
    [said] = [part["text"] for part in body["messages"][0]["content"] if part["type"] == "text"]
    return str(said)


def rows(out, metric):
    return {row["id"]: row for row in scores_in(out / "identity" / "negative") if row["metric"] == metric}


def test_only_what_an_endpoint_did_not_answer_is_asked_again(
    server, make_data, evaluate, tmp_path, monkeypatch
):
    data, out = make_data(3, 2), tmp_path / "out"
    line = ["--editor", "identity", "--control", "none", "--data", data, "--out", out, "--device", "cpu"]
    line += ["--batch-size", "4", "--metrics", ASKED, "--models.vqa", f"openai:{server.url}#eye-7b"]
    server.rule = lambda body, count: (404, {}, {}) if "umbrella" in question(body) else (200, say("Yes"), {})
    monkeypatch.setattr(sys, "argv", ["nein", "eval", *map(str, line)])
    first = evaluate(*line)
    assert first.code == 0, first.stderr
    lost = [row for row in rows(out, "removal_vqa").values() if row["value"] is None]
    assert lost
    assert all("HTTP 404" in row["reason"] and row["again"] for row in lost)
    assert len({*map(question, server.requests)}) < len(server.requests)
    scores = scores_in(out / "identity" / "negative")
    assert (
        f"{sum(row['again'] for row in scores)} failed; retry with: nein eval --editor identity"
        in first.stderr
    )
    note = f"{len(lost)} samples lack the answer of an endpoint. Retry with: nein eval --editor identity"
    assert note in (out / "table.md").read_text()
    kept = {metric: rows(out, metric) for metric in ASKED.split(",")}
    server.rule = lambda body, count: (200, say("No"), {})
    server.requests.clear()
    assert evaluate(*line).code == 0
    assert ["umbrella" in question(body) for body in server.requests] == [True] * len(lost)
    for metric, before in kept.items():
        for name, row in rows(out, metric).items():
            if before[name]["value"] is None:
                assert (row["value"], row["again"]) == (1.0, False)
            else:
                assert row == before[name]
    assert "lack the answer" not in (out / "table.md").read_text()
    server.requests.clear()
    assert evaluate(*line).code == 0
    assert server.requests == []
