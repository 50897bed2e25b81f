"""Attention in tiles is torch's attention, where it is used at all."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from arithmetic import products
from arithmetic.attention import tiled_attention


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("by_onednn", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_tiles_give_what_torch_gives(scale: float | None, by_onednn: bool) -> None:
    query, key, value = drawn(2, 3, 600, 20), drawn(2, 3, 300, 20), drawn(2, 3, 300, 12)
    with torch.inference_mode(by_onednn):
        made = tiled_attention(query, key, value, scale)
    torch.testing.assert_close(
        made,
        scaled_dot_product_attention(query, key, value, scale=scale),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("by_onednn", [False, True])
def test_tiles_of_shared_keys_see_nothing_that_comes_later(by_onednn: bool) -> None:
    query, key, value = drawn(2, 6, 600, 20), drawn(2, 2, 600, 20), drawn(2, 2, 600, 12)
    with torch.inference_mode(by_onednn):
        made = tiled_attention(query, key, value, causal=True)
    torch.testing.assert_close(
        made,
        scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_in_bfloat16_tiles_are_as_near_to_the_truth_as_the_library() -> None:
    query, key, value = drawn(1, 4, 512, 40), drawn(1, 4, 512, 40), drawn(1, 4, 512, 40)
    truth = scaled_dot_product_attention(query, key, value)
    half = [part.bfloat16() for part in (query, key, value)]
    ours, theirs = (
        (function(*half).float() - truth).abs().mean()
        for function in (tiled_attention, scaled_dot_product_attention)
    )
    # Probabilities are rounded to 8 bits before they weight the values, which torch's kernel also does; the
    # normalisation is rounded with them: at most another half of that.
    assert ours < 1.5 * theirs


def test_tiles_do_not_slice_what_onednn_is_slow_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights: list[torch.Tensor] = []

    def record(x: torch.Tensor, weight: torch.Tensor, bias: None) -> torch.Tensor:
        weights.append(weight)
        return x @ weight.T

    monkeypatch.setattr(products, "product", record)
    query = drawn(1, 2, 600, 20)
    with torch.inference_mode():
        tiled_attention(query, query, query, causal=True)
    assert len(weights) == 2 * 2 * 3  # products, heads, tiles
    for weight in weights:
        dense = weight if weight.stride(1) == 1 else weight.T
        assert dense.is_contiguous()
