"""The two losses against naive references, and two processes against one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import multiprocessing

from nein.train.clip_finetuning.towers import choice_loss, contrastive_loss
from tests.train.clip_finetuning import joint


def test_the_contrastive_loss_is_the_mean_of_both_directions_written_out() -> None:
    torch.manual_seed(0)
    image, text, scale = torch.randn(3, 4), torch.randn(3, 4), torch.tensor(5.0)
    found = contrastive_loss(image, text, scale)
    cosine = [[float(i @ t / (i.norm() * t.norm())) for t in text] for i in image]  # a pair at a time
    total = 0.0
    for k in range(3):
        row = [math.exp(5 * cosine[k][j]) for j in range(3)]
        column = [math.exp(5 * cosine[j][k]) for j in range(3)]
        total -= math.log(row[k] / sum(row)) + math.log(column[k] / sum(column))
    assert float(found) == pytest.approx(total / 6, abs=1e-5)


def test_the_choice_loss_is_cross_entropy_with_another_number_of_options_than_questions() -> None:
    torch.manual_seed(0)
    image, options, correct = torch.randn(2, 4), torch.randn(2, 3, 4), torch.tensor([2, 0])
    found = choice_loss(image, options, correct, torch.tensor(2.0))
    total = 0.0
    for b in range(2):
        logits = [2 * float(image[b] @ o / (image[b].norm() * o.norm())) for o in options[b]]
        total -= logits[int(correct[b])] - math.log(sum(math.exp(x) for x in logits))
    assert float(found) == pytest.approx(total / 2, abs=1e-5)


def test_options_laid_out_the_other_way_round_are_refused() -> None:
    image, options = torch.randn(6, 5), torch.randn(4, 6, 5)
    with pytest.raises(ValueError, match="batch, options, dim"):
        choice_loss(image, options, torch.zeros(6, dtype=torch.int64), torch.tensor(1.0))


def test_two_processes_arrive_at_the_loss_and_gradients_of_one_with_the_joint_batch(tmp_path: Path) -> None:
    apart = {"nprocs": 2, "start_method": "forkserver"}  # a fork beside autograd's threads has no gradients
    multiprocessing.start_processes(joint.work, args=(2, str(tmp_path)), **apart)  # type: ignore[no-untyped-call]
    found = load_file(tmp_path / "found.safetensors")
    network = joint.model()
    loss = joint.loss_of(network, joint.batch())
    loss.backward()
    expected = {"loss": loss.detach(), **joint.gradients(network)}
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=0)
        assert float(value.abs().max()) > 1e-3, name  # else the tolerance would prove nothing
