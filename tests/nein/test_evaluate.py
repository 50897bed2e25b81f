"""The whole command, in process: what is scored, what is not and why, and every mistake as one sentence."""

import shutil

import numpy as np
import pytest
import torch
import yaml

from nein.editors.base import Identity
from nein.engine import images
from nein.reporting import figures as frames
from tests.helpers.runs import scores_in
from tests.loopback import say
from tests.nein.conftest import write_data

ALONE = ("--editor", "identity", "--control", "none")


def values(out, run, metric):
    return {row["id"]: row["value"] for row in scores_in(out / run) if row["metric"] == metric}


def base(data, out, *more, metrics="l1,l2"):
    return ["--data", data, "--out", out, "--device", "cpu", "--batch-size", "4", "--metrics", metrics, *more]


def test_scores_are_those_of_the_pictures_on_disk(make_data, evaluate, tmp_path):
    data, out = make_data(3, 2), tmp_path / "out"
    color = ("--editor-options.color", "#112233")  # may begin with a number sign
    assert evaluate("--editor", "identity,solid", *color, *base(data, out, "--control", "none")).code == 0
    for editor in ("identity", "solid"):
        found = values(out, f"{editor}/negative", "l1")
        assert len(found) == 6
        for sample_id, value in found.items():
            source = images.decode(data / "coco_for_val" / f"COCO_{sample_id[5:17]}.png").astype(float)
            edited = images.decode(data / "nein_val" / f"{sample_id}.png").astype(float)
            if editor == "solid":
                edited = np.full_like(edited, (0x11, 0x22, 0x33))
            assert value == pytest.approx(np.abs(edited - source).mean() / 255, abs=1e-6)


def test_a_failed_edit_and_a_truncated_picture_are_unscored_and_the_rest_is_scored(
    make_data, evaluate, tmp_path
):
    data, out = make_data(4, 2), tmp_path / "out"
    bad_source = data / "coco_for_val" / "COCO_000000000002.png"
    bad_sample = data / "nein_val" / "NeIn_000000000003_1.png"
    for path in (bad_source, bad_sample):
        path.write_bytes(path.read_bytes()[:600])
    words = [
        *("--editor", "flaky", "--editor-options.fail_every", "0"),
        *("--editor-options.fail_ids", "[NeIn_000000000001_2]"),
        *base(data, out, "--models.vqa", "tests.rehearsal:no", "--control", "none", metrics="l1,removal_vqa"),
    ]
    done = evaluate(*words)
    assert done.code == 0, done.stderr
    rows = {(row["id"], row["metric"]): row for row in scores_in(out / "flaky" / "negative")}
    assert len(rows) == 16
    failed, no_sample = "NeIn_000000000001_2", "NeIn_000000000003_1"
    no_target = {"NeIn_000000000002_1", "NeIn_000000000002_2"}
    for (sample_id, metric), row in rows.items():
        lost = sample_id in (failed, no_sample) or (metric == "l1" and sample_id in no_target)
        assert (row["value"] is None) == lost, (sample_id, metric)
        assert bool(row["reason"]) or not lost
    assert "told to fail" in rows[failed, "l1"]["reason"]
    assert "NeIn image is unusable" in rows[no_sample, "removal_vqa"]["reason"]
    assert "COCO image is unusable" in rows["NeIn_000000000002_1", "l1"]["reason"]
    assert rows["NeIn_000000000002_1", "removal_vqa"]["value"] == 1.0
    found = frames.select(frames.read(out / "flaky" / "negative" / "figures.csv"), task="results")
    counts = {figure["metric"]: (figure["n"], figure["unscored"]) for figure in frames.records(found)}
    assert (counts["l1"], counts["removal_vqa"]) == ((4, 4), (6, 2))
    notes = (out / "table.md").read_text()
    assert "2 of 8 edits failed" in notes
    assert "2 more of 8 are unscored in L1: " in notes
    write_data(tmp_path / "whole", 4, 2)
    for path in (bad_source, bad_sample):  # the pictures are back: their samples are edited and scored
        path.write_bytes((tmp_path / "whole" / path.relative_to(data)).read_bytes())
    shutil.rmtree(out / "flaky" / "negative" / "images")  # and what was edited has vanished
    assert evaluate(*words).code == 0
    assert {row["id"] for row in scores_in(out / "flaky" / "negative") if row["value"] is None} == {failed}


