"""Attention in tiles is torch's attention, where it is used at all."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from arithmetic import attention
from arithmetic.attention import tiled_attention
from editors.machine import Machine


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("scale", [None, 0.3])
def test_tiles_give_what_torch_gives(scale: float | None) -> None:
    query, key, value = drawn(2, 3, 600, 20), drawn(2, 3, 300, 20), drawn(2, 3, 300, 12)
    torch.testing.assert_close(
        tiled_attention(query, key, value, scale),
        scaled_dot_product_attention(query, key, value, scale=scale),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_tiles_of_shared_keys_see_nothing_that_comes_later() -> None:
    query, key, value = drawn(2, 6, 600, 20), drawn(2, 2, 600, 20), drawn(2, 2, 600, 12)
    torch.testing.assert_close(
        tiled_attention(query, key, value, causal=True),
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


def test_only_where_they_pay_and_can_stand_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machine.of("cpu", "bfloat16").describe()["attention"] == "tiled"
    assert Machine.of("cpu", "float32").describe()["attention"] == "sdpa"
    assert Machine.of("cpu", "bfloat16", compile=True).describe()["attention"] == "sdpa"
    assert Machine.of("cpu", "bfloat16", attention="sdpa").describe()["attention"] == "sdpa"

    calls: list[tuple[int, ...]] = []
    tiles = attention.tiled_attention
    monkeypatch.setattr(
        attention,
        "tiled_attention",
        lambda *parts, **how: calls.append(parts[0].shape) or tiles(*parts, **how),
    )
    many, few = drawn(1, 1, 200, 8), drawn(1, 1, 77, 8)
    with Machine.of("cpu", "bfloat16").attending():
        scaled_dot_product_attention(many, many, many)
        scaled_dot_product_attention(many, few, few)
        scaled_dot_product_attention(few[:, :, :1], many, many)
        scaled_dot_product_attention(many, many, many, attn_mask=torch.zeros(200, 200))
    scaled_dot_product_attention(many, many, many)
    assert calls == [(1, 1, 200, 8)]
