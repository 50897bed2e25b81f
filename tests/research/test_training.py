"""Runs of the nano models: resumed bit for bit; smoke runs of cheap ones, of all among the slow tests."""

import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nein import editors, metrics
from nein.engine.errors import Terminated, UserError
from nein.metrics.judges.base import template
from nein.nano import zoo
from nein.nano.data import source_scene
from nein.nano.scenes import render
from research.nano import __main__ as nano
from research.nano import job as jobs
from research.nano import llava
from research.nano.job import Job
from research.nano.vision import TOWER


class Killed(Exception):
    """Stands for the end of the process."""


def make_job(init, *, kill_at=-1, politely=False, **options):
    """A job with dropout and a teacher. `kill_at`: the step in which it ends, `politely` by SIGTERM."""
    torch.manual_seed(init)
    net, teacher = (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)) for _ in range(2))
    teacher.requires_grad_(False)

    def loss(step, generator):
        if step == kill_at and not politely:
            raise Killed
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGTERM)
        x, y = torch.randn(5, 4, generator=generator), torch.randn(5, 2, generator=generator)
        return (net(x) - y).square().mean(), {}

    def after(step):
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    options = {"steps": 6, "lr": 1e-2, "batch": 5, "warmup": 2, **options}
    job = Job("tiny", {"net": net}, loss, dict, after=after, followers={"teacher": teacher}, **options)
    return job, net


def run(job, work, seed=11):
    return jobs.run(job, device=torch.device("cpu"), seed=seed, work=work)