def test_missing_images_are_unscored_aloud_and_looked_at_in_blocks_alone(
    make_data, evaluate, tmp_path, monkeypatch, caplog
):
    def looked(path):
        raise AssertionError("starting looks at no picture")

    monkeypatch.setattr(images, "read_size", looked)
    data, out = make_data(3, 1), tmp_path / "out"
    (data / "nein_val/NeIn_000000000001_1.png").unlink()
    (data / "coco_for_val/COCO_000000000003.png").unlink()
    done = evaluate(*ALONE, *base(data, out, metrics="l1"))
    assert done.code == 0, done.stderr
    assert "lacks 1 of 3 NeIn images (NeIn_000000000001_1); their samples will be unscored" in caplog.text
    assert "lacks 1 of 3 COCO images (COCO_000000000003)" in caplog.text
    reasons = {row["id"][-3]: row["reason"] for row in scores_in(out / "identity/negative")}
    assert [number for number, reason in reasons.items() if not reason] == ["2"]
    assert "the file is missing" in reasons["1"]
    assert "2 have no score" in done.stderr
    shutil.rmtree(data / "nein_val")
    (data / "nein_val").mkdir()
    refused = evaluate(*ALONE, *base(data, tmp_path / "other"))
    assert refused.code == 2
    assert "lacks 3 of 3 NeIn images" in refused.stderr


def test_a_picture_changed_between_the_stages_is_unscored(make_data, evaluate, tmp_path):
    data, out = make_data(2, 1), tmp_path / "out"
    options = [*ALONE, "--models.vqa", "tests.rehearsal:no"]
    assert evaluate(*options, *base(data, out, "--stages", "edit")).code == 0
    other = np.zeros((24, 32, 3), dtype=np.uint8)
    images.write_png(out / "identity" / "negative" / "images" / "000" / "NeIn_000000000001_1.png", other)
    images.write_png(data / "nein_val" / "NeIn_000000000002_1.png", other)
    assert evaluate(*options, *base(data, out, "--stages", "score", metrics="l1,removal_vqa")).code == 0
    reasons = {(row["id"][-3], row["metric"]): row["reason"] for row in scores_in(out / "identity/negative")}
    assert "not the one this run wrote" in reasons["1", "l1"]
    assert "changed in between" in reasons["2", "removal_vqa"]
    assert reasons["2", "l1"] == ""


def test_changed_annotations_or_options_of_a_metric_are_refused_until_told_to_overwrite(
    make_data, evaluate, tmp_path
):
    data = make_data(2, 1)
    options = [*ALONE, *base(data, tmp_path / "out")]
    assert evaluate(*options).code == 0
    (tmp_path / "c.yaml").write_text("align: crop")
    refused = evaluate(*options, "--config", tmp_path / "c.yaml")
    assert (refused.code, "l1 made with align stretch, not crop at 64" in refused.stderr) == (2, True)
    (data / "val.json").write_text((data / "val.json").read_text().replace("A man", "A woman"))
    refused = evaluate(*options)
    assert (refused.code, "edits made with data" in refused.stderr) == (2, True)
    assert evaluate(*options, "--overwrite").code == 0


def test_out_of_memory_names_the_option_and_a_defect_of_ours_is_no_mistake_of_the_user(
    make_data, evaluate, tmp_path, monkeypatch
):
    data = make_data(4, 1)
    with pytest.raises(RuntimeError, match="stops after 3 samples"):
        evaluate("--editor", "flaky", "--editor-options.crash_after", "3", *base(data, tmp_path / "out"))

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Identity, "edit", full)
    done = evaluate("--editor", "identity", *base(data, tmp_path / "full"))
    assert done.code == 2
    assert "lower --batch-size" in done.stderr


def test_samples_are_selected_by_id_and_a_dry_run_makes_none(make_data, evaluate, tmp_path):
    out, chosen = tmp_path / "out", "NeIn_000000000002_1,NeIn_000000000001_1"
    line = [*ALONE, *base(make_data(4, 2), out, "--samples", chosen)]
    assert yaml.safe_load(evaluate(*line, "--dry-run").stdout)["metrics"] == ["l1", "l2"]
    assert not out.exists()
    done = evaluate(*line)
    assert done.code == 0
    assert list(values(out, "identity/negative", "l1")) == ["NeIn_000000000001_1", "NeIn_000000000002_1"]
    assert len(list((out / "identity/negative/images").rglob("*.png"))) == 2
    assert "| 2 of 2   |" in (out / "table.md").read_text()


def test_what_has_no_score_is_an_error_where_that_is_asked_for(server, evaluate, tmp_path):
    server.rule = lambda body, count: (200, say("Perhaps."), {})
    words = [*ALONE, "--models.vqa", f"openai:{server.url}#eye-7b", "--metrics", "removal_vqa", "--limit", 2]
    lax, strict = (evaluate(*words, "--out", tmp_path, *more) for more in ((), ("--fail-on-unscored",)))
    assert (lax.code, "have no score (" in lax.stderr, strict.code) == (0, True, 3)
    assert strict.stdout == lax.stdout != ""
