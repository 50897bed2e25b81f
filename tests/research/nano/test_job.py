"""A nano model's run: once resumed it equals an uninterrupted one bit for bit; trouble is a sentence."""

from __future__ import annotations

import math
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from nein.engine.errors import UserError
from nein.engine.exits import Terminated
from research.nano import job as jobs
from research.nano.job import Job, learning_rate, sized, step_count
from train.checkpoints import Checkpoints

CPU = torch.device("cpu")


class Net(nn.Module):
    """Two layers with dropout, so that a step draws from torch's global generator too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 2))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Killed(Exception):
    """Stands for the end of the process."""


def make_job(
    init: int,
    *,
    kill_at: int | None = None,
    politely: bool = False,
    steps: int = 6,
    loss_at: dict[int, float] | None = None,
    **options: Any,
) -> tuple[Job, Net, Net]:
    """(job, student, its averaged teacher). `kill_at`: the step in which the process ends,
    `politely` by SIGTERM."""
    torch.manual_seed(init)
    net, teacher = Net(), Net()
    teacher.requires_grad_(False)

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        if step == kill_at and not politely:
            raise Killed
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGTERM)
        x = torch.randn(5, 4, generator=generator)
        value = (net(x) - torch.randn(5, 2, generator=generator)).square().mean()
        return value * (loss_at or {}).get(step, 1.0), {"x": float(x.mean())}

    def after(step: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    def deliver() -> dict[str, Any]:
        return {"held_out": {"sum": float(net.layers[0].weight.sum())}}

    options = {"warmup": 2, "after": after, "followers": {"teacher": teacher}, **options}
    job = Job("tiny", {"net": net}, loss, deliver, steps, 1e-2, 5, **options)
    return job, net, teacher


def weights(net: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def run(job: Job, work: Path, **options: Any) -> dict[str, Any]:
    return jobs.run(job, device=CPU, seed=options.pop("seed", 11), work=work, **options)


def saved(work: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The newest checkpoint of a run: name of the file -> tensors."""
    newest = max((work / "tiny" / "checkpoints").iterdir())
    return {file.stem: load_file(file) for file in newest.glob("*.safetensors")}


@pytest.fixture
def uninterrupted(tmp_path):
    """(record, weights, teacher, checkpoint) of six steps at once."""
    job, net, teacher = make_job(0)
    record = run(job, tmp_path / "whole")
    return record, weights(net), weights(teacher), saved(tmp_path / "whole")


@pytest.mark.parametrize("step, killed", [(3, 3), (3, 5), (1, 2), (5, 5)])
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    step, killed, tmp_path, monkeypatch, uninterrupted, capsys
):
    job, _, _ = make_job(0, kill_at=killed)
    save = Checkpoints.save

    def save_once(self, number):  # the state after `step` steps is the last to reach the disk
        if number == step:
            save(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "SAVE_EVERY", 1)
        patch.setattr(Checkpoints, "save", save_once)
        with pytest.raises(Killed):
            run(job, tmp_path / "work")
    job, net, teacher = make_job(99)  # other initial weights: all must come from the state
    torch.manual_seed(12345)
    record = run(job, tmp_path / "work")
    whole, expected, expected_teacher, checkpoint = uninterrupted
    assert f"step-{step:08d}" in capsys.readouterr().err
    assert equal(weights(net), expected)
    assert equal(weights(teacher), expected_teacher)
    resumed = saved(tmp_path / "work")
    assert resumed.keys() == checkpoint.keys()
    assert all(equal(resumed[name], checkpoint[name]) for name in checkpoint)
    assert record["held_out"] == whole["held_out"]


def test_a_run_leaves_averaged_weights_in_the_model_and_raw_ones_in_the_state(uninterrupted):
    _, final, _, checkpoint = uninterrupted
    for name, value in final.items():
        if name == "frozen":
            assert f"net.{name}" not in checkpoint["weights"]
            continue
        assert torch.equal(value, checkpoint["average"][f"net.{name}"])
        assert not torch.equal(value, checkpoint["weights"][f"net.{name}"])


def test_the_averaged_weights_follow_the_stated_rule(tmp_path):
    job, net, _ = make_job(0, steps=1, ema=0.5)
    before = weights(net)
    run(job, tmp_path)
    raw = saved(tmp_path)["weights"]
    for name, value in weights(net).items():
        if name != "frozen":  # after one step: decay min(0.5, 1/10), so 9/10 of the new weights
            expected = 0.1 * before[name] + 0.9 * raw[f"net.{name}"]
            assert torch.allclose(value, expected, atol=1e-7)


def test_another_seed_gives_another_run(tmp_path, uninterrupted):
    job, net, _ = make_job(0)
    run(job, tmp_path / "other", seed=12)
    assert not equal(weights(net), uninterrupted[1])


