"""Features of targets across editors, answers about samples, and the Frechet distance of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nein.benchmarks.nein import models
from nein.editors.basic import Identity
from nein.engine import attempts, images, scheduler
from nein.engine.folder import Folder
from nein.metrics.fid import frechet_distance
from tests.helpers.runs import edits_of, scores_in
from tests.nein.conftest import Outcome
from tests.rehearsal import ScriptedDetector

Evaluate = Callable[..., Outcome]


class Colours:
    """An encoder that can be worked out by hand: mean and spread of each channel."""

    fingerprint = "colours"

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, pictures: list[np.ndarray]) -> np.ndarray:
        self.encoded += len(pictures)
        return np.stack([np.r_[p.mean((0, 1)), p.std((0, 1))] / 255 for p in pictures]).astype(np.float32)

    def describe(self) -> dict[str, Any]:
        return {"class": "colours"}


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> Colours:
    encoder = Colours()

    def load(wanted: list[str], *_: object) -> dict[str, Any]:
        return dict.fromkeys(models.model_kinds(wanted), encoder)

    monkeypatch.setattr(models, "load_models", load)
    return encoder


def options(data: Path, out: Path, *more: object, metrics: str = "clip_i,fid") -> list[object]:
    line = ["--data", data, "--out", out, "--device", "cpu", "--batch-size", "3", "--control", "none"]
    named = [part for kind in ("clip", "fid", "ovd") for part in (f"--models.{kind}", "made-here")]
    return [*line, "--metrics", metrics, *named, *more]


def fid(out: Path, editor: str) -> dict[str, Any]:
    return json.loads((out / editor / "negative" / "corpus.json").read_text())["fid"]


def features_of(paths: list[Path]) -> np.ndarray:
    return Colours().encode([images.decode(path) for path in paths])


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_fid_is_that_of_the_folders_and_the_protocols_differ(
    make_data, evaluate, colours, tmp_path, protocol
):
    data, out = make_data(4, 3), tmp_path / "out"
    # One source has a single sample, so the two reference sets weigh the scenes differently.
    records = json.loads((data / "val.json").read_text())[:10]
    (data / "val.json").write_text(json.dumps(records))
    assert evaluate("--editor", "identity", *options(data, out, "--protocol", protocol)).code == 0
    edited = features_of([data / "nein_val" / f"{r['NeIn']}.png" for r in records])
    stems = [r["COCO"] for r in records]
    once = features_of([data / "coco_for_val" / f"{stem}.png" for stem in dict.fromkeys(stems)])
    each = features_of([data / "coco_for_val" / f"{stem}.png" for stem in stems])
    expected = {"paper": frechet_distance(edited, once), "fixed": frechet_distance(edited, each)}
    assert abs(expected["paper"] - expected["fixed"]) > 1e-6
    entry = fid(out, "identity")
    assert entry["value"] == pytest.approx(expected[protocol], abs=1e-9)
    assert (entry["n"], entry["n_target"]) == (10, {"paper": 4, "fixed": 10}[protocol])
    assert entry["low"] <= entry["value"] <= entry["high"]


def test_failed_edits_are_left_out_of_fid_and_counted(make_data, evaluate, colours, tmp_path):
    data, out = make_data(4, 2), tmp_path / "out"
    assert evaluate("--editor", "flaky", *options(data, out)).code == 0
    edits = edits_of(out / "flaky/negative")
    good = [edit for edit in edits if edit["image"]]
    assert 2 <= len(good) < 8
    expected = frechet_distance(
        features_of([data / "nein_val" / f"{edit['id']}.png" for edit in good]),
        features_of([data / "coco_for_val" / f"{edit['source_id']}.png" for edit in good]),
    )
    assert fid(out, "flaky")["value"] == pytest.approx(expected, abs=1e-9)
    assert (fid(out, "flaky")["n"], fid(out, "flaky")["n_unscored"]) == (len(good), 8 - len(good))


def test_target_features_are_computed_once_for_all_editors(make_data, evaluate, colours, tmp_path):
    data, out = make_data(3, 3), tmp_path / "out"  # blocks of three: one source image each
    in_order = ("--on", "debug")  # two threads that meet at one target may both encode it
    assert evaluate("--editor", "identity,solid", *options(data, out, metrics="clip_i"), *in_order).code == 0
    assert colours.encoded == 2 * 9 + 3
    assert evaluate("--editor", "flaky", *options(data, out, metrics="clip_i"), *in_order).code == 0
    edited = sum(1 for _ in (out / "flaky/negative/images").glob("*.png"))
    assert colours.encoded == 2 * 9 + 3 + edited
    other = evaluate("--editor", "solid", *options(data, tmp_path / "other", metrics="clip_i"))
    assert other.code == 0
    same = [path / "solid/negative/scores.csv" for path in (out, tmp_path / "other")]
    assert same[0].read_bytes() == same[1].read_bytes()  # with and without the cache


def test_fid_survives_an_interruption_with_the_same_bytes(
    make_data, evaluate, colours, tmp_path, monkeypatch
):
    data = make_data(3, 3)
    assert evaluate("--editor", "identity", *options(data, tmp_path / "whole")).code == 0
    write, count = Folder.write, 0

    def interrupted(self: Folder, output: str, number: int, rows: Any) -> None:
        nonlocal count
        if output.startswith("scores"):
            count += 1
            if count == 3:
                raise KeyboardInterrupt
        write(self, output, number, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", interrupted)
        assert evaluate("--editor", "identity", *options(data, tmp_path / "cut")).code == 130
    assert not (tmp_path / "cut/identity/negative/corpus.json").exists()
    assert evaluate("--editor", "identity", *options(data, tmp_path / "cut")).code == 0
    blocks = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.safetensors")]
    assert blocks
    for name in ("identity/negative/corpus.json", "identity/negative/scores.csv", *blocks):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    one, other = (
        tmp_path / "cut" / name
        for name in sorted(set(blocks) - {b for b in blocks if "cache" in b.parts})[:2]
    )
    for spoiled, said in (
        (one.read_bytes()[:50], "is damaged"),
        (other.read_bytes(), "belongs to another block"),
    ):
        one.write_bytes(spoiled)
        refused = evaluate("--editor", "identity", *options(data, tmp_path / "cut"))
        assert refused.code == 2
        assert said in refused.stderr
    one.unlink()
    assert evaluate("--editor", "identity", *options(data, tmp_path / "cut")).code == 0
    assert one.read_bytes() == (tmp_path / "whole" / one.relative_to(tmp_path / "cut")).read_bytes()


def test_the_distance_is_not_worked_out_again_for_the_same_samples(
    make_data, evaluate, colours, tmp_path, monkeypatch
):
    from nein.metrics import fid as fid_module

    data, out = make_data(3, 2), tmp_path / "out"
    line = ["--editor", "identity", *options(data, out)]
    assert evaluate(*line).code == 0
    before = fid(out, "identity")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("worked out again")

    with monkeypatch.context() as patch:
        patch.setattr(fid_module, "jackknife_interval", never)
        assert evaluate(*line).code == 0
    assert fid(out, "identity") == before
    assert evaluate(*line, "--limit", "4").code == 0
    assert fid(out, "identity")["n"] == 4
    assert fid(out, "identity")["value"] != before["value"]


def test_the_distance_is_worked_out_again_when_a_block_that_was_set_aside_is_made(
    make_data, evaluate, colours, tmp_path
):
    data = make_data(3, 3)
    assert evaluate("--editor", "identity", *options(data, tmp_path / "whole")).code == 0
    run = tmp_path / "out/identity/negative"
    for death in range(attempts.DEATHS):
        place = run / attempts.FOLDER / f"{attempts.name_of('score', 1)}.{death}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text('{"machine": "far", "pid": 1}')
        os.utime(place, (0, 0))
    line = ["--editor", "identity", *options(data, tmp_path / "out")]
    assert evaluate(*line).code == 4
    assert (fid(tmp_path / "out", "identity")["n"], fid(tmp_path / "out", "identity")["n_unscored"]) == (6, 3)
    assert scheduler.try_again(Folder(run)) == 1
    assert evaluate(*line).code == 0
    assert fid(tmp_path / "out", "identity") == fid(tmp_path / "whole", "identity")


def test_the_distance_is_that_of_edits_that_were_deleted_and_made_otherwise(
    make_data, evaluate, colours, tmp_path, monkeypatch
):
    data = make_data(3, 3)
    assert evaluate("--editor", "identity", *options(data, tmp_path / "out")).code == 0
    before = fid(tmp_path / "out", "identity")
    edit = Identity._edit_one
    monkeypatch.setattr(
        Identity, "_edit_one", lambda *a: (made := edit(*a)) and replace(made, image=255 - made.image)
    )
    next((tmp_path / "out/identity/negative/edit").rglob("000001.jsonl")).unlink()
    assert evaluate("--editor", "identity", *options(data, tmp_path / "out")).code == 0
    after = fid(tmp_path / "out", "identity")
    assert after["value"] != before["value"]
    for path in (tmp_path / "out/identity/negative/scores").rglob("*.*"):
        path.unlink()
    (tmp_path / "out/identity/negative/corpus.json").unlink()
    assert evaluate("--editor", "identity", *options(data, tmp_path / "out")).code == 0
    assert fid(tmp_path / "out", "identity") == after


def test_questions_about_the_unedited_sample_are_asked_once_for_all_editors(
    make_data, evaluate, tmp_path, monkeypatch
):
    detector = ScriptedDetector(lambda image, label: float(image.std() > 10 and label != "cat"))
    monkeypatch.setattr(models, "load_models", lambda *_: {"ovd": detector})
    data, out = make_data(2, 2), tmp_path / "out"
    line = [*options(data, out, metrics="removal_ovd,retention_ovd"), "--evidence", "own"]
    assert evaluate("--editor", "identity", *line).code == 0
    first = detector.asked
    assert evaluate("--editor", "solid", *line).code == 0
    again = detector.asked - first
    rows = scores_in(out / "identity/negative")
    kept = [row["detail"]["in_sample"] for row in rows if row["metric"] == "retention_ovd"]
    objects = [row["detail"]["objects"] for row in rows if row["metric"] == "retention_ovd"]
    assert sum(map(len, objects)) > 0
    assert again == 4 + sum(
        map(len, kept)
    )  # the object and the kept ones in the edit; nothing about the sample
    assert first == again + sum(map(len, objects))
    values = {
        editor: {(row["id"], row["metric"]): row["value"] for row in scores_in(out / editor / "negative")}
        for editor in ("identity", "solid")
    }
    assert all(v == 1.0 for (_, m), v in values["identity"].items() if m == "retention_ovd")
    assert all(v == 0.0 for (_, m), v in values["solid"].items() if m == "retention_ovd")
    assert all(v == 1.0 for (_, m), v in values["solid"].items() if m == "removal_ovd")
