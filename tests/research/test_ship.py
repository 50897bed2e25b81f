"""A fine-tuned nano editor in the zoo is its base with the changed tensors laid over."""

import json

import numpy as np
import pytest
import safetensors.numpy

from nein.engine.errors import UserError
from nein.nano import zoo
from nein.reporting import figures as frames
from nein.statistics import Estimate
from research.nano import ship as shipping


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A zoo with an ip2p of three small tensors, and a finished run that changed two of them."""
    root, run = tmp_path / "zoo", tmp_path / "run"
    base = {name: np.full((2, 2), value, np.float16) for name, value in (("a", 1), ("b", 2), ("c", 3))}
    for part in ("vae", "text_encoder", "tokenizer", "scheduler", "unet"):
        (root / "ip2p" / part).mkdir(parents=True)
        (root / "ip2p" / part / "config.json").write_text(json.dumps({"part": part}))
    (root / "ip2p" / "README.md").write_text("card")
    (root / "ip2p" / "model_index.json").write_text("{}")
    safetensors.numpy.save_file(base, root / "ip2p" / zoo.UNET)
    (run / "model" / "unet").mkdir(parents=True)
    tuned = {"a": base["a"], "b": base["b"] + np.float16(1e-5), "c": base["c"] + np.float16(1)}
    tuned = {name: value.astype(np.float32) for name, value in tuned.items()}
    safetensors.numpy.save_file(tuned, run / "model" / zoo.UNET)
    record = {
        "base": "nano:ip2p", "base_weights_sha256": "0" * 64, "steps": 5, "seconds": 9, "torch": "2",
        "options": {
            "trainable": "all", "batch_size": 4, "learning_rate": 0.1, "mix_affirmative": 0.5, "seed": 0,
        },
        "data": {
            "used": 3, "hold_out_objects": ["bus"], "hold_out_templates": [1], "affirmative": {"pairs": 6},
        },
    }  # fmt: skip
    (run / "model" / "training.json").write_text(json.dumps(record))
    (root / "nein-ip2p").mkdir()
    card = (zoo.ZOO / "nein-ip2p" / "README.md").read_text(encoding="utf-8")
    (root / "nein-ip2p" / "README.md").write_text(card, encoding="utf-8")
    monkeypatch.setattr(zoo, "ZOO", root)
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))
    return root, run


def test_only_changed_tensors_are_kept_and_the_whole_is_put_together(shelf):
    root, run = shelf
    folder = shipping.ship(run, "nein-ip2p", root=root)
    kept = safetensors.numpy.load_file(folder / zoo.CHANGES)
    assert set(kept) == {"c"}  # b's difference is lost in float16
    assert zoo.changes_base(folder / zoo.CHANGES) == "ip2p"
    whole = zoo.path("nein-ip2p")
    found = safetensors.numpy.load_file(whole / zoo.UNET)
    assert {name: float(value[0, 0]) for name, value in found.items()} == {"a": 1, "b": 2, "c": 4}
    assert not (whole / zoo.CHANGES).exists()
    assert json.loads((whole / "unet" / "config.json").read_text()) == {"part": "unet"}
    assert (whole / "vae" / "config.json").exists()
    assert "nein-ip2p" in zoo.available()
    card = (folder / "README.md").read_text()
    for words in ("fine-tuned on NeIn", "--recipe nano --base nano:ip2p", "| hold out objects | bus |"):
        assert words in card
    safetensors.numpy.save_file({**found, "a": found["b"]}, root / "ip2p" / zoo.UNET)
    assert zoo.path("nein-ip2p") != whole  # of another base


def test_the_card_takes_its_figures_from_a_comparison(shelf, tmp_path):
    root, run = shelf
    report = tmp_path / "figures.csv"
    what = {"task": "comparisons", "first": "new/remove", "second": "ip2p/remove", "metric": "removal_vqa"}
    values = {"first": (0.9, "%"), "second": (0.1, "%"), "difference": (0.8, "points")}
    figures = [
        frames.figure(Estimate(v, v - 0.1, v + 0.1, 0.05, 40, 40), unit=unit, statistic=statistic, **what)
        for statistic, (v, unit) in values.items()
    ]
    frames.write(report, frames.frame(figures))
    folder = shipping.ship(run, "nein-ip2p", report, root=root)
    told = "remove: removal vqa | 10.0 before, 90.0 after, difference 80.0 [70.0, 90.0], n 40"
    assert told in (folder / "README.md").read_text()
    frames.write(report, frames.frame(figures[:2]))
    with pytest.raises(UserError, match="has no figures"):
        shipping.ship(run, "nein-ip2p", report, root=root)


@pytest.mark.parametrize(
    "name, said", [("nein-ip3p", "did you mean 'nein-ip2p'"), ("nein-magicbrush", "started from")]
)
def test_a_wrong_name_is_one_sentence(shelf, name, said):
    root, run = shelf
    with pytest.raises(UserError, match=said):
        shipping.ship(run, name, root=root)