def test_a_finished_run_started_again_only_measures(tmp_path, uninterrupted):
    work = tmp_path / "whole"
    job, net, _ = make_job(5, kill_at=0)  # would end in its first step
    record = run(job, work)
    assert equal(weights(net), uninterrupted[1])
    assert record["held_out"] == uninterrupted[0]["held_out"]


def test_a_run_may_leave_before_its_schedule_ends(tmp_path, uninterrupted):
    job, net, _ = make_job(0, stop=4)
    record = run(job, tmp_path / "early")
    assert record["steps"] == 4
    assert not equal(weights(net), uninterrupted[1])
    job, net, _ = make_job(7)  # the rest of the schedule, from where it was left
    run(job, tmp_path / "early")
    assert equal(weights(net), uninterrupted[1])


def test_training_learns(tmp_path):
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    truth = torch.tensor([[1.0], [-2.0], [0.5]])
    errors = []

    def loss(step, generator):
        x = torch.randn(16, 3, generator=generator)
        value = (layer(x) - x @ truth).square().mean()
        errors.append(float(value.detach()))
        return value, {}

    job = Job("line", {"layer": layer}, loss, dict, 150, 0.1, 16, warmup=5, weight_decay=0.0, ema=0.9)
    record = run(job, tmp_path)
    assert errors[-1] < 0.02 * errors[0]
    assert layer.weight.squeeze().tolist() == pytest.approx([1.0, -2.0, 0.5], abs=0.1)
    assert {k: record[k] for k in ("steps", "batch", "learning_rate")} == {
        "steps": 150, "batch": 16, "learning_rate": 0.1,
    }  # fmt: skip
    assert record["seconds"] >= 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_run_with_a_sentence(value, tmp_path):
    job, _, _ = make_job(0, loss_at={3: value})
    with pytest.raises(UserError, match=r"loss is not finite between steps \d and 4; no.*Lower the"):
        run(job, tmp_path)
    assert not list((tmp_path / "tiny").glob("checkpoints/step-*"))


@pytest.mark.parametrize(
    "change, shown", [({"steps": 8}, "steps 6"), ({"seed": 12}, "seed 11"), ({"batch": 7}, "batch_size 5")]
)
def test_a_state_of_other_settings_is_refused_with_a_sentence(change, shown, tmp_path, uninterrupted):
    job, _, _ = make_job(0, steps=change.get("steps", 6))
    job.batch = change.get("batch", 5)
    with pytest.raises(UserError) as caught:
        run(job, tmp_path / "whole", seed=change.get("seed", 11))
    assert f"tiny' holds a run with {shown}" in str(caught.value).replace("total ", "")
    assert "use the same settings or another --work folder" in str(caught.value)


def test_a_terminated_run_goes_on_from_the_step_it_was_in(tmp_path, uninterrupted):
    job, _, _ = make_job(0, kill_at=2, politely=True)
    with pytest.raises(Terminated):
        run(job, tmp_path)
    assert max((tmp_path / "tiny" / "checkpoints").iterdir()).name >= "step-00000003"
    job, net, _ = make_job(99)
    run(job, tmp_path)
    assert equal(weights(net), uninterrupted[1])


def test_the_learning_rate_warms_up_linearly_and_falls_as_a_cosine_to_two_percent():
    rates = [learning_rate(step, 100, 2.0, 10) for step in range(101)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(2.0 * (0.02 + 0.98 / 2))
    assert rates[100] == pytest.approx(0.04)
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert learning_rate(0, 10, 1.0, 0) == 1.0
    assert learning_rate(0, 2, 1.0, 4) == 0.25


def test_the_optimiser_uses_the_schedule(tmp_path, monkeypatch):
    asked = []

    def zero(step, steps, peak, warmup):
        asked.append((step, steps, peak, warmup))
        return 0.0

    monkeypatch.setattr(jobs, "learning_rate", zero)
    job, net, _ = make_job(0)
    before = weights(net)
    run(job, tmp_path)
    assert list(dict.fromkeys(asked)) == [(i, 6, 1e-2, 2) for i in range(7)]  # the last is not used
    for name, value in weights(net).items():
        assert torch.allclose(value, before[name], atol=1e-6)  # no rate, no change


def test_batches_and_steps_shrink_with_the_scale():
    assert sized(48, 1.0, 4) == 48
    assert sized(48, jobs.SMOKE, 4) == 48
    assert sized(48, 0.001, 4) == 4
    assert sized(3, 0.001, 4) == 3
    assert step_count(3000, 0.1) == 300
    assert step_count(3000, 1e-9) == 2
