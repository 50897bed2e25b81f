"""Features of targets across editors, answers about samples, the Frechet distance, and metrics of others."""

import json

import numpy as np
import pytest
import safetensors

from nein.benchmarks.nein import stages
from nein.engine import images
from nein.metrics import METRICS, MetricError
from nein.metrics.fid import frechet_distance
from tests.helpers import packages
from tests.helpers.runs import edits_of, scores_in
from tests.rehearsal import ScriptedDetector


class Colours:
    """An encoder that can be worked out by hand: mean and spread of each channel, (N, 6) float32."""

    fingerprint, encoded = "colours-1", 0

    def describe(self):
        return {"kind": "colours"}

    def encode(self, images):
        self.encoded += len(images)
        return np.stack([np.r_[p.mean((0, 1)), p.std((0, 1))] / 255 for p in images]).astype(np.float32)


#: Has the name of one of ours.
TAKEN = METRICS["dino"]


@pytest.fixture
def colours(monkeypatch):
    encoder = Colours()
    load = lambda wanted, *_: dict.fromkeys(stages.list_model_kinds(wanted), encoder)  # noqa: E731
    monkeypatch.setattr(stages, "load_models", load)
    return encoder


def options(data, out, *more, metrics="clip_i,fid"):
    line = ["--data", data, "--out", out, "--device", "cpu", "--batch-size", "3", "--control", "none"]
    named = [part for kind in ("clip", "fid", "ovd") for part in (f"--models.{kind}", "made-here")]
    return [*line, "--stages", "edit,score", "--metrics", metrics, *named, *more]


def fid(out, editor="identity"):
    return json.loads((out / editor / "negative" / "corpus.json").read_text())["fid"]


def features_of(paths):
    return Colours().encode([images.decode(path) for path in paths])


@pytest.mark.parametrize(("editor", "protocol"), [
    ("identity", "paper"), ("identity", "fixed"), ("flaky", "fixed"),
])  # fmt: skip
def test_fid_is_that_of_the_folders_without_failed_edits_and_the_protocols_differ(
    make_data, evaluate, colours, tmp_path, editor, protocol
):
    data, out = make_data(4, 3), tmp_path / "out"
    # One source has a single sample, so the two reference sets weigh the scenes differently.
    records = json.loads((data / "val.json").read_text())[:10]
    (data / "val.json").write_text(json.dumps(records))
    assert evaluate("--editor", editor, *options(data, out, "--protocol", protocol)).code == 0
    good = [edit for edit in edits_of(out / editor / "negative") if edit["image"]]
    assert (len(good) == 10) == (editor == "identity")
    edited = features_of([data / "nein_val" / f"{edit['id']}.png" for edit in good])
    stems = [edit["source_id"] for edit in good]
    once = features_of([data / "coco_for_val" / f"{stem}.png" for stem in dict.fromkeys(stems)])
    each = features_of([data / "coco_for_val" / f"{stem}.png" for stem in stems])
    expected = {"paper": frechet_distance(edited, once), "fixed": frechet_distance(edited, each)}
    assert abs(expected["paper"] - expected["fixed"]) > 1e-6
    entry = fid(out, editor)
    assert entry["value"] == pytest.approx(expected[protocol], abs=1e-9)
    assert (entry["n"], entry["n_unscored"]) == (len(good), 10 - len(good))
    assert entry["n_target"] == (len(once) if protocol == "paper" else len(good))
    assert entry["low"] <= entry["value"] <= entry["high"]


def test_target_features_are_computed_once_for_all_editors(make_data, evaluate, colours, tmp_path):
    data, out = make_data(3, 3), tmp_path / "out"  # three blocks of three source images
    in_order = ("--on", "debug")  # two threads that meet at one target may both encode it
    assert evaluate("--editor", "identity,solid", *options(data, out, metrics="clip_i"), *in_order).code == 0
    assert colours.encoded == 2 * 9 + 9  # targets of a block once
    assert evaluate("--editor", "flaky", *options(data, out, metrics="clip_i"), *in_order).code == 0
    edited = sum(1 for _ in (out / "flaky/negative/images").rglob("*.png"))
    assert colours.encoded == 2 * 9 + 9 + 2 * edited  # a block with failed edits has other targets


def test_features_that_are_damaged_or_of_another_block_are_refused_and_made_again(
    make_data, evaluate, colours, tmp_path
):
    line = ["--editor", "identity,solid", *options(make_data(3, 3), tmp_path / "out")]
    assert evaluate(*line).code == 0
    one, other, *_ = sorted((tmp_path / "out/identity").rglob("*.safetensors"))
    elsewhere = tmp_path / "out/solid" / one.relative_to(tmp_path / "out/identity")
    before, corpus = one.read_bytes(), fid(tmp_path / "out")
    with safetensors.safe_open(one, "numpy") as file:  # keys of metadata have another order in every process
        assert [*file.metadata()] == ["about"]
    foreign = [(file.read_bytes(), "belongs to other images") for file in (other, elsewhere)]
    for spoiled, said in ((before[:50], "is damaged"), *foreign):
        one.write_bytes(spoiled)
        refused = evaluate(*line)
        assert refused.code == 2
        assert said in refused.stderr
    one.unlink()
    assert evaluate(*line).code == 0
    assert (one.read_bytes(), fid(tmp_path / "out")) == (before, corpus)


def test_questions_about_the_unedited_sample_are_asked_once_for_all_editors(
    make_data, evaluate, tmp_path, monkeypatch
):
    detector = ScriptedDetector(lambda image, label: float(image.std() > 10 and label != "cat"))
    monkeypatch.setattr(stages, "load_models", lambda *_: {"ovd": detector})
    data, out = make_data(2, 2), tmp_path / "out"
    (tmp_path / "c.yaml").write_text("evidence: own")
    line = [*options(data, out, metrics="removal_ovd,retention_ovd"), "--config", tmp_path / "c.yaml"]
    assert evaluate("--editor", "identity", *line).code == 0
    first = detector.asked
    assert evaluate("--editor", "solid", *line).code == 0
    again = detector.asked - first
    scores = scores_in(out / "identity" / "negative")
    kept = [row["detail"] for row in scores if row["metric"] == "retention_ovd"]
    objects = sum(len(detail["objects"]) for detail in kept)
    # Again: the object and the kept ones in the edit, nothing about the sample.
    assert again == 4 + sum(len(detail["in_sample"]) for detail in kept)
    assert first == again + objects > again


@pytest.fixture
def install(monkeypatch, tmp_path):
    def install(**offered):
        packages.install(tmp_path / "site", {"nein.metrics": offered})
        monkeypatch.syspath_prepend(tmp_path / "site")

    METRICS.__dict__.pop("_all", None)
    yield install
    METRICS.__dict__.pop("_all", None)


@pytest.mark.parametrize(("place", "sentence"), [
    ("NOTHING", "cannot be loaded"), ("Colours", "must be a metrics.Metric"),
    ("TAKEN", "has the taken name 'dino'"),
])  # fmt: skip
def test_a_plug_in_that_offers_no_new_metric_is_a_sentence(install, place, sentence):
    install(mine=f"{__name__}:{place}")
    with pytest.raises(MetricError, match=sentence):
        list(METRICS)
