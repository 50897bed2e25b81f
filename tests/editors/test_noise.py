"""Noise per sample."""

from __future__ import annotations

import torch

from editors.noise import SampleNoise

CPU = torch.device("cpu")
SHAPE = (4, 5, 3)


def draws(seeds, count=3):
    noise = SampleNoise(seeds, SHAPE, CPU)
    return torch.stack([noise.draw() for _ in range(count)], dim=1)


def test_a_sample_has_its_own_stream_whatever_the_batch_and_order():
    batch = draws([7, 8, 9])
    assert batch.shape == (3, 3, *SHAPE)
    assert batch.dtype == torch.float32
    torch.testing.assert_close(draws([9, 7]), batch[[2, 0]], rtol=0, atol=0)
    torch.testing.assert_close(draws([8]), batch[[1]], rtol=0, atol=0)


def test_the_stream_is_torchs_own_generator():
    generator = torch.Generator().manual_seed(8)
    expected = torch.stack([torch.randn(SHAPE, generator=generator) for _ in range(3)])
    torch.testing.assert_close(draws([8])[0], expected, rtol=0, atol=0)


def test_seeds_and_successive_draws_differ_and_look_standard_normal():
    noise = SampleNoise(range(50), (4, 16, 16), CPU)
    first, second = noise.draw(), noise.draw()
    for a, b in [(first, second), (first[1:], first[:-1]), (second[1:], second[:-1])]:
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(correlation) < 0.02  # 50,000 values: standard error 0.0045
    assert abs(first.mean()) < 0.02
    assert abs(first.std() - 1) < 0.02


def test_equal_seeds_give_equal_rows():
    batch = draws([3, 3])
    torch.testing.assert_close(batch[0], batch[1], rtol=0, atol=0)
