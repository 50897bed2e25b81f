"""What everything that loads models shares: weights lie alike in memory, however a file was mapped."""

from __future__ import annotations

import torch

from nein.loading.weights import ALIGNMENT, aligned


def test_weights_that_begin_anywhere_are_moved_and_keep_their_values() -> None:
    layer = torch.nn.Linear(3, 2)
    values = torch.arange(7.0)
    layer.weight.data = values[1:].view(2, 3)  # as in a mapped file: 4 bytes off
    assert layer.weight.data_ptr() % ALIGNMENT
    before = layer.bias.data_ptr()
    assert aligned(layer) is layer
    assert layer.weight.data_ptr() % ALIGNMENT == 0
    assert layer.weight.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert layer.bias.data_ptr() == before  # what lies right stays
