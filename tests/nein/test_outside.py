"""A metric is one object: those of another package are scored, shown and checked like ours."""

from __future__ import annotations

import csv

import pytest

from nein.benchmarks.nein.runs import RunDir
from nein.engine import images
from nein.metrics import METRICS, MetricError
from tests.helpers import packages
from tests.helpers.runs import scores_in
from tests.nein import outside


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Installs a package that offers metrics, for the length of a test."""

    def install(**offered):
        packages.install(tmp_path / "site", {"nein.metrics": offered})
        monkeypatch.syspath_prepend(tmp_path / "site")

    METRICS.__dict__.pop("_all", None)
    yield install
    METRICS.__dict__.pop("_all", None)


def arguments(data, out, *more):
    return ["--editor", "identity,solid", "--data", str(data), "--out", str(out), "--device", "cpu", *more]


def test_a_metric_of_pixels_and_one_with_a_network_reach_the_table_and_the_csv(
    make_data, evaluate, tmp_path, install
):
    install(dark="tests.nein.outside:DARKENING", colours="tests.nein.outside:PALETTE")
    data, out = make_data(3, 2), tmp_path / "out"
    done = evaluate(*arguments(data, out, "--metrics", "palette,darkening,l1", "--control", "none"))
    assert done.code == 0, done.stderr
    assert "L1 ↓" in done.stdout
    assert "Palette ↑" in done.stdout
    assert "Darkening ↓" in (out / "table.md").read_text()
    with (out / "figures.csv").open() as file:
        rows = {(row["model"], row["metric"]): row for row in csv.DictReader(file)}
    assert set(rows) == {(e, m) for e in ("identity", "solid") for m in ("l1", "darkening", "palette")}
    scores = scores_in(out / "solid/negative")
    for row in (row for row in scores if row["metric"] == "darkening"):
        target = images.decode(data / "coco_for_val" / f"COCO_{row['id'][5:17]}.png")
        assert row["value"] == pytest.approx(max(0.0, target.mean() - 128) / 255)
    models = RunDir(out, "solid", "negative").manifest()["models"]
    assert [model["fingerprint"] for kind, model in models.items() if kind != "editor"] == ["colours-1"]


def test_its_settings_and_weights_are_part_of_its_identity(
    make_data, evaluate, tmp_path, install, monkeypatch
):
    install(colours="tests.nein.outside:PALETTE")
    data, out = make_data(3, 2), tmp_path / "out"
    line = arguments(data, out, "--metrics", "palette", "--control", "none")
    assert evaluate(*line, "--limit", "2", "--batch-size", "2").code == 0
    refused = evaluate(*line, "--batch-size", "2", "--align", "crop", "--align-resolution", "64")
    assert refused.code == 2
    assert "palette" in refused.stderr
    assert "align stretch, not crop at 64" in refused.stderr
    monkeypatch.setattr(outside.Colours, "fingerprint", "colours-2")
    changed = evaluate(*line, "--batch-size", "2")
    assert changed.code == 2
    assert "have changed" in changed.stderr


def test_a_name_that_nobody_offers_gets_a_near_match_among_all(make_data, evaluate, tmp_path, install):
    install(colours="tests.nein.outside:PALETTE")
    done = evaluate(*arguments(make_data(1, 1), tmp_path / "out", "--metrics", "pallette"))
    assert done.code == 2
    assert "did you mean 'palette'" in done.stderr


@pytest.mark.parametrize(("place", "sentence"), [
    ("tests.nein.outside:NOTHING", "cannot be loaded"),
    ("tests.nein.outside:NETWORK", "is no metrics.Metric"),
    ("nein.metrics.images:DINO", "takes the name 'dino'"),
])  # fmt: skip
def test_a_plug_in_that_offers_no_new_metric_is_a_sentence(install, place, sentence):
    install(mine=place)
    with pytest.raises(MetricError, match=sentence):
        list(METRICS)
