"""What a judge behind an endpoint did not answer is counted aloud, and asked again by the same command."""

from __future__ import annotations

import sys

from tests.helpers.runs import scores_in
from tests.loopback import say

METRICS = "l1,removal_vqa,retention_vqa"


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
    line += ["--batch-size", "4", "--metrics", METRICS, "--models.vqa", f"openai:{server.url}#eye-7b"]
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
        f"{sum('again' in row for row in scores)} failed; to ask again: nein eval --editor identity"
        in first.stderr
    )
    note = f"{len(lost)} samples lack the answer of an endpoint. To ask again: nein eval --editor identity"
    assert note in (out / "table.md").read_text()
    kept = {metric: rows(out, metric) for metric in METRICS.split(",")}
    server.rule = lambda body, count: (200, say("No"), {})
    server.requests.clear()
    assert evaluate(*line).code == 0
    assert ["umbrella" in question(body) for body in server.requests] == [True] * len(lost)
    for metric, before in kept.items():
        for name, row in rows(out, metric).items():
            if before[name]["value"] is None:
                assert (row["value"], "again" in row) == (1.0, False)
            else:
                assert row == before[name]
    assert "lack the answer" not in (out / "table.md").read_text()
    server.requests.clear()
    assert evaluate(*line).code == 0
    assert server.requests == []
