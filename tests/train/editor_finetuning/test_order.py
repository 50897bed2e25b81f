from collections import Counter

import numpy as np
import pytest
import torch

from nein.train.editor_finetuning.batches import Order, draw_numbers
from nein.train.editor_finetuning.data import Example, Pairs


def numbered(negative=10, affirmative=6):
    first = [Example(f"n{i}", i, False, f"no {i}") for i in range(negative)]
    second = [Example(f"a{i}", negative + i, False, f"add {i}") for i in range(affirmative)]
    return Pairs([], first, second, {})


def drawn(position, seed=0, **options):
    settings = {"shape": (4, 2, 2), "timesteps": 1000, "flip": 0.5, "dropout": 0.05, **options}
    return draw_numbers(seed, position, **settings)


@pytest.mark.parametrize("mix", [0.0, 0.25, 0.5])
def test_every_negative_comes_once_before_any_comes_again_and_epochs_differ(mix):
    order = Order(numbered(), mix, seed=1)
    ids = [name for p in range(order.count_positions(3)) if (name := order.find(p).id).startswith("n")]
    epochs = [ids[:10], ids[10:20], ids[20:]]
    assert all(sorted(epoch) == sorted(f"n{i}" for i in range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("mix", [0.0, 0.1, 0.25, 0.5, 0.9])
def test_any_run_of_positions_has_the_affirmative_share(mix):
    order = Order(numbered(), mix, seed=1)
    kinds = np.array([order.find(p).id.startswith("a") for p in range(400)])
    for start in (0, 7, 200):
        assert abs(kinds[start : start + 100].mean() - mix) <= 0.0101
    assert Counter(order.find(p).id for p in range(400) if kinds[p]).keys() <= {f"a{i}" for i in range(6)}


def test_the_length_of_an_epoch_counts_what_is_mixed_in():
    assert Order(numbered(), 0.0, seed=0).count_positions(8) == 80
    order = Order(numbered(), 0.5, seed=0)
    assert order.count_positions(1) == 20
    assert sum(order.find(p).id.startswith("n") for p in range(20)) == 10


def test_conditions_are_dropped_as_published_five_per_cent_each():
    draws = [drawn(p) for p in range(6000)]
    kinds = Counter((d.drop_text, d.drop_image) for d in draws)
    for kind in ((True, False), (True, True), (False, True)):
        assert abs(kinds[kind] / 6000 - 0.05) < 0.01
    assert abs(sum(d.flip for d in draws) / 6000 - 0.5) < 0.03
    steps = [d.timestep for d in draws]
    assert min(steps) >= 0
    assert 990 < max(steps) < 1000
    assert abs(np.mean(steps) - 499.5) < 15


def test_draws_belong_to_the_position_and_leave_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, again, other = drawn(3), drawn(3), drawn(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.noise, again.noise)
    assert not torch.equal(one.noise, other.noise)
    assert not torch.equal(one.noise, one.posterior)
    assert not torch.equal(one.noise, drawn(3, seed=1).noise)
