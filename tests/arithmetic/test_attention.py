"""Attention in tiles is torch's attention, where it is used at all."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from arithmetic import attention, processor, products
from arithmetic.attention import tiled_attention
from arithmetic.dtypes import DTYPES
from editors.machine import Machine


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


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the queries that tiles were asked for."""
    calls: list[tuple[int, ...]] = []

    def record(query: torch.Tensor, *parts: torch.Tensor, **how: bool) -> torch.Tensor:
        calls.append(tuple(query.shape))
        return tiled_attention(query, *parts, **how)

    monkeypatch.setattr(attention, "tiled_attention", record)
    return calls


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without a matrix unit, whose MKL is slow."""
    monkeypatch.setattr(processor, "has_matrix_unit", lambda: False)
    monkeypatch.setattr(processor, "has_narrow_mkl", lambda: True)


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


MANY, FEW = drawn(1, 1, 200, 8), drawn(1, 1, 77, 8)
SMALL, LARGE = torch.nn.Linear(4, 4), torch.nn.Linear(5000, 5000, device="meta")


def test_only_where_they_can_stand_for_it(tiles: list[tuple[int, ...]], plain: None) -> None:
    many, few = MANY.bfloat16(), FEW.bfloat16()
    with Machine.of("cpu", "bfloat16").attending(SMALL):
        scaled_dot_product_attention(many, many, many)
        scaled_dot_product_attention(many, few, few)
        scaled_dot_product_attention(few[:, :, :1], many, many)
        scaled_dot_product_attention(many, many, many, attn_mask=torch.zeros(200, 200).bfloat16())
    scaled_dot_product_attention(many, many, many)
    assert tiles == [(1, 1, 200, 8)]


@pytest.mark.parametrize(
    "dtype, model, chosen, times",
    [
        ("bfloat16", SMALL, {}, 1),
        ("bfloat16", SMALL, {"attention": "sdpa"}, 0),
        ("bfloat16", SMALL, {"compile": True}, 0),
        ("float32", SMALL, {}, 0),
        ("float32", SMALL, {"attention": "tiled"}, 1),
        ("float32", LARGE, {}, 1),
        ("float32", LARGE, {"attention": "sdpa"}, 0),
    ],
)
def test_only_where_they_pay_or_are_asked_for(
    dtype: str, model: torch.nn.Module, chosen: dict, times: int, tiles: list[tuple[int, ...]], plain: None
) -> None:
    if dtype == "float32" and not products.AVAILABLE:
        times = 0
    many = MANY.to(DTYPES[dtype])
    with torch.inference_mode(), Machine.of("cpu", dtype, **chosen).attending(model):
        made = scaled_dot_product_attention(many, many, many)
    assert len(tiles) == times
    torch.testing.assert_close(made, scaled_dot_product_attention(many, many, many), rtol=0.02, atol=0.01)


@pytest.mark.parametrize("dtype, quick", [("bfloat16", "has_matrix_unit"), ("float32", "has_narrow_mkl")])
def test_not_where_the_kernel_of_torch_is_quick(
    dtype: str, quick: str, tiles: list[tuple[int, ...]], plain: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, quick, lambda: quick == "has_matrix_unit")
    many = MANY.to(DTYPES[dtype])
    with torch.inference_mode(), Machine.of("cpu", dtype).attending(LARGE):
        scaled_dot_product_attention(many, many, many)
    assert tiles == []


def test_the_choice_does_not_depend_on_the_processor() -> None:
    """Edits of two machines belong to one run."""
    assert Machine.of("cpu", "float32").describe()["attention"] == "auto"
    assert Machine.of("cpu", "bfloat16").describe()["attention"] == "auto"
    assert Machine.of("cpu", "bfloat16", attention="sdpa").describe()["attention"] == "sdpa"