def saved(work):
    newest = max((work / "tiny" / "checkpoints").iterdir())
    files = sorted(newest.glob("*.safetensors"))
    return {f"{file.stem}/{key}": value for file in files for key, value in load_file(file).items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("politely, every", [(False, 1), (False, 2), (True, 100)])
def test_a_killed_run_goes_on_bit_for_bit(politely, every, tmp_path, monkeypatch):
    job, whole = make_job(0)
    run(job, tmp_path / "whole")
    monkeypatch.setattr(jobs, "SAVE_EVERY", every)
    job, _ = make_job(0, kill_at=3, politely=politely)
    with pytest.raises(Terminated if politely else Killed):
        run(job, tmp_path / "work")
    job, net = make_job(99)  # other initial weights: all must come from the state
    record = run(job, tmp_path / "work")
    assert record["steps"] == 6
    assert equal(net.state_dict(), whole.state_dict())
    assert equal(saved(tmp_path / "work"), saved(tmp_path / "whole"))
    job, again = make_job(5, kill_at=0)  # finished: would end in its first step
    run(job, tmp_path / "work")
    assert equal(again.state_dict(), whole.state_dict())
    job, other = make_job(0)
    run(job, tmp_path / "other", seed=12)
    assert not equal(other.state_dict(), whole.state_dict())


def test_what_comes_out_is_the_average_and_the_state_keeps_the_weights(tmp_path):
    job, net = make_job(0, steps=1, ema=0.5)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run(job, tmp_path)
    for name, value in net.state_dict().items():  # decay min(0.5, 1/10): 9/10 of the new weights
        expected = 0.1 * before[name] + 0.9 * saved(tmp_path)[f"weights/net.{name}"]
        torch.testing.assert_close(value, expected)
    # A run may leave before its schedule ends.
    assert run(make_job(0, stop=4)[0], tmp_path / "early")["steps"] == 4


@pytest.mark.parametrize("change, shown", [({"steps": 8}, "steps 6"), ({"batch": 7}, "batch_size 5")])
def test_a_state_of_other_settings_is_refused(change, shown, tmp_path):
    run(make_job(0)[0], tmp_path)
    with pytest.raises(UserError) as caught:
        run(make_job(0, **change)[0], tmp_path)
    assert shown in str(caught.value).replace("total ", "")
    assert "another --work folder" in str(caught.value)


def smoke(root, *models, scale="0.001"):
    line = [*models, "--scale", scale, "--device", "cpu"]
    nano.main([*line, "--work", str(root / "work"), "--zoo", str(root / "zoo")])
    return root / "zoo"


def link(root, *names):
    (root / "zoo").mkdir(exist_ok=True)
    for name in names:
        (root / "zoo" / name).symlink_to(zoo.ZOO / name)


def record_of(folder, file="training.json"):
    record = json.loads((folder / file).read_text())
    assert (record["seed"], record["device"], record["torch"]) == (nano.SEED, "CPU", torch.__version__)
    assert record["steps"] >= 2
    assert all(math.isfinite(value) for value in record.get("held_out", {}).values())
    return record


def pictures(count=3):
    return [render(source_scene("val", i)) for i in range(count)]


def test_a_smoke_run_writes_a_model_that_loads_a_record_and_a_card_the_same_again(tmp_path):
    folder = smoke(tmp_path, "lpips") / "lpips"
    record = record_of(folder)
    assert f"| steps | {record['steps']} |" in (folder / "README.md").read_text()
    a, b, _ = pictures()
    same, other = metrics.load_encoder("lpips", str(folder)).distances([a, a], [a, b], [0, 1])
    assert same == 0 < other
    again = smoke(tmp_path / "again", "lpips") / "lpips"
    assert (folder / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "name, first", [("clip", "backbone"), ("sam", "backbone"), ("zone-action", "vae ip2p")]
)
def test_a_model_without_what_it_builds_on_says_what_to_train_first(name, first, tmp_path):
    with pytest.raises(SystemExit, match=f"train it first: python -m research.nano {first}"):
        smoke(tmp_path, name)


def test_a_smoke_run_of_sam_writes_a_model_that_zone_opens(tmp_path):
    from transformers import CLIPVisionConfig, CLIPVisionModel

    from nein.editors.zone.models import Segmenter

    state = CLIPVisionModel(CLIPVisionConfig(**TOWER)).state_dict()
    (tmp_path / "zoo" / "backbone").mkdir(parents=True)
    save_file(
        {k: v.contiguous() for k, v in state.items()}, tmp_path / "zoo" / "backbone" / "model.safetensors"
    )
    folder = smoke(tmp_path, "sam") / "sam"
    assert {"best_mask_iou", "things_found_at_iou_0.7"} <= set(record_of(folder)["held_out"])
    segmenter = Segmenter(str(folder), torch.device("cpu"), points=4, quality=-1.0, stability=0.0)
    assert all(segment.shape == (64, 64) for segment in segmenter(pictures(1)[0]))


def test_the_action_classifier_learns_in_seconds_on_the_shipped_text_encoder(tmp_path):
    link(tmp_path, "ip2p")
    folder = smoke(tmp_path, "zone-action", scale="0.1") / "zone-action"
    assert record_of(folder)["held_out"]["accuracy_fixed"] > 0.9


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return smoke(tmp_path_factory.mktemp("smoke"), "all")


@pytest.mark.slow
def test_every_smoke_run_leaves_a_record_and_every_shipped_model_a_card(trained):
    for name in nano.MODELS:
        folder = trained / ("ip2p" if name == "vae" else name)
        record_of(folder, "training-vae.json" if name == "vae" else "training.json")
        assert (folder / "README.md").exists() == (zoo.ZOO / folder.name / "README.md").exists()
    suffixes = {p.suffix for p in trained.rglob("*") if p.is_file()}
    assert suffixes <= {".json", ".md", ".safetensors", ".jinja", ".txt"}


@pytest.mark.slow
def test_trained_models_edit_encode_and_answer(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path))
    seen = pictures(2)
    with monkeypatch.context() as patched:
        patched.setattr(zoo, "ZOO", trained)
        for name in ("ip2p", "magicbrush"):
            editor = editors.get_editor(f"{name}-nano", checkpoint=str(zoo.path(name)), steps=2, batch_size=3)
            asked = [editors.EditRequest(str(i), p, "Remove the dog.", seed=i) for i, p in enumerate(seen)]
            assert [np.shape(result.image) for result in editor.edit(asked)] == [(64, 64, 3)] * 2
    for kind, name in (("clip", "clip"), ("dino", "dino"), ("fid", "dino")):
        values = np.asarray(metrics.load_encoder(kind, str(trained / name)).encode(seen))
        assert np.isfinite(values).all()
        assert not np.allclose(values[0], values[1])
    vqa = metrics.load_judge("vqa", str(trained / "llava"))
    prompt = template(vqa.template)
    assert prompt.ask_presence("fire hydrant") == llava.HEAD + llava.CONTAIN.format("fire hydrant")
    assert prompt.ask_caption("A dog.") == llava.HEAD + llava.DESCRIBE.format("A dog.")
    assert len(vqa.ask(seen, [[prompt.ask_presence("dog")], [prompt.ask_presence("cat")]])) == 2
    found = metrics.load_judge("ovd", str(trained / "owlv2")).detect(seen, [["dog", "cat"], ["car"]])
    assert [set(f) for f in found] == [{"dog", "cat"}, {"car"}]
    scores = metrics.load_judge("itm", str(trained / "blip")).match(seen, [["dog"], ["cat", "car"]])
    assert [len(row) for row in scores] == [1, 2]
    whole = zoo.continued("reward", trained / "blip", trained)
    [one] = metrics.load_reward(f"matching:{whole}").score(seen[:1], seen[:1], ["No dog."])
    assert one.value is not None
